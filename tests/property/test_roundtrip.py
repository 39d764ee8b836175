"""Printing, parsing and printing again is the identity, at every level."""

from __future__ import annotations

from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser
from xdsl.printer import Printer

from flexc.passes import pipelines
from tests.property.cases import Case
from tests.property.lowering import context, flex_module, passes
from tests.property.strategies import cases


def printed(module: ModuleOp, generic: bool) -> str:
    stream = StringIO()
    Printer(stream=stream, print_generic_format=generic).print_op(module)
    return stream.getvalue()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("target", ["triton", "cpp"])
@given(cases(), st.floats(0, 1))
def test_print_parse_print_is_the_identity(
    target: str, case: Case, depth: float
) -> None:
    """At one level of each case, after as many passes as `depth` says."""
    chosen = round(depth * len(passes(target)))
    module, _ = flex_module(case)
    pipelines.run(passes(target)[:chosen], context(), module)
    for generic in (False, True):
        text = printed(module, generic)
        parsed = Parser(context(), text).parse_module()
        parsed.verify()
        assert printed(parsed, generic) == text, chosen
