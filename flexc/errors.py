"""The errors of flexc, one class for each kind of mistake.

A message says what was expected, what was given and what to do. Errors about a mod
carry the file and line of the user's function in `location`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from xdsl.ir import Operation


@dataclass(frozen=True)
class SourceLocation:
    """A place in the user's Python source."""

    filename: str
    line: int

    def __str__(self) -> str:
        return f"{self.filename}:{self.line}"


class FlexcError(Exception):
    """The base class of all errors that flexc raises on purpose."""

    location: SourceLocation | None

    def __init__(self, message: str, location: SourceLocation | None = None):
        self.location = location
        super().__init__(message if location is None else f"{location}: {message}")


class UnsupportedOpError(FlexcError, NotImplementedError):
    """A mod uses an operation without a scalar meaning or without a lowering."""


def refuse(op: Operation, message: str) -> NoReturn:
    """Raise UnsupportedOpError for an op that verifies but that no rule handles.

    A note of the error shows the op in its module.
    """
    op.emit_error(message, UnsupportedOpError(f"{op.name}: {message}"))


class DataDependentControlFlowError(FlexcError, TypeError):
    """A mod branches in Python on a value that is only known on the device."""


class DivisionByZeroError(FlexcError, ZeroDivisionError, RuntimeError):
    """A mod divides integers by a captured number that is 0, or by a constant 0."""


class NumberRangeError(FlexcError, OverflowError):
    """A mod computes an integer beyond 64 bits, or a float beyond the finite range."""


class MutationError(FlexcError, TypeError):
    """A mod writes to a tensor."""


class ModSignatureError(FlexcError, TypeError):
    """A mod takes the wrong number of arguments or returns no scalar."""


class StateError(FlexcError, ValueError):
    """A mod or a compiled function reaches too many Python objects to key a call."""


class RandomNumberError(UnsupportedOpError):
    """A mod draws random numbers."""


class ShapeError(FlexcError, ValueError):
    """Shapes of query, key, value or of a captured tensor do not fit."""


class CapturedIndexError(FlexcError, IndexError):
    """A mod reads outside of a captured tensor at a live pair."""

    def __init__(self, message: str, location: SourceLocation | None = None):
        self.what = message
        super().__init__(message, location)


class NotANumberError(FlexcError, ArithmeticError):
    """A mod makes a score NaN or +inf of numbers that are neither (`flexc.debug`)."""


class DtypeError(FlexcError, TypeError):
    """A dtype is not supported, or query, key and value disagree."""


class DeviceError(FlexcError, ValueError):
    """Tensors are on different devices, or no backend supports the device."""


class BlockMaskError(FlexcError, ValueError):
    """A BlockMask was made for other lengths, heads, batch or device."""


class OptionError(FlexcError, ValueError):
    """A backend, a kernel option or a combination of arguments is invalid."""


class GradientError(FlexcError, NotImplementedError):
    """Autograd requires a gradient that flexc cannot compute."""


class TracingError(FlexcError, RuntimeError):
    """Attention was called within a trace or transform that cannot record it."""


class CacheError(FlexcError, RuntimeError):
    """A cache of keys has no room for more tokens."""


class DistributedError(FlexcError, RuntimeError):
    """There is no process group, or the calls of its ranks do not fit."""


class ScheduleError(FlexcError, NotImplementedError):
    """A kernel cannot have a schedule. The message says why.

    Code that chooses among schedules catches this error and tries the next simpler one.
    """


class PassResultError(FlexcError, RuntimeError):
    """A pass made invalid IR from valid IR: a bug in flexc."""


class CompilerNotFoundError(FlexcError, RuntimeError):
    """No C++ compiler was found on this machine."""


class CompilationError(FlexcError, RuntimeError):
    """A compiler rejected an emitted kernel: a bug in flexc."""


def did_you_mean(got: object, known: Sequence[str]) -> str:
    """Return the known spelling closest to `got`, as the end of a message, else ""."""
    spellings = {name.casefold(): name for name in known}
    found = get_close_matches(str(got).casefold(), spellings, 1)
    return f"; did you mean {spellings[found[0]]!r}?" if found else ""
