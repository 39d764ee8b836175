"""Tensors of rank one and more inside a mod: functions from indices to scalars.

A mod may slice, transpose, convert or add to a captured tensor before indexing it. Such
a tensor is never materialised. It is a *field*, which can load one element. Views and
pointwise ops compose fields.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product as places
from math import prod
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true
from xdsl.dialects import arith
from xdsl.ir import SSAValue

from flexc.dialects.flex import DimOp, LoadCaptureOp
from flexc.errors import UnsupportedOpError
from flexc.frontend.scalars import Emitter, Scalar, element_type, number, promote

Load = Callable[[Emitter, Sequence[Scalar]], Scalar]

MAX_REDUCED = 64
"""The largest number of elements that a mod combines: their code is unrolled."""


@dataclass(frozen=True, eq=False)
class Size:
    """The extent of a dimension, emitted as an integer of the requested dtype."""

    emit: Callable[[Emitter, torch.dtype], Scalar]
    known: int | None = None
    """The extent, if tracing knows it. A guard ensures it if it was a symbol."""

    @property
    def is_one(self) -> bool:
        return self.known == 1

    @property
    def constant(self) -> int:
        """The extent, which must be known."""
        if self.known is None:
            raise UnsupportedOpError(
                "this op needs tensors whose sizes are numbers, got one that the mod "
                "computes: compute a table before the call, capture it and index it"
            )
        return self.known


@dataclass(frozen=True, eq=False)
class Field:
    """A tensor that is read one element at a time."""

    dtype: torch.dtype
    sizes: tuple[Size, ...]
    load: Load

    @property
    def rank(self) -> int:
        return len(self.sizes)


Value = Scalar | Field


def constant_size(n: int) -> Size:
    return Size(lambda e, dtype: e.constant(n, dtype), n)


def scalar_size(n: Scalar) -> Size:
    """Return a size that the mod computed."""
    return Size(lambda e, dtype: e.cast(n, dtype))


def traced_sizes(sizes: Sequence[Size], shape: Sequence[Any]) -> tuple[Size, ...]:
    """Return sizes in which the extents that the traced shape knows are constants.

    The traced shape determines which dimensions are broadcast.
    """
    known = [known_extent(extent) for extent in shape]
    return tuple(
        size if n is None else constant_size(n)
        for size, n in zip(sizes, known, strict=True)
    )


def known_extent(extent: Any) -> int | None:
    """Return a traced extent as a number, if tracing knows it."""
    if isinstance(extent, int):
        return extent
    # A guard on a product, as of a view's sizes, gives no symbol a value.
    hint = extent.node.hint
    return hint if statically_known_true(extent == hint) else None


def captured_field(tensor: SSAValue, dtype: torch.dtype, shape: Sequence[Any]) -> Field:
    """Return a captured tensor as a field. `shape` is the traced shape."""

    def size(d: int) -> Size:
        def emit(e: Emitter, index: torch.dtype) -> Scalar:
            type_ = element_type(index)
            return Scalar(index, e.insert(DimOp(tensor, d, type_)), nonnegative=True)

        return Size(emit)

    def load(e: Emitter, indices: Sequence[Scalar]) -> Scalar:
        values = [e.ssa(as_index(e, i)) for i in indices]
        return Scalar(dtype, e.insert(LoadCaptureOp(tensor, values)))

    sizes = [size(d) for d in range(len(shape))]
    return Field(dtype, traced_sizes(sizes, shape), load)


def as_field(value: Value) -> Field:
    """Return a scalar as a field of rank 0. Fields are returned unchanged."""
    if isinstance(value, Field):
        return value
    return Field(value.dtype, (), lambda e, indices: value)


def as_value(e: Emitter, field: Field) -> Value:
    """Return a field of rank 0 as a scalar. Other fields are returned unchanged."""
    return field if field.rank else field.load(e, ())


def as_index(e: Emitter, index: Scalar) -> Scalar:
    """Return an index as i32, or as i64 if it is wider or unbounded."""
    if index.dtype is torch.bool or index.dtype.is_floating_point:
        raise UnsupportedOpError(
            f"an index into a captured tensor is an integer, got {index.dtype}: "
            "use torch.where for masks"
        )
    fits = index.const is not None and -(2**31) <= index.const < 2**31
    wide = index.dtype is torch.int64 and not fits
    return e.cast(index, torch.int64 if wide else torch.int32)


def wrapped(e: Emitter, index: Scalar, size: Size) -> Scalar:
    """Return an index in which a negative value counts from the end."""
    index = as_index(e, index)
    if index.nonnegative:
        return index
    # A size that meets an i32 index is truncated as the index is.
    extent = size.emit(e, torch.int32 if index.is_index else index.dtype)
    from_end = e.op(arith.AddiOp, index.dtype, index, extent)
    if index.const is not None:
        return from_end
    negative = e.compare("lt", index, number(0))
    return e.select(negative, from_end, index, index.dtype)


def select(e: Emitter, x: Field, dim: int, index: Scalar) -> Field:
    """Return `x` at one index of a dimension."""
    dim %= x.rank
    at = wrapped(e, index, x.sizes[dim])

    def load(e: Emitter, indices: Sequence[Scalar]) -> Scalar:
        return x.load(e, [*indices[:dim], at, *indices[dim:]])

    return Field(x.dtype, x.sizes[:dim] + x.sizes[dim + 1 :], load)


def slice_(
    e: Emitter, x: Field, dim: int, start: Scalar, end: Scalar, step: int
) -> Field:
    """Return `x[start:end:step]` along a dimension."""
    dim %= x.rank
    size = x.sizes[dim]
    if start.const == 0 and step == 1 and end.const == torch.iinfo(torch.int64).max:
        return x
    first = _clamped(e, start, size)

    def emit(e: Emitter, dtype: torch.dtype) -> Scalar:
        length = e.op(arith.SubiOp, torch.int64, _clamped(e, end, size), first)
        length = e.op(arith.MaxSIOp, torch.int64, length, number(0))
        length = e.op(arith.CeilDivSIOp, torch.int64, length, number(step))
        return e.cast(length, dtype)

    def load(e: Emitter, indices: Sequence[Scalar]) -> Scalar:
        index = indices[dim]
        dtype = torch.int64 if first.const is None else index.dtype
        scaled = index if step == 1 else e.op(arith.MuliOp, dtype, index, number(step))
        at = e.op(arith.AddiOp, dtype, scaled, first)
        return x.load(e, [*indices[:dim], at, *indices[dim + 1 :]])

    return Field(x.dtype, (*x.sizes[:dim], Size(emit), *x.sizes[dim + 1 :]), load)


def _clamped(e: Emitter, bound: Scalar, size: Size) -> Scalar:
    """Return a bound of a slice, wrapped if negative, then clamped to the dimension."""
    if bound.const == 0:
        return number(0)
    extent = size.emit(e, torch.int64)
    if not bound.nonnegative:
        from_end = e.op(arith.AddiOp, torch.int64, bound, extent)
        negative = e.compare("lt", bound, number(0))
        bound = e.select(negative, from_end, bound, torch.int64)
        bound = e.op(arith.MaxSIOp, torch.int64, bound, number(0))
    return e.op(arith.MinSIOp, torch.int64, bound, extent)


def flip(e: Emitter, x: Field, dims: Sequence[int]) -> Field:
    """Return `x` with the elements along some dimensions in reverse order."""
    along = {d % max(x.rank, 1) for d in dims}

    def from_end(e: Emitter, index: Scalar, size: Size) -> Scalar:
        if index.const is not None and size.known is not None:
            return number(size.known - 1 - int(index.const))
        last = e.op(arith.SubiOp, torch.int64, size.emit(e, torch.int64), number(1))
        return e.op(arith.SubiOp, torch.int64, last, index)

    def load(e: Emitter, at: Sequence[Scalar]) -> Scalar:
        pairs = enumerate(zip(at, x.sizes, strict=True))
        return x.load(e, [from_end(e, *p) if d in along else p[0] for d, p in pairs])

    return Field(x.dtype, x.sizes, load)


def cat(e: Emitter, parts: Sequence[Field], dim: int, dtype: torch.dtype) -> Field:
    """Return tensors of known sizes, one after the other along a dimension."""
    # torch lets an empty vector be among tensors of any rank.
    parts = [x for x in parts if x.rank > 1 or x.sizes[0].constant] or parts[:1]
    dim %= parts[0].rank
    extents = [x.sizes[dim].constant for x in parts]

    def load(e: Emitter, at: Sequence[Scalar]) -> Scalar:
        found: Scalar | None = None
        start = 0
        for x, extent in zip(parts, extents, strict=True):
            here, inside = _within(e, at[dim], start, extent)
            if inside.const is not False:
                element = e.cast(x.load(e, [*at[:dim], here, *at[dim + 1 :]]), dtype)
                if found is not None and inside.const is not True:
                    element = e.select(inside, element, found, dtype)
                found = element
            start += extent
        assert found is not None, "an index in range is in some part"
        return found

    sizes = list(parts[0].sizes)
    sizes[dim] = constant_size(sum(extents))
    return Field(dtype, tuple(sizes), load)


def _within(
    e: Emitter, index: Scalar, start: int, extent: int
) -> tuple[Scalar, Scalar]:
    """Return a place in a part of a row, and whether the index is not before it."""
    if index.const is not None:
        at = int(index.const) - start
        return number(at), number(0 <= at < extent)
    at = e.op(arith.SubiOp, torch.int64, index, number(start))
    after = e.compare("ge", at, number(0)) if extent else number(False)
    at = e.op(arith.MaxSIOp, torch.int64, at, number(0))
    return e.op(arith.MinSIOp, torch.int64, at, number(max(extent - 1, 0))), after


def permute(x: Field, dims: Sequence[int]) -> Field:
    """Return `x` with its dimensions in another order."""
    order = [d % x.rank for d in dims]

    def load(e: Emitter, indices: Sequence[Scalar]) -> Scalar:
        source = dict(zip(order, indices, strict=True))
        return x.load(e, [source[d] for d in range(x.rank)])

    return Field(x.dtype, tuple(x.sizes[d] for d in order), load)


def diagonal(e: Emitter, x: Field, offset: int = 0, a: int = 0, b: int = 1) -> Field:
    """Return the elements at equal indices of two dimensions, along a last one."""
    a, b = a % x.rank, b % x.rank
    rows, columns = x.sizes[a].constant, x.sizes[b].constant
    first = max(-offset, 0), max(offset, 0)
    length = max(min(rows - first[0], columns - first[1]), 0)

    def shifted(e: Emitter, index: Scalar, by: int) -> Scalar:
        return e.op(arith.AddiOp, torch.int64, index, number(by)) if by else index

    def load(e: Emitter, indices: Sequence[Scalar]) -> Scalar:
        *rest, i = indices
        at = {a: shifted(e, i, first[0]), b: shifted(e, i, first[1])}
        others = iter(rest)
        return x.load(e, [at[d] if d in at else next(others) for d in range(x.rank)])

    kept = [size for d, size in enumerate(x.sizes) if d not in (a, b)]
    return Field(x.dtype, (*kept, constant_size(length)), load)


def unsqueeze(x: Field, dim: int) -> Field:
    """Return `x` with a new dimension of size 1."""
    dim %= x.rank + 1

    def load(e: Emitter, indices: Sequence[Scalar]) -> Scalar:
        return x.load(e, [*indices[:dim], *indices[dim + 1 :]])

    return Field(x.dtype, (*x.sizes[:dim], constant_size(1), *x.sizes[dim:]), load)


def squeeze(e: Emitter, x: Field, dims: Sequence[int]) -> Field:
    """Return `x` without those of the dimensions that have size 1."""
    for dim in sorted((d % x.rank for d in dims), reverse=True):
        if x.sizes[dim].is_one:
            x = select(e, x, dim, number(0))
    return x


def broadcast(x: Field, sizes: Sequence[Size]) -> Field:
    """Return `x` broadcast to `sizes`: along new dimensions and those of size 1."""
    sizes = tuple(sizes)
    new = len(sizes) - x.rank

    def load(e: Emitter, indices: Sequence[Scalar]) -> Scalar:
        pairs = zip(x.sizes, indices[new:], strict=True)
        return x.load(e, [number(0) if size.is_one else i for size, i in pairs])

    return Field(x.dtype, sizes, load)


def broadcast_in(x: Field, sizes: Sequence[Size], dims: Sequence[int]) -> Field:
    """Return `x` broadcast to `sizes`, among which `dims` are its own dimensions."""
    wide = [constant_size(1)] * len(sizes)
    for size, d in zip(x.sizes, dims, strict=True):
        wide[d] = size
    placed = Field(x.dtype, tuple(wide), lambda e, i: x.load(e, [i[d] for d in dims]))
    return broadcast(placed, sizes)


def broadcast_sizes(fields: Sequence[Field]) -> tuple[Size, ...]:
    """Return the broadcast sizes of fields, aligned at the last dimension."""
    sizes = []
    for d in range(-max(f.rank for f in fields), 0):
        here = [f.sizes[d] for f in fields if f.rank >= -d]
        sizes.append(next((s for s in here if not s.is_one), here[0]))
    return tuple(sizes)


def pointwise(
    e: Emitter, args: Sequence[Value], dtype: torch.dtype, compute: Load
) -> Value:
    """Apply a scalar function to fields, element by element."""
    if not any(isinstance(a, Field) for a in args):
        return compute(e, [a for a in args if isinstance(a, Scalar)])
    fields = [as_field(a) for a in args]
    sizes = broadcast_sizes(fields)
    fields = [broadcast(f, sizes) for f in fields]

    def load(e: Emitter, indices: Sequence[Scalar]) -> Scalar:
        return compute(e, [f.load(e, indices) for f in fields])

    return Field(dtype, sizes, load)


def reduce(
    x: Field, dims: Sequence[int], keep: bool, dtype: torch.dtype, combine: Load
) -> Field:
    """Return a function of all elements along some dimensions, or along all of them."""
    along = sorted({d % x.rank for d in dims if x.rank}) or range(x.rank)
    extents = [x.sizes[d].known for d in along]
    known = [n for n in extents if n is not None]
    if len(known) < len(extents) or prod(known) > MAX_REDUCED:
        raise UnsupportedOpError(
            f"a reduction over {prod(known)} elements would run for every pair of "
            f"positions, and mods combine up to {MAX_REDUCED}: reduce before the call, "
            "capture the result and index it, as in `table[h, q_idx]`; products of "
            "long rows belong into query and key, as in torch.cat((query, rows), -1)"
        )

    def load(e: Emitter, indices: Sequence[Scalar]) -> Scalar:
        kept = [i for d, i in enumerate(indices) if not (keep and d in along)]
        elements: list[Scalar] = []
        for place in places(*map(range, known)):
            at = dict(zip(along, map(number, place), strict=True))
            rest = iter(kept)
            elements.append(x.load(e, [at.get(d) or next(rest) for d in range(x.rank)]))
        return combine(e, elements)

    one = (constant_size(1),) if keep else ()
    sizes = [one if d in along else (s,) for d, s in enumerate(x.sizes)]
    return Field(dtype, tuple(s for size in sizes for s in size), load)


def index(e: Emitter, x: Field, indices: Sequence[Value | None]) -> Field:
    """Return `x` indexed by tensors, which broadcast together (advanced indexing)."""
    at = {d: as_field(i) for d, i in enumerate(indices) if i is not None}
    if any(i.dtype is torch.bool for i in at.values()):
        raise UnsupportedOpError(
            "aten.index by a mask has a result whose size depends on data: "
            "use torch.where"
        )
    sizes = broadcast_sizes(list(at.values()))
    fields = {d: broadcast(f, sizes) for d, f in at.items()}
    dims = list(at)
    adjacent = dims == list(range(dims[0], dims[-1] + 1))
    # The place of the index tensors' dimensions in torch's result.
    place = dims[0] if adjacent else 0
    rest = [d for d in range(x.rank) if d not in at]
    n = len(sizes)

    def load(e: Emitter, out: Sequence[Scalar]) -> Scalar:
        inner = out[place : place + n]
        kept = dict(zip(rest, [*out[:place], *out[place + n :]], strict=True))
        source = [
            wrapped(e, fields[d].load(e, inner), x.sizes[d]) if d in fields else kept[d]
            for d in range(x.rank)
        ]
        return x.load(e, source)

    left = [x.sizes[d] for d in rest]
    return Field(x.dtype, (*left[:place], *sizes, *left[place:]), load)


def reshape(e: Emitter, x: Field, sizes: Sequence[Size]) -> Field:
    """Return the same elements, in row-major order, with other sizes."""

    def load(e: Emitter, indices: Sequence[Scalar]) -> Scalar:
        dtype = torch.int64
        linear: Scalar = number(0)
        for size, i in zip(sizes, indices, strict=True):
            if linear.const == 0:
                linear = e.written(i, dtype)
                continue
            linear = e.op(arith.MuliOp, dtype, linear, size.emit(e, dtype))
            linear = e.op(arith.AddiOp, dtype, linear, i)
        source: list[Scalar] = []
        for size in reversed(x.sizes[1:]):
            extent = size.emit(e, dtype)
            source.append(e.op(arith.RemUIOp, dtype, linear, extent))
            linear = e.op(arith.DivUIOp, dtype, linear, extent)
        if x.rank:
            source.append(linear)
        return x.load(e, source[::-1])

    return Field(x.dtype, tuple(sizes), load)


def product(sizes: Sequence[Size]) -> Size:
    """Return the product of sizes: the number of elements."""

    def emit(e: Emitter, dtype: torch.dtype) -> Scalar:
        total: Scalar = number(1)
        for size in sizes:
            total = e.op(arith.MuliOp, dtype, total, size.emit(e, dtype))
        return e.cast(total, dtype)

    return Size(emit)


def arange(start: Scalar, step: Scalar, n: Size, dtype: torch.dtype) -> Field:
    """Return the field of `start + i * step`."""

    def load(e: Emitter, indices: Sequence[Scalar]) -> Scalar:
        inner = promote(start, step, indices[0])
        add, mul = (
            (arith.AddfOp, arith.MulfOp)
            if inner.is_floating_point
            else (arith.AddiOp, arith.MuliOp)
        )
        scaled = e.op(mul, inner, indices[0], step)
        return e.cast(e.op(add, inner, scaled, start), dtype)

    return Field(dtype, (n,), load)
