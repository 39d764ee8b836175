"""The runtime's part of targets: an object that prints, checks and loads kernels.

Printers, compilers and loaders are imported at first use. So a process whose launches
are stored on the disk imports no printer, and printing needs no compiler.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import torch

from flexc.codegen.kernel_spec import KernelSpec
from flexc.passes.targets.target import LoweringOptions
from flexc.runtime.inputs.options import is_interpreting
from flexc.runtime.tapes.gpus import HOPPER
from flexc.runtime.tapes.tape import Loaded

if TYPE_CHECKING:
    from flexc.codegen.target import SourceTarget
    from flexc.runtime.kernels.build import Build


class KernelTarget(ABC):
    """A target's kernels, from options of their passes to loaded kernels."""

    name: ClassVar[str]

    @property
    @abstractmethod
    def codegen(self) -> SourceTarget:
        """The passes before printing, and the printer."""

    @abstractmethod
    def load(self, spec: KernelSpec) -> Loaded:
        """Compile and load a kernel."""

    def options(self, build: Build) -> LoweringOptions:
        """Return the options of the passes before printing."""
        return LoweringOptions(machine=build.machine)

    def key(self, build: Build) -> tuple[object, ...]:
        """Return values other than the options that a kernel depends on."""
        return (build.program_rows,)

    def find_problems(
        self, spec: KernelSpec, build: Build, most_spilled: int
    ) -> list[str]:
        """Compile a kernel for a check; return why it is slow or cannot run."""
        return []


class GpuKernelTarget(KernelTarget):
    """A target whose kernels Triton compiles."""

    def options(self, build: Build) -> LoweringOptions:
        is_compiled = build.for_gpu and not is_interpreting()
        is_nvidia = is_compiled and not torch.version.hip
        # A fast tanh is precise enough for 16-bit inputs.
        is_narrow = build.call.dtype in (torch.bfloat16, torch.float16)
        fast_tanh = "nvidia" if is_nvidia else "exp2"
        return LoweringOptions(
            tanh=fast_tanh if is_compiled and is_narrow else "exact",
            f32_precision=build.f32_precision,
            reads="in_place" if is_nvidia else "coalesced",
            widens_bytes=is_nvidia,
            shared_memory=build.shared_memory,
            launches_early=is_nvidia and (build.capability or 0) >= HOPPER,
        )

    def key(self, build: Build) -> tuple[object, ...]:
        assembler = os.environ.get("TRITON_PTXAS_PATH")  # In place of Triton's own.
        facts = build.capability, build.derivative, build.roles
        return *super().key(build), *facts, assembler


class TritonKernelTarget(GpuKernelTarget):
    """Kernels whose warps run the same code."""

    name = "triton"

    @property
    def codegen(self) -> SourceTarget:
        from flexc.codegen.triton.target import TritonSourceTarget

        return TritonSourceTarget()

    def load(self, spec: KernelSpec) -> Loaded:
        from flexc.runtime.kernels.triton_loader import TritonKernel

        return TritonKernel(spec)

    def find_problems(
        self, spec: KernelSpec, build: Build, most_spilled: int
    ) -> list[str]:
        from flexc.runtime.kernels.triton_compiler import TRITON

        return TRITON.find_problems(spec, build, most_spilled)


class GluonKernelTarget(GpuKernelTarget):
    """Kernels whose warps have roles."""

    name = "gluon"

    @property
    def codegen(self) -> SourceTarget:
        from flexc.codegen.gluon.target import GluonSourceTarget

        return GluonSourceTarget()

    def load(self, spec: KernelSpec) -> Loaded:
        from flexc.runtime.kernels.gluon_loader import GluonKernel

        return GluonKernel(spec)

    def find_problems(
        self, spec: KernelSpec, build: Build, most_spilled: int
    ) -> list[str]:
        from flexc.runtime.kernels.gluon_compiler import GLUON

        return GLUON.find_problems(spec, build, most_spilled)


class CppKernelTarget(KernelTarget):
    """Kernels of the host."""

    name = "cpp"

    @property
    def codegen(self) -> SourceTarget:
        from flexc.codegen.cpp.target import CppSourceTarget

        return CppSourceTarget()

    def load(self, spec: KernelSpec) -> Loaded:
        from flexc.runtime.kernels.cpp_loader import load_cpp

        return load_cpp(spec)


TARGETS: dict[str, KernelTarget] = {
    target.name: target
    for target in (TritonKernelTarget(), GluonKernelTarget(), CppKernelTarget())
}
