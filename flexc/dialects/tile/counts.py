"""How many elements of a dimension there are: a last block has fewer than its tile."""

from __future__ import annotations

from xdsl.dialects.builtin import i32
from xdsl.ir import SSAValue
from xdsl.parser import Parser
from xdsl.printer import Printer


def print_count(printer: Printer, count: SSAValue | None) -> None:
    """How many elements of a dimension there are."""
    if count is not None:
        printer.print_string(" count ")
        printer.print_ssa_value(count)


def parse_count(parser: Parser) -> SSAValue | None:
    """What `print_count` printed."""
    if parser.parse_optional_keyword("count") is None:
        return None
    return parser.resolve_operand(parser.parse_unresolved_operand(), i32)
