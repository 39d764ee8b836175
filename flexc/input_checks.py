"""What `flexc-opt` checks of a text and of a module before verifiers see it.

xDSL takes for granted what its own texts keep to: that strings end, that ops have the
parts that their definitions say, and that values are computed before they are used.
"""

from __future__ import annotations

import re
from traceback import walk_tb

from xdsl.dialects import arith
from xdsl.dialects.arith import CMPF_COMPARISON_OPERATIONS, CMPI_COMPARISON_OPERATIONS
from xdsl.dialects.builtin import ModuleOp, i64
from xdsl.ir import Region, SSAValue
from xdsl.irdl import IRDLOperation
from xdsl.utils.exceptions import ParseError, VerifyException
from xdsl.utils.lexer import Input, Span

STRINGS = re.compile(
    r'//[^\n]*|"(?:[^"\\\n\v\f]|\\(?:["nt\\]|[0-9A-Fa-f]{2}))*"|(?P<open>")|[^"/]+|/'
)
"""A text's comments and strings, what is around them, and quotes that are not closed.

xDSL's own pattern takes exponential time where a quote is not closed.
"""


def check_strings(text: Input) -> None:
    """Raise an error where a string does not end."""
    for match in STRINGS.finditer(text.content):
        if match["open"]:
            span = Span(*match.span(), text)
            raise ParseError(span, "expected a string that ends in this line")


def is_of_xdsl(error: Exception) -> bool:
    """Whether xDSL's code raised an error, of whatever type.

    Its parser takes some malformed text to be well formed.
    """
    *_, (frame, _) = walk_tb(error.__traceback__)
    return str(frame.f_globals["__name__"]).startswith("xdsl.")


def check_definitions(module: ModuleOp) -> None:
    """Raise an error where an op has not the parts that it is defined to have.

    Verifiers look at other ops, and xDSL verifies an op after those within it.
    """
    for op in module.walk():
        if isinstance(op, IRDLOperation):
            try:
                op.get_irdl_definition().verify(op)
                check_predicate(op)
                check_names(op)
            except VerifyException as error:
                op.emit_error(f"Operation does not verify: {error}", error)


def check_predicate(op: IRDLOperation) -> None:
    """Raise an error where a comparison is of no kind, which xDSL does not verify."""
    if not isinstance(op, arith.CmpiOp | arith.CmpfOp):
        return
    is_integer = isinstance(op, arith.CmpiOp)
    known = CMPI_COMPARISON_OPERATIONS if is_integer else CMPF_COMPARISON_OPERATIONS
    number = op.predicate
    if number.type != i64 or not 0 <= number.value.data < len(known):
        raise VerifyException(
            f"predicate expects an i64 below {len(known)}, got {number}"
        )


def check_names(op: IRDLOperation) -> None:
    """Raise an error where an attribute is called what a property of the op is.

    A custom syntax has one place for both.
    """
    properties = op.get_irdl_definition().properties.keys() | op.properties.keys()
    if clash := properties & op.attributes.keys():
        raise VerifyException(f"{min(clash)} expects to be a property, no attribute")


def check_order(region: Region, known: set[SSAValue] | None = None) -> None:
    """Raise an error where a value is used before it is computed.

    `known` are the values of regions around.
    """
    known = set() if known is None else known
    own: list[SSAValue] = [arg for block in region.blocks for arg in block.args]
    known.update(own)
    for block in region.blocks:
        for op in block.ops:
            for number, operand in enumerate(op.operands):
                if operand not in known:
                    message = f"operand {number} expects a value computed before it"
                    op.emit_error(message, VerifyException(message))
            for inner in op.regions:
                check_order(inner, known)
            known.update(op.results)
            own += op.results
    known.difference_update(own)
