"""The table of what the frontend can import: op name -> builder of scalar ops.

A name is an aten overload packet's, without the underscore of in-place variants;
Python's operators on captured numbers share the rules of the aten ops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
