"""IR as text, for the tests of its meaning."""

from __future__ import annotations

from functools import cache

from torch import Tensor
from xdsl.context import Context
from xdsl.dialects import arith, builtin, func, math, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from flexc import universe
from flexc.runtime.interpreters import run_region


@cache
def _context() -> Context:
    context = Context()
    for dialect in (builtin.Builtin, arith.Arith, func.Func, math.Math, scf.Scf):
        context.load_dialect(dialect)
    for name, factory in universe.DIALECTS.items():
        context.register_dialect(name, factory)
    return context


def parse(text: str) -> ModuleOp:
    module = Parser(_context(), text).parse_module()
    module.verify()
    return module


def run_scalar(
    code: str, arg_types: str, result_type: str, *args: Tensor | float
) -> Tensor:
    """What `%r` is after scalar code over `%a`, `%b` and `%c`."""
    types = arg_types.split(", ") if arg_types else []
    named = ", ".join(f"%{n} : {t}" for n, t in zip("abc", types, strict=False))
    text = f"""
        func.func @f({named}) {{
            {code}
            flex.yield %r : {result_type}
        }}"""
    (function,) = Parser(_context(), text).parse_module().ops
    (result,) = run_region(function.regions[0], args)
    return result
