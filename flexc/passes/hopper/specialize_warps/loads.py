"""Which loads of a program's parts are asynchronous copies to shared memory.

Those that only feed matrix products, of tensors that TMA can read. TMA gives 0 outside
of a tensor, as `tile.load` does.
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects import scf
from xdsl.dialects.builtin import BFloat16Type, Float16Type, MemRefType, TensorType, f32
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue, Use
from xdsl.utils.hints import isa

from flexc.dialects import tile
from flexc.dialects.tile import TileType, element_of, shape_of
from flexc.dialects.tile.schedule import PartsOp
from flexc.errors import ScheduleError
from flexc.passes.tile.tile_materialize_params import aligned_arguments
from flexc.passes.tile.tile_shapes import element_width, static_stride

TMA_BYTES = 16
"""What addresses and strides are multiples of."""

TMA_BOX = 256
"""Elements along each side of what one copy takes, at most."""


def staged_loads(kernel: tile.KernelOp, parts: PartsOp) -> list[tile.LoadOp]:
    """The loads that become copies, in program order."""
    loads = [o for o in parts.body.walk() if isinstance(o, tile.LoadOp)]
    staged = [o for o in loads if why_not_staged(kernel, o) is None]
    for load in staged:
        if in_branch(load, parts):
            raise ScheduleError(f"a load of {name_of(load)} is in a branch")
    return staged


def check_products(
    kernel: tile.KernelOp, parts: PartsOp, staged: list[tile.LoadOp]
) -> None:
    """Raise if a product's rhs is not in shared memory, or no product of wgmma's."""
    places = {load.result for load in staged}
    for dot in parts.body.walk():
        if not isinstance(dot, tile.DotOp):
            continue
        source = transposed_source(dot.rhs)
        if source not in places:
            raise ScheduleError(f"{_what(dot)} has an rhs that {_why(kernel, source)}")
        rows, width = shape_of(dot.lhs.type)
        if rows % 64 or width % 16:
            raise ScheduleError(f"{_what(dot)} has an lhs of {rows} x {width} elements")
        if element_of(dot.lhs.type) != element_of(dot.rhs.type):
            raise ScheduleError(f"{_what(dot)} has operands of different types")
        if element_of(dot.result.type) != f32:
            raise ScheduleError(f"{_what(dot)} is not summed in f32")


def why_not_staged(kernel: tile.KernelOp, load: tile.LoadOp) -> str | None:
    """Why a load is no copy to shared memory; None if it is one."""
    if (why := why_not_tma(kernel, load.tensor, load.result.type)) is not None:
        return why
    uses = list(uses_through_transposes(load.result))
    if not uses or not all(is_factor(use) for use in uses):
        return "is used by more than matrix products"
    return None


def why_not_tma(
    kernel: tile.KernelOp, tensor: SSAValue, type_: Attribute
) -> str | None:
    """Why TMA cannot copy a tile of a tensor or memref; None if it can."""
    assert isinstance(type_, TileType)
    if len(shape_of(type_)) != 2 or not isinstance(tensor, BlockArgument):
        return "is no matrix of an argument"
    if not isinstance(element_of(type_), BFloat16Type | Float16Type):
        return "has no elements of 16 bits"
    shape = shape_of(type_)
    if any(n & (n - 1) or not 8 <= n <= TMA_BOX for n in shape):
        return f"has {shape[0]} x {shape[1]} elements, not powers of 2 up to {TMA_BOX}"
    assert isa(tensor.type, TensorType[Attribute] | MemRefType[Attribute])
    if static_stride(tensor.type, tensor.type.get_num_dims() - 1) != 1:
        return "is not contiguous along its last dimension"
    unit = aligned_arguments(kernel).get(tensor.index, 1)
    if unit * element_width(tensor.type) < TMA_BYTES * 8:
        return f"is not aligned to {TMA_BYTES} bytes"
    return None


def uses_through_transposes(value: SSAValue) -> Iterator[Use]:
    """The uses of a value and of its transposes."""
    for use in value.uses:
        if isinstance(use.operation, tile.TransposeOp):
            yield from uses_through_transposes(use.operation.result)
        else:
            yield use


def is_factor(use: Use) -> bool:
    """Whether a use is as one of the two matrices that a product multiplies."""
    dot = use.operation
    return isinstance(dot, tile.DotOp) and dot.operands[use.index] is not dot.acc


def product_of(load: tile.LoadOp) -> Operation:
    """A product that reads a staged load."""
    return next(uses_through_transposes(load.result)).operation


def transposed_source(value: SSAValue) -> SSAValue:
    """The value that another is a transpose of, if it is one."""
    while isinstance(value.owner, tile.TransposeOp):
        value = value.owner.input
    return value


def in_branch(op: Operation, parts: PartsOp) -> bool:
    """Whether an op of some parts is in anything but loops."""
    parent = op.parent_op()
    while parent is not None and parent is not parts:
        if not isinstance(parent, scf.ForOp):
            return True
        parent = parent.parent_op()
    return False


def name_of(load: tile.LoadOp) -> str:
    """What a load is called in messages."""
    return load.tensor.name_hint or "a tensor"


def _what(dot: tile.DotOp) -> str:
    return f"the product {dot.result.name_hint or ''}".strip()


def _why(kernel: tile.KernelOp, source: SSAValue) -> str:
    if isinstance(source.owner, tile.LoadOp):
        return why_not_staged(kernel, source.owner) or "is in shared memory"
    return "is computed"
