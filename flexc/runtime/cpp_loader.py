"""From C++ source to a function: a compiler, a cache, ctypes.

A shared object is named after all that it depends on: its source, the support
headers, the compiler and its flags, and the machine's instruction set. It is
loaded only if it is the owner's and as it was written, which a digest beside it
says; else it is compiled again.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

# Loaded first, so that kernels share torch's OpenMP threads.
import torch

from flexc.codegen.kernel_spec import KernelSpec, ParamSpec
from flexc.errors import OptionError
from flexc.runtime.cache import cache_dir, load_text, store_bytes, store_text
from flexc.runtime.cpp_compiler import (
    INCLUDE_DIR,
    Compiler,
    find_compiler,
    flags,
    processor,
)

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


def library_name(spec: KernelSpec, compiler: Compiler) -> str:
    """The name of a kernel's files, without a suffix."""
    parts = (
        spec.source,
        support_headers(),
        processor(),
        *compiler.command,
        compiler.version,
        *flags(),
    )
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return f"{spec.entry}-{digest[:32]}"


def is_trusted(library: Path, digest: str | None) -> bool:
    """Whether a file is this user's alone, and has the digest noted for it."""
    try:
        info = library.stat()
    except FileNotFoundError:
        return False
    if info.st_uid != os.getuid() or stat.S_IMODE(info.st_mode) & 0o022:
        return False
    return hashlib.sha256(library.read_bytes()).hexdigest() == digest


def build(spec: KernelSpec) -> Path:
    """The shared object of a kernel, compiled unless it is in the cache."""
    compiler = find_compiler()
    name = library_name(spec, compiler)
    library = cache_dir() / f"{name}.so"
    if is_trusted(library, load_text(f"{name}.so.sha256")):
        return library
    source = store_text(f"{name}.cpp", spec.source)
    with tempfile.TemporaryDirectory(dir=cache_dir(), prefix=".build-") as directory:
        output = Path(directory) / "kernel.so"
        compiler.build(source, output)
        data = output.read_bytes()
    library.unlink(missing_ok=True)
    store_text(f"{name}.so.sha256", hashlib.sha256(data).hexdigest())
    return store_bytes(f"{name}.so", data)


def ctype(param: ParamSpec) -> Any:
    """How a parameter is passed."""
    return CTYPES[param.dtype] if param.role == "scalar" else ctypes.c_void_p


@dataclass(frozen=True)
class CppFunction:
    """A kernel of a loaded library.

    It runs on as many threads as torch would use, and on one where it has but one
    program.
    """

    function: Callable[..., None]
    tensors: tuple[int, ...]
    """Which arguments are tensors, passed as their addresses."""

    def __call__(
        self, grid: tuple[int, ...], args: Sequence[Any], threads: int | None = None
    ) -> None:
        values = list(args)
        for i in self.tensors:
            values[i] = values[i].data_ptr()
        self.launch(grid, values, threads)

    def launch(
        self, grid: tuple[int, ...], values: Sequence[Any], threads: int | None = None
    ) -> None:
        """Run on a grid with arguments that are addresses already."""
        x, y, z = grid
        limit = min(torch.get_num_threads(), x * y * z)
        if threads is not None:
            limit = min(limit, threads)
        self.function(*values, x, y, z, max(limit, 1))


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


def load_cpp(spec: KernelSpec) -> CppFunction:
    """A function that runs a kernel over a grid with its arguments."""
    check_sanitizer()
    function = getattr(ctypes.CDLL(str(build(spec))), spec.entry)
    grid_types = [ctypes.c_int64] * 3 + [ctypes.c_int32]
    function.argtypes = [*(ctype(p) for p in spec.params), *grid_types]
    function.restype = None
    tensors = tuple(i for i, p in enumerate(spec.params) if p.role != "scalar")
    return CppFunction(function, tensors)
