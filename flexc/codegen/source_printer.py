"""The base of printers of source text: names, indentation, blocks.

A target's printer subclasses `SourcePrinter`. Its class attributes have the language's
markers of comments and blocks, and the reserved words. Names come from SSA name hints,
so that source reads like the IR. The instance holds the names, so that printing twice
gives the same text.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

from xdsl.ir import SSAValue
from xdsl.utils.base_printer import BasePrinter

from flexc.dialects import tile

_TRAILING_COUNT = re.compile(r"_\d+$")


@dataclass(eq=False, repr=False)
class SourcePrinter(BasePrinter):
    """A printer of lines of source text with unique names for SSA values."""

    indent_num_spaces: int = field(default=4, kw_only=True)
    _names: dict[SSAValue, str] = field(default_factory=dict[SSAValue, str], init=False)
    _used: set[str] = field(default_factory=set[str], init=False)

    reserved: ClassVar[frozenset[str]] = frozenset()
    """Words that cannot be names: keywords, and names that the prologue defines."""
    comment_marker: ClassVar[str] = "#"
    block_open: ClassVar[str] = ":"
    block_close: ClassVar[str] = ""
    unnamed: ClassVar[str] = "v"
    """The name of values without a hint."""

    @abstractmethod
    def print_kernel(self, op: tile.KernelOp, /) -> str:
        """Print the source of a kernel; return the name of its function."""

    def unique_name(self, hint: str | None) -> str:
        """Return a name like `hint` that is not used yet, and reserve it."""
        stem = re.sub(r"\W", "_", hint or self.unnamed)
        if stem[0].isdigit():
            stem = f"v{stem}"
        name = stem
        base = _TRAILING_COUNT.sub("", stem)
        count = 0
        while name in self._used or name in self.reserved:
            count += 1
            name = f"{base}_{count}"
        self._used.add(name)
        return name

    def declare(self, value: SSAValue, hint: str | None = None) -> str:
        """Give a value a unique name, and return the name."""
        name = self.unique_name(hint or value.name_hint)
        self._names[value] = name
        return name

    def bind(self, value: SSAValue, text: str) -> None:
        """Let a value print as `text`: another value's name, or a literal."""
        self._names[value] = text

    def name(self, value: SSAValue) -> str:
        """Return the text of a value that was declared or bound."""
        return self._names[value]

    def line(self, text: str = "") -> None:
        """Print one line at the current indentation."""
        pad = " " * (self._indent * self.indent_num_spaces) if text else ""
        self.print_string(pad + text, indent=0)
        self.print_string("\n", indent=0)

    def comment(self, text: str) -> None:
        """Print a comment, with one comment line for each line of `text`."""
        for part in text.splitlines():
            self.line(f"{self.comment_marker} {part}".rstrip())

    @contextmanager
    def block(self, header: str) -> Generator[None]:
        """Print `header`, and indent the lines that the `with` body prints."""
        self.line((header + self.block_open).lstrip())
        self._indent += 1
        yield
        self._indent -= 1
        if self.block_close:
            self.line(self.block_close)
