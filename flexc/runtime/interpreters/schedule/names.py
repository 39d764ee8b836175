"""How messages call things, and how rows of them are indexed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from torch import Tensor
from xdsl.ir import SSAValue
from xdsl.utils.exceptions import InterpretationError

T = TypeVar("T")


def value_name(value: SSAValue, otherwise: str) -> str:
    """How messages call a value."""
    return f"%{value.name_hint}" if value.name_hint else otherwise


def element(name: str, row: Sequence[T], index: Tensor) -> T:
    """One of a row of slots or barriers."""
    if not 0 <= int(index) < len(row):
        raise InterpretationError(
            f"expected an index into {name} from 0 to {len(row) - 1}, got {int(index)}"
        )
    return row[int(index)]
