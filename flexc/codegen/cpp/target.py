"""The `cpp` target: kernels legalized for C++ as C++ source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xdsl.passes import ModulePass

from flexc.codegen.cpp.printer import CppPrinter
from flexc.codegen.cpp.shared_templates import shared_templates
from flexc.codegen.target import Target
from flexc.dialects import tile
from flexc.passes import pipelines
from flexc.passes.targets.target import LoweringOptions


@dataclass(frozen=True)
class CppTarget(Target):
    """A target that prints each kernel of a module as a C++ source file."""

    name = "cpp"
    printer = CppPrinter

    def passes(self, options: LoweringOptions) -> tuple[ModulePass, ...]:
        return pipelines.to_cpp(options.machine)

    def launch_options(self, kernel: tile.KernelOp) -> dict[str, Any]:
        return {"shared": shared_templates(kernel)}

    @property
    def separator(self) -> str:
        return "\n"
