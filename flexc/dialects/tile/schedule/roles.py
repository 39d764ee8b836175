"""Ops that divide work: parts of a program, and roles of groups of warps."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence

from xdsl.dialects.builtin import (
    I32,
    IndexType,
    IntegerAttr,
    MemRefType,
    StringAttr,
    TensorType,
    i32,
)
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
)
from xdsl.traits import (
    HasParent,
    IsTerminator,
    MemoryReadEffect,
    MemoryWriteEffect,
    NoTerminator,
)
from xdsl.utils.exceptions import VerifyException

from flexc.dialects.mod_region import expect_type, is_scalar
from flexc.dialects.tile.checks import verify_same_tile
from flexc.dialects.tile.types import BarriersType, SharedType, SharesType, TileType


def verify_outside_values(region: Region) -> None:
    """Verify that roles use no tiles from outside.

    They may use numbers, tensors, memrefs, shared memory and barriers. A tile lies in
    the registers of the threads that computed it.
    """
    for op in region.walk():
        for operand in op.operands:
            if not _may_cross_roles(operand.type) and not _is_inside(operand, region):
                raise VerifyException(
                    "roles expect numbers, tensors, memrefs, shared memory and "
                    f"barriers from outside, got {operand.type} in {op.name}"
                )


def _may_cross_roles(type_: Attribute) -> bool:
    shared = IndexType | TensorType | MemRefType | SharedType | BarriersType
    return is_scalar(type_) or isinstance(type_, shared)


def _is_inside(value: SSAValue, region: Region) -> bool:
    owner = value.owner
    assert isinstance(owner, Operation | Block)
    return region.is_ancestor(owner)


@irdl_op_definition
class PartsOp(IRDLOperation):
    """Code that runs once for each of `count` parts of a program's rows.

    The region receives the part's number, an i32. Parts see only those of each other's
    values that are shared by `tile.share`, and run at the same time.

    ```mlir
    tile.parts 2 {
    ^bb0(%part : i32):
      %first = arith.muli %part, %c64 : i32
      ...
      tile.end
    }
    ```
    """

    name = "tile.parts"

    count = prop_def(IntegerAttr[I32])
    body = region_def("single_block")

    assembly_format = "$count $body attr-dict"

    def __init__(self, count: int, body: Region):
        super().__init__(properties={"count": IntegerAttr(count, i32)}, regions=[body])

    def verify_(self) -> None:
        if self.count.value.data < 1:
            raise VerifyException(
                f"expects one part or more, got {self.count.value.data}"
            )
        _verify_numbered(self.body)


@irdl_op_definition
class ShareOp(IRDLOperation):
    """A tile of each part, for all parts to read; each part gives its own.

    All parts execute this op equally often.

    ```mlir
    %shared = tile.share %ds of %part : !tile.tile<64x64xbf16>
        -> !tile.shares<2, !tile.tile<64x64xbf16>>
    ```
    """

    name = "tile.share"

    value = operand_def(TileType)
    part = operand_def(i32)
    result = result_def(SharesType)

    traits = traits_def(MemoryWriteEffect())
    assembly_format = "$value `of` $part attr-dict `:` type($value) `->` type($result)"

    def __init__(self, value: SSAValue, part: SSAValue, parts: int):
        tile = expect_type("value", value, TileType)
        super().__init__(operands=[value, part], result_types=[SharesType(parts, tile)])

    def verify_(self) -> None:
        assert isinstance(self.result.type, SharesType)
        verify_same_tile("result", self.value.type, self.result.type.tile)


@irdl_op_definition
class OfPartOp(IRDLOperation):
    """The tile that one part shared, once all parts have shared theirs."""

    name = "tile.of_part"

    shares = operand_def(SharesType)
    number = operand_def(i32)
    result = result_def(TileType)

    traits = traits_def(MemoryReadEffect())
    assembly_format = (
        "$shares `[` $number `]` attr-dict `:` type($shares) `->` type($result)"
    )

    def __init__(self, shares: SSAValue, number: SSAValue):
        tile = expect_type("shares", shares, SharesType).tile
        super().__init__(operands=[shares, number], result_types=[tile])

    def verify_(self) -> None:
        assert isinstance(self.shares.type, SharesType)
        verify_same_tile("result", self.result.type, self.shares.type.tile)


@irdl_op_definition
class RolesOp(IRDLOperation):
    """Roles that run at the same time, each on one or more groups of warps.

    All warps compute the ops before this op. Roles may use numbers, barriers and shared
    memory that are defined before it, and the kernel's tensors, but no tiles. The
    kernel ends when all roles have ended.
    """

    name = "tile.roles"

    body = region_def("single_block")

    traits = traits_def(NoTerminator())
    assembly_format = "$body attr-dict"

    def __init__(self, body: Region):
        super().__init__(regions=[body])

    @property
    def roles(self) -> Sequence[RoleOp]:
        """The roles in program order."""
        return [op for op in self.body.block.ops if isinstance(op, RoleOp)]

    def verify_(self) -> None:
        for op in self.body.block.ops:
            if not isinstance(op, RoleOp):
                raise VerifyException(f"expects tile.role ops only, got {op.name}")
        labels = [role.label.data for role in self.roles]
        if not labels or len(set(labels)) < len(labels):
            raise VerifyException(
                f"expects one role or more with labels that differ, got {labels}"
            )
        turns = {op.role for op in self.walk() if isinstance(op, TurnOp)}
        if len(turns) > 1:
            raise VerifyException("expects turns of one role only")
        verify_outside_values(self.body)


@irdl_op_definition
class RoleOp(IRDLOperation):
    """One role. It runs on `copies` groups, each of `warps` warps.

    The region receives the number of its copy, an i32 that is known when the kernel is
    compiled. `registers` is the number of registers of each thread. The first copy of
    the first role gets all registers that the other copies do not take, possibly a few
    more.

    ```mlir
    tile.role "consumer" copies 2 warps 4 registers 240 {
    ^bb0(%part : i32):
      ...
      tile.end
    }
    ```
    """

    name = "tile.role"

    label = prop_def(StringAttr)
    copies = prop_def(IntegerAttr[I32])
    warps = prop_def(IntegerAttr[I32])
    registers = prop_def(IntegerAttr[I32])
    body = region_def("single_block")

    traits = traits_def(HasParent(RolesOp))
    assembly_format = (
        "$label `copies` $copies `warps` $warps `registers` $registers $body attr-dict"
    )

    def __init__(
        self, label: str, copies: int, warps: int, registers: int, body: Region
    ):
        super().__init__(
            properties={
                "label": StringAttr(label),
                "copies": IntegerAttr(copies, i32),
                "warps": IntegerAttr(warps, i32),
                "registers": IntegerAttr(registers, i32),
            },
            regions=[body],
        )

    @property
    def captures(self) -> list[SSAValue]:
        """The values from before the roles that the role uses, as they are defined."""
        roles = self.parent_op()
        assert roles is not None
        assert roles.parent is not None
        used = {operand for op in self.walk() for operand in op.operands}
        results = (result for op in roles.parent.ops for result in op.results)
        return [v for v in (*roles.parent.args, *results) if v in used]

    @property
    def is_numbered(self) -> bool:
        """True if copies of the role need their numbers."""
        (part,) = self.body.block.args
        return bool(part.uses) or self.copies.value.data > 1

    def verify_(self) -> None:
        copies, warps = self.copies.value.data, self.warps.value.data
        if copies < 1:
            raise VerifyException(f"copies expects 1 or more, got {copies}")
        if warps < 1 or warps & (warps - 1):
            raise VerifyException(f"warps expects a power of two, got {warps}")
        _verify_numbered(self.body)


class TurnOp(IRDLOperation, ABC):
    """An op on the turn, which at most one copy of a role has.

    At first no copy has it, so one passes it before it takes it. All copies take
    equally many turns. Turns order ops of copies, but not accesses of memory.
    """

    part = operand_def(i32)

    assembly_format = "$part attr-dict"

    def __init__(self, part: SSAValue):
        super().__init__(operands=[part])

    @property
    def role(self) -> RoleOp | None:
        """The role whose copy has the number `part`."""
        block = self.part.owner
        role = block.parent_op() if isinstance(block, Block) else None
        return role if isinstance(role, RoleOp) else None

    def verify_(self) -> None:
        if self.role is None:
            raise VerifyException("part expects the number of a role's copy")


@irdl_op_definition
class TakeTurnOp(TurnOp):
    """A wait until the copy has the turn.

    ```mlir
    tile.take_turn %part
    ```
    """

    name = "tile.take_turn"


@irdl_op_definition
class PassTurnOp(TurnOp):
    """A signal that the next copy has the turn; after the last copy comes the first.

    ```mlir
    tile.pass_turn %part
    ```
    """

    name = "tile.pass_turn"

    @property
    def copies(self) -> int:
        """The number of copies of the role."""
        assert self.role is not None
        return self.role.copies.value.data


@irdl_op_definition
class EndOp(IRDLOperation):
    """The end of a part or a role."""

    name = "tile.end"

    traits = traits_def(IsTerminator(), HasParent(PartsOp, RoleOp))
    assembly_format = "attr-dict"


def _verify_numbered(body: Region) -> None:
    """Verify that a body has one i32 argument and ends with tile.end."""
    types = [arg.type for arg in body.block.args]
    if types != [i32]:
        got = ", ".join(str(t) for t in types)
        raise VerifyException(f"body expects one argument of type i32, got ({got})")
    if not isinstance(body.block.last_op, EndOp):
        raise VerifyException("body expects tile.end as its last op")
