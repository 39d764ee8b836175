"""`flex-expand-derivatives`: expand derivatives of attention into sums over pairs.

The function of a `flex.attention_backward` or `flex.attention_jvp` becomes a host
function. It launches kernels, each a function of its own, and finishes their results:

- delta: the dot products of the rows of d_out and out;
- the gradient of the query, with the row sums for captures that are read by head or by
  row;
- the gradients of key and value, transposed, with the row sums for captures that are
  read by column;
- one kernel for each sum for captures that are read by distance or by pair;
- one `flex.scatter_sums` for each read.

The gradients of key and value may be sums in memory, to which programs of each query
head add (`per_query_head`). A kernel over the rows of keys then rounds them. If
gradients are `ordered` and heads share keys, one pass needs such programs.

With `one_pass` one kernel computes the gradients of query, key and value. The kernel
visits each pair once and computes five products instead of seven. It adds the sums by
column to memory; `flex.sum_parts` adds up the parts of its programs.

If its rows are queries, sums by distance and by pair are part of this kernel, or of the
query's kernel if there is no such kernel, and reads by column keep a kernel of their
own. The kernel that reads delta computes delta itself, if it is the only reader and its
programs own the rows. If its rows are keys, reads by column are part of this kernel,
and all other reads keep kernels of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

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
from flexc.passes.flex.derivative_kernels import (
    HostFunction,
    PairSum,
    absorb_rows,
    fresh,
)
from flexc.passes.flex.pair_code import (
    PairCode,
    backward_code,
    is_weighed,
    jvp_code,
    shift_of,
    weighed,
)
from flexc.passes.scalar.captured_reads import CaptureIndices
from flexc.passes.scalar.copier import sliced
from flexc.passes.scalar.ranges.intervals import full
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.targets.target import WIDE, OnePass

KINDS = {
    Coordinates.HEAD: SumKind.TOTAL,
    Coordinates.ROW: SumKind.TOTAL,
    Coordinates.COLUMN: SumKind.TOTAL,
    Coordinates.DISTANCE: SumKind.DIAGONAL,
    Coordinates.PAIR: SumKind.PAIRS,
}
"""The kind of sum for the adjoints of each class of reads.

Adjoints of reads by column are summed in a transposed kernel.
"""

BY_ROW = (Coordinates.HEAD, Coordinates.ROW)
BY_COLUMN = (Coordinates.COLUMN,)
BY_PAIR = (Coordinates.DISTANCE, Coordinates.PAIR)

LARGE = (SumKind.DIAGONAL, SumKind.PAIRS)
"""Kinds of sums that may need more memory than all other tensors of a call."""


@dataclass(frozen=True)
class CaptureRead:
    """A read of a captured tensor whose gradient is wanted."""

    value: str
    """The name of the read's adjoint, or of an equal adjoint."""
    load: flex.LoadCaptureOp
    capture: int
    by: Coordinates

    @property
    def sum_key(self) -> tuple[SumKind, str]:
        """The kind and the value of the read's sum; reads of equal keys share a sum."""
        return KINDS[self.by], self.value


class CapturedGradients:
    """The gradients of captured tensors of `score_mod`, built up as sums are computed.

    A gradient is the sum of the adjoints of its reads, each added at the index that was
    read. Reads by head, row or column add sums to kernels that other gradients need
    anyway. Reads by distance or by pair have kernels of their own on a GPU; on a CPU
    they are part of a kernel of sums by row.
    """

    def __init__(self, host: HostFunction, code: PairCode, prefix: str):
        self.host, self.code = host, code
        self.score_type = score_type(host.op.query.type)
        self.gradients: dict[int, SSAValue] = {}
        op, self.reads = host.op, list[CaptureRead]()
        length = op.fact("max_length", full(32).hi)
        indices = CaptureIndices(op.score_mod, length, op.indices_fit is not None)
        for i, load in enumerate(code.reads):
            value = f"{prefix}read {i}"
            if value in code.yields:
                known = indices.read(load)
                by = known.coordinates
                value = code.first_name(value)
                self.reads.append(CaptureRead(value, load, known.capture, by))

    def named(self) -> dict[str, SSAValue]:
        """Return the gradients found so far, by their names in the dialect."""
        return {f"{CAPTURE}{i}": g for i, g in self.gradients.items()}

    def sums(self, by: Sequence[Coordinates]) -> list[PairSum]:
        """Return the sums for the gradients of reads of some classes."""
        keys = dict.fromkeys(r.sum_key for r in self.reads if r.by in by)
        return [
            PairSum(kind, [(value,)], self.score_type, name=f"{kind}_sums")
            for kind, value in keys
        ]

    def add(self, by: Sequence[Coordinates], results: Sequence[SSAValue]) -> None:
        """Add `results`, the results of `sums(by)`, to the gradients."""
        reads = [r for r in self.reads if r.by in by]
        keys = dict.fromkeys(r.sum_key for r in reads)
        found = dict(zip(keys, results, strict=True))
        for read in reads:
            self.scatter(read, found[read.sum_key])

    def add_pairs(self) -> None:
        """Add the gradients of reads by distance or pair, with a kernel for each sum.

        Several sums in one kernel need more registers than a GPU has left.
        """
        results: list[SSAValue] = []
        for i, s in enumerate(self.sums(BY_PAIR)):
            origin = [self.host.code.const(0, i32)] * 3
            results += self.host.pair_sums(f"read_{i}", self.code, [s], origin=origin)
        self.add(BY_PAIR, results)

    def scatter(self, read: CaptureRead, sums: SSAValue) -> None:
        """Add the sums of a read to the gradient of the tensor that was read."""
        op = self.host.op
        target = op.captures[read.capture]
        scatter = flex.ScatterSumsOp(
            read.by,
            sums,
            target,
            op.captures,
            self.gradients.get(read.capture),
            sliced(op.score_mod, list(read.load.indices)),
        )
        name = f"d_{target.name_hint or 'capture'}"
        self.gradients[read.capture] = self.host.append(scatter, name)


Terms = list[tuple[str, ...]]

Gradients = dict[str, SSAValue]
"""Gradients by the names of their inputs."""


class Expansion:
    """An expansion of one derivative op in its host function."""

    def __init__(self, op: DerivativeOp, name: str, one_pass: OnePass = "none"):
        self.op, self.one_pass = op, one_pass
        self.host = HostFunction(op, name)
        self.score_type = score_type(op.query.type)
        self.weighs = is_weighed(op)
        self.named = self.host.named
        self.named |= {"query": op.query, "key": op.key, "value": op.value}
        self.named |= zip(("out", "lse", "lse_rest"), op.saved, strict=False)
        self.named |= zip(("d_out", "d_lse"), op.cotangents, strict=False)
        if op.along is not None:
            names = (f"t_{a.data}" for a in op.along)
            self.named |= zip(names, op.tangents, strict=True)

    def run(self) -> list[func.FuncOp]:
        """Replace the op; return the kernels that the host function launches."""
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

    def jvp(self) -> list[SSAValue]:
        """Return the tangents of out and lse."""
        code, named = jvp_code(self.op), self.named
        out = named["out"]
        terms: Terms = []
        scores_move = "p_t_x" in code.yields
        if scores_move:
            terms.append(("p_t_x", "value"))
        if "t_value" in named:
            terms.append(("p", "t_value"))
        dim = tensor_shape(out)[3]
        sums = [PairSum(SumKind.MATRIX, terms, self.score_type, dim, name="sums")]
        # If scores have no tangent, the total has no terms and is 0.
        total: Terms = [("p_t_x",)] if scores_move else []
        sums.append(PairSum(SumKind.TOTAL, total, self.score_type, name="t_lse"))
        moved_sums, t_lse = self.host.pair_sums("tangents", code, sums)
        if self.weighs:
            moved_sums = self.weighed("sums", moved_sums)
            t_lse = self.weighed("t_lse", t_lse)
        center = flex.CenterRowsOp(moved_sums, t_lse, out)
        return [self.host.append(center, "t_out"), t_lse]

    def weighed(self, name: str, rows: SSAValue) -> SSAValue:
        """Multiply rows by the row weights that the computed probabilities lack."""
        values = [rows, self.named["lse"], self.named["lse_rest"]]

        def write(code: ScalarCode, *given: SSAValue) -> list[SSAValue]:
            return [weighed(code, *given)]

        return self.host.map_rows(f"weighed_{name}", {name: rows.type}, write, values)[
            0
        ]

    def backward(self, op: flex.AttentionBackwardOp) -> list[SSAValue]:
        """Return the wanted gradients, or their tangents if the op has tangents."""
        self.wanted, named = op.wanted(), self.named
        by_keys = self.one_pass == "keys" and self.has_both_sides and not op.tangents
        own_head, ordered = op.per_query_head is not None, op.ordered is not None
        if ordered and not own_head and op.paired_heads is None:
            by_keys = False
        # Two kernels have no order of additions. Ordered, they add nothing.
        self.host.per_query_head = own_head and (by_keys or not ordered)
        # Tangents of p follow from those of lse. The value's gradient needs no delta.
        shifted = (
            self.one_pass != "queries" and not op.tangents and self.wanted != ["value"]
        )
        self.code = backward_code(op, shifted=shifted)
        for name in ("d_out", "d_lse", "t_d_out", "t_d_lse"):
            if self.weighs and name in named:
                named[name] = self.weighed(name, named[name])
        if not shifted:
            named["delta"] = self.delta("delta", [("d_out", "out")], "d_lse")
        elif not by_keys:
            self.delta_and_shift()
        self.prefix = ""
        if op.tangents:
            self.name_tangents_of_saved()
            self.prefix = "t_"
        self.captured = CapturedGradients(self.host, self.code, self.prefix)
        by_row = (*BY_ROW, *BY_PAIR) if self.one_pass == "queries" else BY_ROW
        if self.one_pass == "queries" and self.has_both_sides:
            found = self.one_pass_of_queries(by_row)
        elif by_keys:
            found = self.one_pass_of_keys()
        else:
            found = self.summed("query", self.query_sums(), by_row)
            found |= self.key_value_gradients()
        if self.one_pass != "queries":
            self.captured.add_pairs()
        found |= self.captured.named()
        return [
            found[name] if name in found else self.zeros(name) for name in self.wanted
        ]

    @property
    def has_both_sides(self) -> bool:
        """True if the gradients of the query and of key or value are wanted."""
        return "query" in self.wanted and not {"key", "value"}.isdisjoint(self.wanted)

    def zeros(self, name: str) -> SSAValue:
        """Return zeros: the gradient of a captured tensor that no score depends on."""
        capture = self.op.captures[int(name.removeprefix(CAPTURE))]
        return self.host.append(flex.ZerosLikeOp(capture))

    def name_tangents_of_saved(self) -> None:
        """Compute and name the tangents of out, lse and delta."""
        named = self.named
        if "t_out" not in named:
            named["t_out"], named["t_lse"] = self.jvp()
        products = [
            (left, right)
            for left, right in (("t_d_out", "out"), ("d_out", "t_out"))
            if left in named and right in named
        ]
        named["t_delta"] = self.delta("t_delta", products, "t_d_lse")

    def delta(self, name: str, dots: Sequence[tuple[str, str]], minus: str) -> SSAValue:
        """Return the dot products of rows, less the value named `minus` if any."""
        assert dots, "no product to subtract from"

        def write(code: ScalarCode, *given: SSAValue) -> list[SSAValue]:
            return [reduce(code.subf, given)]

        values = [self.named[minus]] if minus in self.named else []
        return self.host.map_rows(name, {name: self.number()}, write, values, dots)[0]

    def number(self) -> TensorType[Attribute]:
        """Return the type of a number for each row."""
        return fresh([None] * 3, self.score_type)

    def one_pass_of_queries(self, by_row: Sequence[Coordinates]) -> Gradients:
        """Return the gradients from one visit to each pair; rows are queries.

        Only captured reads by column have a kernel of their own.
        """
        rounded = self.key_value_sums()
        sums = [*self.query_sums(), *map(self.by_column, rounded)]
        found = self.summed("gradients", sums, by_row)
        for s in rounded:
            self.add_parts(s, found)
        self.summed("key_value", [], BY_COLUMN, transposed=True)
        return found

    def one_pass_of_keys(self) -> Gradients:
        """Return the gradients from one visit to each pair; rows are keys.

        Captured reads by head and by row have a kernel of their own. The sums of the
        query's gradient are scaled when they are rounded, once for each element.
        """
        (rounded,) = self.query_sums()
        unscaled = self.unscaled(self.by_column(rounded))
        zeros = self.delta_and_shift(rounded.dim)
        assert zeros is not None
        found = self.summed(
            "gradients",
            self.key_value_sums()[::-1],
            BY_COLUMN,
            transposed=True,
            added=[(unscaled, zeros)],
        )
        (found["query"],) = self.rounded("query", [rounded], [found["query"]])
        self.summed("query", [], BY_ROW)
        return found

    def delta_and_shift(self, dim: int | None = None) -> SSAValue | None:
        """Compute delta and shift; with `dim`, return zeros of the query's rows."""
        named, type_ = self.named, self.score_type

        def write(
            code: ScalarCode, dot: SSAValue, lse: SSAValue, *minus: SSAValue
        ) -> list[SSAValue]:
            delta = reduce(code.subf, minus, dot)
            zero = [] if dim is None else [code.const(0.0, type_)]
            return [delta, shift_of(self.op, code, lse), *zero]

        values = [named[n] for n in ("lse", "d_lse") if n in named]
        types = {"delta": self.number(), "shift": self.number()}
        if dim is not None:
            types["zeros"] = fresh([None, None, None, dim], type_)
        found = self.host.map_rows("delta", types, write, values, [("d_out", "out")])
        named["delta"], named["shift"], *zeros = found
        return zeros[0] if zeros else None

    def rounded(
        self, suffix: str, gradients: Sequence[PairSum], sums: Sequence[SSAValue]
    ) -> Sequence[SSAValue]:
        """Scale and round the rows of gradients, given as sums that are not scaled."""

        def write(code: ScalarCode, *given: SSAValue) -> list[SSAValue]:
            *rows, scale = given
            pairs = zip(gradients, rows, strict=True)
            return [code.mulf(x, scale) if g.scaled else x for g, x in pairs]

        types = {str(g.name): g.type() for g in gradients}
        values = [*sums, self.op.scale]
        return self.host.map_rows(f"rounded_{suffix}", types, write, values)

    def unscaled(self, gradient: PairSum) -> PairSum:
        """Return the sum that is scaled and rounded to a gradient later."""
        return replace(gradient, element=self.score_type, scaled=False)

    def by_column(self, rounded: PairSum) -> PairSum:
        """Return the sum by column that is rounded to a gradient later."""
        return replace(rounded, kind=SumKind.COLUMN_MATRIX, element=self.score_type)

    def add_parts(self, rounded: PairSum, found: Gradients) -> None:
        """Add up the parts of a sum by column, and round the sum to a gradient."""
        name = str(rounded.name).removeprefix("d_")
        parts = flex.SumPartsOp(found[name], rounded.type())
        found[name] = self.host.append(parts, rounded.name)

    def query_sums(self) -> list[PairSum]:
        if "query" not in self.wanted:
            return []
        return [self.gradient("query", self.terms("ds", "key"), True)]

    def key_value_gradients(self) -> Gradients:
        """Return the gradients of key and value, of one kernel unless rows are wide."""
        sums = self.key_value_sums()
        is_wide = any(s.dim is not None and s.dim > WIDE for s in sums)
        if self.one_pass == "queries" or not is_wide or len(sums) < 2:
            return self.summed("key_value", sums, BY_COLUMN, transposed=True)
        of_key, of_value = sums
        found = self.summed("key", [of_key], BY_COLUMN, transposed=True)
        return found | self.summed("value", [of_value], (), transposed=True)

    def key_value_sums(self) -> list[PairSum]:
        sums: list[PairSum] = []
        if "key" in self.wanted:
            sums.append(self.gradient("key", self.terms("ds", "query"), True))
        if "value" in self.wanted:
            sums.append(self.gradient("value", self.terms("p", "d_out"), False))
        return sums

    def gradient(self, wrt: str, terms: Terms, scaled: bool) -> PairSum:
        """Return the sum that is the gradient of query, key or value."""
        given = self.named[wrt]
        assert isa(given.type, TensorType[Attribute])
        dim, element = tensor_shape(given)[3], given.type.element_type
        return PairSum(SumKind.MATRIX, terms, element, dim, scaled, f"d_{wrt}")

    def terms(self, value: str, matrix: str) -> Terms:
        """Return the terms of value @ matrix, or of its tangent by the product rule."""
        found: Terms = []
        if f"{self.prefix}{value}" in self.code.yields:
            found.append((f"{self.prefix}{value}", matrix))
        if self.prefix and f"t_{matrix}" in self.named and value in self.code.yields:
            found.append((value, f"t_{matrix}"))
        return found

    def summed(
        self,
        suffix: str,
        sums: list[PairSum],
        by: Sequence[Coordinates],
        transposed: bool = False,
        added: Sequence[tuple[PairSum, SSAValue]] = (),
    ) -> dict[str, SSAValue]:
        """Launch a kernel for gradients and for captured reads of the classes `by`.

        Return the gradients by name. The gradients of captured reads are added to
        `self.captured`. A kernel with large sums is launched for some rows at a time.
        `added` are further sums, each with the value that it is added to.
        """
        of_reads = self.captured.sums(by)
        is_large = any(s.kind in LARGE for s in of_reads)
        origin = [self.host.code.const(0, i32)] if is_large else []
        more, plus = [s for s, _ in added], [value for _, value in added]
        in_memory = transposed and self.host.per_query_head and bool(sums)
        own = list(map(self.unscaled, sums)) if in_memory else sums
        every = [*own, *of_reads, *more]
        results = self.host.pair_sums(
            suffix, self.code, every, transposed, origin, plus
        )
        first, last = len(sums), len(sums) + len(of_reads)
        self.captured.add(by, results[first:last])
        gradients = results[:first]
        if in_memory:
            gradients = self.rounded(suffix, sums, gradients)
        found = zip([*sums, *more], [*gradients, *results[last:]], strict=True)
        return {str(s.name).removeprefix("d_"): value for s, value in found}


def expand(function: func.FuncOp, one_pass: OnePass = "none") -> list[func.FuncOp]:
    """Expand the derivatives in a function; return the kernels that it launches."""
    name, kernels = function.sym_name.data, list[func.FuncOp]()
    derivatives = [o for o in function.walk() if isinstance(o, DerivativeOp)]
    for i, op in enumerate(derivatives):
        kernels += Expansion(op, f"{name}_{i}" if i else name, one_pass).run()
    if derivatives:
        # Not every derivative needs delta.
        region_dce(function.body)
        # The new results may have other layouts than the old ones.
        function.update_function_type()
    if one_pass == "queries":
        absorb_rows(function, {kernel.sym_name.data: kernel for kernel in kernels})
    launches = (o for o in function.walk() if isinstance(o, flex.LaunchOp))
    launched = {launch.callee.string_value() for launch in launches}
    return [kernel for kernel in kernels if kernel.sym_name.data in launched]


@dataclass(frozen=True)
class FlexExpandDerivativesPass(ModulePass):
    """A pass that expands derivatives of attention into sums over pairs."""

    name = "flex-expand-derivatives"

    one_pass: OnePass = "none"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in list(op.ops):
            if isinstance(function, func.FuncOp):
                kernels = expand(function, self.one_pass)
                op.body.block.insert_ops_before(kernels, function)
