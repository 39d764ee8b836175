"""The scalar code that derivatives of attention run for each pair of positions.

    s = scale * qk;  x = score_mod(s);  p = exp(x - lse)
    backward:  dx = p * (dp - delta);  ds and the adjoints of captured reads by
               reverse mode on score_mod
    jvp:       the tangent of x by forward mode;  p and p * t_x

Tangents of the backward's values come from forward mode on all of its code. Operands
are named: "qk" is the dot product of "query" and "key", "dp" that of "d_out" and
"value". The prefix "t_" names the tangent of the value whose name follows.

Probabilities come from scores and a rounded log-sum-exp:

    p = exp(x - L),   L = lse + rest,   rest is the rounding error of lse

They have two forms. In addition to the exponential, the first form takes one operation
for each pair, the second takes two:

- `fused_probability`: exp2(x * c - lse * c). The product lse * c is rounded, in f32 by
  up to |lse| * 2^-24. Scores are rounded by as much, so nothing is lost if scores are
  dot products. For products of 2^22 and more (in f32) an extra term is subtracted, so
  that nothing overflows.
- `weighed_probability`: exp2((x - lse) * c), times a weight w = exp(-rest) of the row.
  If a mod adds large numbers to scores, such as a mask of -1e30, all scores of a row
  may be equal. Then p is 1/n: lse has lost this factor to rounding, and w holds it. The
  weight multiplies rows of cotangents, not pairs (see `weighed`).

In a row with an infinite score or a NaN, p is NaN, as the softmax is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.dialects import arith
from xdsl.dialects.builtin import AnyFloat, f64
from xdsl.ir import Attribute, Operation, Region, SSAValue

from flexc.dialects import flex
from flexc.dialects.constants import float_constant
from flexc.dialects.flex import CAPTURE, DerivativeOp, score_type
from flexc.dialects.mod_region import INDEX_ARGS, yielded
from flexc.passes.flex.score_factor import LOG2_E
from flexc.passes.scalar.differentiation.modes import pull_back, push_forward
from flexc.passes.scalar.scalar_code import ScalarCode, inline_region, new_region


def fused_probability(code: ScalarCode, x: SSAValue, shift: SSAValue) -> SSAValue:
    """Write exp2(x * c + shift), which is 0 if x is -inf and lse is too."""
    factor = code.const(LOG2_E, shift.type)
    return code.exp2(code.fma(x, factor, shift), "p")


def fused_shift(code: ScalarCode, lse: SSAValue) -> SSAValue:
    """Write -lse * c for `fused_probability`."""
    lse = _shift(code, lse)
    factor = code.const(LOG2_E, lse.type)
    product = code.mulf(lse, factor)
    size = code.absf(product)
    digits = 53 if lse.type == f64 else 24
    limit, ulp = 2.0 ** (digits - 2), 2.0 ** (2 - digits)
    more = code.fma(size, code.const(ulp, lse.type), product)
    is_small = code.cmpf("olt", size, code.const(limit, lse.type))
    return code.negf(code.select(is_small, product, more))


def weighed_probability(code: ScalarCode, x: SSAValue, shift: SSAValue) -> SSAValue:
    """Write exp2((x - shift) * c), which is 0 if x is -inf and lse is too."""
    difference = code.subf(x, shift)
    exponent = code.mulf(difference, code.const(LOG2_E, shift.type))
    return code.exp2(exponent, "p")


def _shift(code: ScalarCode, lse: SSAValue) -> SSAValue:
    """Write lse, with 0 for -inf and NaN for inf."""
    is_empty = code.cmpf("oeq", lse, code.const(-math.inf, lse.type))
    shift = code.select(is_empty, code.const(0.0, lse.type), lse)
    is_infinite = code.cmpf("oeq", lse, code.const(math.inf, lse.type))
    return code.select(is_infinite, code.const(math.nan, lse.type), shift)


DotSum = tuple[tuple[str, str], ...]
"""Pairs (query-side matrix, key-side matrix) whose dot products add up."""

PRODUCTS: dict[str, tuple[str, str]] = {
    "qk": ("query", "key"),
    "dp": ("d_out", "value"),
}


@dataclass(frozen=True)
class PairCode:
    """A region over pairs, with its arguments and results by name."""

    region: Region
    dots: Mapping[str, DotSum]
    values: Sequence[str]
    yields: Mapping[str, int]
    """The indices of the yielded values, by name."""
    captures: Sequence[SSAValue]
    reads: Sequence[flex.LoadCaptureOp] = ()
    """The reads of score_mod whose adjoints the region yields as "read 0", ..."""

    def first_name(self, name: str) -> str:
        """Return the first of all names of the value that has the name `name`."""
        values = yielded(self.region.block)
        value = values[self.yields[name]]
        return next(n for n, i in self.yields.items() if values[i] is value)


@dataclass
class _Writer:
    """A writer of a region, with its arguments by name."""

    op: DerivativeOp
    dots: dict[str, DotSum]
    values: list[str]
    captures: list[SSAValue]
    args: dict[str, SSAValue] = field(default_factory=dict[str, SSAValue])

    def __post_init__(self) -> None:
        type_ = score_type(self.op.query.type)
        captured = [c.type for c in self.captures]
        types: list[Attribute] = [type_] * (len(self.dots) + 1 + len(self.values))
        names = [*self.dots, "scale", *self.values, "b", "h", "q_idx", "kv_idx"]
        hints = [*names, *(c.name_hint for c in self.captures)]
        self.region = new_region([*types, *INDEX_ARGS, *captured], hints)
        self.args |= dict(zip(names, self.region.block.args, strict=False))
        self.code = ScalarCode(self.region.block)
        self.type: AnyFloat = type_

    @property
    def captured(self) -> list[SSAValue]:
        args = self.region.block.args
        return list(args[len(args) - len(self.captures) :])

    def own_captures(self) -> list[SSAValue]:
        """Return the arguments for the captures of score_mod, without tangents."""
        return self.captured[: len(self.op.captures)]

    def ops(self) -> list[Operation]:
        return list(self.region.block.ops)

    def mul(self, a: SSAValue, b: SSAValue, name: str | None = None) -> SSAValue:
        return self.code.mulf(a, b, name)

    def score(self) -> tuple[SSAValue, SSAValue]:
        """Write the score of a pair; return it before and after score_mod."""
        s = self.mul(self.args["qk"], self.args["scale"], "s")
        where = [self.args[n] for n in ("b", "h", "q_idx", "kv_idx")]
        given = [s, *where, *self.own_captures()]
        (x,) = inline_region(self.op.score_mod, given, self.code)
        return s, x

    def probability(self, x: SSAValue) -> SSAValue:
        form = weighed_probability if is_weighed(self.op) else fused_probability
        shift = self.args.get("shift")
        if shift is None:
            return form(self.code, x, shift_of(self.op, self.code, self.args["lse"]))
        if is_weighed(self.op):
            return form(self.code, x, shift)
        return self.scaled_probability(x, shift)

    def scaled_probability(self, x: SSAValue, shift: SSAValue) -> SSAValue:
        """Write exp2(x * c + shift) with one factor if x is scaled by a number."""
        factor = self.code.const(LOG2_E, self.type)
        if isinstance(x.owner, arith.MulfOp):
            for value, scale in (x.owner.operands, x.owner.operands[::-1]):
                if scale is self.args["scale"] or float_constant(scale) is not None:
                    x, factor = value, self.code.mulf(scale, factor)
                    break
        return self.code.exp2(self.code.fma(x, factor, shift), "p")

    def finish(
        self,
        yields: Mapping[str, SSAValue | None],
        reads: Sequence[flex.LoadCaptureOp] = (),
    ) -> PairCode:
        """End the region. A value of None is 0 for all pairs and is not yielded."""
        present = {n: v for n, v in yields.items() if v is not None}
        self.code.yield_(*present.values())
        numbers = {name: i for i, name in enumerate(present)}
        return PairCode(
            self.region, self.dots, self.values, numbers, self.captures, reads
        )


def shift_of(op: DerivativeOp, code: ScalarCode, lse: SSAValue) -> SSAValue:
    """Write the number of a row that takes the place of lse in exponents."""
    return (_shift if is_weighed(op) else fused_shift)(code, lse)


def weighed(
    code: ScalarCode, value: SSAValue, lse: SSAValue, rest: SSAValue
) -> SSAValue:
    """Write value * exp(-rest), the share that probabilities of a row lack.

    A row without live pairs (lse is -inf) counts for nothing, even if its value is NaN.
    """
    weight = code.exp2(code.mulf(rest, code.const(-LOG2_E, rest.type)), "weight")
    is_empty = code.cmpf("oeq", lse, code.const(-math.inf, lse.type))
    zero = code.const(0.0, value.type)
    return code.select(is_empty, zero, code.mulf(value, weight))


def is_weighed(op: DerivativeOp) -> bool:
    """Return True if rows need weights: scores may exceed their dot products."""
    is_small = op.score_range is not None or op.score_growth_bounded is not None
    return len(op.saved) > 2 and not is_small


def tangent_products(op: DerivativeOp, name: str) -> DotSum:
    """Return the products whose sum is the tangent of a dot product; () if it is 0."""
    left, right = PRODUCTS[name]
    found: list[tuple[str, str]] = []
    if op.tangent_of(left) is not None:
        found.append((f"t_{left}", right))
    if op.tangent_of(right) is not None:
        found.append((left, f"t_{right}"))
    return tuple(found)


def wanted_captures(op: DerivativeOp) -> list[int]:
    """Return the indices of the captures whose gradients are results."""
    assert isinstance(op, flex.AttentionBackwardOp)
    names = [n for n in op.wanted() if n.startswith(CAPTURE)]
    return [int(n.removeprefix(CAPTURE)) for n in names]


def write_backward(writer: _Writer) -> tuple[dict[str, SSAValue | None], list[int]]:
    """Write the backward's values; return them and the indices of reads."""
    code, op = writer.code, writer.op
    s, x = writer.score()
    p = writer.probability(x)
    centred = arith.SubfOp(writer.args["dp"], writer.args["delta"])
    dx = writer.mul(p, code.insert(centred), "dx")
    tensors = writer.own_captures()
    wanted = [s, *(tensors[i] for i in wanted_captures(op))]
    body = writer.ops()
    # A pair with a score of -inf has no adjoint, even if a derivative in score_mod is
    # NaN or infinite there.
    counts = code.cmpf("une", p, code.const(0.0, writer.type))
    adjoints = pull_back(code, body, {x: dx}, wanted=wanted, where=counts)
    loads = [o for o in body if isinstance(o, flex.LoadCaptureOp)]
    found: dict[str, SSAValue | None] = {"ds": adjoints[s], "p": p}
    numbers: list[int] = []
    for load, adjoint in adjoints.reads:
        if load.tensor in wanted:
            # The captured tensor may have another float type than scores and sums.
            found[f"read {len(numbers)}"] = code.float_cast(adjoint, writer.type)
            numbers.append(loads.index(load))
    return found, numbers


def backward_code(op: flex.AttentionBackwardOp, shifted: bool = False) -> PairCode:
    """Return the code of ds, p and the adjoints of reads, and of any tangents.

    If `shifted`, the code takes a row's shift in place of its lse.
    """
    dots: dict[str, DotSum] = {n: (PRODUCTS[n],) for n in PRODUCTS}
    values, captures = ["shift" if shifted else "lse", "delta"], list(op.captures)
    moving = capture_tangents(op)
    if op.tangents:
        products = {f"t_{n}": tangent_products(op, n) for n in PRODUCTS}
        dots |= {name: p for name, p in products.items() if p}
        values += ["t_lse", "t_delta"]
        captures += [t for _, t in moving]
    writer = _Writer(op, dots, values, captures)
    found, numbers = write_backward(writer)
    loads = [o for o in op.score_mod.block.ops if isinstance(o, flex.LoadCaptureOp)]
    reads = [loads[i] for i in numbers]
    if not op.tangents:
        return writer.finish(found, reads)
    given = ("qk", "dp", "lse", "delta")
    tangents = {
        writer.args[n]: writer.args[f"t_{n}"] for n in given if f"t_{n}" in writer.args
    }
    pushed = push_forward(writer.code, writer.ops(), tangents, captured(writer, moving))
    both = dict(found)
    both |= {
        f"t_{name}": None if value is None else pushed[value]
        for name, value in found.items()
    }
    return writer.finish(both, reads)


def jvp_code(op: DerivativeOp) -> PairCode:
    """Return the code of p, and of p times the tangent of the score."""
    dots: dict[str, DotSum] = {"qk": (PRODUCTS["qk"],)}
    if products := tangent_products(op, "qk"):
        dots["t_qk"] = products
    moving = capture_tangents(op)
    writer = _Writer(op, dots, ["lse"], [*op.captures, *(t for _, t in moving)])
    _, x = writer.score()
    tangents: dict[SSAValue, SSAValue] = {}
    if "t_qk" in writer.args:
        tangents[writer.args["qk"]] = writer.args["t_qk"]
    pushed = push_forward(writer.code, writer.ops(), tangents, captured(writer, moving))
    p, t_x = writer.probability(x), pushed[x]
    moved = None if t_x is None else writer.mul(p, t_x, "p_t_x")
    return writer.finish({"p": p, "p_t_x": moved})


def capture_tangents(op: DerivativeOp) -> list[tuple[int, SSAValue]]:
    """Return the indices and the tangents of the captures that have tangents."""
    found = ((i, op.tangent_of(f"{CAPTURE}{i}")) for i in range(len(op.captures)))
    return [(i, tangent) for i, tangent in found if tangent is not None]


def captured(
    writer: _Writer, moving: Sequence[tuple[int, SSAValue]]
) -> dict[SSAValue, SSAValue]:
    """Map the region's arguments for captured tensors to those for their tangents."""
    args, first = writer.captured, len(writer.op.captures)
    return {args[i]: args[first + n] for n, (i, _) in enumerate(moving)}
