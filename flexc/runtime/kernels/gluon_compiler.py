"""Compilation of printed Gluon kernels, for a GPU that may be absent."""

from __future__ import annotations

import builtins
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any, NamedTuple, cast

from triton import knobs
from triton.backends import backends
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from flexc.codegen.gluon.ptxas import arrive_by_warps, problems
from flexc.codegen.kernel_spec import KernelSpec, ParamSpec
from flexc.runtime.kernels.triton_compiler import (
    TRITON_TYPES,
    LockedSource,
    TritonCompiler,
)


class Knob(NamedTuple):
    """A setting of Triton, with the value that it has while kernels are compiled."""

    owner: Any
    name: str
    value: Any
    variable: str | None = None
    """The environment variable that also sets it."""


class SharedKnobs:
    """Settings for the compilations of some threads, which all threads see.

    The first user sets them, the last one restores them.
    """

    def __init__(self, *knobs: Knob):
        self.knobs = knobs
        self.users = 0
        self.saved: list[Any] = []
        """The former settings: if they were set, their values, and their variables."""

    @contextmanager
    def __call__(self) -> Iterator[None]:
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def enter(self) -> None:
        with _lock:
            self.users += 1
            if self.users > 1:
                return
            for owner, name, value, variable in self.knobs:
                known = name in vars(owner), getattr(owner, name, None)
                self.saved.append((*known, variable and os.environ.get(variable)))
                setattr(owner, name, value)

    def leave(self) -> None:
        with _lock:
            self.users -= 1
            if self.users:
                return
            for knob, (was_set, value, text) in zip(
                self.knobs, self.saved, strict=True
            ):
                if was_set:
                    setattr(knob.owner, knob.name, value)
                else:
                    delattr(knob.owner, knob.name)
                if knob.variable and text is None:
                    os.environ.pop(knob.variable, None)
                elif knob.variable:
                    os.environ[knob.variable] = text
            self.saved.clear()

    def before(self, number: int) -> Any:
        """Return the former value of a setting, None outside of compilations."""
        saved = list(self.saved)  # A copy, since another thread may clear the list.
        return saved[number][1] if saved else None


_lock = threading.Lock()
_thread = threading.local()


def _reset_after_fork() -> None:
    """Reset the lock and the knobs in a forked child.

    Threads of the parent do not exist in the child and never release the lock.
    """
    global _lock
    _lock = threading.Lock()
    for knobs_ in (LOGGED, EDITED):
        if knobs_.users:
            knobs_.users = 1
            knobs_.leave()


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
    with LOGGED():
        _thread.log = parts
        try:
            yield parts
        finally:
            _thread.log = None


def _print(*args: Any, **kwargs: Any) -> None:
    parts = getattr(_thread, "log", None)
    if parts is not None:
        parts.append(" ".join(map(str, args)))
    if LOGGED.before(0):  # The user set the knob.
        builtins.print(*args, **kwargs)


@contextmanager
def edited_ptx() -> Iterator[None]:
    """Edit the PTX of kernels that the current thread compiles."""
    with EDITED():
        _thread.edits = True
        try:
            yield
        finally:
            _thread.edits = False


EDITS = "flexc: arrivals of warps, 1"
"""The edits of PTX and their version, for Triton's key of a kernel."""


def _change_stages(*args: Any) -> Any:
    """Add the edit to the stages of a compilation, after the user's own hook."""
    users, edits = EDITED.before(0), getattr(_thread, "edits", False)
    if not args:  # Triton from 3.7 on asks for a key, and its digest.
        key, digest = ("", "") if users is None else users()
        return (key + EDITS, digest + EDITS) if edits else (key, digest)
    found = None if users is None else users(*args)
    if edits:
        stages = args[1]
        print_ptx = stages["ptx"]
        stages["ptx"] = lambda *inputs: arrive_by_warps(print_ptx(*inputs))
    return found


LOGGED = SharedKnobs(
    Knob(knobs.nvidia, "dump_ptxas_log", True, "TRITON_DUMP_PTXAS_LOG"),
    # A kernel from Triton's cache has no log.
    Knob(knobs.compilation, "always_compile", True, "TRITON_ALWAYS_COMPILE"),
    Knob(sys.modules[backends["nvidia"].compiler.__module__], "print", _print),
)
EDITED = SharedKnobs(Knob(knobs.runtime, "add_stages_inspection_hook", _change_stages))


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

    def compile(self, spec: KernelSpec, capability: int) -> Any:
        with edited_ptx():
            return super().compile(spec, capability)

    def source(self, function: Any, signature: dict[str, str], spec: KernelSpec) -> Any:
        return GluonSource(function, signature)

    def options(self, spec: KernelSpec) -> dict[str, Any]:
        found = {"num_warps": spec.num_warps, **self.shared_options(spec)}
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
