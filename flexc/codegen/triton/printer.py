"""Prints a kernel in Triton: one statement for each op."""

from __future__ import annotations

from functools import singledispatchmethod
from typing import ClassVar

from xdsl.dialects import scf
from xdsl.dialects.builtin import IntegerAttr, StringAttr
from xdsl.ir import Operation

from flexc.codegen.triton.scalar_rules import TRITON, Language
from flexc.codegen.triton.tile_printer import TilePrinter
from flexc.dialects import tile
from flexc.passes.refusal import refuse


class TritonPrinter(TilePrinter):
    """Statements of a Triton kernel."""

    reserved: ClassVar[frozenset[str]] = TilePrinter.reserved | {"add_to", "diagonals"}
    language: ClassVar[Language] = TRITON
    decorator: ClassVar[str] = "triton.jit"

    def loop_range(self, op: scf.ForOp) -> str:
        stages = op.attributes.get("num_stages")
        extra = ()
        if isinstance(stages, IntegerAttr):
            extra = (f"num_stages={stages.value.data}",)
        return self.call("range", *self.args(op.lb, op.ub, op.step), *extra)

    @singledispatchmethod
    def print_statement(self, op: Operation) -> None:
        """What Gluon prints too."""
        super().print_statement(op)

    @print_statement.register
    def _(self, op: tile.ScatterAddOp) -> None:
        value, memref, base, offsets = self.args(*op.operands)
        self.line(f"add_to({memref} + {base} + {offsets}, {value})")

    @print_statement.register
    def _(self, op: tile.DiagonalsOp) -> None:
        self.assign(op.result, f"diagonals({self.name(op.input)})")

    @print_statement.register
    def _(self, op: tile.TransposeOp) -> None:
        self.assign(op.result, self.call("trans", self.name(op.input)))

    @print_statement.register
    def _(self, op: tile.DotOp) -> None:
        if op.count is not None:
            refuse(op, "the Triton backend expects no count")
        precision = op.attributes.get("precision")
        extra = ()
        if isinstance(precision, StringAttr):
            extra = (f'input_precision="{precision.data}"',)
        args = self.args(op.lhs, op.rhs, op.acc)
        self.assign(op.result, self.call("dot", *args, *extra))
