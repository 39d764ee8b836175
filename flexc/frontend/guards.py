"""What a trace assumed of captured numbers and sizes, as one fast predicate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.printers import PythonPrinter


@dataclass(frozen=True)
class Guards:
    """A conjunction of conditions on the values that mods capture."""

    conditions: tuple[str, ...] = ()
    """Python expressions over `v`, the captured values in order."""
    _check: Callable[[Sequence[Any]], bool] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        text = " and ".join(f"({c})" for c in self.conditions) or "True"
        check = eval(
            f"lambda v: {text}", {"device": torch.device, "math": math, "torch": torch}
        )
        object.__setattr__(self, "_check", check)

    def hold(self, values: Sequence[Any]) -> bool:
        """Whether a trace that made these guards is right for `values`."""
        return bool(self._check(values))


def equal_guards(values: Sequence[Any]) -> Guards:
    """Guards that pin every number and the sizes of every tensor."""
    return Guards(
        tuple(
            f"tuple(v[{i}].shape) == {tuple(value.shape)!r}"
            if isinstance(value, torch.Tensor)
            else f"v[{i}] == {value!r}"
            for i, value in enumerate(values)
        )
    )


def number_guards(values: Sequence[Any]) -> tuple[str, ...]:
    """Conditions that pin every number."""
    return tuple(
        f"v[{i}] == {value!r}"
        for i, value in enumerate(values)
        if not isinstance(value, torch.Tensor)
    )


class _GuardPrinter(PythonPrinter):
    def __init__(self, sources: dict[str, str]):
        super().__init__()
        self._sources = sources

    def _print_Symbol(self, expr: sympy.Symbol) -> str:
        return self._sources[expr.name]


def read_guards(
    shape_env: ShapeEnv,
    sources: dict[str, str],
    values: Sequence[Any],
    extra: Sequence[str] = (),
) -> Guards:
    """The guards that tracing recorded; if they cannot be spelled, all values."""
    printer = _GuardPrinter(sources)
    try:
        conditions = [printer.doprint(guard.expr) for guard in shape_env.guards]
        guards = Guards(tuple(dict.fromkeys([*conditions, *extra])))
        if guards.hold(values):
            return guards
    except Exception:  # An expression the printer does not know.
        return equal_guards(values)
    return equal_guards(values)
