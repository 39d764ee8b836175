"""Who computes what: parts of a program, and roles of groups of warps."""

from __future__ import annotations

from xdsl.dialects.builtin import I32, IntegerAttr, StringAttr, i32
from xdsl.ir import Region
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    prop_def,
    region_def,
    traits_def,
)
from xdsl.traits import HasParent, IsTerminator, NoTerminator


@irdl_op_definition
class PartsOp(IRDLOperation):
    """The same code for each of some parts of a program's rows.

    The region receives the part's number, an i32. Parts do not see each other's
    values, and may run in any order or at once.

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


@irdl_op_definition
class RolesOp(IRDLOperation):
    """Groups of warps that run at once, each with code of its own: `tile.role`s.

    What is computed before is computed by all. Roles share numbers from before,
    tensors, and what lies in shared memory, but no tiles. The kernel ends when all
    have ended.
    """

    name = "tile.roles"

    body = region_def("single_block")

    traits = traits_def(NoTerminator())
    assembly_format = "$body attr-dict"

    def __init__(self, body: Region):
        super().__init__(regions=[body])


@irdl_op_definition
class RoleOp(IRDLOperation):
    """One role, taken by `copies` groups of `warps` warps.

    The region receives the number of its copy, an i32 that is known when the kernel
    is compiled. `registers` is how many each thread may have.

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


@irdl_op_definition
class EndOp(IRDLOperation):
    """Ends a part or a role."""

    name = "tile.end"

    traits = traits_def(IsTerminator(), HasParent(PartsOp, RoleOp))
    assembly_format = "attr-dict"
