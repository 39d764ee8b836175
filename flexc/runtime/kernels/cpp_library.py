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
from flexc.runtime.tapes.prepared import Address, Prepared

ADDRESS = "address"
"""How the type of a parameter is called that is a tensor."""

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
"""What every kernel takes last: numbers of programs, and of threads."""


class Symbol(NamedTuple):
    """A function of a shared object."""

    file: str
    """The object's name in the cache."""
    name: str
    types: tuple[str, ...]
    """Those of its parameters, keys of `CTYPES`."""


@dataclass(frozen=True)
class CppFunction:
    """A kernel of a loaded library, which stays open as long as this is there."""

    launch: Callable[..., None]
    """Its function, of the arguments, the grid and the number of threads."""
    tensors: tuple[int, ...]
    """Which arguments are tensors, passed as their addresses."""
    symbol: Symbol
    """Where another process finds it."""

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
    compiler = find_command()
    if compiler not in _held:
        _held[compiler] = ctypes.CDLL(str(path))
        end_threads_before_forks(_held[compiler])
    return library._handle, function


_held: dict[tuple[str, ...], ctypes.CDLL] = {}
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


def open_symbol(symbol: Symbol) -> CppFunction:
    """Return a function of an object that the cache has and knows for its own."""
    check_sanitizer()
    library, function = open_library(cache_dir() / symbol.file, symbol.name)
    function.argtypes = [*(CTYPES[t] for t in symbol.types), *GRID]
    function.restype = None
    tensors = tuple(i for i, t in enumerate(symbol.types) if t == ADDRESS)
    found = CppFunction(function, tensors, symbol)
    weakref.finalize(found, dlclose, library).atexit = False
    return found
