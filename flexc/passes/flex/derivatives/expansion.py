"""A derivative of attention as kernels and what finishes their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.dialects import func
from xdsl.dialects.builtin import TensorType, i32
from xdsl.ir import Attribute, SSAValue
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
from flexc.passes.flex.derivatives.kernels import (
    HostFunction,
    Sum,
    fresh,
)
from flexc.passes.flex.derivatives.pairs_code import (
    PairsCode,
    backward_code,
    is_weighed,
    jvp_code,
)
from flexc.passes.scalar.ranges.intervals import full
from flexc.passes.scalar.reads.capture_index import CaptureIndices
from flexc.passes.scalar.reads.slices import sliced

# Gradients of captured tensors: sums of the adjoints of reads, added where they read.
#
# Reads by head, row or column add sums to kernels that other gradients have anyway.
# Those by distance or by pair have kernels of their own on a GPU, and are sums by row
# on a CPU. Reads of equal adjoints share the sums.


KINDS = {
    Coordinates.HEAD: SumKind.TOTAL,
    Coordinates.ROW: SumKind.TOTAL,
    Coordinates.COLUMN: SumKind.TOTAL,
    Coordinates.DIAGONAL: SumKind.DIAGONAL,
    Coordinates.PAIR: SumKind.PAIRS,
}
"""How the adjoints of what is read by these are summed; those of columns by keys."""

BY_ROW = (Coordinates.HEAD, Coordinates.ROW)
BY_COLUMN = (Coordinates.COLUMN,)
BY_PAIR = (Coordinates.DIAGONAL, Coordinates.PAIR)


@dataclass(frozen=True)
class Read:
    """A read of a captured tensor whose gradient is wanted."""

    value: str
    """The name of its adjoint, or of an equal one."""
    load: flex.LoadCaptureOp
    capture: int
    by: Coordinates

    @property
    def key(self) -> tuple[SumKind, str]:
        """What its sums have in common with others that are equal."""
        return KINDS[self.by], self.value


def reads_of(op: DerivativeOp, code: PairsCode, prefix: str) -> list[Read]:
    """The reads whose gradient is wanted, and how their index varies."""
    length = op.fact("max_length", full(32).hi)
    indices = CaptureIndices(op.score_mod, length, op.indices_fit is not None)
    found: list[Read] = []
    for i, load in enumerate(code.reads):
        value = f"{prefix}read {i}"
        if value in code.yields:
            known = indices.read(load)
            by = Coordinates(known.index_class.value)
            found.append(Read(code.alike(value), load, known.capture, by))
    return found


class CapturedGradients:
    """The gradients of what a derivative's score_mod captures, as sums come in."""

    def __init__(self, host: HostFunction, code: PairsCode, prefix: str):
        self.host, self.code = host, code
        self.reads = reads_of(host.op, code, prefix)
        self.score_type = score_type(host.op.query.type)
        self.gradients: dict[int, SSAValue] = {}

    def named(self) -> dict[str, SSAValue]:
        """What was found, by the names of the dialect."""
        return {f"{CAPTURE}{i}": g for i, g in self.gradients.items()}

    def by(self, by: Sequence[Coordinates]) -> list[Read]:
        return [r for r in self.reads if r.by in by]

    def sums(self, by: Sequence[Coordinates]) -> list[Sum]:
        """What the gradients of what is read by these are made of."""
        keys = dict.fromkeys(r.key for r in self.by(by))
        return [
            Sum(kind, [(value,)], self.score_type, name=f"{kind}_sums")
            for kind, value in keys
        ]

    def add(self, by: Sequence[Coordinates], results: Sequence[SSAValue]) -> None:
        """Add the results that `sums` asked for."""
        reads = self.by(by)
        keys = dict.fromkeys(r.key for r in reads)
        found = dict(zip(keys, results, strict=True))
        for read in reads:
            self.scatter(read, found[read.key])

    def add_pairs(self) -> None:
        """Add what is read by distance or by pair, by a kernel for each sum.

        Several in one take registers, of which a GPU's kernels have none left.
        """
        results: list[SSAValue] = []
        for i, s in enumerate(self.sums(BY_PAIR)):
            first = [self.host.code.const(0, i32)] * 3
            results += self.host.pair_sums(f"read_{i}", self.code, [s], first=first)
        self.add(BY_PAIR, results)

    def scatter(self, read: Read, sums: SSAValue) -> None:
        """Add the sums of a read to the gradient of what it read."""
        op = self.host.op
        target = op.captures[read.capture]
        before = self.gradients.get(read.capture)
        scatter = flex.ScatterSumsOp(
            read.by,
            sums,
            target,
            op.captures,
            [] if before is None else [before],
            sliced(op.score_mod, list(read.load.indices)),
        )
        scatter.result.name_hint = f"d_{target.name_hint or 'capture'}"
        self.gradients[read.capture] = self.host.append(scatter)[0]


LARGE = (SumKind.DIAGONAL, SumKind.PAIRS)
"""Sums that may be larger than all else that there is."""

Terms = list[tuple[str, ...]]


class Expansion:
    """Expands one derivative op, which stays until it is replaced."""

    def __init__(self, op: DerivativeOp, name: str, one_pass: bool = False):
        self.op, self.one_pass = op, one_pass
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
        captured = CapturedGradients(self.host, code, prefix)
        if self.one_pass and self.has_both_sides:
            found = self.of_all(code, prefix, captured)
        else:
            found = self.of_query(code, prefix, captured)
            found |= self.of_key_and_value(code, prefix, captured)
        if not self.one_pass:
            captured.add_pairs()
        found |= captured.named()
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

    def of_query(
        self, code: PairsCode, prefix: str, captured: CapturedGradients
    ) -> dict[str, SSAValue]:
        """Sums over the keys of each row."""
        sums = self.query_sums(code, prefix)
        by = (*BY_ROW, *BY_PAIR) if self.one_pass else BY_ROW
        return self.finished("query", code, sums, captured, by)

    def of_key_and_value(
        self, code: PairsCode, prefix: str, captured: CapturedGradients
    ) -> dict[str, SSAValue]:
        """Sums over the queries of each key."""
        sums = self.key_value_sums(code, prefix)
        return self.finished("key_value", code, sums, captured, BY_COLUMN, True)

    def of_all(
        self, code: PairsCode, prefix: str, captured: CapturedGradients
    ) -> dict[str, SSAValue]:
        """All of these, of one visit to each pair; but reads by column."""
        rounded = self.key_value_sums(code, prefix)
        sums = [
            *self.query_sums(code, prefix),
            *(replace(s, kind=SumKind.COLUMN_MATRIX, element=self.score_type)
              for s in rounded),
        ]  # fmt: skip
        by = (*BY_ROW, *BY_PAIR)
        found = self.finished("gradients", code, sums, captured, by)
        for s in rounded:
            name = str(s.name).removeprefix("d_")
            sum_parts = flex.SumPartsOp(found[name], s.type)
            sum_parts.result.name_hint = s.name
            (found[name],) = self.host.append(sum_parts)
        self.finished("key_value", code, [], captured, BY_COLUMN, True)
        return found

    def query_sums(self, code: PairsCode, prefix: str) -> list[Sum]:
        if "query" not in self.wanted:
            return []
        return [self.matrix("query", self.terms(code, "ds", "key", prefix), True)]

    def key_value_sums(self, code: PairsCode, prefix: str) -> list[Sum]:
        sums: list[Sum] = []
        if "key" in self.wanted:
            terms = self.terms(code, "ds", "query", prefix)
            sums.append(self.matrix("key", terms, True))
        if "value" in self.wanted:
            terms = self.terms(code, "p", "d_out", prefix)
            sums.append(self.matrix("value", terms, False))
        return sums

    @property
    def has_both_sides(self) -> bool:
        """Whether what is wanted belongs to queries and to keys."""
        return "query" in self.wanted and not {"key", "value"}.isdisjoint(self.wanted)

    @property
    def wanted(self) -> list[str]:
        assert isinstance(self.op, flex.AttentionBackwardOp)
        return self.op.wanted()

    def finished(
        self,
        suffix: str,
        code: PairsCode,
        sums: list[Sum],
        captured: CapturedGradients,
        by: Sequence[Coordinates],
        transposed: bool = False,
    ) -> dict[str, SSAValue]:
        """Results of a kernel by name; those of reads are added to what was found.

        What is large is asked for some rows at a time.
        """
        names = [str(s.name).removeprefix("d_") for s in sums]
        of_reads = captured.sums(by)
        is_large = any(s.kind in LARGE for s in of_reads)
        first = [self.host.code.const(0, i32)] if is_large else []
        sums = [*sums, *of_reads]
        results = self.host.pair_sums(suffix, code, sums, transposed, first)
        captured.add(by, results[len(names) :])
        return dict(zip(names, results, strict=False))
