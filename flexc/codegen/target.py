"""The base of targets that print: their passes before printing, and their printer."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import IO

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils import target

from flexc.codegen.kernel_spec import KernelSpec
from flexc.dialects import tile
from flexc.errors import OptionError
from flexc.passes.pipelines import F32Precision, Passes, Reads, Tanh
from flexc.passes.targets.target import HOPPER_SHARED_MEMORY, MachineName


@dataclass(frozen=True)
class LoweringOptions:
    """Options of the passes from `tile` to the IR that a target prints.

    Each target uses the options that apply to it.
    """

    tanh: Tanh = "exact"
    f32_precision: F32Precision = "ieee"
    reads: Reads = "coalesced"
    overlap: bool = True
    shared_memory: int = HOPPER_SHARED_MEMORY
    machine: MachineName = "avx2"


@dataclass(frozen=True)
class Target(target.Target):
    """A target that prints the kernels of a module.

    The base class in `flexc.passes.targets` has the properties that passes query.
    """

    @abstractmethod
    def passes(self, options: LoweringOptions) -> Passes:
        """Return the passes from `tile` to the IR that the target prints."""

    @abstractmethod
    def print_kernel(self, kernel: tile.KernelOp) -> KernelSpec:
        """Return the source of a kernel, and how to call it."""

    def print_kernels(self, module: ModuleOp) -> list[KernelSpec]:
        """Return every kernel of a module, printed."""
        kernels = (op for op in module.ops if isinstance(op, tile.KernelOp))
        return [self.print_kernel(op) for op in kernels]

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        specs = self.print_kernels(module)
        if not specs:
            raise OptionError(
                f"-t {self.name} expects a tile.kernel, got none; lower what is there "
                f"with -p flexc-to-{self.name}"
            )
        output.write(self.separator.join(spec.source for spec in specs))

    @property
    def separator(self) -> str:
        """The text between the sources of two kernels."""
        return ""
