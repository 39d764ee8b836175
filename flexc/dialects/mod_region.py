"""Helpers of all three dialects for regions of scalar code.

A *mod region* is one block of scalar `arith`, `math` and `flex` ops that ends in
`flex.yield`. The region holds the user's function and is the same at every level.
`flex`, `blocksparse` and `tile` ops differ only in the shape over which they apply the
region.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from xdsl.dialects import arith
from xdsl.dialects.builtin import AnyFloat, IntegerType, TensorType, i1, i32
from xdsl.ir import Attribute, Block, BlockArgument, Operation, Region, SSAValue
from xdsl.irdl import IRDLOperation
from xdsl.irdl.declarative_assembly_format import (
    CustomDirective,
    OptionalRegionVariable,
    ParsingState,
    PrintingState,
    RegionDirective,
    RegionVariable,
    irdl_custom_directive,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import OpTrait
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

INDEX_ARGS: tuple[IntegerType, ...] = (i32, i32, i32, i32)
"""Types of (b, h, q_idx, kv_idx), the indices that every mod receives."""

SCALAR = ("arith.", "math.", "flex.", "tile.")
"""Prefixes of the names of scalar ops."""

MASK_RESULT: tuple[Attribute, ...] = (i1,)

_Type = TypeVar("_Type", bound=Attribute)


class NonNegative(OpTrait):
    """The op's result is an integer of at least 0."""


def yielded(block: Block) -> Sequence[SSAValue]:
    """Return the operands of a block's terminator."""
    assert block.last_op is not None
    return block.last_op.operands


def parents(op: Operation) -> Iterator[Operation]:
    """Yield the ops whose regions contain an op, from the inside out."""
    parent = op.parent_op()
    while parent is not None:
        yield parent
        parent = parent.parent_op()


def verify_scalar_region(
    what: str,
    region: Region,
    arg_types: Sequence[Attribute],
    result_types: Sequence[Attribute],
) -> None:
    """Check the arguments, the ops and the terminator of a region of scalar code.

    `what` names the region in error messages.

    Raises:
        VerifyException: argument types or yielded types differ, or an op is not scalar.
    """
    block = region.block
    if (got := tuple(block.arg_types)) != tuple(arg_types):
        raise VerifyException(
            f"{what} expects arguments ({_names(arg_types)}), got ({_names(got)})"
        )
    last = block.last_op
    if last is None or last.name != "flex.yield":
        raise VerifyException(f"{what} expects flex.yield as its last op")
    if (got := tuple(last.operand_types)) != tuple(result_types):
        raise VerifyException(
            f"{what} expects to yield ({_names(result_types)}), got ({_names(got)})"
        )
    for op in block.ops:
        if op is last:
            break
        if len(op.results) != 1 or op.regions or not op.name.startswith(SCALAR):
            raise VerifyException(f"{what} expects scalar ops only, got {op.name}")
        if not is_scalar(op.results[0].type):
            raise VerifyException(
                f"{what} expects scalar ops only, got {op.name} of type "
                f"{op.results[0].type}"
            )
        verify_comparison(op)


def arguments_of(values: Iterable[SSAValue]) -> set[SSAValue]:
    """Return the arguments of a region of scalar code that its values depend on."""
    found, left = set[SSAValue](), list(values)
    while left:
        value = left.pop()
        if value in found:
            continue
        found.add(value)
        if isinstance(value.owner, Operation):
            left += value.owner.operands
    return {value for value in found if isinstance(value, BlockArgument)}


def verify_comparison(op: Operation) -> None:
    """Check that a comparison has operands of one type. xDSL does not check this."""
    if isinstance(op, arith.CmpiOp | arith.CmpfOp) and op.lhs.type != op.rhs.type:
        raise VerifyException(
            f"{op.name} expects operands of one type, got {op.lhs.type} and "
            f"{op.rhs.type}"
        )


def expect_type(what: str, value: SSAValue, kind: type[_Type]) -> _Type:
    """Return the type of a value, or raise an error if the type is no `kind`.

    Constructors that compute result types call this function: the parser runs them
    before the verifier.
    """
    if not isinstance(value.type, kind):
        raise VerifyException(f"{what} expects {kind.name}, got {value.type}")
    return value.type


def expect_tensor(what: str, value: SSAValue) -> TensorType[Attribute]:
    """Return the type of a value, or raise an error if the type is no tensor type."""
    if not isa(value.type, TensorType[Attribute]):
        raise VerifyException(f"{what} expects a tensor, got {value.type}")
    return value.type


def is_scalar(type_: Attribute) -> bool:
    """Return True if a value of this type is one number."""
    return isinstance(type_, IntegerType | AnyFloat)


def is_capture(type_: Attribute) -> bool:
    """Return True if a mod may capture a value of this type."""
    return is_scalar(type_) or isinstance(type_, TensorType)


def _names(types: Sequence[Attribute]) -> str:
    return ", ".join(str(t) for t in types)


@irdl_custom_directive
class ScalarRegion(CustomDirective):
    """`(%a : t, ...) { ops }`: a region after the arguments of its block."""

    region: RegionDirective

    def parse(self, parser: Parser, state: ParsingState) -> None:
        args = parser.parse_comma_separated_list(
            parser.Delimiter.PAREN, parser.parse_argument
        )
        assert isinstance(self.region, RegionVariable | OptionalRegionVariable)
        self.region.set(state, parser.parse_region(args))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        assert isinstance(self.region, RegionVariable | OptionalRegionVariable)
        region = self.region.get(op)
        assert region is not None
        with printer.in_parens():
            printer.print_list(region.block.args, printer.print_block_argument)
        printer.print_string(" ")
        printer.print_region(region, print_entry_block_args=False)

    def is_present(self, op: IRDLOperation) -> bool:
        return self.region.is_present(op)

    def is_anchorable(self) -> bool:
        return self.region.is_anchorable()

    def set_empty(self, state: ParsingState) -> None:
        self.region.set_empty(state)


def operand_groups(*names: str) -> str:
    """Return the format of optional groups of operands: ` name(%a, %b : t, u)`."""
    return "".join(f" (`{n}` `(` ${n}^ `:` type(${n}) `)`)?" for n in names)


def mod_args(score: Attribute | None, captures: Sequence[Attribute]) -> list[Attribute]:
    """Return the argument types of a score region; of a mask region without `score`."""
    return [*([] if score is None else [score]), *INDEX_ARGS, *captures]
