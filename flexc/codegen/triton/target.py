"""The `triton` target, which prints modules as Triton source."""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatchmethod
from math import prod
from typing import Any, ClassVar

from xdsl.dialects import scf
from xdsl.dialects.builtin import FixedBitwidthType, StringAttr
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from flexc.codegen.target import SourceTarget
from flexc.codegen.triton.scalar_rules import TRITON, Language
from flexc.codegen.triton.tile_printer import TilePrinter
from flexc.dialects import tile
from flexc.errors import refuse
from flexc.passes import pipelines
from flexc.passes.targets.target import LoweringOptions

SUPPORT = "flexc.codegen.triton.support"


class TritonPrinter(TilePrinter):
    """A printer of a Triton kernel: one statement for each op."""

    reserved: ClassVar[frozenset[str]] = TilePrinter.reserved | {"add_to", "diagonals"}
    language: ClassVar[Language] = TRITON
    decorator: ClassVar[str] = "triton.jit"

    def print_imports(self, kernel: tile.KernelOp) -> None:
        self.line("import triton")
        self.line("import triton.language as tl")
        if names := self.support_names(kernel):
            self.line()
            self.line(f"from {SUPPORT} import {', '.join(names)}")

    def loop_range(self, op: scf.ForOp) -> str:
        return self.call("range", *self.args(op.lb, op.ub, op.step))

    @singledispatchmethod
    def print_statement(self, op: Operation) -> None:
        """Print a statement that Triton and Gluon share."""
        super().print_statement(op)

    @print_statement.register
    def _(self, op: tile.DiagonalsOp) -> None:
        self.assign(op.result, f"diagonals({self.name(op.input)})")

    @print_statement.register
    def _(self, op: tile.TransposeOp) -> None:
        self.assign(op.result, self.call("trans", self.name(op.input)))

    @print_statement.register
    def _(self, op: tile.DotOp) -> None:
        if op.count is not None:
            refuse(op, "tiles of Triton have no count")
        precision = op.attributes.get("precision")
        extra = ()
        if isinstance(precision, StringAttr):
            extra = (f'input_precision="{precision.data}"',)
        args = self.args(op.lhs, op.rhs, op.acc)
        self.assign(op.result, self.call("dot", *args, *extra))


COPIED_BITS = 32
"""The fewest bits of an element that can be copied asynchronously to shared memory."""


def copied_ahead(kernel: tile.KernelOp) -> int:
    """Return the bytes that a kernel's reads take in shared memory.

    Triton copies the reads of a loop's maps over pairs `num_stages - 1` iterations
    ahead. Reads that are marked in place are not copied. A read whose address depends
    on another is not copied either, but counts here unless it is marked.
    """
    stages = kernel.number("num_stages") or 1
    loops = [op for op in kernel.walk() if isinstance(op, scf.ForOp)]
    return (stages - 1) * max(map(_bytes_read, loops), default=0)


def _bytes_read(loop: scf.ForOp) -> int:
    """Return the bytes of the tiles that a loop's maps over pairs read."""
    total = 0
    for op in loop.walk():
        parent = op.parent_op()
        if not isinstance(op, tile.ReadOp) or not isinstance(parent, tile.MapOp):
            continue
        element = op.result.type
        if "in_place" in op.attributes or not isinstance(element, FixedBitwidthType):
            continue
        if len(parent.shape) == 2 and element.bitwidth >= COPIED_BITS:
            total += prod(parent.shape) * element.bitwidth // 8
    return total


@dataclass(frozen=True)
class TritonSourceTarget(SourceTarget):
    """A target that prints each kernel of a module as Triton source."""

    name = "triton"
    printer = TritonPrinter

    def passes(self, options: LoweringOptions) -> tuple[ModulePass, ...]:
        return pipelines.to_triton(options)

    def launch_options(self, kernel: tile.KernelOp) -> dict[str, Any]:
        return {
            "num_warps": kernel.number("num_warps"),
            "num_stages": kernel.number("num_stages"),
            "copied_ahead": copied_ahead(kernel),
        }
