"""Helpers of all three dialects for regions of scalar code.

A *mod region* is one block of scalar `arith`, `math` and `flex` ops that ends in
`flex.yield`. The region holds the user's function and is the same at every level.
`flex`, `blocksparse` and `tile` ops differ only in the shape over which they apply the
region.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from xdsl.dialects import arith
from xdsl.dialects.builtin import AnyFloat, IntegerType, TensorType, i1, i32
from xdsl.ir import Attribute, Operation, Region, SSAValue
from xdsl.irdl import IRDLOperation
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


def print_region_with_args(printer: Printer, keyword: str, region: Region) -> None:
    """Print `keyword(%a : t, ...) { ops }`."""
    printer.print_string(f" {keyword}(")
    printer.print_list(region.block.args, printer.print_block_argument)
    printer.print_string(") ")
    printer.print_region(region, print_entry_block_args=False)


def parse_region_with_args(parser: Parser, keyword: str) -> Region:
    """Parse the output of `print_region_with_args`."""
    parser.parse_keyword(keyword)
    return parse_region_after_keyword(parser)


def parse_optional_region_with_args(parser: Parser, keyword: str) -> Region:
    """Parse a region if `keyword` comes next, else return an empty region."""
    if parser.parse_optional_keyword(keyword) is None:
        return Region()
    return parse_region_after_keyword(parser)


def parse_region_after_keyword(parser: Parser) -> Region:
    args = parser.parse_comma_separated_list(
        parser.Delimiter.PAREN, parser.parse_argument
    )
    return parser.parse_region(args)


def print_operand_group(
    printer: Printer, keyword: str, operands: Sequence[SSAValue]
) -> None:
    """Print ` keyword(%a, %b : t, u)`, or nothing for an empty group."""
    if not operands:
        return
    printer.print_string(f" {keyword}(")
    printer.print_list(operands, printer.print_ssa_value)
    printer.print_string(" : ")
    printer.print_list([v.type for v in operands], printer.print_attribute)
    printer.print_string(")")


def parse_operand_group(parser: Parser, keyword: str) -> list[SSAValue]:
    """Parse the output of `print_operand_group`; return [] if `keyword` is absent."""
    if parser.parse_optional_keyword(keyword) is None:
        return []
    pos = parser.pos
    parser.parse_punctuation("(")
    names = parser.parse_comma_separated_list(
        parser.Delimiter.NONE, parser.parse_unresolved_operand
    )
    parser.parse_punctuation(":")
    types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
    parser.parse_punctuation(")")
    return list(parser.resolve_operands(names, types, pos))


def mod_args(score: Attribute | None, captures: Sequence[Attribute]) -> list[Attribute]:
    """Return the argument types of a score region; of a mask region without `score`."""
    return [*([] if score is None else [score]), *INDEX_ARGS, *captures]


def print_properties(
    printer: Printer, op: IRDLOperation, skip: Sequence[str] = ()
) -> None:
    """Print ` {a = 1, ...}` for the properties and attributes not named in `skip`."""
    sizes = ("operandSegmentSizes", "resultSegmentSizes", "regionSegmentSizes")
    hidden = {*sizes, *skip}
    shown = {k: v for k, v in op.properties.items() if k not in hidden}
    shown |= op.attributes
    printer.print_op_attributes(shown)


def parse_properties(
    parser: Parser, op: type[IRDLOperation]
) -> tuple[dict[str, Attribute], dict[str, Attribute]]:
    """Parse the output of `print_properties`: properties and other attributes."""
    given = parser.parse_optional_attr_dict()
    names = op.get_irdl_definition().properties
    properties = {k: v for k, v in given.items() if k in names}
    return properties, {k: v for k, v in given.items() if k not in names}
