"""Tile ops of a CPU: strided memory and buffers.

On a CPU a tile lies in a buffer of fast memory. `tile-assign-buffers` chooses the
buffer. The attribute `tile.buffers` of a kernel lists the buffers of each thread. On an
op it lists the buffer of each tile that the op defines. `tile-assign-loops` chooses the
loops in which a map computes its values. Buffers and loops do not change the values of
the IR.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import (
    I32,
    IntAttr,
    IntegerAttr,
    MemRefType,
    NoneAttr,
    StridedLayoutAttr,
    StringAttr,
    TensorType,
    UnitAttr,
    i32,
    i64,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    VarConstraint,
    base,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect, Pure
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa
from xdsl.utils.str_enum import StrEnum

from flexc.dialects.tile.checks import verify_pages
from flexc.dialects.tile.types import BareAttribute, TileType, shape_of

BUFFERS = "tile.buffers"
"""The attribute that assigns buffers to tiles."""

LOOPS = "tile.loops"
"""The attribute of a map that assigns a `Loop` to each value of its region.

Its entries are those of the region's arguments, then those of the results of its ops.
"""


class Loop(StrEnum):
    """The loops of a map in which a value is computed.

    A value of `NONE` is computed before the loops, one of `COLUMNS` once for some
    columns, one of `ROWS` once for a row, and one of `ELEMENTS` for each row of some
    columns. Values of `COLUMNS` and `ELEMENTS` are vectors.
    """

    NONE = "none"
    COLUMNS = "columns"
    ROWS = "rows"
    ELEMENTS = "elements"


@irdl_attr_definition
class BufferAttr(BareAttribute):
    """A buffer in fast memory: its name in emitted source, and the type of its tile."""

    name = "tile.buffer"

    label: StringAttr
    tile: TileType

    def __init__(self, label: str, tile: TileType):
        super().__init__(StringAttr(label), tile)


def _verify_strided(tile: Attribute, **groups: Sequence[SSAValue]) -> None:
    """Verify that each group has one value for each dimension of a tile."""
    rank = len(shape_of(tile))
    for what, group in groups.items():
        if len(group) != rank:
            raise VerifyException(f"{what} expects {rank} values, got {len(group)}")


def _verify_counted(dim: int | None, rank: int) -> None:
    """Verify that a counted dimension is a dimension of a tile."""
    if dim is not None and not 0 <= dim < rank:
        raise VerifyException(f"counted expects a dimension below {rank}, got {dim}")


@irdl_op_definition
class LoadStridedOp(IRDLOperation):
    """The tile of the elements `base + i * strides[0] + j * strides[1]` of a tensor.

    Offsets count elements from the tensor's first element. Elements beyond `extents`
    along a dimension are not read; a negative extent means that none are read. Elements
    that are not read are 0. Along the dimension `counted` they are unspecified, and the
    extent is at most the tile's size. The elements are converted to the tile's type,
    which holds them exactly. Exchanged strides and extents give the transpose.

    ```mlir
    %k_t = tile.load_strided %key[%base] strides [%c1, %s2] extents [%c64, %rows]
         : tensor<?x?x?x64xbf16> -> !tile.tile<64x128xf32>
    %v = tile.load_strided %value[%base] strides [%s2, %c1] extents [%n, %c64]
         counted 0 : tensor<?x?x?x64xbf16> -> !tile.tile<128x64xf32>
    ```
    """

    name = "tile.load_strided"

    tensor = operand_def(TensorType[Attribute])
    base = operand_def(i64)
    strides = var_operand_def(i64)
    extents = var_operand_def(i32)
    counted = opt_prop_def(IntegerAttr[I32])
    result = result_def(TileType)

    traits = traits_def(Pure())
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    assembly_format = (
        "$tensor `[` $base `]` `strides` `[` $strides `]` `extents` `[` $extents `]` "
        "(`counted` $counted^)? attr-dict `:` type($tensor) `->` type($result)"
    )

    def __init__(
        self,
        tensor: SSAValue,
        base: SSAValue,
        strides: Sequence[SSAValue],
        extents: Sequence[SSAValue],
        type_: Attribute,
        counted: int | None = None,
    ):
        dim = None if counted is None else IntegerAttr(counted, i32)
        super().__init__(
            operands=[tensor, base, strides, extents],
            properties={"counted": dim},
            result_types=[type_],
        )

    @property
    def counted_dim(self) -> int | None:
        """The dimension beyond whose extent elements are unspecified, or None."""
        return None if self.counted is None else self.counted.value.data

    def verify_(self) -> None:
        _verify_strided(self.result.type, strides=self.strides, extents=self.extents)
        _verify_counted(self.counted_dim, len(self.strides))


@irdl_op_definition
class CollectOp(IRDLOperation):
    """The rows of pages as rows of one tensor, and the stride from row to row.

    Row i is element (start + i) % size of page table[entries + (start + i) // size], or
    of the nearest page that exists; size is that of the tensor's dimension 2. It begins
    at `base + page * strides[0] + element * strides[1]`, and its elements are
    `strides[2]` apart. Only the first `count` rows are read, and others have no
    elements. The result is a copy, or the rows themselves if they lie in one page.

    ```mlir
    %rows, %step = tile.collect %key[%base] strides [%s0, %s2, %c1]
         pages %table[%entries] of %num_pages from %start count %n
         : tensor<?x?x16x64xbf16>, tensor<?x?xi32>
         -> tensor<128x64xbf16, strided<[?, 1]>>
    ```
    """

    name = "tile.collect"

    tensor = operand_def(TensorType[Attribute])
    base = operand_def(i64)
    strides = var_operand_def(i64)
    table = operand_def(TensorType[Attribute])
    entries = operand_def(i64)
    start = operand_def(i32)
    count = operand_def(i32)
    num_pages = operand_def(i32)
    rows = result_def(TensorType[Attribute])
    step = result_def(i64)

    traits = traits_def(Pure())
    assembly_format = (
        "$tensor `[` $base `]` `strides` `[` $strides `]` `pages` $table `[` $entries "
        "`]` `of` $num_pages `from` $start `count` $count attr-dict `:` type($tensor) "
        "`,` type($table) `->` type($rows)"
    )

    def __init__(
        self,
        tensor: SSAValue,
        base: SSAValue,
        strides: Sequence[SSAValue],
        table: SSAValue,
        entries: SSAValue,
        rows: tuple[SSAValue, SSAValue, int],
        num_pages: SSAValue,
    ):
        """Create the op; `rows` are the first row, their number, and the most."""
        start, count, most = rows
        assert isa(tensor.type, TensorType[Attribute])
        columns = tensor.type.get_shape()[-1]
        super().__init__(
            operands=[
                *(tensor, base, strides, table, entries, start, count, num_pages)
            ],
            result_types=[_rows_type(tensor, (most, columns)), i64],
        )

    @property
    def page_size(self) -> int:
        assert isa(self.tensor.type, TensorType[Attribute])
        return self.tensor.type.get_shape()[2]

    def verify_(self) -> None:
        if len(self.strides) != 3:
            raise VerifyException(f"strides expects 3 values, got {len(self.strides)}")
        verify_pages(self.table.type, self.tensor.type)
        assert isa(self.tensor.type, TensorType[Attribute])
        element, columns = (
            self.tensor.type.element_type,
            self.tensor.type.get_shape()[3],
        )
        rows = self.rows.type
        assert isa(rows, TensorType[Attribute])
        is_matrix = rows.get_num_dims() == 2 and rows.get_shape()[1] == columns
        if not is_matrix or rows.element_type != element:
            raise VerifyException(
                f"rows expects a matrix of {columns} columns of {element}, got {rows}"
            )


@irdl_op_definition
class NearRowsOp(IRDLOperation):
    """Rows of a head as rows of one tensor, and the stride from row to row.

    Row i begins at `head + (start + i) * stride`, and its elements are adjacent. Only
    the first `count` rows are read, and others have no elements. The result is a copy,
    which is found when a thread reads these rows again, or the rows themselves. Rows
    are `repeated` if one program reads them more than once. Other rows are copied only
    if a thread runs at least `REPEATING_PROGRAMS` programs of a head.

    ```mlir
    %rows, %step = tile.near_rows %key[%head] from %start stride %s2 count %n
         : tensor<?x?x?x64xf32> -> tensor<96x64xf32, strided<[?, 1]>>
    %rows, %step = tile.near_rows %key[%head] from %start stride %s2 count %n repeated
         : tensor<?x?x?x64xf32> -> tensor<96x64xf32, strided<[?, 1]>>
    ```
    """

    name = "tile.near_rows"
    REPEATING_PROGRAMS: ClassVar[int] = 8

    tensor = operand_def(TensorType[Attribute])
    head = operand_def(i64)
    start = operand_def(i64)
    stride = operand_def(i64)
    count = operand_def(i32)
    repeated = opt_prop_def(UnitAttr)
    rows = result_def(TensorType[Attribute])
    step = result_def(i64)

    traits = traits_def(Pure())
    assembly_format = (
        "$tensor `[` $head `]` `from` $start `stride` $stride `count` $count "
        "(`repeated` $repeated^)? attr-dict `:` type($tensor) `->` type($rows)"
    )

    def __init__(
        self,
        tensor: SSAValue,
        head: SSAValue,
        start: SSAValue,
        stride: SSAValue,
        count: SSAValue,
        shape: tuple[int, int],
        repeated: bool,
    ):
        super().__init__(
            operands=[tensor, head, start, stride, count],
            properties={"repeated": UnitAttr() if repeated else None},
            result_types=[_rows_type(tensor, shape), i64],
        )

    def verify_(self) -> None:
        assert isa(self.rows.type, TensorType[Attribute])
        shape = self.rows.type.get_shape()
        if len(shape) != 2 or self.rows.type != _rows_type(self.tensor, shape):
            raise VerifyException(
                f"rows expects a matrix of the tensor's elements whose rows are "
                f"adjacent elements, got {self.rows.type}"
            )


def _rows_type(tensor: SSAValue, shape: Sequence[int]) -> TensorType[Attribute]:
    """Return the type of rows of a tensor at any distance, as a matrix."""
    assert isa(tensor.type, TensorType[Attribute])
    layout = StridedLayoutAttr([NoneAttr(), IntAttr(1)])
    return TensorType(tensor.type.element_type, shape, layout)


@irdl_op_definition
class StoreStridedOp(IRDLOperation):
    """A store of a tile to the elements `base + i * strides[0] + ...` of a memref.

    Elements beyond `extents` are not written. Along the dimension `counted`, the extent
    is at most the tile's size. Elements are rounded to the memref's type, to nearest
    even.
    """

    name = "tile.store_strided"

    value = operand_def(TileType)
    memref = operand_def(MemRefType)
    base = operand_def(i64)
    strides = var_operand_def(i64)
    extents = var_operand_def(i32)
    counted = opt_prop_def(IntegerAttr[I32])

    traits = traits_def(MemoryWriteEffect())
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    assembly_format = (
        "$value `,` $memref `[` $base `]` `strides` `[` $strides `]` "
        "`extents` `[` $extents `]` (`counted` $counted^)? attr-dict "
        "`:` type($value) `,` type($memref)"
    )

    def __init__(
        self,
        value: SSAValue,
        memref: SSAValue,
        base: SSAValue,
        strides: Sequence[SSAValue],
        extents: Sequence[SSAValue],
        counted: int | None = None,
    ):
        dim = None if counted is None else IntegerAttr(counted, i32)
        super().__init__(
            operands=[value, memref, base, strides, extents],
            properties={"counted": dim},
        )

    @property
    def counted_dim(self) -> int | None:
        """The dimension whose extent is the count of elements to write, or None."""
        return None if self.counted is None else self.counted.value.data

    def verify_(self) -> None:
        _verify_strided(self.value.type, strides=self.strides, extents=self.extents)
        _verify_counted(self.counted_dim, len(self.strides))


@irdl_op_definition
class AddStridedOp(IRDLOperation):
    """An addition of a tile to the elements `base + i * strides[0] + ...` of a memref.

    The op is `tile.add_to` with strides. All of the tile is added, or the first `count`
    rows; these are in range. The memref has the tile's element type.
    """

    name = "tile.add_strided"

    value = operand_def(TileType)
    memref = operand_def(MemRefType)
    base = operand_def(i64)
    strides = var_operand_def(i64)
    count = opt_operand_def(i32)

    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    assembly_format = (
        "$value `,` $memref `[` $base `]` `strides` `[` $strides `]` "
        "(`count` $count^)? attr-dict `:` type($value) `,` type($memref)"
    )

    def __init__(
        self,
        value: SSAValue,
        memref: SSAValue,
        base: SSAValue,
        strides: Sequence[SSAValue],
        count: SSAValue | None = None,
    ):
        super().__init__(operands=[value, memref, base, strides, count])

    def verify_(self) -> None:
        _verify_strided(self.value.type, strides=self.strides)


@irdl_op_definition
class CopyOp(IRDLOperation):
    """The same tile in another buffer.

    An input that `moves` is not used later: both buffers may be exchanged.
    """

    name = "tile.copy"

    T: ClassVar = VarConstraint("T", base(TileType))
    input = operand_def(T)
    moves = opt_prop_def(UnitAttr)
    result = result_def(T)

    traits = traits_def(Pure())
    assembly_format = "$input (`moves` $moves^)? attr-dict `:` type($result)"

    def __init__(self, input: SSAValue, moves: bool = False):
        super().__init__(
            operands=[input],
            properties={"moves": UnitAttr() if moves else None},
            result_types=[input.type],
        )
