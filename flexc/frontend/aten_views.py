"""Rules that import indexing, views and factories as loads at computed indices.

Reductions combine such loads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from math import inf, isinf
from typing import Any

import torch
from xdsl.dialects import arith, math

from flexc.dialects.flex.scalar import Ties
from flexc.errors import UnsupportedOpError
from flexc.frontend import fields
from flexc.frontend.aten_to_arith import (
    absolute,
    add,
    detach,
    div,
    maximum,
    minimum,
    mul,
    one_op,
    power,
    sub,
)
from flexc.frontend.fields import Field, Size, Value, as_field
from flexc.frontend.scalars import (
    Emitter,
    Rule,
    Scalar,
    compute_dtype,
    number,
    rule,
    structural,
)

_END = number(torch.iinfo(torch.int64).max)
TWO = number(2)


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


def view(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule `rule(emitter, field, *args)` for views of one tensor."""

    def register(fn: Rule) -> Rule:
        structural(*names)(
            lambda e, out, x, *args, **kw: fn(e, as_field(x), *args, **kw)
        )
        return fn

    return register


view("index", "_unsafe_index")(fields.index)


@view("embedding")
def _embedding(
    e: Emitter,
    rows: Field,
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


@view("index_select")
def _index_select(e: Emitter, x: Field, dim: Scalar, at: Value) -> Field:
    lead: list[Value | None] = [None] * (_int(dim) % x.rank)
    at = at if isinstance(at, Field) else fields.unsqueeze(as_field(at), 0)
    return fields.index(e, x, [*lead, at])


@view("take")
def _take(e: Emitter, x: Field, at: Value) -> Field:
    flat = fields.reshape(e, x, [fields.product(x.sizes)])
    return fields.index(e, flat, [at])


view("select")(lambda e, x, dim, at: fields.select(e, x, _int(dim), at))
view("permute")(lambda e, x, dims: fields.permute(x, _ints(dims)))
view("unsqueeze")(lambda e, x, dim: fields.unsqueeze(x, _int(dim)))
view("t", "numpy_T")(lambda e, x: fields.permute(x, range(x.rank)[::-1]))
view("flatten")(lambda e, x, *dims: fields.reshape(e, x, [fields.product(x.sizes)]))


@view("slice")
def _slice(
    e: Emitter,
    x: Field,
    dim: Any = 0,
    start: Scalar | None = None,
    end: Scalar | None = None,
    step: Any = 1,
) -> Field:
    return fields.slice_(e, x, _int(dim), start or number(0), end or _END, _int(step))


view("flip")(lambda e, x, dims: fields.flip(e, x, _ints(dims)))
rule("diagonal", "diagonal_copy", is_structural=True, reduces=True)(
    lambda e, out, x, *at: fields.diagonal(e, x, *map(_int, at))
)


@rule("cat", is_structural=True, reduces=True)
def _cat(e: Emitter, out: torch.dtype, xs: Sequence[Value], dim: Any = 0) -> Field:
    return fields.cat(e, [as_field(x) for x in xs], _int(dim), out)


@rule("split", "split_with_sizes", is_structural=True, reduces=True)
def _split(
    e: Emitter, out: torch.dtype, x: Field, sizes: Any, dim: Any = 0
) -> list[Field]:
    d = _int(dim) % x.rank
    length = x.sizes[d].constant
    step = max(_ints(sizes)[0], 1)
    starts = list(accumulate(_ints(sizes), initial=0))
    if not isinstance(sizes, list | tuple):
        starts = [*range(0, max(length, 1), step), length]
    return [
        fields.slice_(e, x, d, number(start), number(end), 1)
        for start, end in pairwise(starts)
    ]


@view("transpose", "swapaxes", "swapdims")
def _transpose(e: Emitter, x: Field, a: Any, b: Any) -> Field:
    order = list(range(x.rank))
    if order:
        i, j = _int(a), _int(b)
        order[i], order[j] = order[j], order[i]
    return fields.permute(x, order)


@view("squeeze")
def _squeeze(e: Emitter, x: Field, dims: Any = None) -> Field:
    if not x.rank:
        return x
    return fields.squeeze(e, x, range(x.rank) if dims is None else _ints(dims))


@view("expand", "broadcast_to")
def _expand(e: Emitter, x: Field, sizes: Any, *, implicit: Any = False) -> Field:
    new = len(sizes) - x.rank
    target = [
        x.sizes[d - new] if s.const == -1 else fields.scalar_size(s)
        for d, s in enumerate(sizes)
    ]
    return fields.broadcast(x, target)


view("broadcast_in_dim")(
    lambda e, x, sizes, dims: fields.broadcast_in(x, _sizes(sizes), _ints(dims))
)


@view("view", "reshape", "_unsafe_view", "_reshape_copy", "view_copy")
def _view(e: Emitter, x: Field, sizes: Any) -> Field:
    if isinstance(sizes, torch.dtype):
        raise UnsupportedOpError("the bits of a number cannot be viewed as another's")
    known = fields.product(_sizes([s for s in sizes if s.const != -1]))
    rest = _quotient(fields.product(x.sizes), known)
    target = [rest if s.const == -1 else fields.scalar_size(s) for s in sizes]
    return fields.reshape(e, x, target)


def _quotient(total: Size, known: Size) -> Size:
    """Return the extent that -1 stands for."""

    def emit(e: Emitter, dtype: torch.dtype) -> Scalar:
        parts = total.emit(e, torch.int64), known.emit(e, torch.int64)
        return e.cast(e.op(arith.DivUIOp, torch.int64, *parts), dtype)

    return Size(emit)


def _extent(e: Emitter, size: Size) -> Scalar:
    ssa = e.ssa(size.emit(e, torch.int64))
    return Scalar(torch.int64, ssa, weak=True, nonnegative=True)


view("sym_size")(lambda e, x, dim=0: _extent(e, x.sizes[_int(dim)]))
view("sym_numel", "numel")(lambda e, x: _extent(e, fields.product(x.sizes)))


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


Combine = Callable[[Emitter, torch.dtype, Sequence[Scalar]], Scalar]
"""A function of the elements that a reduction combines."""


def reduction(
    *names: str, of_all: Combine | None = None
) -> Callable[[Combine], Combine]:
    """Register a rule that combines all elements along some dimensions.

    `of_all` combines those of a call without dimensions, if they differ.
    """

    def register(combine: Combine) -> Combine:
        def apply(
            e: Emitter,
            out: torch.dtype,
            x: Value,
            dims: Any = (),
            keep: Any = False,
            **kw: Any,
        ) -> Field:
            chosen = combine if of_all is None or _dims(dims) else of_all
            return _reduced(e, out, x, dims, keep or kw.get("keepdim", False), chosen)

        rule(*names, is_structural=True, reduces=True, dims=1)(apply)
        return combine

    return register


def _dims(dims: Any) -> list[int]:
    return [] if dims is None else _ints(dims)


def _flag(x: Any) -> bool:
    return bool(getattr(x, "const", x))


def _reduced(
    e: Emitter, out: torch.dtype, x: Value, dims: Any, keep: Any, combine: Combine
) -> Field:
    """Return a combination of the elements along some dimensions, or along all."""
    combined: fields.Load = lambda e, xs: combine(e, out, xs)  # noqa: E731
    return fields.reduce(as_field(x), _dims(dims), _flag(keep), out, combined)


def _folded(op: Rule, initial: Any = None, into: torch.dtype | None = None) -> Combine:
    """Return a combination of pairs of neighbours, and of pairs of their results.

    It is rounded once.
    """

    def combine(e: Emitter, out: torch.dtype, xs: Sequence[Scalar]) -> Scalar:
        dtype = into or compute_dtype(out)
        if not xs and initial is None:
            raise UnsupportedOpError("a row without elements has no extreme")
        xs = [e.cast(x, dtype) for x in xs] or [e.constant(initial, dtype)]
        while len(xs) > 1:
            odd = xs[len(xs) & ~1 :]
            xs = [op(e, dtype, *pair) for pair in zip(xs[::2], xs[1::2], strict=False)]
            xs += odd
        return e.cast(xs[0], out)

    return combine


_sum = reduction("sum")(_folded(add, 0))
reduction("prod")(_folded(mul, 1))
_any = reduction("any")(
    _folded(one_op(None, None, None, arith.OrIOp), False, torch.bool)
)
reduction("all")(_folded(one_op(None, None, None, arith.AndIOp), True, torch.bool))
# Two equal extremes share the derivative, except along one dimension, as in torch.
# Three or more share it pair by pair, by halves; in torch the shares are equal.
for _name, _op in (("max", maximum), ("min", minimum)):
    reduction(f"a{_name}")(_folded(_op))
    reduction(_name, of_all=_folded(_op))(_folded(partial(_op, ties=Ties.LHS)))


@reduction("mean")
def _mean(e: Emitter, out: torch.dtype, xs: Sequence[Scalar]) -> Scalar:
    into = compute_dtype(out)
    return e.cast(div(e, into, _sum(e, into, xs), number(float(len(xs)))), out)


@reduction("count_nonzero")
def _count(e: Emitter, out: torch.dtype, xs: Sequence[Scalar]) -> Scalar:
    return _sum(e, out, [e.cast(x, torch.bool) for x in xs])


@reduction("logsumexp")
def _logsumexp(e: Emitter, out: torch.dtype, xs: Sequence[Scalar]) -> Scalar:
    into = compute_dtype(out)
    xs = [e.cast(x, into) for x in xs]
    largest = detach(e, into, _folded(maximum)(e, into, xs))
    infinite = e.compare("eq", absolute(e, into, largest), number(inf))
    shift = e.select(infinite, number(0.0), largest, into)
    terms = [e.op(math.ExpOp, into, sub(e, into, x, shift)) for x in xs]
    return e.cast(
        add(e, into, e.op(math.LogOp, into, _sum(e, into, terms)), shift), out
    )


def _register_softmax(name: str, is_log: bool) -> None:
    @rule(name, is_structural=True, reduces=True, dims=1)
    def _softmax(
        e: Emitter, out: torch.dtype, x: Value, dim: Any, half_to_float: Any = False
    ) -> Value:
        if isinstance(x, Scalar):
            raise UnsupportedOpError(
                "softmax has no meaning for one score: mods compute with single "
                "numbers, by pointwise ops, indexing and short reductions"
            )

        wide = compute_dtype(out)

        def compute(e: Emitter, xs: Sequence[Scalar]) -> Scalar:
            log = sub(e, wide, *xs)
            return e.cast(log if is_log else e.op(math.ExpOp, wide, log), out)

        total = _reduced(e, wide, x, dim, True, _logsumexp)
        return fields.pointwise(e, [x, total], out, compute)


_register_softmax("_softmax", is_log=False)
_register_softmax("_log_softmax", is_log=True)


def _extreme_place(predicate: str) -> Combine:
    """Return the number of the first extreme; NaN is greater and less than all."""

    def combine(e: Emitter, out: torch.dtype, xs: Sequence[Scalar]) -> Scalar:
        best, place = xs[0], e.constant(0, out)
        for i, x in enumerate(xs[1:], 1):
            better = e.compare(predicate, x, best)
            if x.dtype.is_floating_point:
                first_nan = e.both(e.compare("ne", x, x), e.compare("eq", best, best))
                better = e.op(arith.OrIOp, torch.bool, better, first_nan)
            best = e.select(better, x, best, x.dtype)
            place = e.select(better, number(i), place, out)
        return place

    return combine


reduction("argmax")(_extreme_place("gt"))
reduction("argmin")(_extreme_place("lt"))


def _root(e: Emitter, dtype: torch.dtype, x: Scalar, p: float = 2.0) -> Scalar:
    """Return the root of a sum of powers. Its derivative at 0 is 0, as in torch."""
    is_zero = e.compare("eq", x, number(0.0))
    positive = e.select(is_zero, number(1.0), x, dtype)
    root = power(e, dtype, positive, number(1 / p))
    return e.select(is_zero, number(0.0), root, dtype)


@rule("linalg_vector_norm", is_structural=True, reduces=True, dims=2)
def _norm(
    e: Emitter,
    out: torch.dtype,
    x: Value,
    order: Scalar = TWO,
    dims: Any = None,
    keep: Any = False,
    **kw: Any,
) -> Field:
    p, into = float(order.const or 0), compute_dtype(out)

    def combine(e: Emitter, out: torch.dtype, xs: Sequence[Scalar]) -> Scalar:
        if p == 0:
            return _count(e, out, xs)
        sizes = [absolute(e, into, e.cast(x, into)) for x in xs]
        if isinf(p):
            return _folded(maximum if p > 0 else minimum)(e, out, sizes)
        if p == 1:
            return _sum(e, out, sizes)
        total = _sum(e, into, [power(e, into, x, number(p)) for x in sizes])
        return e.cast(_root(e, into, total, p), out)

    return _reduced(e, out, x, dims, keep, combine)


def _spread(e: Emitter, out: torch.dtype, x: Value, args: Any, is_root: bool) -> Field:
    """Return the variance along dimensions, or its root."""
    dims, keep, correction = args
    less = (
        1.0 if correction is None else float(getattr(correction, "const", correction))
    )
    into = compute_dtype(out)

    def combine(e: Emitter, out: torch.dtype, xs: Sequence[Scalar]) -> Scalar:
        mean = _mean(e, into, xs)
        squares = [power(e, into, sub(e, into, x, mean), TWO) for x in xs]
        n = number(max(len(xs) - less, 0.0))
        found = div(e, into, _sum(e, into, squares), n)
        return e.cast(_root(e, into, found) if is_root else found, out)

    return _reduced(e, out, x, dims, keep, combine)


for _name, _is_root in (("var", False), ("std", True)):
    rule(_name, is_structural=True, reduces=True, dims=1)(
        lambda e, out, x, dims=None, by=None, *, r=_is_root, **kw: _spread(
            e, out, x, (dims, kw.get("keepdim", False), kw.get("correction", by)), r
        )
    )


@rule("isin", is_structural=True, reduces=True)
def _isin(
    e: Emitter,
    out: torch.dtype,
    x: Value,
    among: Value,
    *,
    assume_unique: Any = False,
    invert: Any = False,
) -> Value:
    def compute(e: Emitter, given: Sequence[Scalar]) -> Scalar:
        def equals(e: Emitter, out: torch.dtype, xs: Sequence[Scalar]) -> Scalar:
            return _any(e, out, [e.compare("eq", given[0], y) for y in xs])

        found = _reduced(e, out, among, None, False, equals).load(e, ())
        return e.negate(found) if _flag(invert) else found

    return fields.pointwise(e, [x], out, compute)


@rule("bucketize", is_structural=True, reduces=True)
def _bucketize(
    e: Emitter,
    out: torch.dtype,
    x: Value,
    bounds: Value,
    *,
    out_int32: Any = False,
    right: Any = False,
) -> Field:
    return _search_sorted(e, out, bounds, x, right=right)


@rule("searchsorted", is_structural=True, reduces=True)
def _search_sorted(
    e: Emitter,
    out: torch.dtype,
    bounds: Value,
    x: Value,
    *,
    out_int32: Any = False,
    right: Any = False,
    side: str | None = None,
    sorter: Any = None,
) -> Field:
    """Return how many of the last dimension's bounds lie before each number."""
    if sorter is not None:
        raise UnsupportedOpError("searchsorted expects sorted bounds, got a sorter")
    rows, field = as_field(bounds), as_field(x)
    length = rows.sizes[-1].known
    assert length is not None, "a guard makes it known"
    after = "gt" if _flag(right) or side == "right" else "ge"

    def load(e: Emitter, at: Sequence[Scalar]) -> Scalar:
        value, lead = field.load(e, at), list(at[:-1]) if rows.rank > 1 else []

        def is_before(place: Scalar) -> Scalar:  # All bounds lie before NaN.
            return e.negate(e.compare(after, rows.load(e, [*lead, place]), value))

        if length <= fields.MAX_REDUCED:
            return _sum(e, out, [is_before(number(i)) for i in range(length)])
        return e.cast(_bisect(e, length, is_before), out)

    return Field(out, field.sizes, load)


def _bisect(e: Emitter, length: int, is_before: Callable[[Scalar], Scalar]) -> Scalar:
    """Return the number of leading places for which a condition holds."""
    found, index = e.constant(0, torch.int64), torch.int64
    for bit in reversed(range(length.bit_length())):
        more = e.op(arith.AddiOp, index, found, number(1 << bit))
        last = e.op(arith.SubiOp, index, more, number(1))
        inside = e.compare("le", more, number(length))
        last = e.op(arith.MinSIOp, index, last, number(length - 1))
        taken = e.both(inside, is_before(last))
        found = e.select(taken, more, found, index)
    return found


@view("gather")
def _gather(
    e: Emitter, x: Field, dim: Any, at: Value, *, sparse_grad: Any = False
) -> Field:
    index, d = as_field(at), _int(dim) % max(x.rank, 1)

    def load(e: Emitter, place: Sequence[Scalar]) -> Scalar:
        return x.load(e, [*place[:d], index.load(e, place), *place[d + 1 :]])

    return Field(x.dtype, index.sizes, load)


@rule("bmm", "mm", "mv", is_structural=True, reduces=True)
def _product(e: Emitter, out: torch.dtype, a: Field, b: Field) -> Field:
    """Return the products of rows of `a` and columns of `b`, or of one vector."""
    if b.rank > 1:
        a, b = fields.unsqueeze(a, a.rank), fields.unsqueeze(b, b.rank - 2)
    into, along = compute_dtype(out), max(b.rank - 2, 1)
    products = fields.pointwise(e, [a, b], into, lambda e, xs: mul(e, into, *xs))
    return _reduced(e, out, products, [along], False, _sum)


@rule("dot", is_structural=True, reduces=True)
def _dot(e: Emitter, out: torch.dtype, a: Value, b: Value) -> Field:
    into = compute_dtype(out)
    products = fields.pointwise(e, [a, b], into, lambda e, xs: mul(e, into, *xs))
    return _reduced(e, out, products, None, False, _sum)
