"""Asynchronous matrix products of a warp group (PTX's wgmma)."""

from __future__ import annotations

from xdsl.dialects.builtin import (
    I32,
    BFloat16Type,
    Float16Type,
    IntegerAttr,
    f32,
    i32,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect
from xdsl.utils.exceptions import VerifyException

from flexc.dialects.mod_region import expect_type
from flexc.dialects.tile.checks import verify_same_tile
from flexc.dialects.tile.types import (
    OperandAttr,
    PendingType,
    ProductAttr,
    TileType,
    ViewType,
    matrix_shape,
    tile_of,
)

ROWS, DEPTH, COLUMNS = 64, 16, 8
"""The sizes that rows, inner dimensions and columns of products are multiples of."""

MOST_COLUMNS = 256

WARP_GROUP = 4
"""The number of warps that issue a product together."""


@irdl_op_definition
class IssueDotOp(IRDLOperation):
    """The start of the product lhs @ rhs + acc.

    lhs is a tile or a view of shared memory, rhs is a view. Without `acc`, nothing is
    added; `acc` may be the product that was issued just before. Products of a role
    complete in the order of their issue. Until a product is complete, its operands must
    not change. Each product is awaited once, or added to by one product, in the block
    that issues it. So no product is in flight over a loop's back edge. ptxas would need
    this only for operands in registers, but one rule for all products is simple to
    check.

    Elements have 16 bits and are summed in f32. Once layouts are assigned, the sizes
    are those of wgmma, and the result has the product layout of its number of columns.

    ```mlir
    %s = tile.issue_dot %q, %k_t of !tile.view<!tile.tile<64x128xbf16>>,
         !tile.view<!tile.tile<128x64xbf16>> -> !tile.pending<!tile.tile<64x64xf32>>
    ```
    """

    name = "tile.issue_dot"

    lhs = operand_def(TileType | ViewType)
    rhs = operand_def(ViewType)
    acc = opt_operand_def(TileType | PendingType)
    result = result_def(PendingType)

    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = (
        "$lhs `,` $rhs (`,` $acc^ `:` type($acc) `,`)? attr-dict "
        "`of` type($lhs) `,` type($rhs) `->` type($result)"
    )

    def __init__(
        self, lhs: SSAValue, rhs: SSAValue, acc: SSAValue | None, type_: TileType
    ):
        super().__init__(operands=[lhs, rhs, acc], result_types=[PendingType(type_)])

    def verify_(self) -> None:
        assert isinstance(self.result.type, PendingType)
        lhs, rhs = tile_of(self.lhs.type), tile_of(self.rhs.type)
        result = self.result.type.tile
        (m, k), (rows, n) = matrix_shape("lhs", lhs), matrix_shape("rhs", rhs)
        if rows != k:
            raise VerifyException(
                f"rhs expects {k} rows, as many as lhs has columns, got {rows}"
            )
        if lhs.element_type != rhs.element_type:
            raise VerifyException(f"rhs expects the element type of {lhs}, got {rhs}")
        if not isinstance(lhs.element_type, BFloat16Type | Float16Type):
            raise VerifyException(f"lhs expects elements of f16 or bf16, got {lhs}")
        if result.element_type != f32:
            raise VerifyException(f"result expects elements of f32, got {result}")
        if result.get_shape() != (m, n):
            raise VerifyException(f"result expects shape {(m, n)}, got {result}")
        if self.acc is not None:
            acc = self.acc.type
            acc = acc.tile if isinstance(acc, PendingType) else acc
            verify_same_tile("acc", acc, result)
            _verify_same_layout("acc", acc, result)
        if result.get_layout() is not None:
            _verify_sizes(m, k, n)
            self._verify_layouts(ProductAttr(n))
        self._verify_awaited()

    def _verify_layouts(self, product: ProductAttr) -> None:
        assert isinstance(self.result.type, PendingType)
        layout = self.result.type.tile.get_layout()
        if layout != product:
            raise VerifyException(f"result expects layout {product}, got {layout}")
        if isinstance(self.lhs.type, TileType):
            got, expected = self.lhs.type.get_layout(), OperandAttr(product)
            if got != expected:
                raise VerifyException(f"lhs expects layout {expected}, got {got}")

    def _verify_awaited(self) -> None:
        users = [use.operation for use in self.result.uses]
        here = [
            user
            for user in users
            if isinstance(user, AwaitDotOp | IssueDotOp) and user.parent is self.parent
        ]
        if len(users) != 1 or len(here) != 1:
            got = ", ".join(_place(user, self) for user in users)
            raise VerifyException(
                "result expects one use, a tile.await_dot in the same block, got "
                + (got or "none")
            )


def _verify_sizes(m: int, k: int, n: int) -> None:
    """Verify that wgmma instructions can compute the product.

    Each instruction computes 64 rows for a warp group.
    """
    if m % ROWS or k % DEPTH:
        raise VerifyException(
            f"lhs expects multiples of {ROWS} rows and {DEPTH} columns, got {m} x {k}"
        )
    if n % COLUMNS or n > MOST_COLUMNS:
        raise VerifyException(
            f"rhs expects a multiple of {COLUMNS} columns up to {MOST_COLUMNS}, got {n}"
        )


def _verify_same_layout(what: str, type_: Attribute, expected: TileType) -> None:
    got = tile_of(type_).get_layout()
    if got != expected.get_layout():
        raise VerifyException(
            f"{what} expects layout {expected.get_layout()}, got {got}"
        )


def _place(user: Operation, issue: Operation) -> str:
    where = "" if user.parent is issue.parent else " in another block"
    return f"{user.name}{where}"


@irdl_op_definition
class AwaitDotOp(IRDLOperation):
    """A wait until at most `outstanding` products of this role are in flight.

    The product whose result this op returns must be complete then.
    """

    name = "tile.await_dot"

    pending = operand_def(PendingType)
    outstanding = prop_def(IntegerAttr[I32])
    result = result_def(TileType)

    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = (
        "$pending `outstanding` $outstanding attr-dict "
        "`:` type($pending) `->` type($result)"
    )

    def __init__(self, pending: SSAValue, outstanding: int):
        type_ = expect_type("pending", pending, PendingType)
        super().__init__(
            operands=[pending],
            properties={"outstanding": IntegerAttr(outstanding, i32)},
            result_types=[type_.tile],
        )

    def verify_(self) -> None:
        assert isinstance(self.pending.type, PendingType)
        verify_same_tile("result", self.result.type, self.pending.type.tile)
        _verify_same_layout("result", self.result.type, self.pending.type.tile)
        if not isinstance(self.pending.owner, IssueDotOp):
            raise VerifyException("pending expects the result of a tile.issue_dot")
        later, outstanding = self._issued_since(), self.outstanding.value.data
        if not 0 <= outstanding <= later:
            raise VerifyException(
                f"outstanding expects 0 to {later}, the products issued after this "
                f"one, got {outstanding}"
            )

    def _issued_since(self) -> int:
        """Return the number of products that were issued after this one.

        Products of nested blocks in between were awaited there.
        """
        count, op = 0, self.prev_op
        while op is not None and op is not self.pending.owner:
            count += isinstance(op, IssueDotOp)
            op = op.prev_op
        return count
