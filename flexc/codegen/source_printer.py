"""The bases of printers of source text: names, indentation, blocks; Python's loops.

A target's printer subclasses `SourcePrinter` or `PythonPrinter`. Its class attributes
have the language's markers of comments and blocks, and the reserved words. Names come
from SSA name hints, so that source reads like the IR. The instance holds the names, so
that printing twice gives the same text.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import singledispatchmethod
from typing import ClassVar

from xdsl.dialects import scf
from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Block, Operation, SSAValue
from xdsl.utils.base_printer import BasePrinter

from flexc.dialects import blocksparse, tile

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

    def declare(self, value: SSAValue) -> str:
        """Give a value a unique name, and return the name."""
        name = self.unique_name(value.name_hint)
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
    def block(self, header: str, end: str = "") -> Generator[None]:
        """Print `header`, and indent the lines that the `with` body prints.

        `end` follows the marker of the block's end.
        """
        self.line((header + self.block_open).lstrip())
        self._indent += 1
        yield
        self._indent -= 1
        if self.block_close:
            self.line(self.block_close + end)


PYTHON_WORDS = (
    "and as assert async await break class continue def del elif else except "
    "finally for from global if import in is lambda None nonlocal not or pass "
    "raise return True False try while with yield range float abs min max"
)


@dataclass(eq=False, repr=False)
class PythonPrinter(SourcePrinter):
    """A printer of Python.

    A loop prints its carried values as variables that are assigned before the loop and
    at the end of its body.
    """

    reserved: ClassVar[frozenset[str]] = frozenset(PYTHON_WORDS.split())

    def loop_range(self, op: scf.ForOp) -> str:
        """Return the range of a loop's index."""
        return f"range({', '.join(self.args(op.lb, op.ub, op.step))})"

    def print_block(self, block: Block) -> None:
        for op in block.ops:
            if isinstance(comment := op.attributes.get("comment"), StringAttr):
                self.comment(comment.data)
            self.print_statement(op)

    def assign(self, value: SSAValue, text: str) -> None:
        self.line(f"{self.declare(value)} = {text}")

    def args(self, *values: SSAValue) -> list[str]:
        return [self.name(v) for v in values]

    def initial(self, value: SSAValue) -> str:
        """Return the text of a loop's carried value before the loop."""
        return self.name(value)

    @abstractmethod
    def expression(self, op: Operation) -> str:
        """Return the expression of an op with at most one result."""

    @abstractmethod
    def print_map(self, op: tile.MapOp) -> None:
        """Print the computation of a map's results."""

    @singledispatchmethod
    def print_statement(self, op: Operation) -> None:
        """Print an op as an expression, assigned to its result if there is one."""
        text = self.expression(op)
        if op.results:
            self.assign(op.results[0], text)
        else:
            self.line(text)

    @print_statement.register
    def _(self, op: tile.MapOp) -> None:
        self.print_map(op)

    @print_statement.register
    def _(self, op: scf.ForOp) -> None:
        index, *carried = op.body.block.args
        for arg, init in zip(carried, op.iter_args, strict=True):
            self.assign(arg, self.initial(init))
        kind = op.attributes.get("segment")
        if isinstance(kind, blocksparse.SegmentKindAttr):
            rest = ", after the first" if "peeled" in op.attributes else ""
            self.comment(f"{kind.data} blocks{rest}")
        steps = self.loop_range(op)
        with self.block(f"for {self.declare(index)} in {steps}"):
            self.print_block(op.body.block)
        # After the loop, its carried variables hold the results.
        for result, arg in zip(op.results, carried, strict=True):
            self.bind(result, self.name(arg))

    @print_statement.register
    def _(self, op: scf.IfOp) -> None:
        for result in op.results:
            self.declare(result)
        with self.block(f"if {self.name(op.cond)}"):
            kind = op.attributes.get("segment")
            if isinstance(kind, blocksparse.SegmentKindAttr):
                self.comment(f"{kind.data} blocks")
            self.print_block(op.true_region.block)
        if op.false_region.blocks:
            with self.block("else"):
                self.print_block(op.false_region.block)

    @print_statement.register
    def _(self, op: scf.YieldOp) -> None:
        parent = op.parent_op()
        targets: Sequence[SSAValue] = ()
        if isinstance(parent, scf.ForOp):
            targets = parent.body.block.args[1:]
        elif isinstance(parent, scf.IfOp):
            targets = parent.results
        carried = self.args(*targets)
        values = self.args(*op.operands)
        if carried:
            self.line(f"{', '.join(carried)} = {', '.join(values)}")

    @print_statement.register
    def _(self, op: tile.ReturnOp) -> None:
        pass
