"""Compilation of printed Triton kernels, for a GPU that may be absent.

A kernel's source is written to a file in the cache directory, named after its digest,
for profilers and people. Python and Triton hold the text itself and do not read the
file again.
"""

from __future__ import annotations

import json
import linecache
import logging
import os
import sys
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

from flexc.codegen.gluon.ptxas import SPILL_LIMIT
from flexc.codegen.kernel_spec import KernelSpec, ParamSpec
from flexc.errors import CompilationError
from flexc.runtime.inputs.options import is_interpreting
from flexc.runtime.process.cache import store
from flexc.runtime.process.recent import MOST, Recent

if TYPE_CHECKING:
    from flexc.runtime.kernels.build import Build


log = logging.getLogger("flexc")

WARP = 32

TRITON_TYPES = {
    "f64": "fp64",
    "f32": "fp32",
    "f16": "fp16",
    "f8E4M3FN": "fp8e4nv",
    "f8E5M2": "fp8e5",
}

DIVISIBLE = [["tt.divisibility", 16]]
"""Triton's attribute for an address that is a multiple of 16 bytes."""

_one_at_a_time = RLock()
"""The lock for running and reading sources.

Two threads must not register modules of the same name, and Python's parser counts its
recursion depth for all threads together, so parallel parsing exceeds the limit.
"""


def _reset_after_fork() -> None:
    """Replace the lock in a forked child.

    Threads of the parent do not exist in the child and never release the lock.
    """
    global _one_at_a_time
    _one_at_a_time = RLock()


os.register_at_fork(after_in_child=_reset_after_fork)


class LockedSource:
    """A mixin for Triton's sources that lets one thread at a time read a source."""

    def make_ir(self, *args: Any, **kwargs: Any) -> Any:
        with _one_at_a_time:
            source: Any = super()
            return source.make_ir(*args, **kwargs)

    def hash(self) -> str:
        with _one_at_a_time:
            source: Any = super()
            return source.hash()


class TritonSource(LockedSource, ASTSource):
    """The source of a Triton kernel."""


@lru_cache(MOST)
def load_jit_function(spec: KernelSpec) -> Any:
    """Return the `triton.JITFunction` of a printed kernel."""
    name, source = f"{spec.entry}-{spec.digest[:32]}.py", spec.source
    path = str(store(name, source.encode()))
    linecache.cache[path] = (len(source), None, source.splitlines(True), path)
    module = ModuleType(f"flexc_kernel_{spec.digest[:32]}")
    module.__file__ = path
    # Not imported: an import would run a bytecode file next to the source, if any.
    code = compile(source, path, "exec", dont_inherit=True)
    with _one_at_a_time:
        sys.modules[module.__name__] = module
        try:
            exec(code, vars(module))
        finally:
            del sys.modules[module.__name__]
    return getattr(module, spec.entry)


def build_launcher(source: Any, metadata: Any) -> None:
    """Make Triton build the launcher of a kernel, if a GPU is available.

    The build runs a C compiler, in parallel to other compilations. Triton finds the
    built launcher when Triton loads the kernel.
    """
    if torch.cuda.is_available():
        driver: Any = triton.runtime.driver.active
        driver.launcher_cls(source, metadata)


def missing_resources(kernel: Any, build: Build) -> list[str]:
    """Return the resources of which a program needs more than the GPU has."""
    needed, there = kernel.metadata.shared, build.shared_memory
    if needed <= there:
        return []
    return [f"needs {needed} bytes of shared memory, and {there} are there"]


class Entry(NamedTuple):
    """The place of a compiled kernel in Triton's cache.

    Without an entry, Triton reads the source and, once per process, all of its own
    files to find the kernel. That takes longer than loading the kernel.
    """

    key: str
    file: str
    """The name of the kernel's metadata file."""

    @classmethod
    def of(cls, kernel: Any) -> Entry:
        files = [name for name in kernel.metadata_group if name.endswith(".json")]
        return cls(kernel.hash, files[0])

    def load(self, source: Any) -> Any | None:
        """Return the kernel of a source, or None if Triton's cache lacks the kernel.

        The source only provides the types of parameters, and constants.
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
        except Exception as error:  # Triton compiles kernels that it cannot read.
            log.debug("Triton's cache cannot be read: %r", error)
            return None


class TritonCompiler:
    """A compiler of printed kernels.

    It keeps the kernels that it compiled for a check until they are loaded.
    """

    def __init__(self) -> None:
        self._checked: Recent[Any] = Recent()

    def find_problems(
        self, spec: KernelSpec, build: Build, most_spilled: int = SPILL_LIMIT
    ) -> list[str]:
        """Compile a kernel and return its problems on its GPU.

        The list is empty for AMD GPUs and for the interpreter: there Triton's launch
        reports problems.
        """
        if build.capability is None or torch.version.hip or is_interpreting():
            return []
        kernel, found = self.compile_logged(spec, build.capability, most_spilled)
        found += missing_resources(kernel, build)
        if not found:
            build_launcher(*self.launcher_inputs(kernel, spec))
            self._checked.add((spec.digest, build.capability), kernel)
        return found

    def take(
        self, spec: KernelSpec, capability: int, entry: Entry | None = None
    ) -> Any:
        """Return a compiled kernel of a spec that no other caller has.

        The caller loads the kernel to one device.
        """
        kernel = self._checked.take((spec.digest, capability))
        if kernel is None and entry is not None:
            kernel = entry.load(self.launcher_source(spec))
        return self.compile(spec, capability) if kernel is None else kernel

    def compile(self, spec: KernelSpec, capability: int) -> Any:
        """Return Triton's kernel, compiled or found in Triton's cache.

        The spec already has everything that Triton's launch would derive from
        arguments. Raise CompilationError if Triton refuses the kernel.
        """
        function = load_jit_function(spec)
        names = [p.name for p in spec.params]
        assert names == function.arg_names
        signature = dict(zip(names, map(self.type_of, spec.params), strict=True))
        source = self.source(function, signature, spec)
        target = GPUTarget("cuda", capability, WARP)
        try:
            return triton.compile(source, target=target, options=self.options(spec))
        except Exception as error:
            first = str(error).strip().partition("\n")[0]
            raise CompilationError(
                f"Triton refused an emitted kernel: {type(error).__name__}: {first}"
            ) from error

    def compile_logged(
        self, spec: KernelSpec, capability: int, most_spilled: int
    ) -> tuple[Any, list[str]]:
        """Compile a kernel; return it and the problems in the assembler's log.

        Spilled registers are a problem above `most_spilled` bytes.
        """
        return self.compile(spec, capability), []

    def source(self, function: Any, signature: dict[str, str], spec: KernelSpec) -> Any:
        """Return the source that Triton compiles, from types of parameters by name."""
        attributes = {
            (i,): DIVISIBLE
            for i, (param, known) in enumerate(
                zip(spec.params, function.params, strict=True)
            )
            if param.role != "scalar" and not known.do_not_specialize_on_alignment
        }
        return TritonSource(function, signature, {}, attributes)

    def options(self, spec: KernelSpec) -> dict[str, Any]:
        """Return Triton's options for a kernel."""
        warps = {"num_warps": spec.num_warps, "num_stages": spec.num_stages}
        return {**warps, **self.shared_options(spec)}

    def shared_options(self, spec: KernelSpec) -> dict[str, Any]:
        """Return the options that kernels of Triton and of Gluon share."""
        # Set explicitly, since Triton plans to change the default.
        found = {"enable_fp_fusion": True}
        # GPUs of other vendors have no such option.
        return found | {"launch_pdl": True} if spec.launches_early else found

    def type_of(self, param: ParamSpec) -> str:
        """Return the type of a parameter in Triton's notation."""
        name = TRITON_TYPES.get(param.dtype, param.dtype)
        return name if param.role == "scalar" else f"*{name}"

    def launched_types(self, param: ParamSpec) -> list[str]:
        """Return the types of the values that a launch passes for a parameter."""
        return [self.type_of(param)]

    def launcher_source(self, spec: KernelSpec) -> Any:
        """Return a source with only the attributes that a launcher needs."""
        types = [type_ for p in spec.params for type_ in self.launched_types(p)]
        signature = {str(i): type_ for i, type_ in enumerate(types)}
        return SimpleNamespace(fn=None, constants={}, signature=signature)

    def launcher_inputs(self, kernel: Any, spec: KernelSpec) -> tuple[Any, Any]:
        """Return the source and the metadata that the launcher of a kernel needs."""
        return self.launcher_source(spec), kernel.metadata


TRITON = TritonCompiler()
