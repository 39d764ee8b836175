"""Maps over the pairs of a block, as attention and sums over pairs write them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import Block, Region, SSAValue

from flexc.dialects import blocksparse, flex, tile
from flexc.dialects.blocksparse import SegmentKind, SegmentKindAttr
from flexc.dialects.mod_region import yielded
from flexc.dialects.tile import IDLE_BEYOND, ReduceKind
from flexc.passes.blocksparse.programs.builder import (
    RowBlock,
    SegmentKernelBuilder,
    Visit,
)
from flexc.passes.scalar.scalar_code import ScalarCode, inline_region
from flexc.passes.scalar.variation import Along, Dependences
from flexc.passes.tile.map_builder import (
    COLUMN,
    FULL,
    ROW,
    UNIFORM,
    Input,
    build_map,
    build_maps,
)

Body = Callable[[ScalarCode, list[SSAValue], list[SSAValue]], Sequence[SSAValue]]
"""A function that writes values of a pair, from scalars of inputs and mod arguments."""


class PairMapBuilder(SegmentKernelBuilder):
    """A writer of maps over the pairs of a block of rows and a block of columns."""

    dead = 0.0
    """The value of dead pairs."""
    needs_rows = False
    """True if rows may be beyond the last, and sums include their values."""
    place: RowBlock
    """The rows for which segments are being visited."""
    row_idx: SSAValue
    column_idx: SSAValue

    @cached_property
    def rows_are_keys(self) -> bool:
        return isinstance(self.op, blocksparse.PairSumsOp) and self.op.is_transposed

    @cached_property
    def trusts_captures(self) -> bool:
        """True if mods read captured tensors at positions without tests."""
        return any(map(self.trusts_positions, self.mod_regions()))

    def values(
        self, visit: Visit, given: list[Input], body: Body | None, names: Sequence[str]
    ) -> list[SSAValue]:
        """Map pairs to the values of `body`, and dead pairs to `dead`.

        Without `body`, the values are those given. If few blocks have dead pairs, only
        these are mapped to `dead`, in a branch.
        """
        dead_pairs = visit.may_have_dead_pairs(self.code, self.block_n, self.column_len)
        if dead_pairs is None:
            return self.mapped(visit, given, body, names)
        values = self.mapped(visit, given, body, names, masks=False)
        full: list[Input] = [(value, FULL) for value in values]
        found = self.branch(
            dead_pairs, lambda: self.mapped(visit, full, None, names), lambda: values
        )
        for value, name in zip(found, names, strict=True):
            value.name_hint = name
        return found

    def mapped(
        self,
        visit: Visit,
        given: list[Input],
        body: Body | None,
        names: Sequence[str],
        masks: bool = True,
    ) -> list[SSAValue]:
        """Write one map of `values`; without `masks`, all columns are taken as live."""
        flags = visit.flags if masks else []
        has_mask = masks and visit.segment.mask_mod is not None
        if body is None and not (has_mask or flags or (masks and visit.sticks_out)):
            return [value for value, _ in given]

        def write(code: ScalarCode, *args: SSAValue) -> list[SSAValue]:
            own, pair = list(args[: len(given)]), args[len(given) :]
            mod_args, live, rest = self.pair(code, visit, pair, masks)
            values = own if body is None else body(code, own, mod_args)
            if masks:
                live = visit.live(code, live, mod_args, rest)
            return [self.select(code, live, value) for value in values]

        return self.map_of(visit, given, write, names, flags)

    def map_of(
        self,
        visit: Visit,
        given: list[Input],
        body: Callable[..., Sequence[SSAValue]],
        names: Sequence[str],
        flags: Sequence[SSAValue] = (),
    ) -> list[SSAValue]:
        """Write a map of `given`, of what `pair` takes, and of flags."""
        pair = self.pair_inputs((self.row_idx, ROW), (self.column_idx, COLUMN), flags)
        shape = (self.block_m, self.block_n)
        results = build_maps(self.code, shape, [*given, *pair], body, names)
        if self.guards(visit):
            guard_captures(results[0])
        return results

    def pair_inputs(
        self, row: Input, column: Input, flags: Sequence[SSAValue]
    ) -> list[Input]:
        """Return the map inputs for a pair: lengths, indices, captures and flags."""
        captures = [self.args[c] for c in self.op.captures]
        uniform = (self.row_len, self.column_len, self.place.b, self.place.h)
        return [
            *((v, UNIFORM) for v in uniform),
            row,
            column,
            *((v, UNIFORM) for v in (*captures, *flags)),
        ]

    def pair(
        self,
        code: ScalarCode,
        visit: Visit,
        args: Sequence[SSAValue],
        masks: bool = True,
    ) -> tuple[list[SSAValue], SSAValue | None, list[SSAValue]]:
        """Return a pair's mod arguments, the condition that it exists, and flags.

        The condition is None if no check is needed. Columns are checked only if
        `masks`.
        """
        row_len, column_len, b, h, row, column, *rest = args
        captured, flags = rest[: len(self.op.captures)], rest[len(self.op.captures) :]
        inside = None
        if visit.sticks_out and masks:
            inside = code.cmp("slt", column, column_len)
        if self.needs_rows:
            exists = code.cmp("slt", row, row_len)
            inside = exists if inside is None else code.and_(inside, exists)
        if self.clamps_columns(visit):
            column = self.at_most_last(code, column, column_len)
        if self.clamps_rows(visit):
            row = self.at_most_last(code, row, row_len)
        positions = (column, row) if self.rows_are_keys else (row, column)
        return [b, h, *positions, *captured], inside, flags

    def select(
        self, code: ScalarCode, live: SSAValue | None, value: SSAValue
    ) -> SSAValue:
        """Write the value of a pair, `dead` if the pair is not live."""
        if live is None:
            return value
        return code.select(live, value, code.const(self.dead, value.type))

    def branch(
        self,
        condition: SSAValue,
        partial: Callable[[], Sequence[SSAValue]],
        full: Callable[[], Sequence[SSAValue]],
    ) -> list[SSAValue]:
        """Write a branch whose sides yield the values of partial and full blocks."""
        outer, blocks = self.code, (Block(), Block())
        values: Sequence[SSAValue] = ()
        for block, write in zip(blocks, (partial, full), strict=True):
            self.code = ScalarCode(block)
            values = write()
            self.code.builder.insert(scf.YieldOp(*values))
        self.code = outer
        then, otherwise = blocks
        types = [v.type for v in values]
        branch = scf.IfOp(condition, types, Region(then), Region(otherwise))
        branch.attributes["segment"] = SegmentKindAttr(SegmentKind.PARTIAL)
        self.code.builder.insert(branch)
        return list(branch.results)

    def narrowed(self, visit: Visit) -> Visit:
        """Narrow a visit to the columns from the first to the last that the mask keeps.

        Tables list whole blocks, of which a program's rows may see few columns, for
        example at the ends of a document or along a diagonal. The mask is cheap
        compared with two matrix products, so it is evaluated first. A visit without
        live columns keeps one column.
        """
        if visit.segment.narrowed is None:
            return visit
        code, live = self.code, self.live_pairs(visit, along_rows=True)
        seen = code.insert(tile.ReduceOp(ReduceKind.MAX, live, 0), "seen")
        found = tile.LiveRangeOp(seen, visit.count)
        code.builder.insert(found)
        found.first.name_hint, found.length.name_hint = "first_seen", "seen_count"
        start = code.add(visit.start, found.first, self.column_name)
        count = code.max(found.length, code.const(1), "count")
        return replace(visit, start=start, count=count)

    def live_columns(self, visit: Visit) -> SSAValue | None:
        """Write a map that is true for the columns of a block that the mask keeps.

        Return None if the mask depends on rows, or keeps all columns.
        """
        mask = visit.segment.mask_mod
        if mask is None or Dependences(mask)[yielded(mask.block)[0]] & Along.ROW:
            return None
        return self.live_pairs(visit, along_rows=False)

    def live_pairs(self, visit: Visit, along_rows: bool) -> SSAValue:
        """Write a map that is true for the pairs of a block that the mask keeps.

        Unless `along_rows`, the mask depends on no row, and the map has columns only.
        """
        code = self.code
        columns = code.insert(tile.IotaOp(visit.start, self.block_n), "columns")
        flags = [v for v in (visit.is_partial, visit.exists) if v is not None]
        if along_rows:
            shape = [self.block_m, self.block_n]
            inputs = self.pair_inputs((self.row_idx, ROW), (columns, COLUMN), flags)
        else:
            shape = [self.block_n]
            first = self.place.start
            inputs = self.pair_inputs((first, UNIFORM), (columns, ROW), flags)

        def body(code: ScalarCode, *args: SSAValue) -> SSAValue:
            mod_args, _, given = self.pair(code, visit, args, masks=False)
            mask = visit.segment.mask_mod
            assert mask is not None
            (live,) = inline_region(mask, mod_args, code)
            if visit.is_partial is not None:
                # Triton's interpreter has no `|` of a tile and a scalar for masks.
                live = code.select(given.pop(0), live, code.flag(True))
            return code.and_(live, given[0]) if given else live

        found = build_map(code, shape, inputs, body, "live")
        if self.guards(visit):
            guard_captures(found)
        return found

    def mod_regions(self) -> list[Region]:
        """Return the score or pairs region of the op, and the masks of its segments."""
        masks = (o.mask_mod for o in self.segments())
        return [self.op.regions[0], *(m for m in masks if m is not None)]

    def trusts_positions(self, region: Region) -> bool:
        """Return True if a mod reads captured tensors at positions without tests."""
        end = len(region.block.args) - len(self.op.captures)
        varying: set[SSAValue] = set(region.block.args[end - 2 : end])
        for op in region.walk():
            if varying.isdisjoint(op.operands):
                continue
            if isinstance(op, flex.LoadCaptureOp) and op.inside is not None:
                return True
            varying.update(op.results)
        return False

    def clamps_rows(self, visit: Visit) -> bool:
        """Return True if mods receive the last row for rows beyond the last."""
        return self.trusts_captures and not self.guards(visit)

    def clamps_columns(self, visit: Visit) -> bool:
        """Return True if mods receive the last column for columns beyond the last.

        A visit with a count has at least one column, and its tile may have more than
        `count`.
        """
        if visit.count is not None:
            return self.trusts_captures
        return self.trusts_captures and visit.sticks_out and self.has_columns(visit)

    def has_columns(self, visit: Visit) -> bool:
        """Return True if the loop runs and each iteration has an existing column."""
        return visit.segment.is_entered and self.op.has_pairs is not None

    def guards(self, visit: Visit) -> bool:
        """Return True if captured loads are guarded against columns beyond the last."""
        return visit.sticks_out and not self.clamps_columns(visit)

    @staticmethod
    def at_most_last(code: ScalarCode, index: SSAValue, length: SSAValue) -> SSAValue:
        """Clamp an index to the last: captured tensors may end there."""
        last = code.sub(length, code.const(1))
        least = arith.MinSIOp(index, last)
        least.attributes[IDLE_BEYOND] = UnitAttr()
        return code.insert(least, index.name_hint)


def guard_captures(values: SSAValue) -> None:
    """Guard a map's captured loads: columns beyond the last may be out of range."""
    assert isinstance(values.owner, tile.MapOp)
    for op in values.owner.body.block.ops:
        if isinstance(op, flex.LoadCaptureOp):
            op.inside = None
