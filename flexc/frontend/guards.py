"""What a trace assumed of captured numbers and sizes, as one fast predicate."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import sympy
import torch
from torch.fx.experimental import sym_node
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.functions import ToFloat
from torch.utils._sympy.printers import PythonPrinter
from torch.utils._sympy.symbol import SymT, symbol_is_type

from flexc.frontend.host_numbers import Assumption, HostNumber, is_exact
from flexc.frontend.locations import is_user_file


@dataclass(frozen=True)
class Guards:
    """A conjunction of conditions on the values that mods capture."""

    conditions: tuple[str, ...] = ()
    """Python expressions over `v`, the captured values in order."""
    assumptions: tuple[Assumption, ...] = ()
    """What Python's arithmetic on them has to give."""
    _check: Callable[[Sequence[Any]], bool] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        text = " and ".join(f"({c})" for c in self.conditions) or "True"
        check = eval(
            f"lambda v: {text}", {"device": torch.device, "math": math, "torch": torch}
        )
        object.__setattr__(self, "_check", check)

    def hold(self, values: Sequence[Any]) -> bool:
        """Whether a trace that made these guards is right for `values`.

        It is not where Python raises: tracing anew does so at the user's line.
        """
        try:
            computed = all(a.holds(values) for a in self.assumptions)
            return computed and bool(self._check(values))
        except Exception:
            return False


def equal_guards(values: Sequence[Any]) -> tuple[str, ...]:
    """Conditions that pin every number and the sizes of every tensor."""
    sizes = tuple(
        f"tuple(v[{i}].shape) == {tuple(value.shape)!r}"
        for i, value in enumerate(values)
        if isinstance(value, torch.Tensor)
    )
    return sizes + number_guards(values)


def number_guards(values: Sequence[Any]) -> tuple[str, ...]:
    """Conditions that pin every number."""
    return tuple(
        number_guard(i, value)
        for i, value in enumerate(values)
        if not isinstance(value, torch.Tensor)
    )


def number_guard(place: int, value: int | float) -> str:
    """The condition that pins a number; -0.0 is not 0.0."""
    if value == 0:
        return f"repr(v[{place}]) == {repr(value)!r}"
    return f"v[{place}] == {value!r}"


class InexactError(Exception):
    """A branch on what torch simplifies as if floats were real numbers."""


class UnlocatedShapeEnv(ShapeEnv):
    """Notes of no guard which line asked for it: to find that imports torch.export."""

    def _get_user_frame(self) -> None:
        return None


class ExactShapeEnv(UnlocatedShapeEnv):
    """Decides branches as Python does, and raises InexactError where it cannot.

    Floats are compared as they were captured: sums and products of them are simplified
    where they should be rounded.
    """

    def evaluate_sym_node(self, node: SymNode, *args: Any, **kwargs: Any) -> Any:
        if self._may_be_rounded(node):
            raise InexactError(str(node))
        return super().evaluate_sym_node(node, *args, **kwargs)

    def _may_be_rounded(self, node: SymNode) -> bool:
        expression, written = cast("tuple[Any, Any]", (node.expr, node._expr))
        if node.pytype is float:  # And a guard takes -0.0 for 0.0.
            return not expression.is_Symbol or node.hint == 0
        if any(map(_is_float, expression.free_symbols)):
            return not all(a.is_Atom or isinstance(a, ToFloat) for a in expression.args)
        # Nothing is left of a comparison: of floats, perhaps.
        vanished = node.pytype is bool and not written.free_symbols
        return vanished and any(map(_is_float, self.var_to_range)) and _asked_by_mod()


def _is_float(symbol: Any) -> bool:
    return symbol_is_type(symbol, SymT.FLOAT)


def _asked_by_mod() -> bool:
    """Whether a mod's own Python asks for a condition, not torch's code."""
    frame, asking = sys._getframe(), ""
    while frame.f_code.co_filename in _ASKING and frame.f_back is not None:
        frame, asking = frame.f_back, frame.f_code.co_name
    return asking == "__bool__" and is_user_file(frame.f_code.co_filename)


_ASKING = (__file__, torch.__file__, sym_node.__file__)
"""Files whose frames are between a condition and the code that asks for it."""


class SourcePrinter(PythonPrinter):
    """Prints expressions of symbols as Python over the captured values."""

    def __init__(self, sources: dict[str, str]):
        super().__init__()
        self._sources = sources

    def spell(self, number: Any) -> str:
        """A symbolic number."""
        return self.doprint(number.node.expr)

    def _print_Symbol(self, expr: sympy.Symbol) -> str:
        return self._sources[expr.name]


def rounded(shape_env: ShapeEnv, sources: dict[str, str]) -> Iterator[Assumption]:
    """Yield what guards assume: integers that they take for floats are exact so.

    Python compares the two exactly.
    """
    printer = SourcePrinter(sources)
    for guard in shape_env.guards:
        for conversion in guard.expr.atoms(ToFloat):
            text = f"return {printer.doprint(conversion.args[0])}"
            yield Assumption(HostNumber((text,), ()), is_exact)


def read_guards(
    shape_env: ShapeEnv,
    sources: dict[str, str],
    values: Sequence[Any],
    extra: Sequence[str] = (),
    assumptions: Sequence[Assumption] = (),
) -> Guards:
    """The guards that tracing recorded; if they cannot be spelled, all values."""
    printer = SourcePrinter(sources)
    try:
        conditions = [printer.doprint(guard.expr) for guard in shape_env.guards]
        texts = tuple(dict.fromkeys([*conditions, *extra]))
        guards = Guards(texts, tuple(assumptions))
        if guards.hold(values):
            return guards
    except Exception:  # An expression the printer does not know.
        pass
    return Guards(equal_guards(values), tuple(assumptions))
