"""Choose the loads that become asynchronous copies, and place them at their products.

A load becomes a copy if only matrix products use its tile and TMA can read its tensor.
TMA gives 0 outside of a tensor, as `tile.load` does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import takewhile

from xdsl.dialects import scf
from xdsl.dialects.builtin import BFloat16Type, Float16Type, MemRefType, TensorType, f32
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue, Use
from xdsl.utils.hints import isa

from flexc.dialects import tile
from flexc.dialects.mod_region import parents
from flexc.dialects.tile import TileType, element_of, shape_of
from flexc.dialects.tile.schedule import OfPartOp, PartsOp, ShareOp, TakeColumnsOp
from flexc.errors import ScheduleError
from flexc.passes.tile.tile_access import (
    aligned_arguments,
    element_width,
    static_stride,
)

TMA_BYTES = 16
"""The number of bytes that TMA's addresses and strides must be multiples of."""


TMA_BOX = 256
"""The largest number of elements that one copy takes along a dimension."""


def staged_loads(kernel: tile.KernelOp, parts: PartsOp) -> list[tile.LoadOp]:
    """Return the loads that become copies, in program order.

    Raise `ScheduleError` if such a load is in a branch.
    """
    loads = [o for o in parts.body.walk() if isinstance(o, tile.LoadOp)]
    staged = [o for o in loads if why_not_staged(kernel, o) is None]
    for load in staged:
        if in_branch(load, parts):
            raise ScheduleError(f"a load of {name_of(load)} is in a branch")
    return staged


def check_products(
    kernel: tile.KernelOp, parts: PartsOp, staged: list[tile.LoadOp]
) -> None:
    """Raise `ScheduleError` if wgmma cannot compute a product.

    The rhs must be in shared memory, the rows of the lhs a multiple of 64 and its
    columns one of 16. Both operands must have one dtype, and the sum must be in f32.
    """
    places = {load.result for load in staged}
    for dot in parts.body.walk():
        if not isinstance(dot, tile.DotOp):
            continue
        source = viewed_source(dot.rhs)
        if source not in places and not isinstance(source.owner, OfPartOp):
            raise ScheduleError(f"{_what(dot)} has an rhs that {_why(kernel, source)}")
        rows, width = shape_of(dot.lhs.type)
        if rows % 64 or width % 16:
            raise ScheduleError(f"{_what(dot)} has an lhs of {rows} x {width} elements")
        if element_of(dot.lhs.type) != element_of(dot.rhs.type):
            raise ScheduleError(f"{_what(dot)} has operands of different types")
        if element_of(dot.result.type) != f32:
            raise ScheduleError(f"{_what(dot)} is not summed in f32")


def why_not_staged(kernel: tile.KernelOp, load: tile.LoadOp) -> str | None:
    """Return why a load cannot become a copy to shared memory, or None if it can."""
    if load.pages is not None:
        return "lies in several pages"
    if load.live is not None:
        return "has rows that are not read"
    if (why := why_not_tma(kernel, load.tensor, load.result.type)) is not None:
        return why
    uses = list(uses_through_views(load.result))
    if not uses or not all(is_factor(use) for use in uses):
        return "is used by more than matrix products"
    return None


def why_not_tma(
    kernel: tile.KernelOp,
    tensor: SSAValue,
    type_: Attribute,
    adds: bool = False,
    vector: bool = False,
) -> str | None:
    """Return why TMA cannot copy a tile of a tensor or memref, or None if it can.

    Tiles of f32 are copied only if they are added to a memref, or are vectors.
    """
    assert isinstance(type_, TileType)
    rank = 1 if vector else 2
    if len(shape_of(type_)) != rank or not isinstance(tensor, BlockArgument):
        return "is no matrix of an argument"
    is_narrow = isinstance(element_of(type_), BFloat16Type | Float16Type)
    is_wide = (adds or vector) and element_of(type_) == f32
    if not is_narrow and not is_wide:
        return "has no elements of 16 bits"
    shape = shape_of(type_)
    if any(n & (n - 1) or not 8 <= n <= TMA_BOX for n in shape):
        sizes = " x ".join(map(str, shape))
        return f"has {sizes} elements, not powers of 2 up to {TMA_BOX}"
    assert isa(tensor.type, TensorType[Attribute] | MemRefType[Attribute])
    if static_stride(tensor.type, tensor.type.get_num_dims() - 1) != 1:
        return "is not contiguous along its last dimension"
    unit = aligned_arguments(kernel).get(tensor.index, 1)
    if unit * element_width(tensor.type) < TMA_BYTES * 8:
        return f"is not aligned to {TMA_BYTES} bytes"
    return None


ViewOp = tile.TransposeOp | TakeColumnsOp | ShareOp | OfPartOp
"""Ops whose result lies where their operand does, if that is in shared memory."""


def uses_through_views(value: SSAValue) -> Iterator[Use]:
    """Yield the uses of a tile in shared memory, and of all views of it."""
    for use in value.uses:
        if isinstance(use.operation, ViewOp):
            yield from uses_through_views(use.operation.result)
        else:
            yield use


def is_factor(use: Use) -> bool:
    """Return True if a use is the lhs or the rhs of a product, not its accumulator."""
    dot = use.operation
    return isinstance(dot, tile.DotOp) and dot.operands[use.index] is not dot.acc


def product_of(load: tile.LoadOp) -> Operation:
    """Return a product that reads the tile of a staged load."""
    return next(uses_through_views(load.result)).operation


def viewed_source(value: SSAValue) -> SSAValue:
    """Return the tile that a value is a view of, or the value itself.

    The result of a `tile.of_part` is a tile of its own, unless that tile was loaded.
    """
    while True:
        owner = value.owner
        if isinstance(owner, OfPartOp) and isinstance(owner.shares.owner, ShareOp):
            shared = owner.shares.owner.value
            if not isinstance(shared.owner, tile.LoadOp):
                return value
            value = shared
        elif isinstance(owner, tile.TransposeOp | TakeColumnsOp):
            value = owner.operands[0]
        else:
            return value


def in_branch(op: Operation, parts: PartsOp) -> bool:
    """Return True if an op lies in a branch (any op but a loop) within the parts."""
    inside = takewhile(lambda parent: parent is not parts, parents(op))
    return not all(isinstance(parent, scf.ForOp) for parent in inside)


def name_of(load: tile.LoadOp) -> str:
    """Return the name of a load's tensor for error messages."""
    return load.tensor.name_hint or "a tensor"


def _what(dot: tile.DotOp) -> str:
    return f"the product {dot.result.name_hint or ''}".strip()


def _why(kernel: tile.KernelOp, source: SSAValue) -> str:
    if isinstance(source.owner, tile.LoadOp):
        return why_not_staged(kernel, source.owner) or "is in shared memory"
    return "is computed"


StagedOp = tile.LoadOp | ViewOp


def move_to_products(parts: PartsOp, staged: Sequence[tile.LoadOp]) -> None:
    """Move staged loads and all views to right before their first user.

    A consumer waits for a tile at the load. An earlier wait can deadlock: the tile may
    need a slot that the consumer gives back only after the wait. Producers copy in the
    order of the moved loads.
    """
    loads = set(staged)
    for op in [o for o in parts.body.walk() if isinstance(o, StagedOp)]:
        is_computed = isinstance(op, ShareOp) and not is_loaded(op, loads)
        if op in loads or (isinstance(op, ViewOp) and not is_computed):
            _move_to_first_use(op)


def is_loaded(share: ShareOp, staged: Collection[Operation]) -> bool:
    """Return True if a shared tile is copied to shared memory anyway."""
    return share.value.owner in staged


def _move_to_first_use(op: StagedOp) -> None:
    if not (users := _users_in_block(op)):
        return
    block = op.parent_block()
    assert block is not None
    op.detach()
    block.insert_op_before(op, users[0])


Companions = Mapping[tile.LoadOp, tile.LoadOp]
"""The matrix whose slots hold a vector too, by the vector's load."""


def find_companions(
    kernel: tile.KernelOp, staged: Sequence[tile.LoadOp]
) -> dict[tile.LoadOp, tile.LoadOp]:
    """Return the loads of vectors in loops that are copied along with a matrix.

    A vector goes with a matrix of the same rows: the last one that is used before the
    vector is. Other vectors are loaded to registers. The loads move to before their
    first use.
    """
    in_loops = {o.tensor for o in staged if isinstance(o.parent_op(), scf.ForOp)}
    found: dict[tile.LoadOp, tile.LoadOp] = {}
    for block in dict.fromkeys(load.parent_block() for load in staged):
        assert block is not None
        for vector in [o for o in block.ops if isinstance(o, tile.LoadOp)]:
            if why_no_vector(kernel, vector) is not None:
                continue
            first = _users_in_block(vector)[0]
            fitting = [
                load
                for load in staged
                if load.parent_block() is block
                and load.tensor in in_loops
                and tuple(load.indices[:-1]) == tuple(vector.indices)
                and _users_in_block(load)[0].is_before_in_block(first)
            ]
            if fitting:
                found[vector] = last_used(fitting)
                _move_to_first_use(vector)
    return found


def last_used(loads: Sequence[tile.LoadOp]) -> tile.LoadOp:
    """Return the load of a block whose first use comes last."""
    last = loads[0]
    for load in loads:
        if _users_in_block(last)[0].is_before_in_block(_users_in_block(load)[0]):
            last = load
    return last


def why_no_vector(kernel: tile.KernelOp, load: tile.LoadOp) -> str | None:
    """Return why TMA cannot copy a vector of f32, or None if it can."""
    if len(shape_of(load.result.type)) != 1 or not load.result.uses:
        return "is no vector"
    return why_not_tma(kernel, load.tensor, load.result.type, vector=True)


def released_after(
    staged: Sequence[tile.LoadOp], companions: Companions | None = None
) -> dict[Operation, list[tile.LoadOp]]:
    """Map ops to the loads whose tiles are not read after the op.

    Each op is in the block of its loads. A vector is read right before its first use.
    """
    found: dict[Operation, list[tile.LoadOp]] = {}
    for load in staged:
        last = _users_in_block(load)[-1]
        for vector, matrix in (companions or {}).items():
            first = _users_in_block(vector)[0]
            if matrix is load and last.is_before_in_block(first):
                last = first
        found.setdefault(last, []).append(load)
    return found


def _users_in_block(op: StagedOp) -> list[Operation]:
    """Return the ops of a tile's own block that use the tile, in program order.

    A user in a nested region counts as its ancestor in the block.
    """
    block = op.parent_block()
    assert block is not None
    found = {block.find_ancestor_op_in_block(o) for o in users_of(op)}
    return [o for o in block.ops if o in found]


def users_of(op: StagedOp) -> list[Operation]:
    """Return the ops that use a tile or a transpose of the tile."""
    return [use.operation for use in uses_through_views(op.results[0])]
