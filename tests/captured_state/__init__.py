"""Kinds of state that mods read: each with a change that the next call must see."""

from tests.captured_state import classes, containers, functions, hidden, layers, tensors
from tests.captured_state.kinds import KINDS, Kind

__all__ = [
    "KINDS",
    "Kind",
    "classes",
    "containers",
    "functions",
    "hidden",
    "layers",
    "tensors",
]
