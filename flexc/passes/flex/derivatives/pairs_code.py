"""What derivatives compute of each pair of positions, as one region of scalar code.

    s = scale * qk;  x = score_mod(s);  p = exp(x - lse)
    backward:  dx = p * (dp - delta);  ds and the adjoints of captured reads by
               reverse mode on score_mod
    jvp:       the tangent of x by forward mode;  p and p * t_x

The tangents of the backward's values are forward mode on all of its code. Operands are
named: "qk" is the dot product of "query" and "key", "dp" that of "d_out" and "value";
"t_" is the tangent of what follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.dialects import arith
from xdsl.dialects.builtin import AnyFloat
from xdsl.ir import Attribute, Operation, Region, SSAValue

from flexc.dialects import flex
from flexc.dialects.flex import CAPTURE, DerivativeOp, score_type
from flexc.dialects.mod_region import INDEX_ARGS
from flexc.passes.flex.derivatives.row_exponents import (
    fused_probability,
    weighed_probability,
)
from flexc.passes.scalar.differentiation.forward import push_forward
from flexc.passes.scalar.differentiation.reverse import pull_back
from flexc.passes.scalar.scalar_code import (
    ScalarCode,
    inline_region,
    new_region,
)

Product = tuple[tuple[str, str], ...]
"""Names of matrices of the query's and of the key's side: their dots add up."""

PRODUCTS: dict[str, tuple[str, str]] = {
    "qk": ("query", "key"),
    "dp": ("d_out", "value"),
}


@dataclass(frozen=True)
class PairsCode:
    """A region over pairs, and what its arguments and results are."""

    region: Region
    dots: Mapping[str, Product]
    values: Sequence[str]
    yields: Mapping[str, int]
    """The values that it yields, by name."""
    captures: Sequence[SSAValue]
    reads: Sequence[flex.LoadCaptureOp] = ()
    """Reads of score_mod, of which it yields the adjoints "read 0", ..."""

    def alike(self, name: str) -> str:
        """The first name of the value that is yielded as this."""
        last = self.region.block.last_op
        assert last is not None
        value = last.operands[self.yields[name]]
        return next(n for n, i in self.yields.items() if last.operands[i] is value)


@dataclass
class _Writer:
    """Writes a region: its arguments by name, and its code."""

    op: DerivativeOp
    dots: dict[str, Product]
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
        return list(
            self.region.block.args[len(self.region.block.args) - len(self.captures) :]
        )

    def own_captures(self) -> list[SSAValue]:
        """The arguments of the captures that score_mod itself has."""
        return self.captured[: len(self.op.captures)]

    def ops(self) -> list[Operation]:
        return list(self.region.block.ops)

    def mul(self, a: SSAValue, b: SSAValue, name: str | None = None) -> SSAValue:
        return self.code.insert(arith.MulfOp(a, b), name)

    def score(self) -> tuple[SSAValue, SSAValue]:
        """The score of the dot product, before and after score_mod."""
        s = self.mul(self.args["qk"], self.args["scale"], "s")
        where = [self.args[n] for n in ("b", "h", "q_idx", "kv_idx")]
        given = [s, *where, *self.own_captures()]
        (x,) = inline_region(self.op.score_mod, given, self.code)
        return s, x

    def probability(self, x: SSAValue) -> SSAValue:
        form = weighed_probability if is_weighed(self.op) else fused_probability
        return form(self.code, x, self.args["lse"])

    def finish(
        self,
        yields: Mapping[str, SSAValue | None],
        reads: Sequence[flex.LoadCaptureOp] = (),
    ) -> PairsCode:
        """End the region. What is None is 0 everywhere, and not yielded."""
        present = {n: v for n, v in yields.items() if v is not None}
        self.code.yield_(*present.values())
        numbers = {name: i for i, name in enumerate(present)}
        return PairsCode(
            self.region, self.dots, self.values, numbers, self.captures, reads
        )


def is_weighed(op: DerivativeOp) -> bool:
    """Whether rows are weighed: scores may be large for what they are made of."""
    is_small = op.score_range is not None or op.scores_moderate is not None
    return len(op.saved) > 2 and not is_small


def tangent_products(op: DerivativeOp, name: str) -> Product:
    """The products whose sum is the tangent of a dot product; none if it is 0."""
    left, right = PRODUCTS[name]
    found: list[tuple[str, str]] = []
    if op.tangent_of(left) is not None:
        found.append((f"t_{left}", right))
    if op.tangent_of(right) is not None:
        found.append((left, f"t_{right}"))
    return tuple(found)


def wanted_captures(op: DerivativeOp) -> list[int]:
    """Numbers of the captures whose gradients are results."""
    assert isinstance(op, flex.AttentionBackwardOp)
    names = [n for n in op.wanted() if n.startswith(CAPTURE)]
    return [int(n.removeprefix(CAPTURE)) for n in names]


def write_backward(writer: _Writer) -> tuple[dict[str, SSAValue | None], list[int]]:
    """The backward's values of a pair, and which of score_mod's reads have some."""
    code, op = writer.code, writer.op
    s, x = writer.score()
    p = writer.probability(x)
    centred = arith.SubfOp(writer.args["dp"], writer.args["delta"])
    dx = writer.mul(p, code.insert(centred), "dx")
    tensors = writer.own_captures()
    wanted = [s, *(tensors[i] for i in wanted_captures(op))]
    body = writer.ops()
    # A score of -inf weighs nothing, whatever the derivative of what it came from.
    counts = code.cmpf("une", p, code.const(0.0, writer.type))
    adjoints = pull_back(code, body, {x: dx}, wanted=wanted, where=counts)
    loads = [o for o in body if isinstance(o, flex.LoadCaptureOp)]
    found: dict[str, SSAValue | None] = {"ds": adjoints[s], "p": p}
    numbers: list[int] = []
    for load, adjoint in adjoints.reads:
        if load.tensor in wanted:
            # An element may be of another precision than scores, as sums are.
            found[f"read {len(numbers)}"] = code.float_cast(adjoint, writer.type)
            numbers.append(loads.index(load))
    return found, numbers


def backward_code(op: flex.AttentionBackwardOp) -> PairsCode:
    """ds, p and the adjoints of reads; with tangents, their tangents as well."""
    dots: dict[str, Product] = {n: (PRODUCTS[n],) for n in PRODUCTS}
    values, captures = ["lse", "delta"], list(op.captures)
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


def jvp_code(op: DerivativeOp) -> PairsCode:
    """p, and p times the tangent of the score."""
    dots: dict[str, Product] = {"qk": (PRODUCTS["qk"],)}
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
    """Numbers of the captures that have tangents, and these."""
    found = ((i, op.tangent_of(f"{CAPTURE}{i}")) for i in range(len(op.captures)))
    return [(i, tangent) for i, tangent in found if tangent is not None]


def captured(
    writer: _Writer, moving: Sequence[tuple[int, SSAValue]]
) -> dict[SSAValue, SSAValue]:
    """The region's arguments for captured tensors, and for their tangents."""
    args, first = writer.captured, len(writer.op.captures)
    return {args[i]: args[first + n] for n, (i, _) in enumerate(moving)}
