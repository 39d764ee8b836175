"""Values of Python and torch that a key holds as they are, and how many it may hold."""

from __future__ import annotations

from typing import Any

import torch

BY_VALUE: tuple[type, ...] = (
    bool,
    bytes,
    complex,
    range,
    str,
    type(None),
    type(...),
    torch.device,
    torch.dtype,
    torch.layout,
    torch.memory_format,
)
"""Types of what never changes."""

KEY_TYPES = (bool, bytes, float, int, str, type(None), torch.dtype, torch.device)
"""Types of keys of dictionaries and elements of sets."""

BUDGET = 1_000_000
"""What one walk may cost, in attributes that are looked for."""
VALUE, OBJECT = 10, 200
"""What a value in a container costs, and an object or function."""

MAX_NUMBERS = 1_000
"""Python numbers that one walk may capture; what follows is keyed by its value.

Each takes a millisecond to trace, whether it is read or not.
"""

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def exact(value: Any) -> Any:
    """A key that tells -0.0 from 0.0, and is equal for two that are no numbers."""
    match value:
        case float():
            return type(value), value.hex()
        case complex():
            return complex, value.real.hex(), value.imag.hex()
        case _:
            return type(value), value


def number_key(value: float | None) -> Any:
    """A key that tells -0.0 from 0.0, of a number whose type is known."""
    return value or repr(value)
