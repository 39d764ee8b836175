"""The error for a valid op that a pass or printer cannot handle."""

from __future__ import annotations

from typing import NoReturn

from xdsl.ir import Operation

from flexc.errors import UnsupportedOpError


def refuse(op: Operation, message: str) -> NoReturn:
    """Raise UnsupportedOpError for an op that verifies but cannot be handled.

    A note of the error shows the op in its module.
    """
    op.emit_error(message, UnsupportedOpError(f"{op.name}: {message}"))
