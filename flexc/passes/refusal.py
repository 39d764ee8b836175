"""How passes and printers refuse an op that they were given."""

from __future__ import annotations

from typing import NoReturn

from xdsl.ir import Operation

from flexc.errors import UnsupportedOpError


def refuse(op: Operation, message: str) -> NoReturn:
    """Raise an error about an op that verifies and that nothing is known to do with.

    A note of the error shows the op in its module.
    """
    op.emit_error(message, UnsupportedOpError(f"{op.name}: {message}"))
