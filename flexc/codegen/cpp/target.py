"""The `cpp` target: kernels legalized for C++ as C++ source."""

from __future__ import annotations

from dataclasses import dataclass

from flexc.codegen.cpp.printer import print_kernel
from flexc.codegen.kernel_spec import KernelSpec
from flexc.codegen.target import LoweringOptions, Target
from flexc.dialects import tile
from flexc.passes import pipelines
from flexc.passes.pipelines import Passes


@dataclass(frozen=True)
class CppTarget(Target):
    """A target that prints each kernel of a module as a C++ source file."""

    name = "cpp"

    def passes(self, options: LoweringOptions) -> Passes:
        return pipelines.to_cpp(options.machine)

    def print_kernel(self, kernel: tile.KernelOp) -> KernelSpec:
        return print_kernel(kernel)

    @property
    def separator(self) -> str:
        return "\n"
