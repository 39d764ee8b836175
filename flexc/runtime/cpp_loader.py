"""From C++ source to a function: the machine's compiler, a cache, ctypes.

A shared object is named after all that it depends on: its source, the support
headers, the compiler and its flags, and the machine's instruction set. It is
loaded only if it is the owner's and as it was written, which a digest beside it
says; else it is compiled again.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

# Loaded first, so that kernels share torch's OpenMP threads.
import torch

from flexc.codegen import cpp
from flexc.codegen.kernel_spec import KernelSpec, ParamSpec
from flexc.errors import CompilationError, CompilerNotFoundError
from flexc.runtime.cache import cache_dir, load_text, store_bytes, store_text

Launcher = Callable[..., None]
"""Takes a grid, arguments and, if there is one, a limit on threads."""

INCLUDE_DIR = Path(cpp.__path__[0])
COMPILERS = ("g++", "c++", "clang++")
FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fopenmp",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-fwrapv",
    "-fvisibility=hidden",
    "-fPIC",
    "-shared",
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


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: how it is called, and what it calls itself."""

    command: tuple[str, ...]
    version: str

    def build(self, source: Path, output: Path) -> None:
        include = f"-I{INCLUDE_DIR}"
        command = [*self.command, *FLAGS, include, str(source), "-o", str(output)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise CompilationError(
                f"the C++ compiler refused an emitted kernel; {shlex.join(command)} "
                f"said:\n{result.stderr}"
            )


def find_compiler() -> Compiler:
    """`$CXX`, or the first of the usual compilers that is installed."""
    chosen = os.environ.get("CXX")
    try:
        given = [tuple(shlex.split(chosen))] if chosen else []
    except ValueError:  # A quotation that does not end.
        given = [()]
    candidates = given or [(c,) for c in COMPILERS]
    for command in candidates:
        if command and (path := shutil.which(command[0])) is not None:
            return _describe((path, *command[1:]))
    wanted = f"CXX={chosen}" if chosen else ", ".join(COMPILERS)
    raise CompilerNotFoundError(
        f"attention on a CPU needs a C++ compiler, and none was found ({wanted}): "
        "install one (apt install g++, dnf install gcc-c++, conda install "
        "cxx-compiler) or set CXX to it"
    )


@cache
def _describe(command: tuple[str, ...]) -> Compiler:
    result = subprocess.run(
        [*command, "--version"], capture_output=True, text=True, check=False
    )
    return Compiler(command, result.stdout)


@cache
def machine() -> str:
    """What `-march=native` depends on."""
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    kinds = ("model name", "flags", "Features", "CPU part")
    return "\n".join(
        sorted({line for line in info.splitlines() if line.startswith(kinds)})
    )


@cache
def support_headers() -> str:
    return "".join(path.read_text() for path in sorted(INCLUDE_DIR.glob("*.h")))


def library_name(spec: KernelSpec, compiler: Compiler) -> str:
    """The name of a kernel's files, without a suffix."""
    parts = (
        spec.source,
        support_headers(),
        machine(),
        *compiler.command,
        compiler.version,
        *FLAGS,
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


def load_cpp(spec: KernelSpec) -> Launcher:
    """A function that runs a kernel over a grid with its arguments.

    It runs on as many threads as torch would use.
    """
    function = getattr(ctypes.CDLL(str(build(spec))), spec.entry)
    grid_types = [ctypes.c_int64] * 3 + [ctypes.c_int32]
    function.argtypes = [*(ctype(p) for p in spec.params), *grid_types]
    function.restype = None
    tensors = tuple(i for i, p in enumerate(spec.params) if p.role != "scalar")

    def launch(
        grid: tuple[int, ...], args: Sequence[Any], threads: int | None = None
    ) -> None:
        values = list(args)
        for i in tensors:
            values[i] = values[i].data_ptr()
        available = torch.get_num_threads()
        limit = available if threads is None else min(threads, available)
        function(*values, *grid, limit)

    return launch
