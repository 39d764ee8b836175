"""What the three dialects share about regions of scalar code.

A *mod region* is one block of scalar `arith`, `math` and `flex` ops that ends
in `flex.yield`. It is the user's function, and the same object at every level:
`flex`, `blocksparse` and `tile` ops differ in the shape they apply it over.
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
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

INDEX_ARGS: tuple[IntegerType, ...] = (i32, i32, i32, i32)
"""Types of (b, h, q_idx, kv_idx), the indices that every mod receives."""

SCALAR = ("arith.", "math.", "flex.", "tile.")
"""What the names of scalar ops begin with."""

MASK_RESULT: tuple[Attribute, ...] = (i1,)

_Type = TypeVar("_Type", bound=Attribute)


def verify_scalar_region(
    what: str,
    region: Region,
    arg_types: Sequence[Attribute],
    result_types: Sequence[Attribute],
) -> None:
    """Check arguments, purity and the terminator of a region of scalar code."""
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
    """Check that a comparison has operands of one type, which xDSL does not."""
    if isinstance(op, arith.CmpiOp | arith.CmpfOp) and op.lhs.type != op.rhs.type:
        raise VerifyException(
            f"{op.name} expects operands of one type, got {op.lhs.type} and "
            f"{op.rhs.type}"
        )


def expect_type(what: str, value: SSAValue, kind: type[_Type]) -> _Type:
    """Return the type of an operand, or raise an error where it is of another kind.

    For constructors that compute the types of results: a parser calls these before
    anything is verified.
    """
    if not isinstance(value.type, kind):
        raise VerifyException(f"{what} expects {kind.name}, got {value.type}")
    return value.type


def expect_tensor(what: str, value: SSAValue) -> TensorType[Attribute]:
    """Return the type of an operand, or raise an error where that is no tensor."""
    if not isa(value.type, TensorType[Attribute]):
        raise VerifyException(f"{what} expects a tensor, got {value.type}")
    return value.type


def is_scalar(type_: Attribute) -> bool:
    """Whether a value of this type is one number."""
    return isinstance(type_, IntegerType | AnyFloat)


def is_capture(type_: Attribute) -> bool:
    """Whether a value of this type may be captured by a mod."""
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
    """Parse what `print_region_with_args` prints."""
    parser.parse_keyword(keyword)
    return parse_region_after_keyword(parser)


def parse_optional_region_with_args(parser: Parser, keyword: str) -> Region:
    """As `parse_region_with_args`; an absent keyword gives an empty region."""
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
    """Parse what `print_operand_group` prints."""
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
    """Argument types of a score (or, without `score`, a mask) region."""
    return [*([] if score is None else [score]), *INDEX_ARGS, *captures]


def print_properties(
    printer: Printer, op: IRDLOperation, skip: Sequence[str] = ()
) -> None:
    """Print ` {a = 1, ...}` for properties and attributes not said elsewhere."""
    sizes = ("operandSegmentSizes", "resultSegmentSizes", "regionSegmentSizes")
    hidden = {*sizes, *skip}
    shown = {k: v for k, v in op.properties.items() if k not in hidden}
    shown |= op.attributes
    printer.print_op_attributes(shown)


def parse_properties(
    parser: Parser, op: type[IRDLOperation]
) -> tuple[dict[str, Attribute], dict[str, Attribute]]:
    """Parse what `print_properties` prints: properties of an op, and the rest."""
    given = parser.parse_optional_attr_dict()
    names = op.get_irdl_definition().properties
    properties = {k: v for k, v in given.items() if k in names}
    return properties, {k: v for k, v in given.items() if k not in names}
