"""Arguments of kernels, and the base class of kernel builders.

A program owns rows. If other ops of its function read the results of a `flex.map_rows`,
the kernels of these ops absorb it: each program computes the results for its own rows,
and no kernel stores them.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import (
    AffineMapAttr,
    DenseArrayBase,
    MemRefType,
    NoneAttr,
    StridedLayoutAttr,
    TensorType,
    i32,
    i64,
)
from xdsl.ir import (
    Attribute,
    Block,
    BlockArgument,
    Operation,
    Region,
    SSAValue,
)
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.utils.hints import isa

from flexc.dialects import flex, tile
from flexc.dialects.flex import PairSumsLike
from flexc.dialects.tile import GRID_OF, PROGRESS, ParamAttr, ParamKind
from flexc.errors import refuse
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.targets.target import Target


def is_absorbed(op: flex.MapRowsOp) -> bool:
    """Return True if the kernels that read an op's results absorb the op."""
    readers = [use.operation for result in op.results for use in result.uses]
    absorbing = PairSumsLike | flex.MapRowsOp
    return bool(readers) and all(isinstance(r, absorbing) for r in readers)


def absorbed_ops(op: Operation) -> list[flex.MapRowsOp]:
    """Return the ops over rows that an op's kernel absorbs, producers first."""
    found: list[flex.MapRowsOp] = []
    for operand in op.operands:
        if isinstance(operand.owner, flex.MapRowsOp):
            found += [*absorbed_ops(operand.owner), operand.owner]
    return list(dict.fromkeys(found))


def absorbed_matrices(op: Operation) -> list[SSAValue]:
    """Return the matrices that the absorbed ops read."""
    operands = (v for maker in absorbed_ops(op) for v in maker.operands)
    return [v for v in operands if flex.is_matrix(v)]


def source_of(rows: SSAValue) -> SSAValue:
    """Return a kernel argument with the same rows: the tensor or its source."""
    while isinstance(rows.owner, flex.MapRowsOp):
        rows = rows.owner.operands[0]
    return rows


def kernel_arguments(op: Operation) -> list[SSAValue]:
    """Return the values that become arguments of an op's kernel.

    These values are the operands and the results of the op. If the kernel absorbs ops,
    the arguments of the op's function replace the operands.
    """
    given = list(op.operands)
    if absorbed_ops(op):
        block = op.parent_block()
        assert block is not None
        given = list(block.args)
    return [*given, *op.results]


def entry_block(op: Operation) -> Block:
    """Return a kernel's entry block, whose arguments for results are memrefs."""
    check_absorbed_ops(op)
    values = kernel_arguments(op)
    types = [_memref(v.type) if v in op.results else v.type for v in values]
    block = Block(arg_types=types)
    for arg, value in zip(block.args, values, strict=True):
        arg.name_hint = value.name_hint
    return block


def check_absorbed_ops(op: Operation) -> None:
    """Refuse absorbed ops unless made of arguments and read as rows alone."""
    makers = absorbed_ops(op)
    for reader in (op, *makers) if makers else ():
        own = rows_read_by(reader)
        for operand in reader.operands:
            if isinstance(operand.owner, flex.MapRowsOp):
                if operand not in own:
                    refuse(reader, f"expects no result of {operand.owner.name} there")
            elif not isinstance(operand, BlockArgument):
                refuse(reader, "expects arguments, and what is made of their rows")


def rows_read_by(op: Operation) -> Sequence[SSAValue]:
    """Return the operands of which a program reads its own rows only."""
    match op:
        case flex.MapRowsOp():
            return op.operands
        case PairSumsLike() if not op.is_transposed:
            columns = {*op.columns, *op.column_values}
            return [v for v in (*op.rows, *op.row_values) if v not in columns]
        case _:
            return ()


def aligned(op: Operation, values: Sequence[SSAValue]) -> dict[str, Attribute]:
    """Return the attribute that lists the arguments with an op's `alignment`."""
    if "alignment" not in op.properties:
        return {}
    numbers = [i for i, v in enumerate(kernel_arguments(op)) if v in values]
    return {"aligned": DenseArrayBase.from_list(i64, numbers)}


def grid_of(
    op: Operation, batch: SSAValue, heads: SSAValue, rows: SSAValue
) -> dict[str, Attribute]:
    """Return the attribute with the arguments whose sizes the grid depends on."""
    args = kernel_arguments(op)
    numbers = [args.index(v) for v in (batch, heads, rows)]
    return {GRID_OF: DenseArrayBase.from_list(i32, numbers)}


def _memref(type_: Attribute) -> MemRefType[Attribute]:
    """Return the type of the memref that a result is written to."""
    assert isa(type_, TensorType[Attribute])
    layout = NoneAttr()
    if isinstance(type_.encoding, StridedLayoutAttr):
        # The runtime passes the address of the first element.
        layout = StridedLayoutAttr(type_.encoding.strides, 0)
    return MemRefType(type_.element_type, type_.get_shape(), layout)


class KernelBuilder:
    """A builder of one kernel of one op; `code` appends to the kernel's block."""

    def __init__(self, op: Operation, name: str, target: Target):
        self.name = name
        self.target = target
        self.block = entry_block(op)
        self.args: dict[SSAValue, SSAValue] = dict(
            zip(kernel_arguments(op), self.block.args, strict=True)
        )
        self.code = ScalarCode(self.block)
        self.extra: list[ParamAttr] = []
        """The last parameters, which the runtime makes."""

    def progress(self) -> SSAValue:
        """Append an argument for the progress of programs, and return it."""
        arg = self.block.insert_arg(PROGRESS, len(self.block.args))
        arg.name_hint = "progress"
        self.extra.append(ParamAttr(ParamKind.PROGRESS, 0))
        return arg

    def kernel_op(
        self, grid: AffineMapAttr, attributes: dict[str, Attribute]
    ) -> tile.KernelOp:
        """End the block, and return the kernel around it."""
        self.code.builder.insert(tile.ReturnOp())
        given = range(len(self.block.args) - len(self.extra))
        params = [*(ParamAttr(ParamKind.ARGUMENT, i) for i in given), *self.extra]
        return tile.KernelOp(self.name, grid, params, Region(self.block), attributes)


def rows_grid(block: int) -> AffineMapAttr:
    """Return a grid with a program for each block of rows of a head of a batch."""
    b, h, rows = (AffineExpr.dimension(i) for i in range(3))
    return AffineMapAttr(AffineMap(3, 0, (rows.ceil_div(block), h, b)))
