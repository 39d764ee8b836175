"""The `triton` target, which prints modules as Triton source."""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatchmethod
from io import StringIO
from math import prod
from typing import ClassVar

from xdsl.dialects import scf
from xdsl.dialects.builtin import FixedBitwidthType, IntegerAttr, StringAttr
from xdsl.ir import Operation

from flexc.codegen.kernel_spec import KernelSpec
from flexc.codegen.parameters import param_spec
from flexc.codegen.target import LoweringOptions, Target
from flexc.codegen.triton.scalar_rules import TRITON, Language, in_place_function
from flexc.codegen.triton.tile_printer import TilePrinter
from flexc.dialects import tile
from flexc.passes import pipelines
from flexc.passes.pipelines import Passes
from flexc.passes.refusal import refuse


class TritonPrinter(TilePrinter):
    """A printer of a Triton kernel: one statement for each op."""

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
        """Print a statement that Triton and Gluon share."""
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


SUPPORT = "flexc.codegen.triton.support"

SUPPORT_FUNCTIONS: dict[type[Operation], str] = {
    tile.TanhApproxOp: "tanh_approx",
    tile.DiagonalsOp: "diagonals",
    tile.ScatterAddOp: "add_to",
}
"""Ops that print as calls of functions of the support module."""


def _emit(kernel: tile.KernelOp) -> KernelSpec:
    stream = StringIO()
    printer = TritonPrinter(stream=stream)
    for part in header(kernel, "Triton"):
        printer.comment(part)
    printer.line()
    printer.line("import triton")
    printer.line("import triton.language as tl")
    if names := support_names(kernel):
        printer.line()
        printer.line(f"from {SUPPORT} import {', '.join(names)}")
    printer.line()
    printer.line()
    entry = printer.print_kernel(kernel)
    params = tuple(
        param_spec(printer.name(arg), arg.type, param)
        for arg, param in zip(kernel.body.block.args, kernel.params, strict=True)
    )
    return KernelSpec(
        "triton",
        entry,
        params,
        str(kernel.grid),
        stream.getvalue(),
        integer_attribute(kernel, "num_warps"),
        integer_attribute(kernel, "num_stages"),
        copied_ahead=copied_ahead(kernel),
    )


COPIED_BITS = 32
"""The fewest bits of an element that can be copied asynchronously to shared memory."""


def copied_ahead(kernel: tile.KernelOp) -> int:
    """Return the bytes that a kernel's reads take in shared memory.

    Triton copies the reads of a loop's maps over pairs `num_stages - 1` iterations
    ahead. It cannot do so if an address depends on another read; such reads are marked
    in place.
    """
    stages = integer_attribute(kernel, "num_stages") or 1
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


def support_names(kernel: tile.KernelOp) -> list[str]:
    """Return the functions of the support module that a kernel calls, sorted."""
    names: set[str] = set()
    for op in kernel.walk():
        if type(op) in SUPPORT_FUNCTIONS:
            names.add(SUPPORT_FUNCTIONS[type(op)])
        elif isinstance(op, tile.ReadOp) and "in_place" in op.attributes:
            names.add(in_place_function(op))
    return sorted(names)


def header(kernel: tile.KernelOp, language: str) -> list[str]:
    """Return the comment lines at the top of a kernel's source."""
    lines = [f"{kernel.sym_name.data}, emitted by flexc for {language}"]
    lines.append(f"grid: {kernel.grid.data}")
    warps, stages = (
        integer_attribute(kernel, "num_warps"),
        integer_attribute(kernel, "num_stages"),
    )
    if warps is not None and stages is not None:
        lines.append(f"num_warps: {warps}, num_stages: {stages}")
    for name, attr in kernel.attributes.items():
        if isinstance(attr, StringAttr):
            lines.append(f"{name}: {attr.data}")
    return lines


def integer_attribute(kernel: tile.KernelOp, name: str) -> int | None:
    """Return the value of a kernel's integer attribute, or None."""
    attr = kernel.attributes.get(name)
    return attr.value.data if isinstance(attr, IntegerAttr) else None


@dataclass(frozen=True)
class TritonTarget(Target):
    """A target that prints each kernel of a module as Triton source."""

    name = "triton"

    def passes(self, options: LoweringOptions) -> Passes:
        return pipelines.to_triton(options.tanh, options.f32_precision, options.reads)

    def print_kernel(self, kernel: tile.KernelOp) -> KernelSpec:
        return _emit(kernel)
