"""What printers of source text share: names, indentation, blocks.

A printer of a target subclasses `SourcePrinter` and says, as class attributes,
how its language marks comments and blocks and which words it reserves. Names
come from SSA name hints, so that source reads like the IR it was printed from,
and they live in the instance: printing twice gives the same text.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

from xdsl.ir import SSAValue
from xdsl.utils.base_printer import BasePrinter

_TRAILING_COUNT = re.compile(r"_\d+$")


@dataclass(eq=False, repr=False)
class SourcePrinter(BasePrinter):
    """Lines of source text, and unique names for SSA values."""

    indent_num_spaces: int = field(default=4, kw_only=True)
    _names: dict[SSAValue, str] = field(default_factory=dict[SSAValue, str], init=False)
    _used: set[str] = field(default_factory=set[str], init=False)

    reserved: ClassVar[frozenset[str]] = frozenset()
    """Words that cannot be names: keywords, and what the prologue defines."""
    comment_marker: ClassVar[str] = "#"
    block_open: ClassVar[str] = ":"
    block_close: ClassVar[str] = ""
    unnamed: ClassVar[str] = "v"
    """The name of values that have no hint."""

    # Names

    def unique_name(self, hint: str | None) -> str:
        """A name like `hint` that nothing else has."""
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
        """Give a value a name of its own."""
        name = self.unique_name(hint or value.name_hint)
        self._names[value] = name
        return name

    def bind(self, value: SSAValue, text: str) -> None:
        """Let a value be spelled as `text`: another value's name, or a literal."""
        self._names[value] = text

    def name(self, value: SSAValue) -> str:
        """How a value is spelled; it must have been declared or bound."""
        return self._names[value]

    # Text

    def line(self, text: str = "") -> None:
        """Print one line at the current indentation."""
        pad = " " * (self._indent * self.indent_num_spaces) if text else ""
        self.print_string(pad + text, indent=0)
        self.print_string("\n", indent=0)

    def comment(self, text: str) -> None:
        """Print a comment, one line for each of its lines."""
        for part in text.splitlines():
            self.line(f"{self.comment_marker} {part}".rstrip())

    @contextmanager
    def block(self, header: str) -> Generator[None]:
        """Print `header` and, indented, what is printed within."""
        self.line((header + self.block_open).lstrip())
        self._indent += 1
        yield
        self._indent -= 1
        if self.block_close:
            self.line(self.block_close)
