"""Compilation of printed Gluon kernels, for a GPU that may be absent."""

from __future__ import annotations

import builtins
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, cast

from triton import knobs
from triton.backends import backends
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from flexc.codegen.gluon.compiled_check import problems
from flexc.codegen.kernel_spec import KernelSpec, ParamSpec
from flexc.runtime.kernels.triton_compiler import (
    TRITON_TYPES,
    LockedSource,
    TritonCompiler,
)


@dataclass(frozen=True)
class Knob:
    """A setting of Triton that an environment variable can also set."""

    group: Any
    name: str
    variable: str


LOG = Knob(knobs.nvidia, "dump_ptxas_log", "TRITON_DUMP_PTXAS_LOG")
ALWAYS = Knob(knobs.compilation, "always_compile", "TRITON_ALWAYS_COMPILE")
"""The knob that disables Triton's cache; a kernel from the cache has no log."""

_lock = threading.Lock()
_collecting = threading.local()
_collectors = 0
_saved_knobs: list[Any] = []


def _reset_after_fork() -> None:
    """Reset the lock and the knobs in a forked child.

    Threads of the parent do not exist in the child and never release the lock.
    """
    global _lock, _collectors
    _lock = threading.Lock()
    if _collectors:
        _collectors = 1
        _restore_knobs()


os.register_at_fork(after_in_child=_reset_after_fork)


@contextmanager
def assembler_log() -> Iterator[list[str]]:
    """Make Triton compile without its cache; yield the list that gets the log of ptxas.

    The list gets the log of kernels that the current thread compiles. Triton prints the
    log to stdout for all threads if a knob is set. This context sets the knob and
    replaces `print` in Triton's compiler module. The replacement fills the list, and
    prints the log only if the user set the knob.
    """
    parts: list[str] = []
    _set_knobs()
    _collecting.parts = parts
    try:
        yield parts
    finally:
        _collecting.parts = None
        _restore_knobs()


def _set_knobs() -> None:
    """Set the knobs, for the first user of the log."""
    global _collectors
    with _lock:
        _collectors += 1
        if _collectors > 1:
            return
        for knob in (LOG, ALWAYS):
            _saved_knobs.append((knob, knob.name in vars(knob.group), _value(knob)))
            _saved_knobs[-1] += (os.environ.get(knob.variable),)
            setattr(knob.group, knob.name, True)
        _compiler().print = _print


def _restore_knobs() -> None:
    """Restore the knobs, after the last user of the log."""
    global _collectors
    with _lock:
        _collectors -= 1
        if _collectors:
            return
        del _compiler().print
        for knob, was_set, value, variable in _saved_knobs:
            if was_set:
                setattr(knob.group, knob.name, value)
            else:
                delattr(knob.group, knob.name)
            if variable is None:
                os.environ.pop(knob.variable, None)
            else:
                os.environ[knob.variable] = variable
        _saved_knobs.clear()


def _value(knob: Knob) -> bool:
    return getattr(knob.group, knob.name)


def _compiler() -> Any:
    """Return Triton's module that runs ptxas."""
    return sys.modules[backends["nvidia"].compiler.__module__]


def _print(*args: Any, **kwargs: Any) -> None:
    parts = getattr(_collecting, "parts", None)
    if parts is not None:
        parts.append(" ".join(map(str, args)))
    before = list(_saved_knobs)  # A copy, since another thread may clear the list.
    if before and before[0][2]:  # The user set the knob.
        builtins.print(*args, **kwargs)


ELEMENTS = {"bf16": gl.bfloat16, "f16": gl.float16, "f32": gl.float32}
"""The Gluon types of tensors that are copied tile by tile."""


class GluonSource(LockedSource, GluonASTSource):
    """The source of a Gluon kernel."""


class GluonCompiler(TritonCompiler):
    """A compiler of printed Gluon kernels.

    Launches pass a tensor map, sizes and strides in place of a descriptor, so that many
    launches can share the map. Triton's own launcher makes the maps at each launch.
    """

    def compile_logged(
        self, spec: KernelSpec, capability: int, most_spilled: int
    ) -> tuple[Any, list[str]]:
        with assembler_log() as said:
            kernel = self.compile(spec, capability)
        return kernel, problems("\n".join(said), most_spilled)

    def source(self, function: Any, signature: dict[str, str], spec: KernelSpec) -> Any:
        return GluonSource(function, signature)

    def options(self, spec: KernelSpec) -> dict[str, Any]:
        found = {"num_warps": spec.num_warps, "enable_fp_fusion": True}
        if spec.max_registers is not None:
            found["maxnreg"] = spec.max_registers
        return found

    def type_of(self, param: ParamSpec) -> str:
        if param.kind != "descriptor":
            return super().type_of(param)
        name = TRITON_TYPES.get(param.dtype, param.dtype)
        box, layouts = list(param.box), cast(Any, gl.NVMMASharedLayout)
        element = ELEMENTS[param.dtype]
        layout = layouts.get_default_for(box, element)
        if prod(box[:-1]) == 1:  # A vector, which is not swizzled.
            layout = layouts(0, element.primitive_bitwidth, rank=len(box))
        return f"tensordesc<{name}{box},{layout!r}>"

    def launched_types(self, param: ParamSpec) -> list[str]:
        if param.kind != "descriptor":
            return super().launched_types(param)
        rank = len(param.box)
        return ["nvTmaDesc", *["i32"] * rank, *["i64"] * rank]

    def launcher_inputs(self, kernel: Any, spec: KernelSpec) -> tuple[Any, Any]:
        metadata = kernel.metadata._replace(tensordesc_meta=[])
        return self.launcher_source(spec), metadata

    def expand(self, kernel: Any, spec: KernelSpec) -> Any:
        """Change a kernel to take tensor maps, sizes and strides for descriptors.

        Triton builds the launcher at the kernel's first load, so the kernel must not be
        loaded yet.
        """
        kernel.src, kernel.metadata = self.launcher_inputs(kernel, spec)
        return kernel


GLUON = GluonCompiler()
