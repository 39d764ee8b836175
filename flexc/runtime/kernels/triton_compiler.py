"""From Triton source to compiled kernels, for a GPU that need not be there.

A kernel's source goes to a file, named after its digest, in the cache directory:
profilers and people look there. Python and Triton have the text itself, whatever
becomes of the file.
"""

from __future__ import annotations

import json
import linecache
import logging
import os
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from threading import RLock
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel
from triton.runtime.cache import get_cache_manager

from flexc.codegen.kernel_spec import KernelSpec, ParamSpec
from flexc.errors import CompilationError
from flexc.runtime.inputs.options import is_interpreting
from flexc.runtime.process.cache import store
from flexc.runtime.process.recent import MOST, Recent

if TYPE_CHECKING:
    from flexc.runtime.kernels.build import Build


log = logging.getLogger("flexc")

WARP = 32

TRITON_TYPES = {"f64": "fp64", "f32": "fp32", "f16": "fp16"}

DIVISIBLE = [["tt.divisibility", 16]]
"""How Triton is told that an address is a multiple of 16 bytes."""

_checked: Recent[Any] = Recent()
"""Kernels that were compiled to be checked, until they are loaded."""


_one_at_a_time = RLock()
"""Held while a source is run, as modules have names in the process, and read: Python's
parser counts its depth for all threads together, which Triton runs into."""


def _renew() -> None:
    """In a child nobody lets go of what its parent's threads held."""
    global _one_at_a_time
    _one_at_a_time = RLock()


os.register_at_fork(after_in_child=_renew)


class OneAtATime:
    """A source of Triton's that one thread reads at a time."""

    def make_ir(self, *args: Any, **kwargs: Any) -> Any:
        with _one_at_a_time:
            source: Any = super()
            return source.make_ir(*args, **kwargs)

    def hash(self) -> str:
        with _one_at_a_time:
            source: Any = super()
            return source.hash()


class TritonSource(OneAtATime, ASTSource):
    """The source of a Triton kernel."""


@lru_cache(MOST)
def load_jit_function(spec: KernelSpec) -> Any:
    """The `triton.JITFunction` of a printed kernel."""
    name, source = f"{spec.entry}-{spec.digest[:32]}.py", spec.source
    path = str(store(name, source.encode()))
    linecache.cache[path] = (len(source), None, source.splitlines(True), path)
    module = ModuleType(f"flexc_kernel_{spec.digest[:32]}")
    module.__file__ = path
    # Not imported: Python would look for bytecode beside the file, and run that.
    code = compile(source, path, "exec", dont_inherit=True)
    with _one_at_a_time:
        sys.modules[module.__name__] = module
        try:
            exec(code, vars(module))
        finally:
            del sys.modules[module.__name__]
    return getattr(module, spec.entry)


def options(spec: KernelSpec) -> dict[str, Any]:
    return {
        "num_warps": spec.num_warps,
        "num_stages": spec.num_stages,
        # Triton's default is about to change.
        "enable_fp_fusion": True,
    }


def find_problems(spec: KernelSpec, build: Build) -> list[str]:
    """Why a program of a kernel cannot run on the GPU that it is made for.

    Of other makers' GPUs and of the interpreter, Triton's launch finds that out.
    """
    if build.capability is None or torch.version.hip or is_interpreting():
        return []
    kernel = compile_kernel(spec, build.capability)
    found = excess(kernel, build)
    if not found:
        build_launcher(kernel.src, kernel.metadata)
        _checked.add((spec.digest, build.capability), kernel)
    return found


def build_launcher(source: Any, metadata: Any) -> None:
    """Have Triton build what launches a kernel, if it does so for each signature.

    It runs a C compiler, here beside others, and finds what it built when it loads the
    kernel.
    """
    if torch.cuda.is_available():
        driver: Any = triton.runtime.driver.active
        driver.launcher_cls(source, metadata)


def excess(kernel: Any, build: Build) -> list[str]:
    """What a program of a kernel needs more of than there is."""
    needed, there = kernel.metadata.shared, build.shared_memory
    if needed <= there:
        return []
    return [f"needs {needed} bytes of shared memory, and {there} are there"]


class Entry(NamedTuple):
    """Where Triton's cache has a compiled kernel.

    To find that out Triton reads the source and, once, all of its own files: that takes
    longer than to load the kernel.
    """

    key: str
    file: str
    """The kernel's metadata."""

    @classmethod
    def of(cls, kernel: Any) -> Entry:
        files = [name for name in kernel.metadata_group if name.endswith(".json")]
        return cls(kernel.hash, files[0])

    def load(self, source: Any) -> Any | None:
        """Return the kernel of a source, None if Triton does not have it any more.

        Of the source the types of parameters are asked for, and constants.
        """
        knob = knobs.compilation
        hook = getattr(knobs.runtime, "add_stages_inspection_hook", None)
        if knob.always_compile or knob.override or hook is not None:
            return None
        try:
            files = get_cache_manager(self.key).get_group(self.file)
            if not files or "target" not in json.loads(
                Path(files[self.file]).read_text()
            ):
                return None
            return CompiledKernel(source, files, self.key)
        except Exception as error:  # Triton compiles what it cannot read.
            log.debug("Triton's cache cannot be read: %r", error)
            return None


def take_kernel(spec: KernelSpec, capability: int, entry: Entry | None = None) -> Any:
    """The compiled kernel of a spec, nobody else's: it is loaded to one device."""
    kernel = _checked.take((spec.digest, capability))
    if kernel is None and entry is not None:
        kernel = entry.load(bare_source(spec, signature_type))
    return compile_kernel(spec, capability) if kernel is None else kernel


def bare_source(spec: KernelSpec, type_of: Callable[[ParamSpec], str]) -> Any:
    """Return what a launcher asks of a kernel's source."""
    signature = {param.name: type_of(param) for param in spec.params}
    return SimpleNamespace(fn=None, constants={}, signature=signature)


def compile_kernel(spec: KernelSpec, capability: int) -> Any:
    """Triton's kernel, compiled or found in Triton's cache.

    All that Triton's own launch would find out of arguments is known beforehand.
    """
    function = load_jit_function(spec)
    names = [p.name for p in spec.params]
    assert names == function.arg_names
    signature = dict(zip(names, map(signature_type, spec.params), strict=True))
    attributes = {
        (i,): DIVISIBLE
        for i, (param, known) in enumerate(
            zip(spec.params, function.params, strict=True)
        )
        if param.role != "scalar" and not known.do_not_specialize_on_alignment
    }
    source = TritonSource(function, signature, {}, attributes)
    target = GPUTarget("cuda", capability, WARP)
    try:
        return triton.compile(source, target=target, options=options(spec))
    except Exception as error:
        raise refusal(error) from error


def refusal(error: Exception) -> CompilationError:
    first = str(error).strip().partition("\n")[0]
    return CompilationError(
        f"Triton refused an emitted kernel: {type(error).__name__}: {first}"
    )


def signature_type(param: ParamSpec) -> str:
    """A parameter's type, as Triton spells it."""
    name = TRITON_TYPES.get(param.dtype, param.dtype)
    return name if param.role == "scalar" else f"*{name}"
