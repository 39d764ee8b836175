"""`tile-split-rows`: split the rows of a program into parts, one for each warp group.

Ops on tiles move into a `tile.parts` op, whose region computes as many rows as one part
has. Scalars of the whole program stay before that op. The split rows are the dimension
that the stores go along, and all dimensions that must be split with it (see
`TileDims`). At a load, store or iota of a tile of rows, the pass adds the part's first
row to the start.

A product that sums over rows, and is added to memory, needs the rows of all parts. The
parts share its operands by `tile.share`, and each computes some columns or rows of its
result. So each element is added to memory once for all parts.

A kernel asks for the split with its attribute `rows_per_part`; other kernels stay as
they are. The pass raises `ScheduleError` for a kernel without such a split, such as one
with another sum over rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeGuard

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, i32
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import is_side_effect_free

from flexc.dialects import tile
from flexc.dialects.tile import TileType, shape_of
from flexc.dialects.tile.schedule import (
    EndOp,
    OfPartOp,
    PartsOp,
    ShareOp,
    TakeColumnsOp,
)
from flexc.errors import ScheduleError
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.tile.tile_access import (
    Accesses,
    accessed_tile,
    has_count,
    index_position,
    is_zeros,
)
from flexc.passes.tile.tile_values import (
    Dim,
    TileDims,
    check_known,
    defined_values,
    rank,
    separate_constants,
    summed_dims,
)

LEAST_COLUMNS = 64
"""The least columns or rows of a share of a product, as products have 64 rows.

64 columns of 16 bits are also the unit in which shared memory is swizzled.
"""

Stores = tile.StoreOp | tile.AddToOp


class RowSplitter:
    """The rewrite that splits the rows of one kernel."""

    def __init__(self, kernel: tile.KernelOp, rows: int):
        self.kernel = kernel
        self.rows = rows
        self.block = kernel.body.block
        separate_constants(self.block)
        self.dims = TileDims(self.block)
        self.row = self.row_class()
        self.row_sums = [op for op in self.block.walk() if self.is_row_sum(op)]

    def run(self) -> None:
        """Move the kernel's tile code into parts."""
        parts = self.part_count()
        self.check()
        moved = code_of_tiles(self.block)
        starts = [(op, self.starts(op)) for each in moved for op in each.walk()]
        self.shrink(moved)
        body = Block(arg_types=[i32])
        body.args[0].name_hint = "part"
        code = ScalarCode(body)
        first = code.mul(body.args[0], code.const(self.rows), "part_start")
        for op in moved:
            op.detach()
            body.add_op(op)
        for op, operands in starts:
            shift(op, operands, first)
        body.add_op(EndOp())
        for dot in self.row_sums:
            share_row_sum(dot, body.args[0], parts)
        last = self.block.last_op
        assert last is not None
        self.block.insert_op_before(PartsOp(parts, Region(body)), last)

    def row_class(self) -> Dim:
        """Return the class of the rows: the first dimension of all stored tiles.

        Atomic additions of a product do not count. A constant tile joins the class of
        another tile that is stored at the same first row. Raise `ScheduleError` if the
        stores go along several classes.
        """
        stores = [
            op
            for op in self.block.walk()
            if isinstance(op, Stores) and not adds_product(op)
        ]
        begun = {
            start_of(op): (op.value, 0)
            for op in stores
            if not isinstance(op.value.owner, tile.FullOp)
        }
        for op in stores:
            if isinstance(op.value.owner, tile.FullOp) and start_of(op) in begun:
                self.dims.join((op.value, 0), begun[start_of(op)])
        found = {self.dims.find((op.value, 0)) for op in stores}
        if len(found) != 1:
            raise ScheduleError(f"its stores go along {len(found)} kinds of rows")
        return found.pop()

    def part_count(self) -> int:
        value, dim = self.row
        size = shape_of(value.type)[dim]
        if size % self.rows:
            raise ScheduleError(f"{size} rows are not parts of {self.rows}")
        return size // self.rows

    def check(self) -> None:
        """Raise `ScheduleError` if parts would not compute the same as the whole."""
        check_known(self.block.walk())
        for op in self.block.walk():
            if has_count(op):
                raise ScheduleError(f"{op.name} has a count")
            if op not in self.row_sums and self.sums_rows(op):
                raise ScheduleError(f"{op.name} goes over all rows at once")
            if any(len(self.dims.along(v, self.row)) > 1 for v in defined_values(op)):
                raise ScheduleError(f"{op.name} pairs rows with rows")

    def sums_rows(self, op: Operation) -> bool:
        return any(self.dims.find(dim) == self.row for dim in summed_dims(op))

    def is_row_sum(self, op: Operation) -> TypeGuard[tile.DotOp]:
        """Return True for a product over all rows that is only added to memory."""
        return (
            isinstance(op, tile.DotOp)
            and self.sums_rows(op)
            and isinstance(op.lhs.owner, tile.TransposeOp)
            and is_zeros(op.acc)
            and op.result.has_one_use()
            and all(is_atomic(use.operation) for use in op.result.uses)
        )

    def starts(self, op: Operation) -> list[int]:
        """Return the indices of the operands that are the start of an op's rows."""
        if isinstance(op, tile.IotaOp):
            return [0] if self.dims.along(op.result, self.row) else []
        if not isinstance(op, Accesses):
            return []
        dims = self.dims.along(accessed_tile(op), self.row)
        return [index_position(op, dim) for dim in dims]

    def shrink(self, ops: Iterable[Operation]) -> None:
        """Give all tiles of rows the size of a part."""
        values = [v for op in ops for inner in op.walk() for v in defined_values(inner)]
        # Find all types first: replacing a value with a new type invalidates `dims`.
        types = [self.part_type(value) for value in values]
        for value, type_ in zip(values, types, strict=True):
            if type_ is not None:
                Rewriter.replace_value_with_new_type(value, type_)

    def part_type(self, value: SSAValue) -> TileType | None:
        """Return the type of a part's tile, or None if the value is not split."""
        cut = self.dims.along(value, self.row)
        if not cut:
            return None
        assert isinstance(value.type, TileType)
        shape = list(shape_of(value.type))
        shape[cut[0]] = self.rows
        return TileType(value.type.element_type, shape)


def start_of(op: Stores) -> SSAValue:
    """Return the index of the first row that an op stores to."""
    return op.operands[index_position(op, 0)]


def is_atomic(op: Operation) -> TypeGuard[tile.AddToOp]:
    return isinstance(op, tile.AddToOp) and op.atomic is not None


def adds_product(op: Operation) -> TypeGuard[tile.AddToOp]:
    """Return True for an atomic addition of a product, as blocks of columns have."""
    return is_atomic(op) and isinstance(op.value.owner, tile.DotOp)


def share_row_sum(dot: tile.DotOp, part: SSAValue, parts: int) -> None:
    """Let each part compute a share of the columns or rows of a sum over all rows.

    Raise `ScheduleError` if a share is too narrow for a product.
    """
    assert isinstance(dot.lhs.owner, tile.TransposeOp)
    weights, factors = dot.lhs.owner.input, dot.rhs
    rows, columns = shape_of(dot.result.type)
    if columns // parts >= LEAST_COLUMNS:
        split, shape = 1, (rows, columns // parts)
    elif rows // parts >= LEAST_COLUMNS:
        split, shape = 0, (rows // parts, columns)
    else:
        raise ScheduleError(f"{rows} x {columns} sums cannot be shared by {parts}")
    shared = [share(value, part, parts) for value in (weights, factors)]
    # Constants stand before all loops, so that no iteration carries them to the next.
    body = part.owner
    assert isinstance(body, Block)
    first = ScalarCode(InsertPoint.at_start(body))
    assert isinstance(dot.result.type, TileType)
    element = dot.result.type.element_type
    offset = first.mul(part, first.const(shape[split]))
    zero = tile.FullOp(first.const(0.0, element), TileType(element, shape))
    total = first.insert(zero, "zeros")
    code = ScalarCode(InsertPoint.before(dot))
    for number in map(first.const, range(parts)):
        lhs, rhs = (code.insert(OfPartOp(value, number)) for value in shared)
        if split:
            rhs = code.insert(TakeColumnsOp(rhs, part, parts))
        else:
            lhs = code.insert(TakeColumnsOp(lhs, part, parts))
        product = tile.DotOp(code.insert(tile.TransposeOp(lhs)), rhs, total)
        total = code.insert(product, dot.result.name_hint)
    (use,) = dot.result.uses
    add = use.operation
    assert is_atomic(add)
    shift(add, [index_position(add, split)], offset)
    add.operands[0] = total
    turned = dot.lhs.owner
    Rewriter.erase_op(dot)
    if not turned.result.uses:
        Rewriter.erase_op(turned)


def share(value: SSAValue, part: SSAValue, parts: int) -> SSAValue:
    """Share a value with other parts, right after its definition."""
    assert isinstance(value.owner, Operation)
    code = ScalarCode(InsertPoint.after(value.owner))
    return code.insert(ShareOp(value, part, parts), f"{value.name_hint or 'tile'}_of")


def code_of_tiles(block: Block) -> list[Operation]:
    """Return the ops of a block that use tiles, have effects, or depend on such ops."""
    found: list[Operation] = []
    inside: set[SSAValue] = set()
    for op in block.ops:
        if isinstance(op, tile.ReturnOp | tile.ReturnUnlessOp):
            continue
        depends = any(v in inside for each in op.walk() for v in each.operands)
        if depends or uses_tiles(op) or not is_side_effect_free(op):
            found.append(op)
            inside.update(op.results)
    return found


def uses_tiles(op: Operation) -> bool:
    """Return True if an op, or one inside it, makes or uses tiles."""
    return any(rank(v) for each in op.walk() for v in (*each.operands, *each.results))


def shift(op: Operation, operands: Iterable[int], offset: SSAValue) -> None:
    """Add an offset to operands of an op."""
    for index in operands:
        code = ScalarCode(InsertPoint.before(op))
        start = op.operands[index]
        op.operands[index] = code.add(start, offset, start.name_hint)


@dataclass(frozen=True)
class TileSplitRowsPass(ModulePass):
    """Split the rows of programs into parts."""

    name = "tile-split-rows"

    rows: int | None = None
    """The rows of a part for all kernels; overrides the kernels' attributes."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in [o for o in op.ops if isinstance(o, tile.KernelOp)]:
            if (rows := self.rows or kernel.number("rows_per_part")) is not None:
                RowSplitter(kernel, rows).run()
