"""Compilation of printed Gluon kernels, for a GPU that may be absent."""

from __future__ import annotations

import builtins
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import triton
from triton import knobs
from triton.backends import backends
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from flexc.codegen.gluon.compiled_check import problems
from flexc.codegen.kernel_spec import KernelSpec, ParamSpec
from flexc.runtime.kernels import triton_compiler
from flexc.runtime.kernels.triton_compiler import (
    TRITON_TYPES,
    WARP,
    Entry,
    OneAtATime,
    bare_source,
    build_launcher,
    load_jit_function,
    missing_resources,
    refusal,
)
from flexc.runtime.process.recent import Recent

if TYPE_CHECKING:
    from flexc.runtime.kernels.build import Build


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
_before: list[Any] = []


def _renew() -> None:
    """Reset the lock and the knobs in a forked child.

    Threads of the parent do not exist in the child and never release the lock.
    """
    global _lock, _collectors
    _lock = threading.Lock()
    if _collectors:
        _collectors = 1
        _leave()


os.register_at_fork(after_in_child=_renew)


@contextmanager
def assembler_log() -> Iterator[list[str]]:
    """Compile without Triton's cache; yield the list that gets the log of ptxas.

    The list gets the log of kernels that the current thread compiles. Triton prints the
    log to stdout for all threads if a knob is set. This context sets the knob and
    replaces `print` in Triton's compiler module. The replacement fills the list, and
    prints the log only if the user set the knob.
    """
    parts: list[str] = []
    _enter()
    _collecting.parts = parts
    try:
        yield parts
    finally:
        _collecting.parts = None
        _leave()


def _enter() -> None:
    global _collectors
    with _lock:
        _collectors += 1
        if _collectors > 1:
            return
        for knob in (LOG, ALWAYS):
            _before.append((knob, knob.name in vars(knob.group), _value(knob)))
            _before[-1] += (os.environ.get(knob.variable),)
            setattr(knob.group, knob.name, True)
        _compiler().print = _print


def _leave() -> None:
    global _collectors
    with _lock:
        _collectors -= 1
        if _collectors:
            return
        del _compiler().print
        for knob, was_set, value, variable in _before:
            if was_set:
                setattr(knob.group, knob.name, value)
            else:
                delattr(knob.group, knob.name)
            if variable is None:
                os.environ.pop(knob.variable, None)
            else:
                os.environ[knob.variable] = variable
        _before.clear()


def _value(knob: Knob) -> bool:
    return getattr(knob.group, knob.name)


def _compiler() -> Any:
    """Return Triton's module that runs ptxas."""
    return sys.modules[backends["nvidia"].compiler.__module__]


def _print(*args: Any, **kwargs: Any) -> None:
    parts = getattr(_collecting, "parts", None)
    if parts is not None:
        parts.append(" ".join(map(str, args)))
    before = list(_before)  # A copy, since another thread may clear the list.
    if before and before[0][2]:  # The user set the knob.
        builtins.print(*args, **kwargs)


ELEMENTS = {"bf16": gl.bfloat16, "f16": gl.float16}
"""The Gluon types of tensors that are copied tile by tile."""

_checked: Recent[Any] = Recent()
"""Kernels that were compiled for a check and are not yet loaded."""


class GluonSource(OneAtATime, GluonASTSource):
    """The source of a Gluon kernel."""


def find_problems(spec: KernelSpec, build: Build) -> list[str]:
    """Compile the kernel of a spec and return its problems.

    Keep a kernel without problems for `take_kernel`.
    """
    assert build.capability is not None
    with assembler_log() as said:
        kernel = compile_kernel(spec, build.capability)
    found = problems("\n".join(said)) + missing_resources(kernel, build)
    if not found:
        build_launcher(*expanded_facts(kernel, spec))
        _checked.add((spec.digest, build.capability), kernel)
    return found


def take_kernel(spec: KernelSpec, capability: int, entry: Entry | None = None) -> Any:
    """Return a compiled kernel of a spec that no other caller has.

    The caller loads the kernel to one device.
    """
    kernel = _checked.take((spec.digest, capability))
    if kernel is None and entry is not None:
        kernel = entry.load(bare_source(spec, signature_type))
    return compile_kernel(spec, capability) if kernel is None else kernel


def compile_kernel(spec: KernelSpec, capability: int) -> Any:
    """Return Triton's kernel, compiled or found in Triton's cache.

    Raise CompilationError if Triton refuses the kernel.
    """
    function = load_jit_function(spec)
    names = [p.name for p in spec.params]
    assert names == function.arg_names
    signature = dict(zip(names, map(signature_type, spec.params), strict=True))
    target = GPUTarget("cuda", capability, WARP)
    source = GluonSource(function, signature)
    try:
        return triton.compile(source, target=target, options=options(spec))
    except Exception as error:
        raise refusal(error) from error


def options(spec: KernelSpec) -> Mapping[str, Any]:
    found = {"num_warps": spec.num_warps, "enable_fp_fusion": True}
    if spec.max_registers is not None:
        found["maxnreg"] = spec.max_registers
    return found


def signature_type(param: ParamSpec) -> str:
    """Return the type of a parameter in Triton's notation."""
    if param.kind != "descriptor":
        return triton_compiler.signature_type(param)
    name = TRITON_TYPES.get(param.dtype, param.dtype)
    box, layouts = list(param.box), cast(Any, gl.NVMMASharedLayout)
    layout = layouts.get_default_for(box, ELEMENTS[param.dtype])
    return f"tensordesc<{name}{box},{layout!r}>"


def expanded(kernel: Any, spec: KernelSpec) -> Any:
    """Change a kernel to take tensor maps, sizes and strides in place of descriptors.

    The caller can then pass the same tensor map to many launches. Triton's own launcher
    makes the maps at each launch. Triton builds the launcher at the kernel's first
    load, so the kernel must not be loaded yet.
    """
    kernel.src, kernel.metadata = expanded_facts(kernel, spec)
    return kernel


def expanded_facts(kernel: Any, spec: KernelSpec) -> tuple[Any, Any]:
    """Return the source and metadata that the launcher of an expanded kernel needs."""
    types: list[str] = []
    for param, type_ in zip(spec.params, kernel.src.signature.values(), strict=True):
        rank = len(param.box)
        of_map = ["nvTmaDesc", *["i32"] * rank, *["i64"] * rank]
        types += of_map if param.kind == "descriptor" else [type_]
    signature = {str(i): t for i, t in enumerate(types)}
    source = SimpleNamespace(fn=kernel.src.fn, constants={}, signature=signature)
    return source, kernel.metadata._replace(tensordesc_meta=[])
