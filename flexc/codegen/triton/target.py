"""The `triton` target: a module with one kernel to Triton source."""

from __future__ import annotations

from dataclasses import dataclass
from io import StringIO
from typing import IO

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr
from xdsl.ir import Operation
from xdsl.utils.target import Target

from flexc.codegen.kernel_spec import KernelSpec, ParamSpec
from flexc.codegen.requirements import require_kernels
from flexc.codegen.triton.printer import TritonPrinter
from flexc.codegen.triton.scalar_rules import in_place_function
from flexc.dialects import tile

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
        ParamSpec.of(printer.name(arg), arg.type, param)
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
    )


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
