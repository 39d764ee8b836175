"""What programs over segments share: their arguments, tiles and loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import AffineMapAttr, TensorType, UnitAttr, i32
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.utils.hints import isa

from flexc.dialects import blocksparse, flex, tile
from flexc.dialects.blocksparse import SegmentOp, TileOrder
from flexc.dialects.tile import IDLE_BEYOND, ParamAttr, ParamKind, TileType
from flexc.dialects.tile.schedule.shapes import constant_of
from flexc.passes.blocksparse.programs.arguments import arguments_of, entry_block
from flexc.passes.blocksparse.programs.visits import Visit
from flexc.passes.scalar.scalar_code import ScalarCode, inline_region

KEPT = (
    "num_warps",
    "num_stages",
    "rows_per_part",
    "residents",
    "alignment",
    "index_width",
    "max_length",
)
"""Properties of an op that its kernel says as well."""


Step = Callable[[Visit, list[SSAValue]], Sequence[SSAValue]]
"""One iteration: what is visited, and the state."""


@dataclass(frozen=True)
class Place:
    """Which rows of which head of the query a program visits segments for."""

    b: SSAValue
    h: SSAValue
    start: SSAValue
    row_len: SSAValue
    column_len: SSAValue

    @property
    def where(self) -> list[SSAValue]:
        return [self.b, self.h, self.start]

    @property
    def lengths(self) -> list[SSAValue]:
        return [self.row_len, self.column_len]


class ProgramBuilder:
    """Builds one kernel from one op over segments."""

    column_name = "kv_start"
    """What the first column of a block is called."""

    def __init__(
        self,
        op: blocksparse.AttentionOp | blocksparse.PairSumsOp,
        name: str,
        target: str,
    ):
        self.op = op
        self.name = name
        self.target = target
        self.block_m = op.block_m.value.data
        self.block_n = op.block_n.value.data
        self.trusts_captures = any(
            isinstance(inner, flex.LoadCaptureOp) and inner.inside is not None
            for region in self.mod_regions()
            for inner in region.walk()
        )
        self.block = entry_block(op)
        self.args: dict[SSAValue, SSAValue] = dict(
            zip(arguments_of(op), self.block.args, strict=True)
        )
        self.code = ScalarCode(self.block)

    def segments(self) -> list[SegmentOp]:
        return [o for o in self.op.segments.block.ops if isinstance(o, SegmentOp)]

    def mod_regions(self) -> list[Region]:
        """The user's code, or what was made of it."""
        masks = (o.mask_mod for o in self.segments())
        return [self.op.regions[0], *(m for m in masks if m is not None)]

    def kernel(self, attributes: dict[str, Attribute]) -> tile.KernelOp:
        """The kernel around what was built."""
        self.code.builder.insert(tile.ReturnOp())
        params = [ParamAttr(ParamKind.ARGUMENT, i) for i in range(len(self.block.args))]
        attributes = dict(self.op.attributes) | attributes
        known = self.op.properties
        attributes |= {fact: known[fact] for fact in KEPT if fact in known}
        return tile.KernelOp(
            self.name, self.grid(), params, Region(self.block), attributes
        )

    def grid(self) -> AffineMapAttr:
        return rows_grid(self.block_m)

    def tile_position(
        self, row_len: SSAValue, heads: SSAValue
    ) -> tuple[SSAValue, SSAValue, SSAValue]:
        """This program's batch, head and first row, in the order that is asked for."""
        code = self.code
        block = code.insert(tile.ProgramIdOp(0), "m_block")
        h = code.insert(tile.ProgramIdOp(1), "h")
        b = code.insert(tile.ProgramIdOp(2), "b")
        blocks = code.ceildiv(row_len, self.block_m, "m_blocks")
        if self.op.heads_per_group is not None:
            block, h = self.grouped(block, h, blocks, heads)
        if self.op.order and self.op.order.data == TileOrder.DESCENDING:
            last = code.sub(blocks, code.const(1))
            block = code.sub(last, block, "m_block")
        return b, h, block

    def grouped(
        self, block: SSAValue, h: SSAValue, blocks: SSAValue, heads: SSAValue
    ) -> tuple[SSAValue, SSAValue]:
        """Renumber a batch's programs: within a group of heads, heads run fastest.

        The last group has what heads are left.
        """
        code = self.code
        assert self.op.heads_per_group is not None
        size = code.const(self.op.heads_per_group.value.data)
        first = code.mul(code.div(h, size), size, "first_head")
        within = code.add(block, code.mul(code.sub(h, first), blocks), "program")
        left = code.sub(heads, first)
        count = code.insert(arith.MinSIOp(left, size), "group_heads")
        head = code.add(first, code.rem(within, count), "h")
        return code.div(within, count, "m_block"), head

    def load(
        self,
        tensor: SSAValue,
        shape: tuple[int, int],
        start: Sequence[SSAValue],
        checked: Sequence[int],
        name: str,
        count: SSAValue | None = None,
    ) -> SSAValue:
        """The tile of rows that starts at (b, h, row), padded in the head dim.

        Of its rows only the first `count` are read, if that is given.
        """
        assert isa(tensor.type, TensorType[Attribute])
        checked = [*checked, 1] if shape[1] != flex.tensor_shape(tensor)[3] else checked
        type_ = TileType(tensor.type.element_type, shape)
        indices = [*start, self.code.const(0)]
        return self.code.insert(
            tile.LoadOp(self.args[tensor], indices, checked, type_, count), name
        )

    def loop(
        self, segment: SegmentOp, place: Place, state: Sequence[SSAValue], step: Step
    ) -> list[SSAValue]:
        """Visit one segment's blocks of columns; the state that is left."""
        trailing = [
            *place.lengths,
            *(self.args[v] for v in (*self.op.captures, *self.op.tables)),
        ]
        begin, end = self.share(
            *inline_region(segment.bounds, [*place.where, *trailing], self.code)
        )
        body = Block(arg_types=[i32, *(v.type for v in state)])
        i = body.args[0]
        i.name_hint = "i"
        one = self.code.const(1)
        outer, self.code = self.code, ScalarCode(body)

        def iteration(region: Region, *names: str) -> list[SSAValue]:
            args = [*place.where, i, *trailing]
            varying = [len(place.where)]
            values = inline_region(region, args, self.code, outer, varying)
            for value, name in zip(values, names, strict=False):
                value.name_hint = name
            return values

        start, *counts = iteration(segment.block, self.column_name, "count")
        masked = exists = count = None
        if segment.masked_if is not None:
            (masked,) = iteration(segment.masked_if, "is_partial")
        if counts and not self.is_block(*counts):
            (count,) = counts
        if count is not None and segment.may_skip is not None:
            exists = self.code.cmp("sgt", count, self.code.const(0))
            count = self.code.insert(arith.MaxSIOp(count, self.code.const(1)), "count")
        if segment.padded is not None:
            # If there is none, the first is all that takes place.
            exists = outer.cmp("slt", begin, end)
            end = outer.insert(arith.MaxSIOp(end, outer.add(begin, one)), "end")
        visit = Visit(segment, start, masked, exists, count)
        new = step(visit, list(body.args[1:]))
        self.code.builder.insert(scf.YieldOp(*new))
        self.code = outer
        loop = scf.ForOp(begin, end, one, list(state), Region(body))
        loop.attributes["segment"] = segment.kind
        if segment.is_entered:
            loop.attributes["nonempty"] = UnitAttr()
        self.code.builder.insert(loop)
        return list(loop.results)

    def share(self, begin: SSAValue, end: SSAValue) -> tuple[SSAValue, SSAValue]:
        """The iterations of a segment that this program runs: all of them."""
        return begin, end

    def is_block(self, count: SSAValue) -> bool:
        """Whether a number of columns is known to be that of a block."""
        return constant_of(count) == self.block_n

    def clamps(self, visit: Visit) -> bool:
        """Whether mods receive the last column for those beyond it.

        What is visited with a count has a column, and tiles have more than that.
        """
        if visit.count is not None:
            return self.trusts_captures
        return self.trusts_captures and visit.sticks_out and self.has_columns(visit)

    def has_columns(self, visit: Visit) -> bool:
        """Whether a loop that is entered finds a column there."""
        op = self.op
        of_keys = isinstance(op, blocksparse.AttentionOp) or not op.is_transposed
        return visit.segment.is_entered and of_keys and op.has_keys is not None

    def guards(self, visit: Visit) -> bool:
        """Whether captured loads are guarded, as columns may be beyond the last."""
        return visit.sticks_out and not self.clamps(visit)

    @staticmethod
    def at_most_last(code: ScalarCode, index: SSAValue, length: SSAValue) -> SSAValue:
        """An index for captured tensors, which may have nothing beyond the last."""
        last = code.sub(length, code.const(1))
        least = arith.MinSIOp(index, last)
        least.attributes[IDLE_BEYOND] = UnitAttr()
        return code.insert(least, index.name_hint)


def rows_grid(block: int) -> AffineMapAttr:
    """A program for each block of rows of each head of each batch."""
    b, h, rows = (AffineExpr.dimension(i) for i in range(3))
    return AffineMapAttr(AffineMap(3, 0, (rows.ceil_div(block), h, b)))


def guard_captures(values: SSAValue) -> None:
    """Guard a map's captured loads: beyond the last column they may be anywhere."""
    assert isinstance(values.owner, tile.MapOp)
    for op in values.owner.body.block.ops:
        if isinstance(op, flex.LoadCaptureOp):
            op.inside = None
