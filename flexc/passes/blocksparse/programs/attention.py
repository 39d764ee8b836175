"""Attention as the code of one program, which owns `block_m` query rows of one head.

1. Find the program's rows, heads and lengths; load the rows of the query.
2. For each segment, loop over its key blocks: s = q @ k^T, the mod region over s, -inf
   for pairs that the segment's mask hides, one step of the online softmax.
3. Normalise and store.

A positive factor of all scores, such as the scale, is not applied to the scores: the
softmax's exponents include the factor (see `score_factor`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import (
    AffineMapAttr,
    StringAttr,
    TensorType,
    UnitAttr,
    f16,
)
from xdsl.ir import Attribute, Region, SSAValue

from flexc.dialects import blocksparse, flex, tile
from flexc.dialects.tile import TileType
from flexc.passes.blocksparse.programs.builder import (
    RowBlock,
    Visit,
)
from flexc.passes.blocksparse.programs.kernel_builder import grid_of
from flexc.passes.blocksparse.programs.online_softmax import (
    LazySoftmax,
    OnlineSoftmax,
    ShiftedSoftmax,
    SoftmaxState,
    rest_of_parts,
)
from flexc.passes.blocksparse.programs.pair_maps import PairMapBuilder, guard_captures
from flexc.passes.blocksparse.programs.row_terms import SplitScore, split_score
from flexc.passes.blocksparse.programs.sequence_blocks import (
    block_of_sequence,
    blocks_of_sequences,
    sequences_grid,
)
from flexc.passes.flex.score_factor import LOG2_E, Factor, factor_score, softmax_facts
from flexc.passes.masks.segments.sequences import PackedSequences
from flexc.passes.scalar.ranges.float_values import FORMATS
from flexc.passes.scalar.readable import describe
from flexc.passes.scalar.scalar_code import ScalarCode, inline_region
from flexc.passes.targets.target import Target
from flexc.passes.targets.triton import UNALIGNED_VALUE_DIM
from flexc.passes.tile.map_builder import (
    COLUMN,
    FULL,
    ROW,
    UNIFORM,
    Input,
    build_map,
    build_row_map,
    convert,
    extended,
)


@dataclass(frozen=True)
class KeySplit:
    """One of the programs that share the keys of the same rows.

    A call with few rows has few programs, which leave most of a GPU idle: decoding has
    one program for each head. Splits give the GPU more programs; `CombineKernelBuilder`
    combines their results.
    """

    b: SSAValue
    number: SSAValue
    count: SSAValue

    @classmethod
    def of(cls, code: ScalarCode, result_b: SSAValue, count: SSAValue) -> KeySplit:
        """Find the split of a result's batch; each query batch has `count` splits."""
        result_b.name_hint = "result_b"
        b = code.div(result_b, count, "b")
        return cls(b, code.sub(result_b, code.mul(b, count), "split"), count)

    def share(
        self, code: ScalarCode, begin: SSAValue, end: SSAValue
    ) -> tuple[SSAValue, SSAValue]:
        """Return this split's share of a range, which may be reversed.

        The last splits get the remainder. An empty share therefore begins at an
        existing iteration, if there is any: a padded loop reads there.
        """
        zero, one = code.const(0), code.const(1)
        length = code.max(code.sub(end, begin), zero)
        size = code.div(length, self.count)
        left = code.sub(length, code.mul(size, self.count))
        extra = code.sub(self.number, code.sub(self.count, left))
        before = code.add(code.mul(self.number, size), code.max(extra, zero))
        first = code.add(begin, before, "first")
        has_more = code.cmp("sge", extra, zero)
        more = code.select(has_more, one, zero)
        return first, code.add(code.add(first, size), more, "end")


def is_per_key(scale: SSAValue) -> bool:
    """Return True if each key has a scale of its own, False if each head has one."""
    return len(flex.tensor_shape(scale)) == 3


class AttentionKernelBuilder(PairMapBuilder):
    """A builder of the kernel of one `blocksparse.attention`."""

    op: blocksparse.AttentionOp
    dead = -math.inf

    key_split: KeySplit | None = None
    """The share of the keys that this program visits; None for all keys."""

    def __init__(self, op: blocksparse.AttentionOp, name: str, target: Target):
        super().__init__(op, name, target)
        self.op = op
        self.value_dim = flex.tensor_shape(op.value)[3]
        self.d_tile = target.padded(flex.tensor_shape(op.query)[3])
        least = 16 if op.alignment is not None else UNALIGNED_VALUE_DIM
        self.dv_tile = target.padded(self.value_dim, least)
        # Multiplying a maximum by the factor rounds the maximum, which matters if it is
        # large. Scores of splits are then as inexact, and so may be the weights of
        # splits.
        exact = op.lse_rest is not None and op.score_range is None
        self.score = factor_score(
            op.score_mod,
            op.score_type,
            op.scale_positive is not None and not exact,
            self.max_length,
        )
        self.split = self.split_score(exact or op.splits is not None)

    def split_score(self, exact: bool) -> SplitScore | None:
        """Split terms of rows off the scores; None if that is slower or less exact.

        If scores have close bounds, there is no maximum to add terms to. The exact
        parts of lse assume shifts by m * c.
        """
        facts = softmax_facts(self.op, self.score.factor)
        if not self.target.splits_row_terms or exact or facts.shift is not None:
            return None
        return split_score(self.score.region, self.max_length)

    @property
    def max_length(self) -> int:
        """An upper bound of the lengths."""
        return self.op.fact("max_length", 1 << 31)

    def build(self) -> tile.KernelOp:
        self.place = self.locate()
        whole = self.op.fact("q_len_multiple") % self.block_m == 0
        checked = [] if whole else [0]
        q_idx = tile.IotaOp(self.place.start, self.block_m)
        self.row_idx = self.code.insert(q_idx, "q_idx")
        shape = (self.block_m, self.d_tile)
        q = self.load(self.op.query, shape, self.place.stored, checked, "q")
        softmax = self.softmax()
        state = softmax.initial(self.code).values()

        def step(visit: Visit, values: list[SSAValue]) -> Sequence[SSAValue]:
            return self.step(visit, q, softmax, SoftmaxState.of(values)).values()

        for segment in self.segments():
            state = self.loop(segment, self.place, state, step)
        self.store(checked, softmax, SoftmaxState.of(state))
        grid = {} if self.key_split is None else grid_of(self.op, *[self.op.out] * 3)
        return self.kernel(self.summary() | grid | self.paging())

    def grid(self) -> AffineMapAttr:
        if self.op.sequence_blocks is None:
            return super().grid()
        return sequences_grid(self.block_m)

    def blocks(self, row_len: SSAValue) -> SSAValue:
        if self.op.sequence_blocks is None:
            return super().blocks(row_len)
        return blocks_of_sequences(self.code, row_len, self.block_m)

    def summary(self) -> dict[str, Attribute]:
        """Return the lines about the computation in the emitted source's header."""
        return {"score": StringAttr(describe(self.op.score_mod)), **super().summary()}

    def paging(self) -> dict[str, Attribute]:
        """Return the attribute of a kernel whose keys lie in pages, if they do."""
        return {} if self.op.page_table is None else {"pages": UnitAttr()}

    def locate(self) -> RowBlock:
        """Write the rows, batch and head that this program owns."""
        code, query, key = self.code, self.args[self.op.query], self.args[self.op.key]
        q_len = code.insert(tile.DimOp(query, 2), "q_len")
        kv_len = self.key_length()
        q_heads = code.insert(tile.DimOp(query, 1), "q_heads")
        kv_heads = code.insert(tile.DimOp(key, 1), "kv_heads")
        b, h, m_block = self.tile_position(q_len, kv_len, q_heads)
        self.result_b = b
        if self.op.splits is not None:
            self.key_split = KeySplit.of(code, b, self.args[self.op.splits])
            b = self.key_split.b
        # This is h / (q_heads / kv_heads), with one division instead of two.
        self.kv_h = code.div(code.mul(h, kv_heads), q_heads, "kv_h")
        if self.op.sequence_blocks is not None:
            packed = PackedSequences.of(self.op)
            assert packed is not None
            captures = [self.args[c] for c in self.op.captures]
            program = b, h, m_block
            place, self.row_len, self.column_len = block_of_sequence(
                code, packed, captures, program, q_len, self.block_m
            )
            return place
        self.row_len, self.column_len = q_len, kv_len
        q_start = code.mul(m_block, code.const(self.block_m), "q_start")
        return RowBlock(b, h, q_start)

    def key_length(self) -> SSAValue:
        """Write the number of keys of a sequence."""
        code, table, size = self.code, self.op.page_table, self.op.page_size
        if table is None or size is None:
            return code.insert(tile.DimOp(self.args[self.op.key], 2), "kv_len")
        pages = code.insert(tile.DimOp(self.args[table], 1), "pages")
        return code.mul(pages, code.const(size), "kv_len")

    def share(self, begin: SSAValue, end: SSAValue) -> tuple[SSAValue, SSAValue]:
        """Return the range of a segment's iterations in this program's split."""
        if self.key_split is None:
            return begin, end
        return self.key_split.share(self.code, begin, end)

    def softmax(self) -> OnlineSoftmax:
        """Return the softmax, whose exponents include the factor that scores lack."""
        code, factor, type_ = self.code, self.score.factor, self.op.score_type
        exponent = code.const(factor.constant * LOG2_E, type_)
        # Not above the factor: the product with this power overflows only if the score
        # does.
        power = code.const(2.0 ** math.floor(math.log2(factor.constant)), type_)
        units = [code.const(u, type_) for u in factor.units if u != 1.0]
        if factor.has_scale:
            scale = self.args[self.op.scale]
            exponent = code.mulf(scale, exponent, "qk_scale")
            power = self.power_of_two(self.scaled(scale, factor.constant))
            units.insert(0, scale)
        shape = (self.block_m, self.dv_tile)
        facts = softmax_facts(self.op, factor)
        kind = OnlineSoftmax if facts.shift is None else ShiftedSoftmax
        if kind is OnlineSoftmax and self.keeps_maximum:
            kind = LazySoftmax
        return kind(type_, shape, exponent, power, units, self.limit(factor), facts)

    @property
    def keeps_maximum(self) -> bool:
        """True if a row may keep a maximum that is below the largest score."""
        op = self.op
        needs_exact = (op.max_scores, op.lse_rest, op.splits)
        return self.target.keeps_maximum and all(v is None for v in needs_exact)

    def limit(self, factor: Factor) -> SSAValue:
        """Return the magnitude beyond which a score without its factor is infinite."""
        code, type_ = self.code, self.op.score_type
        largest, peak = (code.const(n, type_) for n in (FORMATS[type_].largest, 1.0))
        if factor.has_scale:
            # Dot products may also overflow before they are scaled.
            scaled = self.scaled(self.args[self.op.scale], factor.peak)
            peak = code.maxnumf(scaled, peak)
        elif factor.peak != 1.0:
            peak = code.const(factor.peak, type_)
        return code.divf(largest, peak, "limit")

    def scaled(self, scale: SSAValue, constant: float) -> SSAValue:
        if constant == 1.0:
            return scale
        number = self.code.const(constant, self.op.score_type)
        return self.code.mulf(scale, number, "unit")

    def power_of_two(self, value: SSAValue) -> SSAValue:
        """Write the largest power of two that is not above a positive number."""
        log = self.code.insert(math_dialect.Log2Op(value))
        return self.code.exp2(self.code.insert(math_dialect.FloorOp(log)), "power")

    def step(
        self, visit: Visit, q: SSAValue, softmax: OnlineSoftmax, state: SoftmaxState
    ) -> SoftmaxState:
        """Write the code for one block of keys; return the new state."""
        visit = self.narrowed(visit)
        code, checked = self.code, [0] if visit.sticks_out else []
        kv_idx = tile.IotaOp(visit.start, self.block_n)
        self.column_idx = code.insert(kv_idx, "kv_idx")
        start, pages = self.physical(visit)
        shape = (self.block_n, self.d_tile)
        where = (start, checked)
        element = flex.element_type(self.op.query)
        # Memory beyond a sequence's last key, in other pages too, may hold NaN.
        guards = self.op.page_table is not None and self.target.guards_dead_columns
        live = self.live_columns(visit) if guards else None
        rest = visit.count, pages, element, live
        k = self.load(self.op.key, shape, *where, "k", *rest)
        k_t = code.insert(tile.TransposeOp(k), "k_t")
        zero = code.const(0.0, self.op.score_type)
        scores = TileType(self.op.score_type, [self.block_m, self.block_n])
        acc = code.insert(tile.FullOp(zero, scores), "zeros")
        s = code.insert(tile.DotOp(q, k_t, acc), "s")
        if self.op.key_scale is not None:
            factor = self.factor(self.op.key_scale, visit)
            inputs: list[Input] = [(s, FULL), factor]
            s = build_map(code, scores.get_shape(), inputs, ScalarCode.mulf, "s")
        x = self.modified(visit, s)
        shape = (self.block_n, self.dv_tile)
        # Equal loads become one. Columns beyond the last value count for no result.
        in_keys = self.op.values_in_keys is not None
        values = self.op.key if in_keys else self.op.value
        v = self.load(values, shape, *where, "v", *rest)
        v, weight = self.scaled_values(v, visit)
        term = None if self.split is None else self.term(visit, self.split.term)
        return softmax.update(code, state, x, v, term, visit.count, weight)

    def factor(self, scale: SSAValue, visit: Visit | None) -> Input:
        """Write the scale of the program's head, or of each key of a block."""
        tensor, type_, head = self.args[scale], self.op.score_type, self.kv_h
        if not is_per_key(scale):
            load = flex.LoadCaptureOp(tensor, [self.place.b, head], inside=True)
            return extended(self.code, self.code.insert(load, "scale"), type_), UNIFORM
        assert visit is not None
        kv_idx = self.code.insert(tile.IotaOp(visit.start, self.block_n), "kv_idx")
        inputs: list[Input] = [
            *((v, UNIFORM) for v in (tensor, self.place.b, head)),
            (self.column_len, UNIFORM),
            (kv_idx, ROW),
        ]

        def body(code: ScalarCode, tensor: SSAValue, *args: SSAValue) -> SSAValue:
            b, h, kv_len, column = args
            if visit.sticks_out or visit.count is not None:
                column = self.at_most_last(code, column, kv_len)
            load = flex.LoadCaptureOp(tensor, [b, h, column], inside=True)
            return extended(code, code.insert(load), type_)

        return build_map(self.code, [self.block_n], inputs, body, "scales"), COLUMN

    def scaled_values(self, v: SSAValue, visit: Visit) -> tuple[SSAValue, Input | None]:
        """Return a block of values, and factors that their weights still lack.

        The scale of a head multiplies the output. Weights of fp16 would lose digits if
        a small scale multiplied them, so fp16 values are scaled before the product.
        """
        scale, element = self.op.value_scale, flex.element_type(self.op.query)
        if scale is None or not is_per_key(scale):
            return v, None
        factors, _ = self.factor(scale, visit)
        if element != f16:
            return v, (factors, COLUMN)

        def body(code: ScalarCode, x: SSAValue, factor: SSAValue) -> SSAValue:
            return code.mulf(extended(code, x, self.op.score_type), factor)

        inputs: list[Input] = [(v, FULL), (factors, ROW)]
        shape = [self.block_n, self.dv_tile]
        wide = build_map(self.code, shape, inputs, body, "v")
        return convert(self.code, wide, element), None

    def physical(self, visit: Visit) -> tuple[list[SSAValue], SSAValue | None]:
        """Write where a block's keys lie; a page table if they lie in several pages.

        A block that is not trimmed starts at a multiple of `block_n`.
        """
        code, size, table = self.code, self.op.page_size, self.op.page_table
        if (memory := self.place.memory) is not None:
            start = code.add(memory.column, visit.start, "first_column")
            return [memory.row[0], self.kv_h, start], None
        if table is None or size is None:
            return [self.place.b, self.kv_h, visit.start], None
        if visit.count is not None or size % self.block_n:
            return [self.place.b, self.kv_h, visit.start], self.args[table]
        entry = code.div(visit.start, code.const(size), "entry")
        where = [self.place.b, entry]
        load = flex.LoadCaptureOp(self.args[table], where, inside=True)
        last = code.insert(tile.DimOp(self.args[self.op.key], 0), "num_pages")
        page = code.max(code.insert(load, "page"), code.const(0), "page")
        page = code.min(page, code.sub(last, code.const(1)), "page")
        within = code.rem(visit.start, code.const(size), "within")
        return [page, self.kv_h, within], None

    def modified(self, visit: Visit, s: SSAValue) -> SSAValue:
        """Write the scores after the mod, -inf for dead pairs."""
        mod = None if self.score.is_raw else self.score.region
        if self.split is not None:
            mod = self.split.rest
        if mod is None:
            return self.values(visit, [(s, FULL)], None, ["scores"])[0]
        given: list[Input] = [(s, FULL), (self.args[self.op.scale], UNIFORM)]
        if self.split is not None:
            given.append((self.offset(), COLUMN))

        def body(
            code: ScalarCode, own: list[SSAValue], mod_args: list[SSAValue]
        ) -> list[SSAValue]:
            return inline_region(mod, [*own[:2], *mod_args, *own[2:]], code)

        return self.values(visit, given, body, ["scores"])[0]

    def offset(self) -> SSAValue:
        """Write the offsets of columns in their block."""
        zero = self.code.const(0)
        return self.code.insert(tile.IotaOp(zero, self.block_n), "column_offset")

    def term(self, visit: Visit, region: Region) -> SSAValue:
        """Write the term that is added to each row of a block of scores."""
        place, captures = self.place, [self.args[c] for c in self.op.captures]
        inputs: list[Input] = [
            (self.row_len, UNIFORM),
            (self.args[self.op.scale], UNIFORM),
            (place.b, UNIFORM),
            (place.h, UNIFORM),
            (self.row_idx, ROW),
            *((c, UNIFORM) for c in captures),
            (visit.start, UNIFORM),
        ]

        def body(code: ScalarCode, q_len: SSAValue, *args: SSAValue) -> SSAValue:
            scale, b, h, q_idx, *rest = args
            if self.clamps_rows(visit):
                q_idx = self.at_most_last(code, q_idx, q_len)
            return inline_region(region, [scale, b, h, q_idx, *rest], code)[0]

        result = build_map(self.code, [self.block_m], inputs, body, "term")
        if self.guards(visit):
            guard_captures(result)
        return result

    def store(
        self,
        checked: Sequence[int],
        softmax: OnlineSoftmax,
        state: SoftmaxState,
    ) -> None:
        """Normalise, and store the results of the op."""
        code, op = self.code, self.op
        start = [self.result_b, *self.place.stored[1:]]
        below = self.place.memory and self.place.memory.row_end
        assert isinstance(op.out.type, TensorType)
        factor = None
        if op.value_scale is not None and not is_per_key(op.value_scale):
            factor, _ = self.factor(op.value_scale, None)
        out = softmax.output(code, state, op.out.type.element_type, factor)
        columns = [] if self.dv_tile == self.value_dim else [1]
        code.builder.insert(
            tile.StoreOp(
                out,
                self.args[op.out],
                [*start, code.const(0)],
                [*checked, *columns],
                below=below,
            )
        )
        rows: list[tuple[SSAValue, SSAValue]] = []
        if op.lse is not None and op.lse_rest is not None:
            parts = softmax.lse_parts(code, state)
            lse = build_row_map(code, parts, ScalarCode.addf, "lse")
            rest = build_row_map(code, parts, rest_of_parts, "lse_rest")
            rows += [(op.lse, lse), (op.lse_rest, rest)]
        elif op.lse is not None:
            rows.append((op.lse, softmax.lse(code, state)))
        if op.max_scores is not None:
            rows.append((op.max_scores, softmax.max_scores(code, state)))
        if op.row_shift is not None and op.log_sum is not None:
            shift, log_sum = softmax.lse_parts(code, state)
            rows += [(op.row_shift, shift), (op.log_sum, log_sum)]
        for result, row in rows:
            store = tile.StoreOp(row, self.args[result], start, checked, below=below)
            code.builder.insert(store)
