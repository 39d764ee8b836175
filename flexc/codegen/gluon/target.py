"""The `gluon` target, which prints modules with scheduled kernels as Gluon source."""

from __future__ import annotations

from dataclasses import dataclass
from io import StringIO

from xdsl.dialects import arith
from xdsl.ir import Operation

from flexc.codegen.gluon.printer import GluonPrinter
from flexc.codegen.kernel_spec import KernelSpec
from flexc.codegen.parameters import param_spec
from flexc.codegen.target import LoweringOptions, Target
from flexc.codegen.triton.target import (
    header,
    integer_attribute,
    support_names,
)
from flexc.dialects import tile
from flexc.dialects.tile import schedule
from flexc.dialects.tile.schedule.capacity import shared_bytes
from flexc.passes import pipelines
from flexc.passes.pipelines import Passes

SUPPORT = "flexc.codegen.gluon.support"
NAN_OPS = arith.MaximumfOp | arith.MinimumfOp
"""Ops that print with Triton's enumeration `PropagateNan`."""

HOPPER = "triton.experimental.gluon.language.nvidia.hopper"
HOPPER_NAMES = (
    "fence_async_shared", "mbarrier", "tma", "warpgroup_mma", "warpgroup_mma_wait"
)  # fmt: skip

SUPPORT_FUNCTIONS: dict[type[Operation], str] = {
    schedule.BarriersOp: "barriers",
    schedule.CopyInOp: "copy_in",
    schedule.CopyOutOp: "copy_out",
    schedule.SlotOp: "tile_of",
    tile.ReadDiagonalsOp: "read_diagonals",
}
"""Ops that print as calls of functions of the support module."""


def _emit(kernel: tile.KernelOp) -> KernelSpec:
    stream = StringIO()
    printer = GluonPrinter(stream=stream)
    roles = [op for op in kernel.walk() if isinstance(op, schedule.RoleOp)]
    for part in (*header(kernel, "Gluon"), *schedule_header(kernel, roles)):
        printer.comment(part)
    print_imports(printer, kernel)
    entry = printer.print_kernel(kernel)
    params = tuple(
        param_spec(printer.name(arg), arg.type, param)
        for arg, param in zip(kernel.body.block.args, kernel.params, strict=True)
    )
    warps = roles[0].warps.value.data if roles else None
    registers = integer_attribute(kernel, "max_registers")
    grid, source = str(kernel.grid), stream.getvalue()
    return KernelSpec(
        "gluon", entry, params, grid, source, warps, max_registers=registers
    )


def print_imports(printer: GluonPrinter, kernel: tile.KernelOp) -> None:
    functions = {
        SUPPORT_FUNCTIONS[type(op)]
        for op in kernel.walk()
        if type(op) in SUPPORT_FUNCTIONS
    }
    printer.line()
    printer.line("import triton.experimental.gluon.language as gl")
    if any(isinstance(op, NAN_OPS) for op in kernel.walk()):
        printer.line("import triton.language as tl")
    printer.line("from triton.experimental import gluon")
    printer.print_wrapped(f"from {HOPPER} import (", HOPPER_NAMES, ")")
    if names := sorted(functions | set(support_names(kernel))):
        printer.line()
        printer.print_wrapped(f"from {SUPPORT} import (", names, ")")
    printer.line()
    printer.line()


def schedule_header(kernel: tile.KernelOp, roles: list[schedule.RoleOp]) -> list[str]:
    """Return comment lines about the roles, the shared memory and the residents."""
    lines = [
        f"role {role.label.data}: {role.copies.value.data} x {role.warps.value.data} "
        f"warps, {role.registers.value.data} registers"
        for role in roles
    ]
    lines.append(f"shared memory: {shared_bytes(kernel)} bytes")
    if residents := integer_attribute(kernel, "residents"):
        lines.append(f"programs on a multiprocessor: {residents}")
    return lines


@dataclass(frozen=True)
class GluonTarget(Target):
    """A target that prints each kernel of a module as Gluon source."""

    name = "gluon"

    def passes(self, options: LoweringOptions) -> Passes:
        return pipelines.to_gluon(
            options.tanh, options.reads, options.overlap, options.shared_memory
        )

    def print_kernel(self, kernel: tile.KernelOp) -> KernelSpec:
        return _emit(kernel)
