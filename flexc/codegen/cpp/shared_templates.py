"""Find the templates of the support headers that a kernel shares with other kernels.

Products and transposed copies depend on types and sizes of tiles, and rarely on mods.
They take the C++ compiler as long as the rest of a kernel. So a kernel only declares
their instantiations, and one separately compiled object defines them.
"""

from __future__ import annotations

from functools import singledispatch

from xdsl.ir import Attribute, Operation, SSAValue

from flexc.codegen.cpp.spelling import memory_type, parameters
from flexc.dialects import tile
from flexc.dialects.constants import int_constant
from flexc.dialects.tile import KeptAttr, RegisterTileAttr, TileType
from flexc.dialects.tile.types import is_memory, is_tensor


def shared_templates(kernel: tile.KernelOp) -> tuple[str, ...]:
    """Return the shared instantiations that a kernel calls, each once and sorted."""
    found = (template(op) for op in kernel.body.walk())
    return tuple(sorted({text for text in found if text is not None}))


@singledispatch
def template(op: Operation) -> str | None:
    """Return the shared instantiation that an op calls, or None."""
    return None


@template.register
def _(op: tile.RegisterProductOp) -> str:
    element = _element(op.result.type)
    columns = tile.shape_of(op.result.type)[1]
    result = f"TileResult<{element}, {columns}>"
    return _product(op, op.acc is not None, result, _left_operand(op), columns)


@template.register
def _(op: tile.AddRegisterProductOp) -> str:
    columns = tile.shape_of(op.rhs.type)[1]
    result = f"MemoryResult<{_element(op.memref.type)}>"
    return _product(op, True, result, _tile_operand(op.lhs), columns)


@template.register
def _(op: tile.StreamProductOp) -> str:
    block, (m, n) = op.register_tile, tile.shape_of(op.result.type)
    name = "StreamSums" if op.transposed is None else "StreamDots"
    parts = (
        block.rows.data,
        block.vectors.data,
        op.ahead.value.data,
        _element(op.result.type),
        m,
        n,
        tile.shape_of(op.lhs.type)[1],
        _element(op.rhs.type),
    )
    return _instance(name, *parts)


@template.register
def _(op: tile.LoadStridedOp) -> str | None:
    return _transposed("LoadTransposed", op.result, op.tensor, op.strides)


@template.register
def _(op: tile.TransposeOp) -> str | None:
    element = _element(op.result.type)
    if element in _NARROW:
        return None
    return _instance("LoadTransposed", element, *tile.shape_of(op.result.type), element)


@template.register
def _(op: tile.StoreStridedOp) -> str | None:
    return _transposed("StoreTransposed", op.value, op.memref, op.strides)


def _transposed(
    name: str, value: SSAValue, memory: SSAValue, strides: tuple[SSAValue, ...]
) -> str | None:
    """Return the copy of a matrix whose columns may be adjacent in memory, or None."""
    assert isinstance(value.type, TileType)
    loads_pairs = name == "LoadTransposed" and _element(value.type) == "bfloat16"
    is_narrow = _element(value.type) in _NARROW and not loads_pairs
    if is_narrow or not _may_transpose(strides):
        return None
    element, rows, columns = parameters(value.type)
    if value.type.get_layout() == KeptAttr():
        columns = tile.TILE_DEPTH
    return _instance(name, element, rows, columns, _element(memory.type))


def _product(
    op: tile.RegisterProductOp | tile.AddRegisterProductOp,
    adds: bool,
    result: str,
    lhs: str,
    columns: int,
) -> str:
    """Return a product's instantiation, for a counted number of rows or all rows."""
    m, block = tile.shape_of(_rows_of(op))[0], op.register_tile
    rows = f"Fixed<{m}>" if op.rows is None else "int32_t"
    sizes = block.rows.data, block.vectors.data, columns
    if block.is_of_unit:
        sizes = tile_registers(block), *sizes[1:]
        return _instance("TileProduct", str(adds).lower(), *sizes, result, lhs, rows)
    assert isinstance(op.rhs.type, TileType)
    element = parameters(op.rhs.type)[0]
    return _instance("Product", str(adds).lower(), *sizes, element, result, lhs, rows)


def tile_registers(block: RegisterTileAttr) -> int:
    """Return the tile registers, one below another, that hold a block's rows."""
    return max(1, block.rows.data // 16)


def _rows_of(op: tile.RegisterProductOp | tile.AddRegisterProductOp) -> Attribute:
    return (op.lhs if isinstance(op, tile.AddRegisterProductOp) else op.result).type


def _left_operand(op: tile.RegisterProductOp) -> str:
    if isinstance(op.lhs.type, TileType):
        return _tile_operand(op.lhs)
    strides = (_stride(value) for value in op.strides)
    ahead = "Fixed<0>" if op.next is None else "int64_t"
    return _instance("Strided", _element(op.lhs.type), *strides, ahead)


def _tile_operand(value: SSAValue) -> str:
    rows, columns = tile.shape_of(value.type)
    if tile.layout_of(value.type) == KeptAttr():
        return _instance("KeptOperand", rows)
    return _instance("TileOperand", _element(value.type), columns)


def _stride(value: SSAValue) -> str:
    number = int_constant(value)
    return "int64_t" if number is None else f"Fixed<{number}>"


def _may_transpose(strides: tuple[SSAValue, ...]) -> bool:
    """Return True if stride 0 may be 1 while stride 1 is not."""
    if len(strides) != 2:
        return False
    first, second = (int_constant(stride) for stride in strides)
    return first in (None, 1) and second != 1


_NARROW = ("int8_t", "int16_t", "half", "bfloat16")
"""Elements of fewer than four bytes, which are not transposed in registers.

Only loads of bfloat16 are, two elements at a time.
"""


def _element(type_: Attribute) -> str:
    if is_tensor(type_) or is_memory(type_):
        return memory_type(type_.element_type)
    return memory_type(tile.element_of(type_))


def _instance(name: str, *args: str | int) -> str:
    return f"{name}<{', '.join(map(str, args))}>"
