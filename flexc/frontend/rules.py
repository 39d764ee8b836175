"""The table of what the frontend can import: op name -> builder of scalar ops.

A name is an aten overload packet's, without the underscore of in-place variants.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Rule = Callable[..., Any]
"""`rule(emitter, result dtype, *args, **kwargs)`, arguments as aten's, with every
tensor and number a `Scalar` (a `Field` for a structural rule)."""


@dataclass(frozen=True)
class Entry:
    """A rule and how it is applied."""

    rule: Rule
    structural: bool
    """It sees fields; others are applied element by element."""


RULES: dict[str, Entry] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a pointwise rule."""

    def register(fn: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, Entry(fn, False)))
        return fn

    return register


def structural(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule that moves elements instead of computing with them."""

    def register(fn: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, Entry(fn, True)))
        return fn

    return register


def op_name(target: Any) -> str:
    """The name of what an FX node calls, as rules have it."""
    if isinstance(target, torch._ops.OpOverload):
        name = target._schema.name.partition("::")[2]
        in_place = name.endswith("_") and not name.endswith("__")
        return name.removesuffix("_") if in_place else name
    return getattr(target, "__name__", str(target))


def is_known(target: Any) -> bool:
    """Whether some rule says what an FX node calls."""
    return target is operator.getitem or op_name(target) in RULES
