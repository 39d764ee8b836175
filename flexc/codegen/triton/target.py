"""The `triton` target: a module with one kernel to Triton source."""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatchmethod
from io import StringIO
from math import prod
from typing import IO, ClassVar

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import FixedBitwidthType, IntegerAttr, ModuleOp, StringAttr
from xdsl.ir import Operation
from xdsl.utils.target import Target

from flexc.codegen.kernel_spec import KernelSpec
from flexc.codegen.parameters import param_spec
from flexc.codegen.requirements import require_kernels
from flexc.codegen.triton.scalar_rules import TRITON, Language, in_place_function
from flexc.codegen.triton.tile_printer import TilePrinter
from flexc.dialects import tile
from flexc.passes.refusal import refuse

# Prints a kernel in Triton: one statement for each op.


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


SUPPORT = "flexc.codegen.triton.support"

SUPPORT_FUNCTIONS: dict[type[Operation], str] = {
    tile.TanhApproxOp: "tanh_approx",
    tile.DiagonalsOp: "diagonals",
    tile.ScatterAddOp: "add_to",
}
"""Ops that print as calls of functions of the support module."""


def emit_triton(module: ModuleOp) -> list[KernelSpec]:
    """Print every kernel of a module."""
    return [_emit(op) for op in module.ops if isinstance(op, tile.KernelOp)]


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
"""Narrower elements cannot be copied to shared memory while a program goes on."""


def copied_ahead(kernel: tile.KernelOp) -> int:
    """Return the bytes that a kernel's reads take in shared memory.

    Triton copies what a loop reads for each pair as many steps ahead as there are
    stages but one. It cannot where an address depends on another read: such reads are
    in place.
    """
    stages = integer_attribute(kernel, "num_stages") or 1
    loops = [op for op in kernel.walk() if isinstance(op, scf.ForOp)]
    return (stages - 1) * max(map(_bytes_read, loops), default=0)


def _bytes_read(loop: scf.ForOp) -> int:
    """Return the bytes of a tile of each read of a loop's maps over pairs."""
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
    """The functions of the support module that a kernel calls."""
    names: set[str] = set()
    for op in kernel.walk():
        if type(op) in SUPPORT_FUNCTIONS:
            names.add(SUPPORT_FUNCTIONS[type(op)])
        elif isinstance(op, tile.ReadOp) and "in_place" in op.attributes:
            names.add(in_place_function(op))
    return sorted(names)


def header(kernel: tile.KernelOp, language: str) -> list[str]:
    """What the source says of itself first."""
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
    """The number that a kernel's attribute says, if it is there."""
    attr = kernel.attributes.get(name)
    return attr.value.data if isinstance(attr, IntegerAttr) else None


@dataclass(frozen=True)
class TritonTarget(Target):
    """Triton source of every kernel in a module."""

    name = "triton"

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        require_kernels(module, self.name)
        for spec in emit_triton(module):
            output.write(spec.source)
