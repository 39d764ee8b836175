"""Rules that import indexing, views and factories as loads at computed indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from xdsl.dialects import arith

from flexc.errors import UnsupportedOpError
from flexc.frontend import fields
from flexc.frontend.aten_to_arith import detach
from flexc.frontend.fields import Field, Size, Value, as_field
from flexc.frontend.scalars import Emitter, Scalar, number, structural

_END = number(torch.iinfo(torch.int64).max)


def _int(x: Any) -> int:
    """Return a dimension or a step, which must be a constant."""
    value = x.const if isinstance(x, Scalar) else x
    if not isinstance(value, int):
        raise UnsupportedOpError("a dimension or step must be a constant")
    return value


def _ints(xs: Any) -> list[int]:
    return [_int(x) for x in (xs if isinstance(xs, list | tuple) else [xs])]


def _sizes(xs: Sequence[Scalar]) -> list[Size]:
    return [fields.scalar_size(x) for x in xs]


structural("index", "_unsafe_index")(
    lambda e, out, x, indices: fields.index(e, as_field(x), indices)
)


@structural("embedding")
def _embedding(
    e: Emitter,
    out: torch.dtype,
    x: Value,
    at: Value,
    padding_idx: Scalar | None = None,
    scale_grad_by_freq: Any = False,
    sparse: Any = False,
) -> Field:
    if getattr(scale_grad_by_freq, "const", scale_grad_by_freq):
        raise UnsupportedOpError(
            "embedding with scale_grad_by_freq counts the indices of all pairs: index "
            "its weight, as in emb.weight[index]"
        )
    rows = as_field(x)
    if padding_idx is not None and padding_idx.const != -1:
        rows = _with_padding(rows, padding_idx)
    return fields.index(e, rows, [at])


def _with_padding(rows: Field, padding_idx: Scalar) -> Field:
    """Return a table without the gradient of its padding row."""

    def load(e: Emitter, at: Sequence[Scalar]) -> Scalar:
        element = rows.load(e, at)
        is_padding = e.compare("eq", at[0], padding_idx)
        return e.select(is_padding, detach(e, rows.dtype, element), element, rows.dtype)

    return Field(rows.dtype, rows.sizes, load)


@structural("index_select")
def _index_select(
    e: Emitter, out: torch.dtype, x: Value, dim: Scalar, at: Value
) -> Field:
    field = as_field(x)
    lead: list[Value | None] = [None] * (_int(dim) % field.rank)
    at = at if isinstance(at, Field) else fields.unsqueeze(as_field(at), 0)
    return fields.index(e, field, [*lead, at])


@structural("take")
def _take(e: Emitter, out: torch.dtype, x: Value, at: Value) -> Field:
    field = as_field(x)
    flat = fields.reshape(e, field, [fields.product(field.sizes)])
    return fields.index(e, flat, [at])


structural("select")(lambda e, out, x, dim, at: fields.select(e, x, _int(dim), at))


@structural("slice")
def _slice(
    e: Emitter,
    out: torch.dtype,
    x: Field,
    dim: Any = 0,
    start: Scalar | None = None,
    end: Scalar | None = None,
    step: Any = 1,
) -> Field:
    return fields.slice_(e, x, _int(dim), start or number(0), end or _END, _int(step))


structural("permute")(lambda e, out, x, dims: fields.permute(as_field(x), _ints(dims)))


@structural("transpose", "swapaxes", "swapdims")
def _transpose(e: Emitter, out: torch.dtype, x: Value, a: Any, b: Any) -> Field:
    field = as_field(x)
    order = list(range(field.rank))
    if order:
        i, j = _int(a), _int(b)
        order[i], order[j] = order[j], order[i]
    return fields.permute(field, order)


@structural("t", "numpy_T")
def _t(e: Emitter, out: torch.dtype, x: Value) -> Field:
    field = as_field(x)
    return fields.permute(field, list(range(field.rank))[::-1])


structural("unsqueeze")(lambda e, out, x, dim: fields.unsqueeze(as_field(x), _int(dim)))


@structural("squeeze")
def _squeeze(e: Emitter, out: torch.dtype, x: Value, dims: Any = None) -> Field:
    field = as_field(x)
    if not field.rank:
        return field
    every = list(range(field.rank))
    return fields.squeeze(e, field, every if dims is None else _ints(dims))


@structural("expand", "broadcast_to")
def _expand(
    e: Emitter, out: torch.dtype, x: Value, sizes: Any, *, implicit: Any = False
) -> Field:
    field = as_field(x)
    new = len(sizes) - field.rank
    target = [
        field.sizes[d - new] if s.const == -1 else fields.scalar_size(s)
        for d, s in enumerate(sizes)
    ]
    return fields.broadcast(field, target)


@structural("view", "reshape", "_unsafe_view", "_reshape_copy", "view_copy")
def _view(e: Emitter, out: torch.dtype, x: Value, sizes: Any) -> Field:
    field = as_field(x)
    if isinstance(sizes, torch.dtype):
        raise UnsupportedOpError("the bits of a number cannot be viewed as another's")
    known = _sizes([s for s in sizes if s.const != -1])
    target = [
        _quotient(fields.product(field.sizes), fields.product(known))
        if s.const == -1
        else fields.scalar_size(s)
        for s in sizes
    ]
    return fields.reshape(e, field, target)


def _quotient(total: Size, known: Size) -> Size:
    """Return the extent that -1 stands for."""

    def emit(e: Emitter, dtype: torch.dtype) -> Scalar:
        parts = total.emit(e, torch.int64), known.emit(e, torch.int64)
        return e.cast(e.op(arith.DivUIOp, torch.int64, *parts), dtype)

    return Size(emit)


@structural("flatten")
def _flatten(e: Emitter, out: torch.dtype, x: Value, *dims: Any) -> Field:
    field = as_field(x)
    return fields.reshape(e, field, [fields.product(field.sizes)])


def _extent(e: Emitter, size: Size) -> Scalar:
    ssa = e.ssa(size.emit(e, torch.int64))
    return Scalar(torch.int64, ssa, weak=True, nonnegative=True)


structural("sym_size")(lambda e, out, x, dim=0: _extent(e, x.sizes[_int(dim)]))
structural("sym_numel", "numel")(lambda e, out, x: _extent(e, fields.product(x.sizes)))


def _filled(value: Scalar, out: torch.dtype, sizes: Sequence[Size]) -> Field:
    def load(e: Emitter, indices: Sequence[Scalar]) -> Scalar:
        return e.cast(value, out)

    return Field(out, tuple(sizes), load)


structural("scalar_tensor")(lambda e, out, x, **kw: _filled(x, out, []))
structural("full")(lambda e, out, sizes, x, **kw: _filled(x, out, _sizes(sizes)))
structural("new_full")(
    lambda e, out, like, sizes, x, **kw: _filled(x, out, _sizes(sizes))
)
structural("full_like", "fill")(
    lambda e, out, like, x, **kw: _filled(x, out, as_field(like).sizes)
)


def _register_fills(value: int, sized: Sequence[str], alike: Sequence[str]) -> None:
    """Register factories of one value, by sizes and by a tensor of these sizes."""
    filling = number(value)

    structural(*sized)(lambda e, out, sizes, **kw: _filled(filling, out, _sizes(sizes)))
    structural(f"new_{sized[0]}")(
        lambda e, out, like, sizes, **kw: _filled(filling, out, _sizes(sizes))
    )
    structural(*alike)(
        lambda e, out, like, **kw: _filled(filling, out, as_field(like).sizes)
    )


_register_fills(0, ("zeros", "empty"), ("zeros_like", "zero"))
_register_fills(1, ("ones",), ("ones_like",))


@structural("copy")
def _copy(
    e: Emitter, out: torch.dtype, like: Value, x: Value, *args: Any, **kw: Any
) -> Field:
    field = fields.broadcast(as_field(x), as_field(like).sizes)
    return Field(out, field.sizes, lambda e, i: e.cast(field.load(e, i), out))


@structural("arange")
def _arange(e: Emitter, out: torch.dtype, *bounds: Scalar, **kw: Any) -> Field:
    start, end, step = (
        (number(0), bounds[0], number(1))
        if len(bounds) == 1
        else (*bounds, number(1))[:3]
    )

    def emit(e: Emitter, dtype: torch.dtype) -> Scalar:
        if any(b.dtype.is_floating_point for b in (start, end, step)):
            raise UnsupportedOpError("negative indices into a float arange")
        span = e.op(arith.SubiOp, torch.int64, end, start)
        return e.cast(e.op(arith.CeilDivSIOp, torch.int64, span, step), dtype)

    return fields.arange(start, step, Size(emit), out)
