"""What a kernel is given, and what its program makes of that before anything else.

A program owns rows. What an op over rows makes, where an op of the same function reads
it, is part of that op's program: it makes its own rows, and nobody stores them.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import (
    DenseArrayBase,
    IntegerAttr,
    MemRefType,
    NoneAttr,
    StridedLayoutAttr,
    TensorType,
    i32,
    i64,
)
from xdsl.ir import Attribute, Block, BlockArgument, Operation, OpResult, SSAValue
from xdsl.utils.hints import isa

from flexc.dialects import flex
from flexc.dialects.flex import PairSumsLike
from flexc.dialects.tile import GRID_OF
from flexc.passes.refusal import refuse

OverRows = flex.RowDotsOp | flex.WeighRowsOp
"""What may be part of a program."""


def is_part(op: OverRows) -> bool:
    """Whether an op over rows is part of the programs that read what it makes."""
    readers = [use.operation for use in op.result.uses]
    return bool(readers) and all(
        isinstance(r, PairSumsLike | OverRows) for r in readers
    )


def makers_of(op: Operation) -> list[OverRows]:
    """The ops over rows that are part of an op's program, makers before readers."""
    found: list[OverRows] = []
    for operand in op.operands:
        if isinstance(operand.owner, OverRows):
            found += [*makers_of(operand.owner), operand.owner]
    return list(dict.fromkeys(found))


def matrices_of_makers(op: Operation) -> list[SSAValue]:
    """The matrices that these read."""
    return [v for maker in makers_of(op) for v in maker.operands if is_matrix(v)]


def source_of(rows: SSAValue) -> SSAValue:
    """A tensor that a program is given with as many rows: it, or what it is made of."""
    while isinstance(rows.owner, OverRows):
        rows = rows.owner.operands[0]
    return rows


def is_matrix(tensor: SSAValue) -> bool:
    """Whether a tensor has more of a row than a number."""
    return len(flex.tensor_shape(tensor)) > 3


def arguments_of(op: Operation) -> list[SSAValue]:
    """What the arguments of an op's kernel stand for: its operands and its results.

    Where others make some of the operands, the arguments of its function.
    """
    given = list(op.operands)
    if makers_of(op):
        block = op.parent_block()
        assert block is not None
        given = list(block.args)
    return [*given, *op.results]


def entry_block(op: Operation) -> Block:
    """A kernel's block: an argument for all that is read, a memref for each result."""
    check_makers(op)
    values = arguments_of(op)
    types = [_memref(v.type) if v in op.results else v.type for v in values]
    block = Block(arg_types=types)
    for arg, value in zip(block.args, values, strict=True):
        arg.name_hint = value.name_hint
    return block


def check_makers(op: Operation) -> None:
    """Refuse what is made of anything but arguments, or not read by its rows alone."""
    makers = makers_of(op)
    for reader in (op, *makers) if makers else ():
        own = rows_read_by(reader)
        for operand in reader.operands:
            if isinstance(operand.owner, OverRows):
                if operand not in own:
                    refuse(reader, f"expects no result of {operand.owner.name} there")
            elif not isinstance(operand, BlockArgument):
                refuse(reader, "expects arguments, and what is made of their rows")


def rows_read_by(op: Operation) -> Sequence[SSAValue]:
    """The operands of which a program reads the rows that it owns, and no others."""
    match op:
        case flex.RowDotsOp() | flex.WeighRowsOp():
            return op.operands
        case PairSumsLike() if not op.is_transposed:
            columns = {*op.columns, *op.column_values}
            return [v for v in (*op.rows, *op.row_values) if v not in columns]
        case _:
            return ()


def aligned(op: Operation, values: Sequence[SSAValue]) -> dict[str, Attribute]:
    """The attribute that lists the arguments which an op's `alignment` is about."""
    if "alignment" not in op.properties:
        return {}
    numbers = [i for i, v in enumerate(arguments_of(op)) if v in values]
    return {"aligned": DenseArrayBase.from_list(i64, numbers)}


def grid_of(result: OpResult, op: Operation) -> dict[str, Attribute]:
    """The attribute that says that the grid is for the sizes of a result."""
    return {GRID_OF: IntegerAttr(arguments_of(op).index(result), i32)}


def _memref(type_: Attribute) -> MemRefType[Attribute]:
    """The memref that an output is written to."""
    assert isa(type_, TensorType[Attribute])
    layout = NoneAttr()
    if isinstance(type_.encoding, StridedLayoutAttr):
        # The runtime passes the address of the first element.
        layout = StridedLayoutAttr(type_.encoding.strides, 0)
    return MemRefType(type_.element_type, type_.get_shape(), layout)
