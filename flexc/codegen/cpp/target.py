"""The `cpp` target: kernels legalized for C++ as C++ source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.target import Target

from flexc.codegen.cpp.printer import print_kernel
from flexc.codegen.kernel_spec import KernelSpec
from flexc.codegen.requirements import require_kernels
from flexc.dialects import tile


def emit_cpp(module: ModuleOp) -> list[KernelSpec]:
    """The kernels of a module, printed."""
    return [print_kernel(op) for op in module.ops if isinstance(op, tile.KernelOp)]


@dataclass(frozen=True)
class CppTarget(Target):
    """Prints each kernel of a module as a C++ source file."""

    name = "cpp"

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        require_kernels(module, self.name)
        output.write("\n".join(spec.source for spec in emit_cpp(module)))
