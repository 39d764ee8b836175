"""Types of values that a key holds by value, and the limits of a walk."""

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
"""Types of immutable values."""

KEY_TYPES = frozenset(
    {bool, bytes, float, int, str, type(None), torch.dtype, torch.device}
)
"""Types of keys of dictionaries and elements of sets."""

BUDGET = 1_000_000
"""The largest cost of one walk, in attributes that are looked up."""
VALUE, OBJECT = 10, 200
"""The costs of a value in a container, and of an object or function."""

MAX_NUMBERS = 1_000
"""The number of Python numbers that one walk may capture. Further numbers are keyed by
value, because each captured number makes tracing slower.
"""

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def exact(value: Any) -> Any:
    """Return a key that distinguishes -0.0 from 0.0, and is equal for two NaNs."""
    match value:
        case float():
            return type(value), value.hex()
        case complex():
            return complex, value.real.hex(), value.imag.hex()
        case _:
            return type(value), value


def number_key(value: float | None) -> Any:
    """Return a key of a number of known type that distinguishes -0.0 from 0.0."""
    return value or repr(value)
