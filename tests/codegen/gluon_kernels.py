"""Lowering calls to Gluon, and compiling what is emitted for Hopper without a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from flexc.codegen.kernel_spec import KernelSpec
from flexc.runtime.kernels import driver
from flexc.runtime.kernels.gluon_compiler import GLUON, assembler_log
from flexc.runtime.kernels.schedules import OVERLAP, Schedule
from tests.codegen.triton_kernels import Variant, call_of, sass_of

HOPPER = 90


@dataclass(frozen=True)
class Compiled:
    """A kernel of Triton's, and what ptxas said of it."""

    kernel: Any
    log: str

    def sass(self, path: Path) -> str:
        """The machine code, as text."""
        return sass_of(self.kernel, path)


@cache
def lower(variant: Variant, schedule: Schedule = OVERLAP) -> KernelSpec:
    """The emitted kernel of a variant."""
    module, build = call_of(variant)
    return driver.lower(module, build, schedule)


@cache
def compiled(variant: Variant, schedule: Schedule = OVERLAP) -> Compiled:
    """Down to the machine code."""
    return compile_spec(lower(variant, schedule))


def compile_spec(spec: KernelSpec) -> Compiled:
    """A printed kernel, compiled."""
    with assembler_log() as said:
        kernel = GLUON.compile(spec, HOPPER)
    return Compiled(kernel, "\n".join(said))
