"""From C++ source to a function: a compiler, a cache, ctypes.

A shared object is named after all that it depends on: its source, the support
headers, the compiler and its flags, and the machine's instruction set. It is loaded
only if the cache knows it for what it compiled; else it is compiled again.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import struct
import sys
import weakref
from _ctypes import dlclose
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

# Loaded first, so that kernels share torch's OpenMP threads.
import torch

from flexc.codegen.kernel_spec import KernelSpec, ParamSpec
from flexc.errors import CompilationError, OptionError
from flexc.runtime.cache import cache_dir, load, store, workspace
from flexc.runtime.cpp_compiler import (
    INCLUDE_DIR,
    KERNEL_LEVEL,
    SHARED_LEVEL,
    Compiler,
    Level,
    find_compiler,
    flags,
    libraries_of,
    processor,
)
from flexc.runtime.prepared import Address, Prepared
from flexc.runtime.progress import compiling, described
from flexc.runtime.recent import turn

CTYPES: dict[str, Any] = {
    "i1": ctypes.c_bool,
    "i8": ctypes.c_int8,
    "i16": ctypes.c_int16,
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "f32": ctypes.c_float,
    "f64": ctypes.c_double,
}


@cache
def support_headers() -> str:
    return "".join(path.read_text() for path in sorted(INCLUDE_DIR.glob("*.h")))


def file_name(label: str, source: str, compiler: Compiler) -> str:
    """Return the name of what is compiled from a source, without a suffix."""
    parts = (
        source,
        *KERNEL_LEVEL,
        *SHARED_LEVEL,
        support_headers(),
        processor(),
        *compiler.command,
        compiler.version,
        *flags(),
        *libraries_of(compiler),
    )
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return f"{label}-{digest[:32]}"


def build(spec: KernelSpec) -> Path:
    """Return the shared object of a kernel, compiled unless it is in the cache."""
    compiler = find_compiler()
    name = f"{file_name(spec.entry, spec.source, compiler)}.so"
    if load(name) is not None:
        return cache_dir() / name
    with compiling(lambda: described(spec.source)), ThreadPoolExecutor(1) as beside:
        shared = beside.submit(shared_objects, spec, compiler)
        objects = [compiled(spec.source, compiler), *shared.result()]
        return store(name, linked(objects, compiler))


def shared_objects(spec: KernelSpec, compiler: Compiler) -> list[bytes]:
    """Return the object that defines what a kernel shares with others, if it does.

    Threads that ask for one at the same time wait for the first of them.
    """
    if not spec.shared:
        return []
    source = shared_source(spec)
    name = f"{file_name('shared', source, compiler)}.o"
    with turn(name):
        data = load(name)
        if data is None:
            data = compiled(source, compiler, SHARED_LEVEL)
            store(name, data)
    return [data]


def shared_source(spec: KernelSpec) -> str:
    """Return a source that defines the templates that a kernel declares."""
    head = [line for line in spec.source.splitlines() if line.startswith("#define ")]
    defined = [f"template struct flexc::{template};" for template in spec.shared]
    include, using = '#include "flexc_support.h"', "using namespace flexc;"
    return "\n".join([*head, include, using, *defined, ""])


def compiled(source: str, compiler: Compiler, level: Level = KERNEL_LEVEL) -> bytes:
    """Return the object of a source."""
    with workspace() as directory:
        path, output = directory / "source.cpp", directory / "object.o"
        path.write_text(source)
        return written(compiler, path, output=output, level=level)


def linked(objects: Sequence[bytes], compiler: Compiler) -> bytes:
    """Return the shared object of some objects."""
    with workspace() as directory:
        paths = [directory / f"{i}.o" for i in range(len(objects))]
        for path, data in zip(paths, objects, strict=True):
            path.write_bytes(data)
        return written(compiler, *paths, output=directory / "kernel.so")


def written(
    compiler: Compiler, *inputs: Path, output: Path, level: Level = KERNEL_LEVEL
) -> bytes:
    """Return what a compiler writes, if that is an object."""
    compiler.build(*inputs, output=output, level=level)
    data = output.read_bytes() if output.is_file() else b""
    if not is_whole(data):
        raise CompilationError(
            f"the C++ compiler {shlex.join(compiler.command)} wrote no object, "
            "or half of one, and did not say why; set CXX to another"
        )
    return data


ELF = b"\x7fELF\x02\x01"
"""How an object of 64 bits begins on Linux, its lowest bytes first."""


def is_whole(data: bytes) -> bool:
    """Whether an object ends where it says: the loader does not ask before it reads."""
    if not data.startswith(ELF):
        return bool(data) and not sys.platform.startswith("linux")
    try:
        (start,) = struct.unpack_from("<Q", data, 0x28)
        size, count = struct.unpack_from("<HH", data, 0x3A)
    except struct.error:
        return False
    return start + size * count <= len(data)


def ctype(param: ParamSpec) -> Any:
    """How a parameter is passed."""
    return CTYPES[param.dtype] if param.role == "scalar" else ctypes.c_void_p


@dataclass(frozen=True)
class CppFunction:
    """A kernel of a loaded library, which stays open as long as this is there."""

    launch: Callable[..., None]
    """Its function, of the arguments, the grid and the number of threads."""
    tensors: tuple[int, ...]
    """Which arguments are tensors, passed as their addresses."""

    def prepare(
        self, grid: tuple[int, ...], args: Sequence[Any], threads: int | None = None
    ) -> Prepared:
        """The launch on as many threads as torch would use, and as have a program."""
        x, y, z = grid
        most = x * y * z if threads is None else min(x * y * z, threads)
        count = max(min(torch.get_num_threads(), most), 1)
        values = [*args, x, y, z, count]
        for i in self.tensors:
            values[i] = 0
        return Prepared(self, values, tuple(Address(i, i) for i in self.tensors), False)

    def interpret(self, grid: tuple[int, ...], args: Sequence[Any]) -> NoReturn:
        raise AssertionError("C++ kernels are launched")


def check_sanitizer() -> None:
    """Whether kernels can be loaded: AddressSanitizer would end the process if not."""
    names = os.environ.get("FLEXC_SANITIZE", "").split(",")
    if "address" in names and not hasattr(ctypes.CDLL(None), "__asan_init"):
        raise OptionError(
            "FLEXC_SANITIZE=address expects a process that loads AddressSanitizer "
            "before anything else; start it with OMP_STACKSIZE=64M "
            "ASAN_OPTIONS=detect_leaks=0 "
            "LD_PRELOAD=$(g++ -print-file-name=libasan.so)"
        )


def open_library(path: Path, entry: str) -> tuple[int, Any]:
    """A library's handle, to be closed in the end, and its function."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise not_loaded(path, error) from error
    try:
        function = getattr(library, entry)
    except AttributeError as error:
        dlclose(library._handle)
        raise not_loaded(path, error) from error
    compiler = find_compiler()
    if compiler not in _held:
        _held[compiler] = ctypes.CDLL(str(path))
        end_threads_before_forks(_held[compiler])
    return library._handle, function


_held: dict[Compiler, ctypes.CDLL] = {}
"""A library of each compiler that stays open: with the last one its OpenMP would be
closed too, whose threads wait for work."""


def end_threads_before_forks(library: ctypes.CDLL) -> None:
    """A child would wait for threads of OpenMP that it does not have.

    They start again when they are needed, in the child and in its parent.
    """
    pause = getattr(library, "omp_pause_resource_all", None)
    if pause is not None:
        soft = 1
        os.register_at_fork(before=lambda: pause(soft))


def not_loaded(path: Path, error: Exception) -> CompilationError:
    """Remove an object that cannot be loaded, and return the error that says so."""
    path.unlink(missing_ok=True)
    return CompilationError(
        f"a kernel cannot be loaded: {error}; it is compiled again at the next call, "
        "and if that is said again: set CXX to another C++ compiler"
    )


def load_cpp(spec: KernelSpec) -> CppFunction:
    """A function that runs a kernel over a grid with its arguments."""
    check_sanitizer()
    library, function = open_library(build(spec), spec.entry)
    grid_types = [ctypes.c_int64] * 3 + [ctypes.c_int32]
    function.argtypes = [*(ctype(p) for p in spec.params), *grid_types]
    function.restype = None
    tensors = tuple(i for i, p in enumerate(spec.params) if p.role != "scalar")
    found = CppFunction(function, tensors)
    weakref.finalize(found, dlclose, library).atexit = False
    return found
