"""Launches of loaded kernels: all their arguments but addresses, filled in at the call.

A tape keeps them; any other call prepares, fills and runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol


class Launcher(Protocol):
    """What launches a kernel on a grid."""

    @property
    def launch(self) -> Callable[..., None]:
        """The function of a GPU's stream, if it is one, and of a launch's values."""
        ...


class Address(NamedTuple):
    """Where a launch takes the address of a tensor."""

    position: int
    """Among the values."""
    argument: int
    """Whose address it is, among the kernel's arguments."""
    make: Callable[[int], Any] | None = None
    """What stands for an address, where that is not the address itself."""


class Prepared(NamedTuple):
    """A launch whose values lack the addresses of tensors."""

    launcher: Launcher
    values: list[Any]
    addresses: tuple[Address, ...]
    on_stream: bool
    """Whether it takes a stream before the values."""

    def __call__(self, stream: Any, args: Sequence[Any]) -> None:
        """Launch with the tensors among a kernel's arguments."""
        values = self.values.copy()
        for position, argument, make in self.addresses:
            address = args[argument].data_ptr()
            values[position] = address if make is None else make(address)
        first = (stream,) if self.on_stream else ()
        self.launcher.launch(*first, *values)


class Loaded(Protocol):
    """A kernel that was compiled and loaded."""

    def prepare(
        self, grid: tuple[int, ...], args: Sequence[Any], threads: int | None = None
    ) -> Prepared | None:
        """The launch on a grid, None where a kernel is interpreted in its place.

        The device of the arguments is the current one. A CPU's kernel runs on
        `threads` threads at most.
        """
        ...

    def interpret(self, grid: tuple[int, ...], args: Sequence[Any]) -> None:
        """Run what cannot be launched."""
        ...
