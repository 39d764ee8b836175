"""The machine's C++ compiler: which it is, its flags, and the vectors it compiles for.

Two environment variables change what kernels are built as:

- `FLEXC_MACHINE`: one of `MACHINES`, in the place of the widest vectors that the host
  has. Instructions that such a machine lacks are then not used.
- `FLEXC_SANITIZE`: "address", "undefined" or both with a comma between: kernels check
  themselves, by gcc's or clang's sanitizers (see `tests/sanitize.py`).
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from flexc.codegen import cpp
from flexc.errors import CompilationError, CompilerNotFoundError, OptionError
from flexc.passes.vector_machine import MACHINES, MachineName

INCLUDE_DIR = Path(cpp.__path__[0])
COMPILERS = ("g++", "c++", "clang++")
NATIVE = "-march=native"
FLAGS = (
    "-std=c++17",
    "-O3",
    NATIVE,
    "-fopenmp",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-fwrapv",
    "-fvisibility=hidden",
    "-fPIC",
    "-shared",
)

NEEDS: dict[MachineName, tuple[str, ...]] = {
    "avx512": ("__AVX512F__", "__AVX512BW__", "__AVX512DQ__", "__AVX512VL__"),
    "avx2": ("__AVX2__", "__FMA__", "__F16C__"),
    "neon": ("__aarch64__",),
    "portable": (),
}
"""What a compiler predefines for a machine; the first that has all is the host."""

WITHOUT: dict[MachineName, tuple[str, ...]] = {
    "avx2": ("-mno-avx512f",),
    "portable": ("-mno-avx512f", "-mno-avx"),
}
"""Flags that take instructions away which a machine lacks and a wider x86 has."""

SANITIZERS = ("address", "undefined")
SANITIZE_FLAGS = ("-O1", "-g", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all")


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: how it is called, and what it calls itself."""

    command: tuple[str, ...]
    version: str

    def build(self, source: Path, output: Path) -> None:
        include = f"-I{INCLUDE_DIR}"
        command = [*self.command, *flags(), include, str(source), "-o", str(output)]
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


def host_machine() -> MachineName:
    """The machine whose vectors kernels are built for, here and now.

    Without a compiler it is "portable": code can be looked at then, but not built.
    """
    variables = ("FLEXC_MACHINE", "CXX", "PATH")
    return _machine(*(os.environ.get(name) for name in variables))


@cache
def _machine(asked: str | None, *_: str | None) -> MachineName:
    """That for values of the variables that it depends on."""
    try:
        found = machines_of(find_compiler())
    except CompilerNotFoundError:
        found: tuple[MachineName, ...] = ("portable",)
    if not asked:
        return found[0]
    for name in found:
        if name == asked:
            return name
    raise OptionError(
        f"FLEXC_MACHINE expects one of {', '.join(found)} here, got {asked!r}; unset "
        "it to use the widest vectors that the machine has"
    )


@cache
def machines_of(compiler: Compiler) -> tuple[MachineName, ...]:
    """The machines that the host is one of, widest vectors first."""
    command = [*compiler.command, NATIVE, "-dM", "-E", "-x", "c++", os.devnull]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise CompilationError(
            f"the C++ compiler does not say what it predefines; {shlex.join(command)} "
            f"said:\n{result.stderr}"
        )
    defined = {line.split()[1] for line in result.stdout.splitlines() if line}
    return tuple(n for n in MACHINES if defined.issuperset(NEEDS[n]))


def flags() -> tuple[str, ...]:
    """How kernels are compiled here and now."""
    asked = os.environ.get("FLEXC_MACHINE")
    narrowed: tuple[str, ...] = ()
    # Other processors than x86 have no such flags, and nothing wider either.
    if asked and "avx2" in machines_of(find_compiler()):
        narrowed = WITHOUT.get(host_machine(), ())
    return (*FLAGS, *narrowed, *sanitizer_flags())


def sanitizer_flags() -> tuple[str, ...]:
    asked = os.environ.get("FLEXC_SANITIZE")
    if not asked:
        return ()
    names = asked.split(",")
    if not set(names).issubset(SANITIZERS):
        raise OptionError(
            f"FLEXC_SANITIZE expects names among {', '.join(SANITIZERS)}, with commas "
            f"between them, got {asked!r}"
        )
    return (*SANITIZE_FLAGS, f"-fsanitize={asked}")


@cache
def processor() -> str:
    """What `-march=native` depends on."""
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    kinds = ("model name", "flags", "Features", "CPU part")
    return "\n".join(
        sorted({line for line in info.splitlines() if line.startswith(kinds)})
    )
