"""Ops that read tensors and write memrefs, a tile or an element at a time."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import (
    I32,
    BFloat16Type,
    DenseArrayBase,
    Float16Type,
    IntegerAttr,
    IntegerType,
    MemRefType,
    TensorType,
    UnitAttr,
    f32,
    i1,
    i32,
    i64,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect, Pure
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from flexc.dialects.mod_region import expect_tensor
from flexc.dialects.tile.checks import (
    verify_dim,
    verify_elements,
    verify_held,
    verify_pages,
    verify_tile,
)
from flexc.dialects.tile.types import (
    ProductAttr,
    TileType,
    element_of,
    shape_of,
    tile_of,
)


@irdl_op_definition
class LoadOp(IRDLOperation):
    """The tile of a tensor's last dimensions that starts at the given indices.

    Elements outside the tensor are 0. `checked` lists the tile's dimensions along which
    elements may be outside; along the others the tile is known to fit. With a `count`,
    only the first `count` elements of the tile's first dimension are read. These are
    inside the tensor; the other elements are unspecified. Elements are converted to the
    tile's type, which holds them exactly.

    With `live`, a flag for each row of the tile, other rows are not read and are 0.

    With `pages`, a table (batches, pages of each), the tensor's dimensions 0 and 2 are
    pages and the elements of a page. The first index is a batch b, and the third counts
    elements of that batch: element n is n % size of page pages[b, n // size], or of the
    nearest page that exists.

    ```mlir
    %k = tile.load %key[%b, %h, %n, %c0] checked [0] : tensor<?x?x?x64xbf16>,
         i32, i32, i32, i32 -> !tile.tile<128x64xbf16>
    %v = tile.load %value[%b, %h, %n, %c0] count %left : tensor<?x?x?x64xbf16>,
         i32, i32, i32, i32 -> !tile.tile<128x64xbf16>
    %p = tile.load %key[%b, %h, %n, %c0] pages %table : tensor<?x?xi32>
         live %seen : !tile.tile<128xi1> :
         tensor<?x?x16x64xbf16>, i32, i32, i32, i32 -> !tile.tile<128x64xbf16>
    ```
    """

    name = "tile.load"

    tensor = operand_def(TensorType[Attribute])
    indices = var_operand_def(i32)
    count = opt_operand_def(i32)
    pages = opt_operand_def(TensorType[Attribute])
    live = opt_operand_def(TileType)
    checked = prop_def(
        DenseArrayBase.constr(i32), default_value=DenseArrayBase.from_list(i32, [])
    )
    result = result_def(TileType)

    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(Pure())
    assembly_format = (
        "$tensor `[` $indices `]` (`checked` $checked^)? (`count` $count^)? "
        "(`pages` $pages^ `:` type($pages))? "
        "(`live` $live^ `:` type($live))? attr-dict "
        "`:` type($tensor) `,` type($indices) `->` type($result)"
    )

    def __init__(
        self,
        tensor: SSAValue,
        indices: Sequence[SSAValue],
        checked: Sequence[int],
        type_: Attribute,
        count: SSAValue | None = None,
        pages: SSAValue | None = None,
        live: SSAValue | None = None,
    ):
        super().__init__(
            operands=[tensor, indices, count, pages, live],
            properties={"checked": DenseArrayBase.from_list(i32, checked)},
            result_types=[type_],
        )

    def verify_(self) -> None:
        _verify_access(self.tensor.type, self.indices, self.result.type)
        verify_held("result", self.result.type, self.tensor.type)
        _verify_checked(self.checked, self.result.type)
        if self.pages is not None:
            verify_pages(self.pages.type, self.tensor.type)
            if tile_of(self.result.type).get_num_dims() != 2:
                raise VerifyException(
                    f"pages expects a tile of two dimensions, got {self.result.type}"
                )
        if self.live is not None:
            rows = TileType(i1, shape_of(self.result.type)[:1])
            if self.live.type != rows or self.count is not None:
                raise VerifyException(
                    f"live expects {rows} and no count, got {self.live.type}"
                )


@irdl_op_definition
class StoreOp(IRDLOperation):
    """A store of a tile to a memref's last dimensions, at the given indices.

    Elements outside the memref are not written; `checked` lists the dimensions along
    which there may be such elements. With a `count`, only the first `count` elements of
    the tile's last dimension are written, all of them inside the memref. With `below`,
    elements of the tile's first dimension, which must be checked, are not written from
    that index of the memref on.

    ```mlir
    tile.store %o, %out[%b, %h, %m, %c0] checked [0] : memref<...>, i32, ...
    tile.store %o, %out[%b, %h, %m, %c0] checked [0] below %q_end : memref<...>, ...
    tile.store %w, %pairs[%b, %h, %m, %n] checked [0] count %left : memref<...>, ...
    ```
    """

    name = "tile.store"

    value = operand_def(TileType)
    memref = operand_def(MemRefType)
    indices = var_operand_def(i32)
    count = opt_operand_def(i32)
    below = opt_operand_def(i32)
    checked = prop_def(
        DenseArrayBase.constr(i32), default_value=DenseArrayBase.from_list(i32, [])
    )

    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(MemoryWriteEffect())
    assembly_format = (
        "$value `:` type($value) `,` $memref `[` $indices `]` (`checked` $checked^)? "
        "(`count` $count^)? (`below` $below^)? attr-dict `:` type($memref) `,` "
        "type($indices)"
    )

    def __init__(
        self,
        value: SSAValue,
        memref: SSAValue,
        indices: Sequence[SSAValue],
        checked: Sequence[int],
        count: SSAValue | None = None,
        below: SSAValue | None = None,
    ):
        super().__init__(
            operands=[value, memref, indices, count, below],
            properties={"checked": DenseArrayBase.from_list(i32, checked)},
        )

    def verify_(self) -> None:
        _verify_access(self.memref.type, self.indices, self.value.type)
        _verify_checked(self.checked, self.value.type)
        if self.below is not None and 0 not in self.checked.get_values():
            raise VerifyException("below expects dimension 0 to be checked")


@irdl_op_definition
class AddToOp(IRDLOperation):
    """An addition of a tile to a memref's last dimensions.

    No other program reads the elements that are added to. Other programs add to them
    only if all additions are `atomic`. With a `count`, only the first `count` elements
    of the tile's first dimension are added. Elements outside the memref are not added;
    `checked` lists the dimensions along which there may be such elements.

    Atomic additions have no order without `progress`. With it, this one waits until the
    progress of program `%earlier` is at least `%least`, and then sets that of program
    `%own` to `%done`, as `tile.await_progress` and `tile.report_progress` do.

    ```mlir
    tile.add_to %d, %sums[%b, %h, %m, %at] : !tile.tile<128xf32>, memref<...>
    tile.add_to %w, %dk[%p, %b, %h, %n, %c0] count %left : !tile.tile<64x64xf32>, ...
    tile.add_to atomic %w, %dq[%b, %h, %m, %c0]
      progress %progress[%earlier, %least, %own, %done] : memref<?xi32> ...
    ```
    """

    name = "tile.add_to"

    value = operand_def(TileType)
    memref = operand_def(MemRefType)
    indices = var_operand_def(i32)
    count = opt_operand_def(i32)
    progress = opt_operand_def(MemRefType)
    turn = var_operand_def(i32)
    atomic = opt_prop_def(UnitAttr)
    checked = prop_def(
        DenseArrayBase.constr(i32), default_value=DenseArrayBase.from_list(i32, [])
    )

    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    assembly_format = (
        "(`atomic` $atomic^)? $value `,` $memref `[` $indices `]` "
        "(`checked` $checked^)? (`count` $count^)? "
        "(`progress` $progress^ `[` $turn `]` `:` type($progress))? attr-dict "
        "`:` type($value) `,` type($memref)"
    )

    def __init__(
        self,
        value: SSAValue,
        memref: SSAValue,
        indices: Sequence[SSAValue],
        count: SSAValue | None = None,
        checked: Sequence[int] = (),
        atomic: bool = False,
        progress: SSAValue | None = None,
        turn: Sequence[SSAValue] = (),
    ):
        super().__init__(
            operands=[value, memref, indices, count, progress, turn],
            properties={
                "checked": DenseArrayBase.from_list(i32, checked),
                "atomic": UnitAttr() if atomic else None,
            },
        )

    def verify_(self) -> None:
        _verify_access(self.memref.type, self.indices, self.value.type)
        _verify_checked(self.checked, self.value.type)
        expected = 0 if self.progress is None else 4
        if len(self.turn) != expected or (expected and self.atomic is None):
            raise VerifyException(
                "progress expects an atomic addition, and four numbers: the earlier "
                "program, its least progress, this program and its progress then"
            )


def _verify_checked(checked: DenseArrayBase[I32], tile: Attribute) -> None:
    for dim in checked.get_values():
        verify_dim("checked", dim, tile_of(tile).get_num_dims())


def _verify_access(
    tensor: Attribute, indices: Sequence[SSAValue], tile: Attribute
) -> None:
    assert isinstance(tensor, TensorType | MemRefType)
    assert isinstance(tile, TileType)
    if len(indices) != tensor.get_num_dims():
        raise VerifyException(
            f"expects {tensor.get_num_dims()} indices, got {len(indices)}"
        )
    if tile.get_num_dims() > tensor.get_num_dims():
        raise VerifyException(
            f"expects a tile of at most as many dimensions as {tensor}, got {tile}"
        )


@irdl_op_definition
class GatherOp(IRDLOperation):
    """The elements of a tensor's storage at `base + offsets`, 0 where `mask` is false.

    `tile.load` becomes this op for Triton, which loads through pointers. Offsets count
    elements from the tensor's first element. The result has the shape of the offsets.
    """

    name = "tile.gather"

    tensor = operand_def(TensorType[Attribute])
    base = operand_def(i64)
    offsets = operand_def(TileType)
    mask = opt_operand_def(TileType)
    result = result_def(TileType)

    traits = traits_def(Pure())
    assembly_format = (
        "$tensor `[` $base `+` $offsets `]` (`if` $mask^ `:` type($mask))? attr-dict "
        "`:` type($tensor) `,` type($offsets) `->` type($result)"
    )

    def __init__(
        self,
        tensor: SSAValue,
        base: SSAValue,
        offsets: SSAValue,
        mask: SSAValue | None,
        type_: Attribute,
    ):
        super().__init__(operands=[tensor, base, offsets, mask], result_types=[type_])

    def verify_(self) -> None:
        verify_elements("result", self.result.type, self.tensor.type)
        _verify_offsets("result", self.result.type, self.offsets, self.mask)


@irdl_op_definition
class ScatterOp(IRDLOperation):
    """A store of a tile to a memref's storage at `base + offsets` under a `mask`."""

    name = "tile.scatter"

    value = operand_def(TileType)
    memref = operand_def(MemRefType)
    base = operand_def(i64)
    offsets = operand_def(TileType)
    mask = opt_operand_def(TileType)

    traits = traits_def(MemoryWriteEffect())
    assembly_format = (
        "$value `,` $memref `[` $base `+` $offsets `]` (`if` $mask^ `:` type($mask))? "
        "attr-dict `:` type($value) `,` type($memref) `,` type($offsets)"
    )

    def __init__(
        self,
        value: SSAValue,
        memref: SSAValue,
        base: SSAValue,
        offsets: SSAValue,
        mask: SSAValue | None,
    ):
        super().__init__(operands=[value, memref, base, offsets, mask])

    def verify_(self) -> None:
        _verify_offsets("value", self.value.type, self.offsets, self.mask)


def _verify_offsets(
    what: str, tile: Attribute, offsets: SSAValue, mask: SSAValue | None
) -> None:
    """Verify that offsets, and a mask if there is one, have the shape of a tile."""
    shape = tile_of(offsets.type).get_shape()
    if not isinstance(tile_of(offsets.type).element_type, IntegerType):
        raise VerifyException(f"offsets expects integers, got {offsets.type}")
    if tile_of(tile).get_shape() != shape:
        raise VerifyException(
            f"{what} expects the shape {shape} of offsets, got {tile}"
        )
    if mask is not None:
        verify_tile("mask", mask.type, shape, i1)


@irdl_op_definition
class ScatterAddOp(IRDLOperation):
    """An addition of a tile to a memref's storage at `base + offsets` under a `mask`.

    `tile.add_to` becomes this op for Triton, which adds through pointers. All offsets
    differ. No other program reads these elements, and others write them only if all
    additions are `atomic`.
    """

    name = "tile.scatter_add"

    value = operand_def(TileType)
    memref = operand_def(MemRefType)
    base = operand_def(i64)
    offsets = operand_def(TileType)
    mask = opt_operand_def(TileType)
    atomic = opt_prop_def(UnitAttr)

    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = (
        "(`atomic` $atomic^)? $value `,` $memref `[` $base `+` $offsets `]` "
        "(`if` $mask^ `:` type($mask))? attr-dict "
        "`:` type($value) `,` type($memref) `,` type($offsets)"
    )

    def __init__(
        self,
        value: SSAValue,
        memref: SSAValue,
        base: SSAValue,
        offsets: SSAValue,
        mask: SSAValue | None = None,
        atomic: bool = False,
    ):
        super().__init__(
            operands=[value, memref, base, offsets, mask],
            properties={"atomic": UnitAttr() if atomic else None},
        )

    def verify_(self) -> None:
        _verify_offsets("value", self.value.type, self.offsets, self.mask)
        if self.mask is not None and self.atomic is None:
            raise VerifyException("a mask expects an atomic addition")


@irdl_op_definition
class ReadOp(IRDLOperation):
    """One element of a tensor's storage, 0 if `valid` is false.

    `flex.load_capture` becomes this op once offsets and guards are computed. The op is
    scalar, so it can be part of mod regions. A 16-bit float may be read as f32.
    """

    name = "tile.read"

    tensor = operand_def(TensorType[Attribute])
    offset = operand_def(IntegerType)
    valid = opt_operand_def(i1)
    result = result_def()

    traits = traits_def(Pure())
    assembly_format = (
        "$tensor `[` $offset `]` (`if` $valid^)? attr-dict "
        "`:` type($tensor) `,` type($offset) `->` type($result)"
    )

    def __init__(
        self,
        tensor: SSAValue,
        offset: SSAValue,
        valid: SSAValue | None,
        result_type: Attribute | None = None,
    ):
        element = expect_tensor("tensor", tensor).element_type
        super().__init__(
            operands=[tensor, offset, valid], result_types=[result_type or element]
        )

    def verify_(self) -> None:
        assert isa(self.tensor.type, TensorType[Attribute])
        element = self.tensor.type.element_type
        widens = isinstance(element, BFloat16Type | Float16Type)
        if self.result.type != element and not (widens and self.result.type == f32):
            raise VerifyException(
                f"result expects type {element}, got {self.result.type}"
            )


IDLE_BEYOND = "idle_beyond"
"""The attribute of a minimum that clamps an index only to keep reads in range.

Results for indices above the limit are not used.
"""


@irdl_op_definition
class ReadDiagonalsOp(IRDLOperation):
    """A tile that is constant along its diagonals, read from a tensor's storage.

    Element [i, j] is the tensor's element at `first + step * (i - j)`, computed in the
    type of `first`, for a step of 1 or -1. A 16-bit float is read as f32.

    `rows` and `columns` are the numbers of rows and columns that count; they may be
    larger or smaller than the tile. Elements beyond them are unspecified. Columns
    beyond the last one that counts are not read. Rows beyond the last one that counts
    may read that row's elements; if no row counts, those of a row before the tile's
    first.

    ```mlir
    %b = tile.read_diagonals %table[%first] step 1 rows %m columns %n
         : tensor<?xbf16>, i32 -> !tile.tile<64x128xf32>
    ```
    """

    name = "tile.read_diagonals"

    tensor = operand_def(TensorType[Attribute])
    first = operand_def(IntegerType)
    step = prop_def(IntegerAttr[I32])
    rows = opt_operand_def(i32)
    columns = opt_operand_def(i32)
    result = result_def(TileType)

    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(Pure())
    assembly_format = (
        "$tensor `[` $first `]` `step` $step (`rows` $rows^)? (`columns` $columns^)? "
        "attr-dict `:` type($tensor) `,` type($first) `->` type($result)"
    )

    def __init__(
        self,
        tensor: SSAValue,
        first: SSAValue,
        step: int,
        shape: Sequence[int],
        rows: SSAValue | None = None,
        columns: SSAValue | None = None,
    ):
        element = expect_tensor("tensor", tensor).element_type
        super().__init__(
            operands=[tensor, first, rows, columns],
            properties={"step": IntegerAttr(step, i32)},
            result_types=[TileType(read_as(element), shape)],
        )

    def verify_(self) -> None:
        assert isa(self.tensor.type, TensorType[Attribute])
        assert isinstance(self.result.type, TileType)
        element, result = self.tensor.type.element_type, self.result.type
        if self.first.type not in (i32, i64):
            raise VerifyException(f"first expects type i32 or i64: {self.first.type}")
        if self.step.value.data not in (1, -1):
            raise VerifyException(f"step expects 1 or -1, got {self.step.value.data}")
        if element not in READABLE:
            raise VerifyException(f"tensor expects f32, i32, bf16 or f16: {element}")
        if len(shape_of(result)) != 2 or element_of(result) != read_as(element):
            raise VerifyException(
                f"result expects a matrix of {read_as(element)}, got {result}"
            )
        if not isinstance(result.get_layout(), ProductAttr | None):
            raise VerifyException(f"result expects the layout of a product: {result}")


READABLE = (f32, i32, BFloat16Type(), Float16Type())
"""The element types that `tile.read_diagonals` reads."""


def read_as(element: Attribute) -> Attribute:
    """Return the type of elements after they are read: f32 for 16-bit floats."""
    return f32 if isinstance(element, BFloat16Type | Float16Type) else element
