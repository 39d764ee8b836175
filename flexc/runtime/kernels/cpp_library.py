"""Shared objects of the cache, opened by ctypes, and the functions in them."""

from __future__ import annotations

import ctypes
import os
import weakref
from _ctypes import dlclose
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch

from flexc.errors import CompilationError, OptionError
from flexc.runtime.kernels.cpp_compiler import find_command
from flexc.runtime.process.cache import cache_dir
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


class Symbol(NamedTuple):
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
    symbol: Symbol
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


def open_symbol(symbol: Symbol) -> CppFunction:
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
