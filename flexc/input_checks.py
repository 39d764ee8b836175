"""Checks of a text and of a module by `flexc-opt`, before verifiers run.

xDSL assumes properties that its own texts have: strings end, ops have the parts that
their definitions require, and values are computed before they are used.
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
"""A pattern for comments, strings, text between them, and quotes that are not closed.

xDSL's own pattern takes exponential time if a quote is not closed.
"""


def check_strings(text: Input) -> None:
    """Raise an error if a string does not end."""
    for match in STRINGS.finditer(text.content):
        if match["open"]:
            span = Span(*match.span(), text)
            raise ParseError(span, "expected a string that ends in this line")


def is_of_xdsl(error: Exception) -> bool:
    """Return True if xDSL's code raised the error, of whatever type.

    xDSL's parser assumes that some malformed texts are well formed.
    """
    *_, (frame, _) = walk_tb(error.__traceback__)
    return str(frame.f_globals["__name__"]).startswith("xdsl.")


def check_definitions(module: ModuleOp) -> None:
    """Raise an error if an op lacks parts that its definition requires.

    Verifiers look at other ops, and xDSL verifies an op after the ops within it.
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
    """Raise an error for an unknown comparison predicate, which xDSL does not check."""
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
    """Raise an error if an attribute has the name of a property of the op.

    A custom syntax has one place for both.
    """
    properties = op.get_irdl_definition().properties.keys() | op.properties.keys()
    if clash := properties & op.attributes.keys():
        raise VerifyException(f"{min(clash)} expects to be a property, no attribute")


def check_order(region: Region, known: set[SSAValue] | None = None) -> None:
    """Raise an error if a value is used before it is computed.

    `known` are the values of the enclosing regions.
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
