"""`flex-expand-derivatives`: derivatives of attention as sums over pairs.

The function of a `flex.attention_backward` or `flex.attention_jvp` becomes calls of
kernels, each a function with one op, and what finishes their results:

- delta, the dot products of d_out and out;
- the query's gradient, with the row sums of what was read by head or by row;
- those of key and value, transposed, with the row sums of what was read by column;
- one more for each read by distance or by pair;
- `flex.scatter_sums` for each read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp, TensorType, i32
from xdsl.ir import Attribute, SSAValue
from xdsl.passes import ModulePass
from xdsl.transforms.dead_code_elimination import region_dce
from xdsl.utils.hints import isa

from flexc.dialects import flex
from flexc.dialects.flex import (
    CAPTURE,
    Coordinates,
    DerivativeOp,
    SumKind,
    score_type,
    tensor_shape,
)
from flexc.passes.analysis.ranges.intervals import full
from flexc.passes.analysis.reads.capture_index import CaptureIndices
from flexc.passes.analysis.reads.slices import sliced
from flexc.passes.derivatives.kernels import HostFunction, Sum, fresh
from flexc.passes.derivatives.pairs_code import (
    PairsCode,
    backward_code,
    is_weighed,
    jvp_code,
)

Terms = list[tuple[str, ...]]


@dataclass(frozen=True)
class Read:
    """A read of a captured tensor whose gradient is wanted."""

    value: str
    """The name of its adjoint."""
    load: flex.LoadCaptureOp
    capture: int
    by: Coordinates


class Expansion:
    """Expands one derivative op, which stays until it is replaced."""

    def __init__(self, op: DerivativeOp, name: str):
        self.op = op
        self.host = HostFunction(op, name)
        self.score_type = score_type(op.query.type)
        named = self.host.named
        named |= {"query": op.query, "key": op.key, "value": op.value}
        named |= dict(zip(("out", "lse", "lse_rest"), op.saved, strict=False))
        self.weighs = is_weighed(op)
        named |= dict(zip(("d_out", "d_lse"), op.cotangents, strict=False))
        if op.along is not None:
            names = (f"t_{a.data}" for a in op.along)
            named |= dict(zip(names, op.tangents, strict=True))

    def run(self) -> list[func.FuncOp]:
        """Put what it becomes in the op's place; the functions that this calls."""
        if isinstance(self.op, flex.AttentionJvpOp):
            results = self.jvp()
        else:
            assert isinstance(self.op, flex.AttentionBackwardOp)
            results = self.backward(self.op)
        for old, new in zip(self.op.results, results, strict=True):
            old.replace_all_uses_with(new)
        self.op.detach()
        self.op.erase()
        return self.host.functions

    # Forward mode

    def jvp(self) -> list[SSAValue]:
        """Tangents of out and lse."""
        code, named = jvp_code(self.op), self.host.named
        out = named["out"]
        terms: Terms = []
        moved = "p_t_x" in code.yields
        if moved:
            terms.append(("p_t_x", "value"))
        if "t_value" in named:
            terms.append(("p", "t_value"))
        dim = tensor_shape(out)[3]
        sums = [Sum(SumKind.MATRIX, terms, self.score_type, dim, name="sums")]
        # Where scores stay, a total is 0 and costs little: p - p.
        total: Terms = [("p_t_x",)] if moved else []
        sums.append(Sum(SumKind.TOTAL, total, self.score_type, name="t_lse"))
        moved_sums, t_lse = self.host.pair_sums("tangents", code, sums)
        if self.weighs:
            moved_sums = self.weighed("sums", moved_sums)
            t_lse = self.weighed("t_lse", t_lse)
        (t_out,) = self.host.append(flex.CenterRowsOp(moved_sums, t_lse, out))
        t_out.name_hint = "t_out"
        return [t_out, t_lse]

    def weighed(self, name: str, rows: SSAValue) -> SSAValue:
        """Rows times what their probabilities leave out."""
        named = self.host.named
        element = rows.type
        assert isa(element, TensorType[Attribute])
        weigh = flex.WeighRowsOp(
            rows, named["lse"], named["lse_rest"], element, self.facts_of_rows()
        )
        weigh.result.name_hint = name
        return self.host.kernel(f"weighed_{name}", weigh)[0]

    def facts_of_rows(self) -> dict[str, Attribute]:
        facts = self.op.facts()
        return {n: facts[n] for n in ("alignment", "max_length") if n in facts}

    # Reverse mode

    def backward(self, op: flex.AttentionBackwardOp) -> list[SSAValue]:
        code, named = backward_code(op), self.host.named
        for name in ("d_out", "d_lse", "t_d_out", "t_d_lse"):
            if self.weighs and name in named:
                named[name] = self.weighed(name, named[name])
        named["delta"] = self.row_dots("delta", [("d_out", "out")], "d_lse")
        prefix = ""
        if op.tangents:
            self.tangents_of_saved()
            prefix = "t_"
        reads = self.reads(code, prefix)
        found = self.of_query(code, prefix, reads)
        found |= self.of_key_and_value(code, prefix, reads)
        found |= self.of_pairs(code, reads)
        return [
            found[name] if name in found else self.zeros(name) for name in op.wanted()
        ]

    def zeros(self, name: str) -> SSAValue:
        """The gradient of a captured tensor that no score depends on."""
        capture = self.op.captures[int(name.removeprefix(CAPTURE))]
        return self.host.append(flex.ZerosLikeOp(capture))[0]

    def tangents_of_saved(self) -> None:
        """Name the tangents of out and lse, and of delta, which follow from them."""
        named = self.host.named
        if "t_out" not in named:
            named["t_out"], named["t_lse"] = self.jvp()
        products = [
            (left, right)
            for left, right in (("t_d_out", "out"), ("d_out", "t_out"))
            if left in named and right in named
        ]
        named["t_delta"] = self.row_dots("t_delta", products, "t_d_lse")

    def row_dots(
        self, name: str, products: Sequence[tuple[str, str]], minus: str
    ) -> SSAValue:
        """The dot products of rows, less a cotangent of lse if there is one."""
        named = self.host.named
        lhs, rhs = ([named[p[i]] for p in products] for i in (0, 1))
        less = [named[minus]] if minus in named else []
        dots = flex.RowDotsOp(
            lhs,
            rhs,
            less,
            fresh([None] * 3, self.score_type),
            self.facts_of_rows(),
        )
        dots.result.name_hint = name
        return self.host.kernel(name, dots)[0]

    def matrix(self, wrt: str, terms: Terms, scaled: bool) -> Sum:
        """The gradient of query, key or value."""
        given = self.host.named[wrt]
        assert isa(given.type, TensorType[Attribute])
        name, dim = f"d_{wrt}", tensor_shape(given)[3]
        element = given.type.element_type
        return Sum(SumKind.MATRIX, terms, element, dim, scaled, name)

    def terms(self, code: PairsCode, value: str, columns: str, prefix: str) -> Terms:
        """value @ columns, or its tangent: one moves, then the other."""
        found: Terms = []
        if f"{prefix}{value}" in code.yields:
            found.append((f"{prefix}{value}", columns))
        if prefix and f"t_{columns}" in self.host.named and value in code.yields:
            found.append((value, f"t_{columns}"))
        return found

    def totals(self, reads: Sequence[Read], *by: Coordinates) -> list[Sum]:
        return [
            Sum(SumKind.TOTAL, [(r.value,)], self.score_type, name=f"sums_{i}")
            for i, r in enumerate(reads)
            if r.by in by
        ]

    def of_query(
        self, code: PairsCode, prefix: str, reads: Sequence[Read]
    ) -> dict[str, SSAValue]:
        """Sums over the keys of each row."""
        sums: list[Sum] = []
        if "query" in self.wanted:
            terms = self.terms(code, "ds", "key", prefix)
            sums.append(self.matrix("query", terms, True))
        by = (Coordinates.HEAD, Coordinates.ROW)
        return self.finished("query", code, sums, reads, by, False)

    def of_key_and_value(
        self, code: PairsCode, prefix: str, reads: Sequence[Read]
    ) -> dict[str, SSAValue]:
        """Sums over the queries of each key."""
        sums: list[Sum] = []
        if "key" in self.wanted:
            terms = self.terms(code, "ds", "query", prefix)
            sums.append(self.matrix("key", terms, True))
        if "value" in self.wanted:
            terms = self.terms(code, "p", "d_out", prefix)
            sums.append(self.matrix("value", terms, False))
        by = (Coordinates.COLUMN,)
        return self.finished("key_value", code, sums, reads, by, True)

    @property
    def wanted(self) -> list[str]:
        assert isinstance(self.op, flex.AttentionBackwardOp)
        return self.op.wanted()

    def finished(
        self,
        suffix: str,
        code: PairsCode,
        sums: list[Sum],
        reads: Sequence[Read],
        by: Sequence[Coordinates],
        transposed: bool,
    ) -> dict[str, SSAValue]:
        """Results of a kernel by name; those of reads are added to what was found."""
        names = [str(s.name).removeprefix("d_") for s in sums]
        own = [r for r in reads if r.by in by]
        totals = self.totals(own, *by)
        results = self.host.pair_sums(suffix, code, [*sums, *totals], transposed)
        for read, total in zip(own, results[len(sums) :], strict=True):
            self.scatter(read, total)
        return dict(zip(names, results, strict=False))

    # Captured tensors

    def reads(self, code: PairsCode, prefix: str) -> list[Read]:
        """The reads whose gradient is wanted, and how their index varies."""
        region = self.op.score_mod
        length = self.op.fact("max_length", full(32).hi)
        self.indices = CaptureIndices(region, length, self.op.indices_fit is not None)
        self.gradients: dict[int, SSAValue] = {}
        found: list[Read] = []
        for i, load in enumerate(code.reads):
            value = f"{prefix}read {i}"
            if value in code.yields:
                known = self.indices.read(load)
                by = Coordinates(known.index_class.value)
                found.append(Read(value, load, known.capture, by))
        return found

    def of_pairs(self, code: PairsCode, reads: Sequence[Read]) -> dict[str, SSAValue]:
        """What reads by distance or by pair add to, and then all captured gradients."""
        kinds = {
            Coordinates.DIAGONAL: SumKind.DIAGONAL,
            Coordinates.PAIR: SumKind.PAIRS,
        }
        for i, read in enumerate(r for r in reads if r.by in kinds):
            kind = kinds[read.by]
            s = Sum(kind, [(read.value,)], self.score_type, name=f"{kind}_sums")
            zero = self.host.code.const(0, i32)
            (sums,) = self.host.pair_sums(f"read_{i}", code, [s], first=[zero] * 3)
            self.scatter(read, sums)
        return {f"{CAPTURE}{i}": g for i, g in self.gradients.items()}

    def scatter(self, read: Read, sums: SSAValue) -> None:
        """Add the sums of a read to the gradient of what it read."""
        target = self.op.captures[read.capture]
        before = self.gradients.get(read.capture)
        scatter = flex.ScatterSumsOp(
            read.by,
            sums,
            target,
            self.op.captures,
            [] if before is None else [before],
            sliced(self.op.score_mod, list(read.load.indices)),
        )
        scatter.result.name_hint = f"d_{target.name_hint or 'capture'}"
        self.gradients[read.capture] = self.host.append(scatter)[0]


def is_launched(kernel: func.FuncOp, host: func.FuncOp) -> bool:
    name = kernel.sym_name.data
    launches = (o for o in host.body.ops if isinstance(o, flex.LaunchOp))
    return any(launch.callee.string_value() == name for launch in launches)


@dataclass(frozen=True)
class FlexExpandDerivativesPass(ModulePass):
    """Take derivatives of attention apart into sums over pairs."""

    name = "flex-expand-derivatives"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in list(op.ops):
            if not isinstance(function, func.FuncOp):
                continue
            name = function.sym_name.data
            kernels: list[func.FuncOp] = []
            for inner in list(function.body.ops):
                if isinstance(inner, DerivativeOp):
                    kernels += Expansion(inner, name).run()
            # Not every derivative needs delta.
            region_dce(function.body)
            for kernel in kernels:
                if is_launched(kernel, function):
                    op.body.block.insert_op_before(kernel, function)
            # Results have their own layouts.
            function.update_function_type()
