"""The kernel op, and ops that query a program's position and its arguments' shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    I32,
    AffineMapAttr,
    ArrayAttr,
    IntegerAttr,
    IntegerType,
    MemRefType,
    StringAttr,
    TensorType,
    i1,
    i32,
    i64,
)
from xdsl.ir import Attribute, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import (
    HasParent,
    IsolatedFromAbove,
    IsTerminator,
    MemoryReadEffect,
    MemoryWriteEffect,
    Pure,
    SymbolOpInterface,
)
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from flexc.dialects.mod_region import NonNegative, verify_comparison
from flexc.dialects.tile.checks import verify_dim
from flexc.dialects.tile.schedule.checks import role_of, verify_schedule
from flexc.dialects.tile.types import ParamAttr

GRID_OF = "grid_of"
"""The name of the kernel attribute with the arguments that determine the grid.

There are three: the grid is a function of size 0 of the first, size 1 of the second
and size 2 of the third. Without the attribute, all are sizes of the kernel's first
argument.
"""


@irdl_op_definition
class KernelOp(IRDLOperation):
    """The code of one program.

    Tensors and numbers are arguments that the kernel reads; memrefs are arguments that
    it writes. `params` says where the value of each argument comes from. `grid` maps
    (B, Hq, Sq) to the numbers of programs along up to three axes. A kernel may have the
    attribute `residents`, the number of programs that share a multiprocessor. One with
    roles may have `max_registers`, the number of registers with which each thread
    starts.
    """

    name = "tile.kernel"

    sym_name = prop_def(StringAttr)
    grid = prop_def(AffineMapAttr)
    params = prop_def(ArrayAttr[ParamAttr])
    body = region_def("single_block")

    traits = traits_def(IsolatedFromAbove(), SymbolOpInterface())

    def __init__(
        self,
        name: str,
        grid: AffineMapAttr,
        params: Sequence[ParamAttr],
        body: Region,
        attributes: Mapping[str, Attribute] | None = None,
    ):
        super().__init__(
            properties={
                "sym_name": StringAttr(name),
                "grid": grid,
                "params": ArrayAttr(params),
            },
            attributes=dict(attributes or {}),
            regions=[body],
        )

    def number(self, name: str) -> int | None:
        """Return the attribute of a name, an integer, or None if it is missing."""
        attribute = self.attributes.get(name)
        if attribute is None:
            return None
        if not isa(attribute, IntegerAttr):
            raise VerifyException(f"{name} expects an integer, got {attribute}")
        return attribute.value.data

    def verify_(self) -> None:
        if len(self.params) != len(self.body.block.args):
            raise VerifyException(
                f"params expects {len(self.body.block.args)} entries, one for each "
                f"argument, got {len(self.params)}"
            )
        last = self.body.block.last_op
        if not isinstance(last, ReturnOp):
            raise VerifyException("body expects tile.return as its last op")
        grid = self.grid.data
        if (grid.num_dims, grid.num_symbols) != (3, 0) or len(grid.results) > 3:
            raise VerifyException(
                "grid expects a map from (b, h, q_len) to at most three numbers: "
                f"{grid}"
            )
        for name in ("residents", "max_registers"):
            if (number := self.number(name)) is not None and number < 1:
                raise VerifyException(f"{name} expects 1 or more, got {number}")
        verify_schedule(self.body)
        for op in self.body.walk():
            verify_comparison(op)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_symbol_name(self.sym_name.data)
        printer.print_string("(")
        args = zip(self.body.block.args, self.params, strict=True)
        printer.print_list(args, lambda a: _print_kernel_arg(printer, *a))
        printer.print_string(") grid ")
        printer.print_attribute(self.grid)
        if self.attributes:
            printer.print_op_attributes(self.attributes, print_keyword=True)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False)

    @classmethod
    def parse(cls, parser: Parser) -> KernelOp:
        name = parser.parse_symbol_name().data
        args: list[Parser.Argument] = []
        params: list[ParamAttr] = []
        parser.parse_punctuation("(")
        while parser.parse_optional_punctuation(")") is None:
            args.append(parser.parse_argument())
            params.append(cast(ParamAttr, parser.parse_attribute()))
            parser.parse_optional_punctuation(",")
        parser.parse_keyword("grid")
        grid = parser.parse_attribute()
        attributes = parser.parse_optional_attr_dict_with_keyword()
        body = parser.parse_region(args)
        op = cls(name, cast(AffineMapAttr, grid), params, body)
        op.attributes = {} if attributes is None else dict(attributes.data)
        return op


def _print_kernel_arg(printer: Printer, arg: SSAValue, param: ParamAttr) -> None:
    printer.print_ssa_value(arg)
    printer.print_string(" : ")
    printer.print_attribute(arg.type)
    printer.print_string(" ")
    printer.print_attribute(param)


@irdl_op_definition
class ReturnOp(IRDLOperation):
    """The end of a kernel."""

    name = "tile.return"
    traits = traits_def(IsTerminator())
    assembly_format = "attr-dict"


@irdl_op_definition
class ReturnUnlessOp(IRDLOperation):
    """The end of a program for which a condition does not hold, before its roles.

    ```mlir
    tile.return_unless %has_block
    ```
    """

    name = "tile.return_unless"

    condition = operand_def(i1)

    # The effect keeps the op in its place.
    traits = traits_def(HasParent(KernelOp), MemoryWriteEffect())
    assembly_format = "$condition attr-dict"

    def __init__(self, condition: SSAValue):
        super().__init__(operands=[condition])


@irdl_op_definition
class AwaitKernelsOp(IRDLOperation):
    """Wait until the kernels that were launched before this one have ended.

    What they wrote can then be read. A kernel with this op may be launched before they
    have ended: CUDA calls that programmatic dependent launch.
    """

    name = "tile.await_kernels"
    traits = traits_def(HasParent(KernelOp))
    assembly_format = "attr-dict"


@irdl_op_definition
class AwaitProgressOp(IRDLOperation):
    """Wait until the progress of a program is at least a number; return its progress.

    A program's progress is a number in memory, 0 when the kernel starts, which does not
    fall. What a program did before `tile.report_progress` is seen by programs that
    await the number. A program may await those that are launched before it: they run,
    whatever the number of programs that run at once. Memory is not read if the progress
    is `known` to suffice.

    ```mlir
    %seen = tile.await_progress %progress[%earlier] at_least %n known %before
        : memref<?xi32>
    ```
    """

    name = "tile.await_progress"

    progress = operand_def(MemRefType)
    program = operand_def(i32)
    least = operand_def(i32)
    known = operand_def(i32)
    seen = result_def(i32)

    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = (
        "$progress `[` $program `]` `at_least` $least `known` $known attr-dict "
        "`:` type($progress)"
    )

    def __init__(
        self, progress: SSAValue, program: SSAValue, least: SSAValue, known: SSAValue
    ):
        super().__init__(operands=[progress, program, least, known], result_types=[i32])

    def verify_(self) -> None:
        verify_progress(self.progress)


@irdl_op_definition
class ReportProgressOp(IRDLOperation):
    """Set the progress of a program, after all that it has done so far.

    Copies out of shared memory count if they were awaited as `written`. A role that
    reports has one warp: nothing waits for other warps.

    ```mlir
    tile.report_progress %progress[%own] %n : memref<?xi32>
    ```
    """

    name = "tile.report_progress"

    progress = operand_def(MemRefType)
    program = operand_def(i32)
    number = operand_def(i32)

    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "$progress `[` $program `]` $number attr-dict `:` type($progress)"

    def __init__(self, progress: SSAValue, program: SSAValue, number: SSAValue):
        super().__init__(operands=[progress, program, number])

    def verify_(self) -> None:
        verify_progress(self.progress)
        role = role_of(self)
        if role is not None and role.warps.value.data != 1:
            raise VerifyException(
                f"expects a role of one warp, got {role.warps.value.data} in role "
                f"{role.label}"
            )


def verify_progress(progress: SSAValue) -> None:
    """Verify the type of the numbers of all programs."""
    if progress.type != PROGRESS:
        raise VerifyException(f"progress expects {PROGRESS}, got {progress.type}")


PROGRESS = MemRefType(i32, [DYNAMIC_INDEX])
"""The type of the progress of a kernel's programs, one number for each."""


@irdl_op_definition
class ProgramIdOp(IRDLOperation):
    """This program's position along an axis of the grid."""

    name = "tile.program_id"

    axis = prop_def(IntegerAttr[I32])
    result = result_def(i32)

    traits = traits_def(Pure(), NonNegative())
    assembly_format = "$axis attr-dict"

    def __init__(self, axis: int):
        super().__init__(
            properties={"axis": IntegerAttr(axis, i32)}, result_types=[i32]
        )

    def verify_(self) -> None:
        verify_dim("axis", self.axis.value.data, 3)


class _ShapeQueryOp(IRDLOperation):
    """The size or stride of one dimension of a tensor or memref."""

    tensor = operand_def(TensorType[Attribute] | MemRefType[Attribute])
    dim = prop_def(IntegerAttr[I32])
    result = result_def(IntegerType)

    traits = traits_def(Pure())
    assembly_format = "$tensor `,` $dim attr-dict `:` type($tensor) `->` type($result)"

    def __init__(self, tensor: SSAValue, dim: int, type_: IntegerType):
        super().__init__(
            operands=[tensor],
            properties={"dim": IntegerAttr(dim, i32)},
            result_types=[type_],
        )

    def verify_(self) -> None:
        assert isa(self.tensor.type, TensorType[Attribute] | MemRefType[Attribute])
        verify_dim("dim", self.dim.value.data, self.tensor.type.get_num_dims())


@irdl_op_definition
class DimOp(_ShapeQueryOp):
    """The size of one dimension of a tensor or memref."""

    name = "tile.dim"

    traits = traits_def(Pure(), NonNegative())

    def __init__(self, tensor: SSAValue, dim: int, type_: IntegerType = i32):
        super().__init__(tensor, dim, type_)


@irdl_op_definition
class StrideOp(_ShapeQueryOp):
    """The stride of one dimension of a tensor or memref, in elements."""

    name = "tile.stride"

    def __init__(self, tensor: SSAValue, dim: int, type_: IntegerType = i64):
        super().__init__(tensor, dim, type_)
