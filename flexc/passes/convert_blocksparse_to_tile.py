"""`convert-blocksparse-to-tile`: attention as the code of one program.

A program owns `block_m` query rows of one head.

1. Find the program's rows, heads and lengths; load the rows of the query.
2. For each segment loop over its key blocks: s = q @ k^T, the mod region over s,
   -inf where the segment's mask says so, one step of the online softmax.
3. Normalise and store.

A positive factor of all scores, the scale to begin with, is not applied to them
at all: it goes into the softmax's exponents (see `score_factor`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from xdsl.context import Context
from xdsl.dialects import arith, func, scf
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import (
    AffineMapAttr,
    MemRefType,
    ModuleOp,
    NoneAttr,
    StridedLayoutAttr,
    StringAttr,
    TensorType,
    i32,
)
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.passes import ModulePass
from xdsl.utils.hints import isa

from flexc.dialects import blocksparse, flex, tile
from flexc.dialects.blocksparse import (
    SegmentKind,
    SegmentKindAttr,
    SegmentOp,
    TileOrder,
)
from flexc.dialects.tile import ParamAttr, ParamKind, TileType
from flexc.passes.analysis.describe import describe
from flexc.passes.map_builder import COLUMN, FULL, ROW, UNIFORM, Input, build_map
from flexc.passes.online_softmax import OnlineSoftmax, SoftmaxState
from flexc.passes.scalar_code import ScalarCode, inline_region
from flexc.passes.score_factor import factor_score
from flexc.passes.shifted_softmax import ShiftedSoftmax
from flexc.passes.softmax_facts import LOG2_E, softmax_facts
from flexc.passes.tile_sizes import UNALIGNED_VALUE_DIM, padded_head_dim


@dataclass(frozen=True)
class Place:
    """What a program knows of its place in the whole, as scalars."""

    b: SSAValue
    h: SSAValue
    kv_h: SSAValue
    q_start: SSAValue
    q_len: SSAValue
    kv_len: SSAValue


class KernelBuilder:
    """Builds one kernel from one attention op."""

    def __init__(self, op: blocksparse.AttentionOp, name: str, target: str):
        self.op = op
        self.name = name
        self.block_m = op.block_m.value.data
        self.block_n = op.block_n.value.data
        self.head_dim = flex.tensor_shape(op.query)[3]
        self.value_dim = flex.tensor_shape(op.value)[3]
        self.d_tile = padded_head_dim(target, self.head_dim)
        least = 16 if op.alignment is not None else UNALIGNED_VALUE_DIM
        self.dv_tile = padded_head_dim(target, self.value_dim, least)
        self.score = factor_score(
            op.score_mod, op.score_type, op.scale_positive is not None
        )
        self.trusts_captures = any(
            isinstance(inner, flex.LoadCaptureOp) and inner.inside is not None
            for region in self.mod_regions()
            for inner in region.walk()
        )
        self.outputs = [r for r in (op.out, op.lse, op.max_scores) if r is not None]
        self.block = self.entry_block()
        inputs = zip(op.operands, self.block.args, strict=False)
        self.args: dict[SSAValue, SSAValue] = dict(inputs)
        self.code = ScalarCode(self.block)

    def mod_regions(self) -> list[Region]:
        masks = (
            o.mask_mod for o in self.op.segments.block.ops if isinstance(o, SegmentOp)
        )
        return [self.op.score_mod, *(m for m in masks if m is not None)]

    def entry_block(self) -> Block:
        op = self.op
        types = [*op.operand_types, *(_memref(r.type) for r in self.outputs)]
        block = Block(arg_types=types)
        for arg, value in zip(block.args, [*op.operands, *self.outputs], strict=True):
            arg.name_hint = value.name_hint
        return block

    def build(self) -> tile.KernelOp:
        place = self.locate()
        q_checked = [] if self.is_multiple("q_len", self.block_m) else [0]
        q_idx = tile.IotaOp(place.q_start, self.block_m)
        self.q_idx = self.code.insert(q_idx, "q_idx")
        start = [place.b, place.h, place.q_start]
        shape = (self.block_m, self.d_tile)
        q = self.load(self.op.query, shape, start, q_checked, "q")
        softmax = self.softmax()
        state = softmax.initial(self.code)
        for segment in self.op.segments.block.ops:
            assert isinstance(segment, SegmentOp)
            state = self.loop(segment, place, q, softmax, state)
        self.store(place, q_checked, softmax, state)
        self.code.builder.insert(tile.ReturnOp())
        params = [ParamAttr(ParamKind.ARGUMENT, i) for i in range(len(self.block.args))]
        attributes = dict(self.op.attributes)
        attributes |= self.summary()
        for fact in (
            "num_warps",
            "num_stages",
            "alignment",
            "index_width",
            "max_length",
        ):
            if fact in self.op.properties:
                attributes[fact] = self.op.properties[fact]
        return tile.KernelOp(
            self.name, self.grid(), params, Region(self.block), attributes
        )

    def summary(self) -> dict[str, Attribute]:
        """What the header of the emitted source says that it computes."""
        segments = [o for o in self.op.segments.block.ops if isinstance(o, SegmentOp)]
        masks = dict.fromkeys(
            describe(s.mask_mod) for s in segments if s.mask_mod is not None
        )
        lines = {
            "score": describe(self.op.score_mod),
            "mask": "; ".join(masks) or "none",
            "segments": ", ".join(s.kind.data.value for s in segments),
        }
        return {name: StringAttr(text) for name, text in lines.items()}

    def is_multiple(self, length: str, block: int) -> bool:
        return self.op.fact(f"{length}_multiple") % block == 0

    def grid(self) -> AffineMapAttr:
        b, h, q_len = (AffineExpr.dimension(i) for i in range(3))
        return AffineMapAttr(AffineMap(3, 0, (q_len.ceil_div(self.block_m), h, b)))

    def locate(self) -> Place:
        """Which rows and heads this program owns."""
        code, query, key = self.code, self.args[self.op.query], self.args[self.op.key]
        m_block = code.insert(tile.ProgramIdOp(0), "m_block")
        h = code.insert(tile.ProgramIdOp(1), "h")
        b = code.insert(tile.ProgramIdOp(2), "b")
        q_len = code.insert(tile.DimOp(query, 2), "q_len")
        kv_len = code.insert(tile.DimOp(key, 2), "kv_len")
        q_heads = code.insert(tile.DimOp(query, 1), "q_heads")
        kv_heads = code.insert(tile.DimOp(key, 1), "kv_heads")
        m_blocks = code.ceildiv(q_len, self.block_m, "m_blocks")
        if self.op.heads_per_group is not None:
            m_block, h = self.grouped(m_block, h, m_blocks, q_heads)
        if self.op.order and self.op.order.data == TileOrder.DESCENDING:
            last = code.sub(m_blocks, code.const(1))
            m_block = code.sub(last, m_block, "m_block")
        # As h / (q_heads / kv_heads), with one division in place of two.
        kv_h = code.div(code.mul(h, kv_heads), q_heads, "kv_h")
        q_start = code.mul(m_block, code.const(self.block_m), "q_start")
        return Place(b, h, kv_h, q_start, q_len, kv_len)

    def grouped(
        self, m_block: SSAValue, h: SSAValue, m_blocks: SSAValue, q_heads: SSAValue
    ) -> tuple[SSAValue, SSAValue]:
        """Renumber a batch's programs: within a group of heads, heads run fastest.

        The last group has what heads are left.
        """
        code = self.code
        assert self.op.heads_per_group is not None
        heads = code.const(self.op.heads_per_group.value.data)
        first = code.mul(code.div(h, heads), heads, "first_head")
        within = code.add(m_block, code.mul(code.sub(h, first), m_blocks), "program")
        left = code.sub(q_heads, first)
        count = code.insert(arith.MinSIOp(left, heads), "group_heads")
        head = code.add(first, code.rem(within, count), "h")
        return code.div(within, count, "m_block"), head

    def softmax(self) -> OnlineSoftmax:
        """The softmax takes in the factor that the scores left out."""
        code, factor, type_ = self.code, self.score.factor, self.op.score_type
        exponent = code.const(factor.constant * LOG2_E, type_)
        power = code.const(
            2.0 ** math.floor(math.log2(factor.constant * LOG2_E)), type_
        )
        unit = None if factor.is_one else code.const(factor.constant, type_)
        if factor.has_scale:
            scale = self.args[self.op.scale]
            exponent = code.insert(arith.MulfOp(scale, exponent), "qk_scale")
            power = self.power_of_two(exponent)
            if factor.constant != 1.0:
                assert unit is not None
                scale = code.insert(arith.MulfOp(scale, unit), "unit")
            unit = scale
        shape = (self.block_m, self.dv_tile)
        facts = softmax_facts(self.op, factor)
        kind = OnlineSoftmax if facts.shift is None else ShiftedSoftmax
        return kind(type_, shape, exponent, power, unit, facts)

    def power_of_two(self, value: SSAValue) -> SSAValue:
        """The largest power of two that is not above a positive number."""
        log = self.code.insert(math_dialect.Log2Op(value))
        return self.code.insert(
            math_dialect.Exp2Op(self.code.insert(math_dialect.FloorOp(log))), "power"
        )

    def load(
        self,
        tensor: SSAValue,
        shape: tuple[int, int],
        start: Sequence[SSAValue],
        checked: Sequence[int],
        name: str,
    ) -> SSAValue:
        """The tile of rows that starts at (b, h, row), padded in the head dim."""
        assert isa(tensor.type, TensorType[Attribute])
        checked = [*checked, 1] if shape[1] != flex.tensor_shape(tensor)[3] else checked
        type_ = TileType(tensor.type.element_type, shape)
        indices = [*start, self.code.const(0)]
        return self.code.insert(
            tile.LoadOp(self.args[tensor], indices, checked, type_), name
        )

    def loop(
        self,
        segment: SegmentOp,
        place: Place,
        q: SSAValue,
        softmax: OnlineSoftmax,
        state: SoftmaxState,
    ) -> SoftmaxState:
        """Visit one segment's key blocks."""
        where = [place.b, place.h, place.q_start]
        trailing = [place.q_len, place.kv_len]
        trailing += [self.args[v] for v in (*self.op.captures, *self.op.tables)]
        bounds = inline_region(segment.bounds, [*where, *trailing], self.code)
        body = Block(arg_types=[i32, *(v.type for v in state.values())])
        body.args[0].name_hint = "i"
        inner_state = SoftmaxState.of(body.args[1:])
        one = self.code.const(1)

        outer, self.code = self.code, ScalarCode(body)

        def iteration(region: Region, name: str) -> SSAValue:
            args = [*where, body.args[0], *trailing]
            varying = [len(where)]
            (value,) = inline_region(region, args, self.code, outer, varying)
            value.name_hint = name
            return value

        kv_start = iteration(segment.block, "kv_start")
        masked = None
        if segment.masked_if is not None:
            masked = iteration(segment.masked_if, "is_partial")
        new = self.step(segment, place, q, kv_start, softmax, inner_state, masked)
        self.code.builder.insert(scf.YieldOp(*new.values()))
        self.code = outer

        start, end = bounds
        loop = scf.ForOp(start, end, one, state.values(), Region(body))
        loop.attributes["segment"] = segment.kind
        self.code.builder.insert(loop)
        return SoftmaxState.of(loop.results)

    def step(
        self,
        segment: SegmentOp,
        place: Place,
        q: SSAValue,
        kv_start: SSAValue,
        softmax: OnlineSoftmax,
        state: SoftmaxState,
        masked: SSAValue | None,
    ) -> SoftmaxState:
        """One block of keys; of a mixed segment the mask decides if it is `masked`."""
        code, checked = self.code, [] if segment.inside else [0]
        kv_idx = code.insert(tile.IotaOp(kv_start, self.block_n), "kv_idx")
        start = [place.b, place.kv_h, kv_start]
        shape = (self.block_n, self.d_tile)
        k = self.load(self.op.key, shape, start, checked, "k")
        k_t = code.insert(tile.TransposeOp(k), "k_t")
        zero = code.const(0.0, self.op.score_type)
        scores = TileType(self.op.score_type, [self.block_m, self.block_n])
        acc = code.insert(tile.FullOp(zero, scores), "zeros")
        s = code.insert(tile.DotOp(q, k_t, acc), "s")
        x = self.modified(segment, place, kv_idx, s, masked)
        shape = (self.block_n, self.dv_tile)
        v = self.load(self.op.value, shape, start, checked, "v")
        return softmax.update(code, state, x, v)

    def modified(
        self,
        segment: SegmentOp,
        place: Place,
        kv_idx: SSAValue,
        s: SSAValue,
        masked: SSAValue | None,
    ) -> SSAValue:
        """Scores after the mod, -inf where the segment has no live pair."""
        mod = None if self.score.is_raw else self.score.region
        if masked is None:
            return self.scores(segment, place, kv_idx, s, mod, segment.mask_mod)
        x = self.scores(segment, place, kv_idx, s, mod, None)
        then = Block()
        outer, self.code = self.code, ScalarCode(then)
        live = self.scores(segment, place, kv_idx, x, None, segment.mask_mod)
        self.code.builder.insert(scf.YieldOp(live))
        self.code = outer
        otherwise = Block([scf.YieldOp(x)])
        branch = scf.IfOp(masked, [x.type], Region(then), Region(otherwise))
        branch.attributes["segment"] = SegmentKindAttr(SegmentKind.PARTIAL)
        return self.code.insert(branch, "scores")

    def scores(
        self,
        segment: SegmentOp,
        place: Place,
        kv_idx: SSAValue,
        s: SSAValue,
        mod: Region | None,
        mask: Region | None,
    ) -> SSAValue:
        """A map of scores by the mod, and to -inf by the mask and beyond the keys."""
        if mod is None and mask is None and segment.inside:
            return s
        captures = [self.args[c] for c in self.op.captures]
        inputs: list[Input] = [
            (s, FULL),
            (self.args[self.op.scale], UNIFORM),
            (place.q_len, UNIFORM),
            (place.kv_len, UNIFORM),
            (place.b, UNIFORM),
            (place.h, UNIFORM),
            (self.q_idx, ROW),
            (kv_idx, COLUMN),
            *((c, UNIFORM) for c in captures),
        ]

        def body(code: ScalarCode, *args: SSAValue) -> SSAValue:
            score, scale, q_len, kv_len, b, h, q_idx, column, *captured = args
            inside = None
            if segment.inside is None:
                inside = code.cmp("slt", column, kv_len)
            elif self.trusts_captures:
                # Rows beyond the last count for nothing, but a captured tensor
                # may have nothing there to be read.
                last = code.sub(q_len, code.const(1))
                q_idx = code.insert(arith.MinSIOp(q_idx, last), "q_idx")
            mod_args = [b, h, q_idx, column, *captured]
            if mod is not None:
                (score,) = inline_region(mod, [score, scale, *mod_args], code)
            live = self.live(code, mask, inside, mod_args)
            if live is None:
                return score
            return code.select(live, score, code.const(-math.inf, score.type))

        result = build_map(
            self.code, [self.block_m, self.block_n], inputs, body, "scores"
        )
        if segment.inside is None:
            guard_captures(result)
        return result

    @staticmethod
    def live(
        code: ScalarCode,
        mask: Region | None,
        inside: SSAValue | None,
        mod_args: Sequence[SSAValue],
    ) -> SSAValue | None:
        """Whether a pair counts; None if every pair does."""
        if mask is None:
            return inside
        (live,) = inline_region(mask, mod_args, code)
        return live if inside is None else code.and_(live, inside)

    def store(
        self,
        place: Place,
        checked: Sequence[int],
        softmax: OnlineSoftmax,
        state: SoftmaxState,
    ) -> None:
        """Normalise, and write what the call asked for."""
        code, op = self.code, self.op
        targets = dict(
            zip(self.outputs, self.block.args[len(op.operands) :], strict=True)
        )
        start = [place.b, place.h, place.q_start]
        assert isinstance(op.out.type, TensorType)
        out = softmax.output(code, state, op.out.type.element_type)
        columns = [] if self.dv_tile == self.value_dim else [1]
        code.builder.insert(
            tile.StoreOp(
                out, targets[op.out], [*start, code.const(0)], [*checked, *columns]
            )
        )
        for result, value in (
            (op.lse, softmax.lse),
            (op.max_scores, softmax.max_scores),
        ):
            if result is not None:
                rows = value(code, state)
                code.builder.insert(tile.StoreOp(rows, targets[result], start, checked))


def guard_captures(scores: SSAValue) -> None:
    """Guard a map's captured loads: beyond the last key they may be anywhere."""
    assert isinstance(scores.owner, tile.MapOp)
    for op in scores.owner.body.block.ops:
        if isinstance(op, flex.LoadCaptureOp):
            op.inside = None


def _memref(type_: Attribute) -> MemRefType[Attribute]:
    """The memref that an output is written to."""
    assert isa(type_, TensorType[Attribute])
    layout = NoneAttr()
    if isinstance(type_.encoding, StridedLayoutAttr):
        # The runtime passes the address of the first element.
        layout = StridedLayoutAttr(type_.encoding.strides, 0)
    return MemRefType(type_.element_type, type_.get_shape(), layout)


@dataclass(frozen=True)
class ConvertBlocksparseToTilePass(ModulePass):
    """Write the online softmax of each attention op in tile ops."""

    name = "convert-blocksparse-to-tile"

    target: Literal["triton", "cpp"] = "triton"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in list(op.ops):
            if not isinstance(function, func.FuncOp):
                continue
            attention = [
                o for o in function.body.ops if isinstance(o, blocksparse.AttentionOp)
            ]
            if not attention:
                continue
            for number, inner in enumerate(attention):
                name = function.sym_name.data + (f"_{number}" if number else "")
                kernel = KernelBuilder(inner, name, self.target).build()
                op.body.block.insert_op_before(kernel, function)
            function.detach()
            function.erase()
