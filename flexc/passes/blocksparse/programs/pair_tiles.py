"""Maps over the pairs of a block, and tiles of a kernel of sums over pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import TensorType, UnitAttr
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.utils.hints import isa

from flexc.dialects import blocksparse, flex, tile
from flexc.dialects.blocksparse import SegmentKind, SegmentKindAttr
from flexc.dialects.flex import SumAttr, SumKind
from flexc.dialects.mod_region import yielded
from flexc.dialects.tile import IDLE_BEYOND, ReduceKind, TileType
from flexc.passes.blocksparse.programs.builder import (
    RowBlock,
    SegmentKernelBuilder,
    Visit,
)
from flexc.passes.blocksparse.programs.rows import map_rows
from flexc.passes.scalar.scalar_code import ScalarCode, inline_region
from flexc.passes.scalar.variation import Along, Dependences
from flexc.passes.targets.target import Target
from flexc.passes.targets.triton import UNALIGNED_VALUE_DIM
from flexc.passes.tile.map_builder import (
    COLUMN,
    FULL,
    ROW,
    UNIFORM,
    Input,
    build_map,
    build_maps,
    convert,
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

    def __init__(
        self,
        op: blocksparse.AttentionOp | blocksparse.PairSumsOp,
        name: str,
        target: Target,
    ):
        super().__init__(op, name, target)
        is_sums = isinstance(op, blocksparse.PairSumsOp)
        self.rows_are_keys = is_sums and op.is_transposed
        self.trusts_captures = any(map(self.trusts_positions, self.mod_regions()))

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
        row, column = self.clamped(code, visit, (row, column), (row_len, column_len))
        positions = (column, row) if self.rows_are_keys else (row, column)
        return [b, h, *positions, *captured], inside, flags

    def clamped(
        self,
        code: ScalarCode,
        visit: Visit,
        pair: tuple[SSAValue, SSAValue],
        lengths: tuple[SSAValue, SSAValue],
    ) -> tuple[SSAValue, SSAValue]:
        """Return the row and the column that mods receive for a pair."""
        (row, column), (row_len, column_len) = pair, lengths
        if self.clamps(visit):
            column = self.at_most_last(code, column, column_len)
        if self.trusts_captures and not self.guards(visit):
            row = self.at_most_last(code, row, row_len)
        return row, column

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
        flags = [v for v in (visit.masked, visit.exists) if v is not None]
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
            if visit.masked is not None:
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

    def clamps(self, visit: Visit) -> bool:
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
        return visit.sticks_out and not self.clamps(visit)

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


class PairKernelBuilder(PairMapBuilder):
    """A writer of the loads, values and stores of one `blocksparse.pair_sums`."""

    rows: RowBlock
    """The origin of the program's rows, at a query head if it is theirs alone."""
    key_rows: RowBlock | None = None
    """The origin in the matrices of rows, if that is another one."""
    stored: RowBlock
    """The origin of the program's results, which may cover only some of all rows."""
    row_block: SSAValue
    made: dict[SSAValue, SSAValue]
    """The program's rows of the results of absorbed ops."""
    row_tiles: Sequence[SSAValue]
    """The tiles of the matrices of the rows."""
    row_values: Sequence[SSAValue]
    column_values: Sequence[SSAValue]

    op: blocksparse.PairSumsOp

    def __init__(self, op: blocksparse.PairSumsOp, name: str, target: Target):
        super().__init__(op, name, target)
        self.op = op
        self.sums = list(zip(op.sums, op.sums_, strict=True))
        self.matrices = self.of_kind(SumKind.MATRIX)
        self.totals = self.of_kind(SumKind.TOTAL)
        self.of_rows = op.sum_of_rows
        """The first result with a dimension of rows, or None."""
        whole = op.length_multiple(of_rows=True) % self.block_m == 0
        self.checked: list[int] = [] if whole else [0]
        self.needs_rows = bool(self.checked and self.of_kind(SumKind.DIAGONAL))
        if op.is_transposed:
            self.column_name = "q_start"

    def of_kind(self, kind: SumKind) -> list[tuple[SumAttr, SSAValue]]:
        return [(attr, value) for attr, value in self.sums if attr.sum_kind == kind]

    def tile_shape(self, matrix: SSAValue, rows: int) -> tuple[int, int]:
        least = 16 if self.op.alignment is not None else UNALIGNED_VALUE_DIM
        dim = flex.tensor_shape(matrix)[-1]
        return rows, self.target.padded(dim, least)

    def load_matrix(
        self,
        matrix: SSAValue,
        rows: int,
        where: Sequence[SSAValue],
        checked: Sequence[int],
        count: SSAValue | None = None,
    ) -> SSAValue:
        name = f"{matrix.name_hint or 'matrix'}_tile"
        shape = self.tile_shape(matrix, rows)
        return self.load(matrix, shape, where, checked, name, count)

    def rows_of(self, tensor: SSAValue) -> SSAValue:
        """Return the program's rows of a tensor, computed or loaded."""
        if isinstance(tensor.owner, flex.MapRowsOp):
            if tensor not in self.made:
                is_matrix, m = flex.is_matrix(tensor), self.block_m
                shape = self.tile_shape(tensor, m) if is_matrix else (m,)
                self.made[tensor] = map_rows(
                    self.code, tensor, shape, self.rows_of, self.args
                )
            return self.made[tensor]
        if flex.is_matrix(tensor):
            where = (self.key_rows or self.rows).where
            return self.load_matrix(tensor, self.block_m, where, self.checked)
        start = self.place.start
        return self.load_values(tensor, start, self.block_m, self.checked)

    def load_values(
        self,
        values: SSAValue,
        start: SSAValue,
        size: int,
        checked: Sequence[int],
        count: SSAValue | None = None,
    ) -> SSAValue:
        """Load a vector of the query's rows, for either side of the pairs."""
        assert isa(values.type, TensorType[Attribute])
        where = [self.place.b, self.place.h, start]
        type_ = TileType(values.type.element_type, [size])
        load = tile.LoadOp(self.args[values], where, checked, type_, count)
        return self.code.insert(load, values.name_hint)

    def zeros(self, result: SSAValue) -> SSAValue:
        type_ = TileType(self.op.score_type, self.tile_shape(result, self.block_m))
        zero = self.code.const(0.0, self.op.score_type)
        return self.code.insert(tile.FullOp(zero, type_), "acc")

    def scaled(self, tile_: SSAValue) -> SSAValue:
        """Multiply a tile by the scale."""
        inputs: list[Input] = [(tile_, FULL), (self.args[self.op.scale], UNIFORM)]
        shape = tile.shape_of(tile_.type)
        return build_map(self.code, shape, inputs, ScalarCode.mulf, "scaled")

    def store_matrix(self, attr: SumAttr, result: SSAValue, acc: SSAValue) -> None:
        code = self.code
        if attr.scaled:
            acc = self.scaled(acc)
        assert isa(result.type, TensorType[Attribute])
        rounded = convert(code, acc, result.type.element_type)
        padded = tile.shape_of(acc.type)[1] != flex.tensor_shape(result)[3]
        checked = [*self.checked, *([1] if padded else [])]
        memref, zero = self.args[result], code.const(0)
        if self.key_rows is None:
            where = [*self.stored.where, zero]
            code.builder.insert(tile.StoreOp(rounded, memref, where, checked))
        else:
            where = [*self.key_rows.where, zero]
            turn = self.turn_of_sum(result)
            add = tile.AddToOp(rounded, memref, where, None, checked, True, *turn)
            code.builder.insert(add)

    def turn_of_sum(self, result: SSAValue) -> tuple[SSAValue | None, list[SSAValue]]:
        """Return the progress and the turn for an addition to a sum of keys."""
        return None, []

    def store_pairs(
        self, visit: Visit, values: Sequence[SSAValue], checked: Sequence[int]
    ) -> None:
        """Write the values of this block of pairs, or add up their diagonals."""
        code = self.code
        pairs = [
            (r, values[a.term_list()[0][0]]) for a, r in self.of_kind(SumKind.PAIRS)
        ]
        if pairs and visit.exists is not None:
            # In a dummy iteration, the block's results belong to other iterations.
            block = Block()
            self.write_pairs(ScalarCode(block), pairs, visit, checked)
            block.add_op(scf.YieldOp())
            code.builder.insert(scf.IfOp(visit.exists, [], Region(block)))
        else:
            self.write_pairs(code, pairs, visit, checked)
        for attr, result in self.of_kind(SumKind.DIAGONAL):
            ((number,),) = attr.term_list()
            diagonals = tile.DiagonalsOp(values[number], visit.count)
            sums = code.insert(diagonals, "diagonals")
            where = [*self.diagonals, self.diagonal_place(visit.start)]
            code.builder.insert(tile.AddToOp(sums, self.args[result], where))

    def write_pairs(
        self,
        code: ScalarCode,
        pairs: Sequence[tuple[SSAValue, SSAValue]],
        visit: Visit,
        checked: Sequence[int],
    ) -> None:
        """Store the values of this block in the result of each sum of kind PAIRS."""
        dims = [*self.checked, *([1] if checked and visit.count is None else [])]
        where = [*self.stored.where, visit.start]
        for result, value in pairs:
            store = tile.StoreOp(value, self.args[result], where, dims, visit.count)
            code.builder.insert(store)

    @property
    def diagonals(self) -> list[SSAValue]:
        """The origin of the sums along diagonals: one for each program."""
        return [self.stored.b, self.stored.h, self.row_block]

    def diagonal_place(self, start: SSAValue) -> SSAValue:
        """Write the first entry of diagonals that a block of columns adds to."""
        code, unit = self.code, flex.DIAGONAL_UNIT
        zero = code.mul(code.ceildiv(self.column_len, unit), code.const(unit))
        place = code.add(code.sub(self.rows.start, start), zero)
        return code.add(place, code.const(unit - self.block_n), "at")

    def dots(self, columns: Sequence[SSAValue]) -> list[SSAValue]:
        """Write the dot products that are arguments of the region."""
        return [self.dot(product, columns) for product in self.op.product_list()]

    def dot(
        self, product: Sequence[tuple[int, int]], columns: Sequence[SSAValue]
    ) -> SSAValue:
        """Write one sum of dot products of rows and columns."""
        code = self.code
        zero = code.const(0.0, self.op.score_type)
        type_ = TileType(self.op.score_type, [self.block_m, self.block_n])
        acc = code.insert(tile.FullOp(zero, type_), "zeros")
        for row, column in product:
            turned = code.insert(tile.TransposeOp(columns[column]))
            turned.name_hint = f"{columns[column].name_hint}_t"
            acc = code.insert(tile.DotOp(self.row_tiles[row], turned, acc), "dot")
        return acc

    def pair_values(self, visit: Visit, dots: Sequence[SSAValue]) -> list[SSAValue]:
        """Write the values that the region yields, 0 for dead pairs."""
        given: list[Input] = [
            *((dot, FULL) for dot in dots),
            (self.args[self.op.scale], UNIFORM),
            *((v, ROW) for v in self.row_values),
            *((v, COLUMN) for v in self.column_values),
        ]

        def body(
            code: ScalarCode, own: list[SSAValue], mod_args: list[SSAValue]
        ) -> list[SSAValue]:
            return inline_region(self.op.pairs, [*own, *mod_args], code)

        return self.values(visit, given, body, self.names())

    def names(self) -> list[str]:
        """Return the names of the values that the region yields."""
        return [v.name_hint or "value" for v in yielded(self.op.pairs.block)]

    def clamped(
        self,
        code: ScalarCode,
        visit: Visit,
        pair: tuple[SSAValue, SSAValue],
        lengths: tuple[SSAValue, SSAValue],
    ) -> tuple[SSAValue, SSAValue]:
        (row, column), (row_len, column_len) = pair, lengths
        # What mods read by row alone is read before loops, also where a branch in the
        # loop is for blocks without rows beyond the last.
        if self.needs_rows or (self.checked and self.trusts_captures):
            row = self.at_most_last(code, row, row_len)
        if self.clamps(visit):
            column = self.at_most_last(code, column, column_len)
        return row, column
