"""Shared memory and its barriers (PTX's mbarriers): slots, views, copies, waits."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import (
    I32,
    IntegerAttr,
    MemRefType,
    TensorType,
    UnitAttr,
    i32,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import MemoryAllocEffect, MemoryReadEffect, MemoryWriteEffect, Pure
from xdsl.utils.exceptions import VerifyException

from flexc.dialects.mod_region import expect_type
from flexc.dialects.tile.checks import verify_box, verify_index, verify_same_tile
from flexc.dialects.tile.types import (
    BarriersType,
    SharedType,
    TileType,
    ViewType,
    matrix_shape,
    tile_bytes,
    tile_of,
    transposed,
)


@irdl_op_definition
class SharedOp(IRDLOperation):
    """Slots in shared memory, allocated for the whole run of the kernel."""

    name = "tile.shared"

    result = result_def(SharedType)

    traits = traits_def(MemoryAllocEffect())
    assembly_format = "attr-dict `:` type($result)"

    def __init__(self, type_: SharedType):
        super().__init__(result_types=[type_])


@irdl_op_definition
class SlotOp(IRDLOperation):
    """A view of the tile in one slot."""

    name = "tile.slot"

    shared = operand_def(SharedType)
    index = operand_def(i32)
    result = result_def(ViewType)

    traits = traits_def(Pure())
    assembly_format = (
        "$shared `[` $index `]` attr-dict `:` type($shared) `->` type($result)"
    )

    def __init__(self, shared: SSAValue, index: SSAValue):
        tile = expect_type("shared", shared, SharedType).tile
        super().__init__(operands=[shared, index], result_types=[ViewType(tile)])

    def verify_(self) -> None:
        assert isinstance(self.shared.type, SharedType)
        verify_same_tile("result", self.result.type, self.shared.type.tile)
        verify_index(self.index, self.shared.type)


@irdl_op_definition
class OpaqueOp(IRDLOperation):
    """An index, unchanged, that compilers of the emitted code take for another number.

    So the address of a slot of this index is not moved out of a loop.

    ```mlir
    %anew = tile.opaque %index
    %slot = tile.slot %slots[%anew] : !slots -> !view
    ```
    """

    name = "tile.opaque"

    index = operand_def(i32)
    result = result_def(i32)

    assembly_format = "$index attr-dict"

    def __init__(self, index: SSAValue):
        super().__init__(operands=[index], result_types=[i32])


@irdl_op_definition
class TransposeViewOp(IRDLOperation):
    """The transpose of a view; no elements move."""

    name = "tile.transpose_view"

    view = operand_def(ViewType)
    result = result_def(ViewType)

    traits = traits_def(Pure())
    assembly_format = "$view attr-dict `:` type($view) `->` type($result)"

    def __init__(self, view: SSAValue):
        turned = ViewType(transposed(expect_type("view", view, ViewType).tile))
        super().__init__(operands=[view], result_types=[turned])

    def verify_(self) -> None:
        expected = transposed(tile_of(self.view.type))
        verify_same_tile("result", self.result.type, expected)


@irdl_op_definition
class TakeColumnsOp(IRDLOperation):
    """One of `count` equal ranges of columns of a tile or view; no elements move.

    ```mlir
    %half = tile.take_columns %k[%part] of 2
        : !tile.view<!tile.tile<64x128xbf16>> -> !tile.view<!tile.tile<64x64xbf16>>
    ```
    """

    name = "tile.take_columns"

    source = operand_def(TileType | ViewType)
    number = operand_def(i32)
    count = prop_def(IntegerAttr[I32])
    result = result_def(TileType | ViewType)

    traits = traits_def(Pure())
    assembly_format = (
        "$source `[` $number `]` `of` $count attr-dict "
        "`:` type($source) `->` type($result)"
    )

    def __init__(self, source: SSAValue, number: SSAValue, count: int):
        tile = columns_of(tile_of(source.type), count)
        is_view = isinstance(source.type, ViewType)
        super().__init__(
            operands=[source, number],
            properties={"count": IntegerAttr(count, i32)},
            result_types=[ViewType(tile) if is_view else tile],
        )

    def verify_(self) -> None:
        _, columns = matrix_shape("source", self.source.type)
        count = self.count.value.data
        if count < 1 or columns % count:
            raise VerifyException(
                f"count expects a divisor of {columns} columns, got {count}"
            )
        if isinstance(self.source.type, ViewType) != isinstance(
            self.result.type, ViewType
        ):
            raise VerifyException("expects a view of a view, or a tile of a tile")
        expected = columns_of(tile_of(self.source.type), count)
        verify_same_tile("result", self.result.type, expected)


def columns_of(tile: TileType, count: int) -> TileType:
    """Return the type of one of `count` ranges of a tile's columns."""
    rows, columns = tile.get_shape()
    return TileType(tile.element_type, [rows, columns // max(count, 1)])


@irdl_op_definition
class CopyInOp(IRDLOperation):
    """The start of a copy of a tile of a tensor's last dimensions to shared memory.

    Elements outside the tensor are 0. The first byte of a row of the tile is at a
    multiple of 16 bytes. A `tile.expect` must have announced the copy's bytes to the
    barrier `barriers[index]`. The copy is complete when the barrier's current phase is
    complete. Until then the contents of the slot are undefined.

    ```mlir
    tile.copy_in %key[%b, %kv_h, %kv_start, %c0] to %view, %k_full[%stage]
        : tensor<?x?x?x128xbf16>, !tile.view<!tile.tile<128x128xbf16>>,
          !tile.barriers<2, 1>
    ```
    """

    name = "tile.copy_in"

    tensor = operand_def(TensorType[Attribute])
    indices = var_operand_def(i32)
    view = operand_def(ViewType)
    barriers = operand_def(BarriersType)
    index = operand_def(i32)

    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = (
        "$tensor `[` $indices `]` `to` $view `,` $barriers `[` $index `]` attr-dict "
        "`:` type($tensor) `,` type($view) `,` type($barriers)"
    )

    def __init__(
        self,
        tensor: SSAValue,
        indices: Sequence[SSAValue],
        view: SSAValue,
        barriers: SSAValue,
        index: SSAValue,
    ):
        super().__init__(operands=[tensor, list(indices), view, barriers, index])

    def verify_(self) -> None:
        verify_box(self.tensor.type, self.indices, self.view)
        _verify_whole(self.view)
        verify_index(self.index, self.barriers.type)


def _verify_whole(view: SSAValue) -> None:
    if isinstance(view.owner, TransposeViewOp | TakeColumnsOp):
        raise VerifyException(f"expects a view of a whole slot, got {view.owner.name}")


@irdl_op_definition
class WriteViewOp(IRDLOperation):
    """A store of a tile to its view in shared memory.

    Products and copies out of shared memory see the tile after `tile.fence_copies`.
    """

    name = "tile.write_view"

    value = operand_def(TileType)
    view = operand_def(ViewType)

    traits = traits_def(MemoryWriteEffect())
    assembly_format = "$value `,` $view attr-dict `:` type($value) `,` type($view)"

    def __init__(self, value: SSAValue, view: SSAValue):
        super().__init__(operands=[value, view])

    def verify_(self) -> None:
        verify_same_tile("view", self.view.type, tile_of(self.value.type))


@irdl_op_definition
class ReadViewOp(IRDLOperation):
    """A tile's values, read from its view in shared memory to registers."""

    name = "tile.read_view"

    view = operand_def(ViewType)
    result = result_def(TileType)

    traits = traits_def(MemoryReadEffect())
    assembly_format = "$view attr-dict `:` type($view) `->` type($result)"

    def __init__(self, view: SSAValue):
        type_ = expect_type("view", view, ViewType).tile
        super().__init__(operands=[view], result_types=[type_])

    def verify_(self) -> None:
        verify_same_tile("result", self.result.type, tile_of(self.view.type))


@irdl_op_definition
class FenceCopiesOp(IRDLOperation):
    """A fence between this role's writes to shared memory and asynchronous reads.

    After the fence, copies out and products see the writes.
    """

    name = "tile.fence_copies"

    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "attr-dict"


@irdl_op_definition
class CopyOutOp(IRDLOperation):
    """The start of a copy of a tile from shared memory to a memref's last dimensions.

    Elements outside the memref are not written. The slot must not change until
    `tile.await_copies`. The memref holds the tile when the kernel ends. With `adds`,
    the elements are added to those of the memref, atomically.

    ```mlir
    tile.copy_out %view to %out[%b, %h, %row, %c0]
        : !tile.view<!tile.tile<64x128xbf16>>, memref<?x?x?x128xbf16>
    ```
    """

    name = "tile.copy_out"

    view = operand_def(ViewType)
    memref = operand_def(MemRefType)
    indices = var_operand_def(i32)
    adds = opt_prop_def(UnitAttr)

    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = (
        "$view `to` $memref `[` $indices `]` (`adds` $adds^)? attr-dict "
        "`:` type($view) `,` type($memref)"
    )

    def __init__(
        self,
        view: SSAValue,
        memref: SSAValue,
        indices: Sequence[SSAValue],
        adds: bool = False,
    ):
        super().__init__(
            operands=[view, memref, list(indices)],
            properties={"adds": UnitAttr() if adds else None},
        )

    def verify_(self) -> None:
        verify_box(self.memref.type, self.indices, self.view)
        _verify_whole(self.view)


@irdl_op_definition
class AwaitCopiesOp(IRDLOperation):
    """A wait until at most `outstanding` copies out of this role read their slots.

    The slots of the other copies may be used again. The copied elements are in global
    memory when the kernel ends: no op of this kernel may read them there. With
    `written`, they are there after the wait.
    """

    name = "tile.await_copies"

    outstanding = prop_def(IntegerAttr[I32])
    written = opt_prop_def(UnitAttr)

    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "`outstanding` $outstanding (`written` $written^)? attr-dict"

    def __init__(self, outstanding: int = 0, written: bool = False):
        super().__init__(
            properties={
                "outstanding": IntegerAttr(outstanding, i32),
                "written": UnitAttr() if written else None,
            }
        )

    def verify_(self) -> None:
        if self.outstanding.value.data < 0:
            raise VerifyException(
                f"outstanding expects 0 or more, got {self.outstanding.value.data}"
            )


@irdl_op_definition
class BarriersOp(IRDLOperation):
    """Barriers that all roles can use.

    The arrivals of the type are those of roles. With `by_warps`, each of so many warps
    of a role arrives when it gets there: they need not wait for each other.
    """

    name = "tile.barriers"

    by_warps = opt_prop_def(IntegerAttr[I32])
    result = result_def(BarriersType)

    traits = traits_def(MemoryAllocEffect())
    assembly_format = "(`by_warps` $by_warps^)? attr-dict `:` type($result)"

    def __init__(self, type_: BarriersType, by_warps: int | None = None):
        each = None if by_warps is None else IntegerAttr(by_warps, i32)
        super().__init__(result_types=[type_], properties={"by_warps": each})

    @property
    def arrivals_of_role(self) -> int:
        """The arrivals by which a copy of a role signals."""
        return 1 if self.by_warps is None else self.by_warps.value.data


class _BarrierOp(IRDLOperation):
    """An op on one barrier."""

    barriers = operand_def(BarriersType)
    index = operand_def(i32)

    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    def verify_(self) -> None:
        verify_index(self.index, self.barriers.type)


@irdl_op_definition
class ExpectOp(_BarrierOp):
    """An arrival that extends the current phase until `bytes` bytes were copied in."""

    name = "tile.expect"

    bytes = prop_def(IntegerAttr[I32])

    assembly_format = (
        "$barriers `[` $index `]` `bytes` $bytes attr-dict `:` type($barriers)"
    )

    def __init__(self, barriers: SSAValue, index: SSAValue, bytes: int):
        super().__init__(
            operands=[barriers, index], properties={"bytes": IntegerAttr(bytes, i32)}
        )

    def verify_(self) -> None:
        super().verify_()
        if self.bytes.value.data < 1:
            raise VerifyException(
                f"expects a positive number of bytes, got {self.bytes.value.data}"
            )


@irdl_op_definition
class ArriveOp(_BarrierOp):
    """An arrival: roles that wait for the phase see earlier effects of this role.

    With `after_products`, the arrival waits until earlier products have read their
    operands; `tile-async-products` moves it there.
    """

    name = "tile.arrive"

    after_products = opt_prop_def(UnitAttr)

    assembly_format = (
        "$barriers `[` $index `]` (`after_products` $after_products^)? attr-dict "
        "`:` type($barriers)"
    )

    def __init__(
        self, barriers: SSAValue, index: SSAValue, after_products: bool = False
    ):
        super().__init__(
            operands=[barriers, index],
            properties={"after_products": UnitAttr() if after_products else None},
        )


@irdl_op_definition
class AwaitOp(_BarrierOp):
    """A wait until the parity of the barrier's current phase differs from `parity`.

    With parity 0 the op waits for the first phase to complete. With parity 1 it does
    not wait while the first phase is current.
    """

    name = "tile.await"

    # Repeated because an op's own operands precede those of its base class.
    barriers = operand_def(BarriersType)
    index = operand_def(i32)
    parity = operand_def(i32)

    assembly_format = (
        "$barriers `[` $index `]` `parity` $parity attr-dict `:` type($barriers)"
    )

    def __init__(self, barriers: SSAValue, index: SSAValue, parity: SSAValue):
        super().__init__(operands=[barriers, index, parity])


BARRIER_BYTES = 8


def shared_bytes(kernel: Operation) -> int:
    """Return the bytes of shared memory that a kernel's slots and barriers take."""
    total = 0
    for op in kernel.walk():
        if isinstance(op, SharedOp):
            assert isinstance(op.result.type, SharedType)
            total += op.result.type.slots.data * tile_bytes(op.result.type.tile)
        elif isinstance(op, BarriersOp):
            assert isinstance(op.result.type, BarriersType)
            total += op.result.type.count.data * BARRIER_BYTES
    return total
