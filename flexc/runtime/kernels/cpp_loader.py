"""Compilation of C++ source to a loaded function, with a cache on disk.

Shared objects are opened by ctypes.

The name of a shared object is a digest of everything that the object depends on: its
source, the support headers, the compiler and its flags, and the instruction set of the
machine. flexc loads an object only if the cache confirms that flexc wrote it. Otherwise
flexc compiles the object again.
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
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch

from flexc.codegen.kernel_spec import KernelSpec
from flexc.errors import CompilationError, OptionError
from flexc.runtime.kernels.cpp_compiler import (
    INCLUDE_DIR,
    KERNEL_LEVEL,
    SHARED_LEVEL,
    Compiler,
    Level,
    find_command,
    find_compiler,
    flags,
    libraries_of,
    processor,
)
from flexc.runtime.process.cache import cache_dir, load, store, workspace
from flexc.runtime.process.progress import Compilation, compiling, described
from flexc.runtime.process.recent import Background, turn
from flexc.runtime.tapes.tape import Address, Prepared

ADDRESS = "address"
"""The type name of a tensor parameter."""

CTYPES: dict[str, Any] = {
    ADDRESS: ctypes.c_void_p,
    "i1": ctypes.c_bool,
    "i8": ctypes.c_int8,
    "i16": ctypes.c_int16,
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "f32": ctypes.c_float,
    "f64": ctypes.c_double,
}

GRID = (ctypes.c_int64,) * 3 + (ctypes.c_int32,)
"""The types of the last arguments of each kernel.

They are the three sizes of the grid and the number of threads.
"""


class LibrarySymbol(NamedTuple):
    """A function of a shared object."""

    file: str
    """The name of the shared object in the cache."""
    name: str
    types: tuple[str, ...]
    """The types of the parameters, as keys of `CTYPES`."""


@dataclass(frozen=True)
class CppFunction:
    """A kernel of a loaded library.

    The library stays open as long as the instance exists.
    """

    launch: Callable[..., None]
    """The C function; takes the arguments, the grid and the number of threads."""
    tensors: tuple[int, ...]
    """The positions of the tensor arguments, which are passed as addresses."""
    symbol: LibrarySymbol
    """The symbol by which another process can open the function."""

    def prepare(
        self, grid: tuple[int, ...], args: Sequence[Any], threads: int | None = None
    ) -> Prepared:
        """Return a launch of the kernel on a grid.

        The launch uses at most torch's number of threads, at most `threads`, and at
        most one thread per program.
        """
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
    """Raise OptionError if AddressSanitizer is asked for but not loaded in the process.

    Loading a kernel built with AddressSanitizer would end such a process.
    """
    names = os.environ.get("FLEXC_SANITIZE", "").split(",")
    if "address" in names and not hasattr(ctypes.CDLL(None), "__asan_init"):
        raise OptionError(
            "FLEXC_SANITIZE=address expects a process that loads AddressSanitizer "
            "before anything else; start it with OMP_STACKSIZE=64M "
            "ASAN_OPTIONS=detect_leaks=0 "
            "LD_PRELOAD=$(g++ -print-file-name=libasan.so)"
        )


def open_library(path: Path, entry: str) -> tuple[int, Any]:
    """Open a library; return its handle, which the caller must close, and its function.

    Raise CompilationError if the library or the function cannot be loaded.
    """
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise not_loaded(path, error) from error
    try:
        function = getattr(library, entry)
    except AttributeError as error:
        dlclose(library._handle)
        raise not_loaded(path, error) from error
    compiler = find_command()
    if compiler not in _held:
        _held[compiler] = ctypes.CDLL(str(path))
        end_threads_before_forks(_held[compiler])
    return library._handle, function


_held: dict[tuple[str, ...], ctypes.CDLL] = {}
"""One open library for each compiler.

These libraries are never closed. If the last library were closed, its OpenMP runtime
would be unloaded while threads of the runtime still wait for work.
"""


def end_threads_before_forks(library: ctypes.CDLL) -> None:
    """Make OpenMP end its threads before each fork.

    A child process would otherwise wait for OpenMP threads that exist only in the
    parent. OpenMP starts threads again on demand, in the child and in the parent.
    """
    pause = getattr(library, "omp_pause_resource_all", None)
    if pause is not None:
        soft = 1
        os.register_at_fork(before=lambda: pause(soft))


def not_loaded(path: Path, error: Exception) -> CompilationError:
    """Remove an object that cannot be loaded, and return the error to raise."""
    path.unlink(missing_ok=True)
    return CompilationError(
        f"a kernel cannot be loaded: {error}; it is compiled again at the next call, "
        "and if that is said again: set CXX to another C++ compiler"
    )


def open_symbol(symbol: LibrarySymbol) -> CppFunction:
    """Open an object of the cache and return its function.

    The caller has checked that the cache wrote the object.
    """
    check_sanitizer()
    library, function = open_library(cache_dir() / symbol.file, symbol.name)
    function.argtypes = [*(CTYPES[t] for t in symbol.types), *GRID]
    function.restype = None
    tensors = tuple(i for i, t in enumerate(symbol.types) if t == ADDRESS)
    found = CppFunction(function, tensors, symbol)
    weakref.finalize(found, dlclose, library).atexit = False
    return found


@cache
def support_headers() -> str:
    return "".join(path.read_text() for path in sorted(INCLUDE_DIR.glob("*.h")))


def file_name(label: str, source: str, compiler: Compiler) -> str:
    """Return the file name, without suffix, of the object compiled from a source."""
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
    with compiling(Compilation(lambda: described(spec.source))):
        # A thread pool refuses work while the process ends; Background does not.
        shared = Background(lambda: shared_objects(spec, compiler))
        objects = [compiled(spec.source, compiler), *shared.get()]
        return store(name, linked(objects, compiler))


def shared_objects(spec: KernelSpec, compiler: Compiler) -> list[bytes]:
    """Return the object with the templates that the kernel shares with other kernels.

    The list is empty if the kernel shares none. If several threads ask for the same
    object at a time, one compiles the object and the others wait.
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
    """Return C++ source that defines the templates that a kernel declares."""
    head = [line for line in spec.source.splitlines() if line.startswith("#define ")]
    defined = [f"template struct flexc::{template};" for template in spec.shared]
    include, using = '#include "flexc_support.h"', "using namespace flexc;"
    return "\n".join([*head, include, using, *defined, ""])


def compiled(source: str, compiler: Compiler, level: Level = KERNEL_LEVEL) -> bytes:
    """Compile a source and return the object's bytes."""
    with workspace() as directory:
        path, output = directory / "source.cpp", directory / "object.o"
        path.write_text(source)
        return written(compiler, path, output=output, level=level)


def linked(objects: Sequence[bytes], compiler: Compiler) -> bytes:
    """Link objects and return the shared object's bytes."""
    with workspace() as directory:
        paths = [directory / f"{i}.o" for i in range(len(objects))]
        for path, data in zip(paths, objects, strict=True):
            path.write_bytes(data)
        return written(compiler, *paths, output=directory / "kernel.so")


def written(
    compiler: Compiler, *inputs: Path, output: Path, level: Level = KERNEL_LEVEL
) -> bytes:
    """Run the compiler and return the bytes that it wrote.

    Raise CompilationError if these bytes are not a whole object.
    """
    compiler.build(*inputs, output=output, level=level)
    data = output.read_bytes() if output.is_file() else b""
    if not is_whole(data):
        raise CompilationError(
            f"the C++ compiler {shlex.join(compiler.command)} wrote no object, "
            "or half of one, and did not say why; set CXX to another"
        )
    return data


ELF = b"\x7fELF\x02\x01"
"""The first bytes of a 64-bit little-endian object on Linux."""


def is_whole(data: bytes) -> bool:
    """Return True if an ELF object is not truncated.

    The dynamic loader does not check this and would read past the end. On systems other
    than Linux, any object that is not empty is accepted.
    """
    if not data.startswith(ELF):
        return bool(data) and not sys.platform.startswith("linux")
    try:
        (start,) = struct.unpack_from("<Q", data, 0x28)
        size, count = struct.unpack_from("<HH", data, 0x3A)
    except struct.error:
        return False
    return start + size * count <= len(data)


def load_cpp(spec: KernelSpec) -> CppFunction:
    """Build and load a kernel; return the function that launches the kernel."""
    check_sanitizer()
    types = (p.dtype if p.role == "scalar" else ADDRESS for p in spec.params)
    return open_symbol(LibrarySymbol(build(spec).name, spec.entry, tuple(types)))
