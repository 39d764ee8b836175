"""The C++ compiler of the host: its command, its flags, and the vectors it targets.

Two environment variables change how kernels are built:

- `FLEXC_MACHINE`: one of `MACHINES`. Replaces the widest machine that the host
  supports. Kernels then avoid instructions that the chosen machine lacks.
- `FLEXC_SANITIZE`: "address", "undefined" or both, separated by a comma. Kernels are
  built with the sanitizers of GCC or Clang (see `tests/support/sanitize.py`).
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector

from flexc.codegen import cpp
from flexc.errors import CompilationError, CompilerNotFoundError, OptionError
from flexc.passes.targets.cpp import MACHINES
from flexc.passes.targets.target import MachineName

INCLUDE_DIR = Path(cpp.__path__[0])
COMPILERS = ("g++", "c++", "clang++")
NATIVE = "-march=native"
FLAGS = (
    "-std=c++17",
    NATIVE,
    "-fopenmp",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-fwrapv",
    "-fno-exceptions",
    "-fvisibility=hidden",
    "-fPIC",
)

Level = tuple[str, ...]

KERNEL_LEVEL: Level = ("-O1", "-fexpensive-optimizations")
"""The optimization flags of kernels.

Maps are printed as explicit vectors, so higher levels compile longer and gain no speed.
Without the second flag, GCC does not contract products and sums to fused operations,
and the stated error bounds depend on such operations.
"""

SHARED_LEVEL: Level = ("-O3",)
"""The optimization flags of products, which kernels share.

This level keeps blocks of vectors in registers.
"""

_AVX2 = ("__AVX2__", "__FMA__", "__F16C__")
_AVX512 = (*_AVX2, "__AVX512F__", "__AVX512BW__", "__AVX512DQ__", "__AVX512VL__")
NEEDS: dict[MachineName, tuple[str, ...]] = {
    "amx": (*_AVX512, "__AVX512BF16__", "__AMX_TILE__", "__AMX_BF16__"),
    "avx512_bf16": (*_AVX512, "__AVX512BF16__"),
    "avx512": _AVX512,
    "avx2": _AVX2,
    "neon": ("__aarch64__",),
    "portable": (),
}
"""The macros that a compiler predefines for each machine.

The first machine whose macros are all defined is the host's widest machine.
"""

WITHOUT = {
    "__AMX_TILE__": "-mno-amx-tile",
    "__AMX_BF16__": "-mno-amx-bf16",
    "__AVX512BF16__": "-mno-avx512bf16",
    "__AVX512F__": "-mno-avx512f",
    "__AVX2__": "-mno-avx",
}
"""Flags that disable what a machine lacks and a wider x86 predefines."""

GCC_LIBRARIES = ("-nodefaultlibs", "-lgomp", "-lm", "-lgcc", "-lc")
"""The libraries that GCC links.

Kernels use no exceptions, so they need nothing from GCC's C++ library. Linking that
library would take most of the time of the linker.
"""

SANITIZERS = ("address", "undefined")
SANITIZE_FLAGS = ("-O1", "-g", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all")

SECONDS_TO_ANSWER = 60
SECONDS_TO_BUILD = 900
"""The time limits of a compiler command; a compiler that exceeds a limit has hung."""

MAX_OUTPUT_BYTES = 1 << 20
"""The most bytes that flexc reads of a compiler's output.

No known compiler prints as much.
"""


@dataclass(frozen=True)
class Answer:
    """The result of a command: the text that it printed, and its error if it failed."""

    text: str
    fault: str | None = None


def ask(command: Sequence[str], seconds: float, **variables: str) -> Answer:
    """Run a command that should be a compiler, and return its output or its error.

    When the command ends or exceeds `seconds`, kill all processes that the command
    started. `variables` are added to the environment.
    """
    command_text = shlex.join(command)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | variables,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return Answer("", f"{command_text} cannot be run: {error}")
    with process:
        try:
            said, errors = _listen(process, time.monotonic() + seconds)
        except subprocess.TimeoutExpired:
            return Answer("", f"{command_text} did not end in {seconds:g} seconds")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode == 0:
        return Answer(said)
    return Answer(
        said, f"{command_text} {_ending(process.returncode)}, and said:\n{errors}"
    )


def _listen(process: subprocess.Popen[bytes], until: float) -> tuple[str, str]:
    """Return the stdout and stderr of a process, read until the process ends.

    Raise TimeoutExpired if the process runs past `until`. Output beyond
    `MAX_OUTPUT_BYTES` bytes is cut.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    pipes = (process.stdout, process.stderr)
    heard = [bytearray() for _ in pipes]
    with DefaultSelector() as selector:
        for pipe, said in zip(pipes, heard, strict=True):
            selector.register(pipe, EVENT_READ, said)
        while selector.get_map() and max(map(len, heard)) < MAX_OUTPUT_BYTES:
            for key, _ in selector.select(max(until - time.monotonic(), 0)):
                if chunk := os.read(key.fd, MAX_OUTPUT_BYTES):
                    key.data.extend(chunk)
                else:
                    selector.unregister(key.fileobj)
            if time.monotonic() > until:
                break
    for pipe in pipes:
        pipe.close()  # A process that still writes gets SIGPIPE.
    process.wait(max(until - time.monotonic(), 0))
    out, errors = (said.decode(errors="replace") for said in heard)
    return out, errors


def _ending(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    return f"was killed by signal {-status}"


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: its command line and the version text that it prints."""

    command: tuple[str, ...]
    version: str

    def build(self, *inputs: Path, output: Path, level: Level = KERNEL_LEVEL) -> None:
        """Compile sources or link objects; the suffix of `output` decides which.

        An output with the suffix ".o" is an object, any other output a shared object.
        Temporary files of the compiler lie in the folder of `output`. Raise
        CompilationError on failure.
        """
        links = output.suffix != ".o"
        kind = "-shared" if links else "-c"
        names = [f"-I{INCLUDE_DIR}", *map(str, inputs)]
        names += [*(libraries_of(self) if links else ()), "-o", str(output)]
        command = [*self.command, *level, *flags(), kind, *names]
        answer = ask(command, SECONDS_TO_BUILD, TMPDIR=str(output.parent))
        if answer.fault is not None:
            raise CompilationError(
                f"the C++ compiler does not compile an emitted kernel: {answer.fault}"
                f"\nfree memory, or space in {output.parent.parent}; if there is "
                "enough of both, this is a bug of flexc"
            )


def find_compiler() -> Compiler:
    """Return the compiler `$CXX`, or the first of the usual compilers that is
    installed.

    Raise CompilerNotFoundError if there is none, or if the compiler does not work.
    """
    return _describe(find_command())


def find_command() -> tuple[str, ...]:
    """Return the command line of the compiler, without running the compiler."""
    chosen = os.environ.get("CXX")
    try:
        given = [tuple(shlex.split(chosen))] if chosen else []
    except ValueError:  # An unterminated quotation.
        given = [()]
    candidates = given or [(c,) for c in COMPILERS]
    for command in candidates:
        if command and (path := shutil.which(command[0])) is not None:
            return (path, *command[1:])
    wanted = f"CXX={chosen}" if chosen else ", ".join(COMPILERS)
    raise CompilerNotFoundError(
        f"attention on a CPU needs a C++ compiler, and none was found ({wanted}): "
        "install one (apt install g++, dnf install gcc-c++, conda install "
        "cxx-compiler) or set CXX to it"
    )


@cache
def _describe(command: tuple[str, ...]) -> Compiler:
    answer = ask([*command, "--version"], SECONDS_TO_ANSWER)
    if answer.fault is not None:
        raise compiler_error(command, answer.fault)
    compiler = Compiler(command, answer.text)
    machines_of(compiler)  # A program that prints a version need not be a C++ compiler.
    return compiler


def compiler_error(command: Sequence[str], why: str) -> CompilerNotFoundError:
    return CompilerNotFoundError(
        f"{shlex.join(command)} is no C++ compiler that works: {why}\nset CXX to one "
        "that does"
    )


def host_machine() -> MachineName:
    """Return the machine whose vectors kernels are built for in the current
    environment.

    Without a compiler this is "portable": code can then be printed but not built.
    """
    variables = ("FLEXC_MACHINE", "FLEXC_SANITIZE", "CXX", "PATH")
    asked, checked, *rest = (os.environ.get(name) for name in variables)
    try:
        return _machine(asked, bool(checked), *rest)
    except CompilerNotFoundError:
        # This outcome is not cached, since the next call may find a compiler.
        return _chosen_machine(("portable",), asked)


@cache
def _machine(asked: str | None, checked: bool, *_: str | None) -> MachineName:
    """Return the machine for these values of the environment variables.

    Kernels that check themselves compute tile instructions in plain C++, on any CPU.
    The arguments after `checked` only extend the cache key.
    """
    if checked and asked == "amx":
        return "amx"
    return _chosen_machine(machines_of(find_compiler()), asked)


def _chosen_machine(found: Sequence[MachineName], asked: str | None) -> MachineName:
    """Return the machine that the user asked for, or the widest in `found`.

    Raise OptionError if `found` lacks the machine that the user asked for.
    """
    if not asked:
        return found[0]
    for name in found:
        if name == asked:
            return name
    refusal = tile_refusal() if asked == "amx" else ""
    why = f", as the system permits no tile registers ({refusal})" if refusal else ""
    raise OptionError(
        f"FLEXC_MACHINE expects one of {', '.join(found)} here, got {asked!r}{why}; "
        "unset it to use the widest vectors of this CPU"
    )


@cache
def machines_of(compiler: Compiler) -> tuple[MachineName, ...]:
    """Return the machines that the host supports, the preferred one first."""
    defined = predefined(compiler)
    found: list[MachineName] = [n for n in MACHINES if defined.issuperset(NEEDS[n])]
    if "amx" in found and tile_refusal():
        found.remove("amx")
    return tuple(found)


def lacks_tiles() -> str:
    """Return a note if the CPU has a matrix unit that the system does not permit."""
    has_unit = predefined(find_compiler()).issuperset(NEEDS["amx"])
    refusal = tile_refusal() if has_unit else ""
    return f" (no amx: {refusal})" if refusal else ""


_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18
"""The system call of Linux on x86-64 that permits a process to use tile registers."""


@cache
def tile_refusal() -> str:
    """Ask the system for tile registers, once for the process and all its threads.

    Return why it refuses, or "".
    """
    if (os.uname().sysname, platform.machine()) != ("Linux", "x86_64"):
        return "only Linux is known to permit them"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0:
        return ""
    return os.strerror(ctypes.get_errno())


def libraries_of(compiler: Compiler) -> tuple[str, ...]:
    """Return explicit libraries to link; empty if the compiler's defaults apply."""
    is_gcc = "__clang__" not in predefined(compiler)
    return GCC_LIBRARIES if is_gcc and not sanitizer_flags() else ()


@cache
def predefined(compiler: Compiler) -> frozenset[str]:
    """Return the names of the macros that a compiler predefines for the host."""
    command = [*compiler.command, NATIVE, "-dM", "-E", "-x", "c++", os.devnull]
    answer = ask(command, SECONDS_TO_ANSWER)
    if answer.fault is not None:
        raise compiler_error(compiler.command, answer.fault)
    defined = frozenset(re.findall(r"^#define (\w+)", answer.text, re.MULTILINE))
    if not defined:
        why = f"{shlex.join(command)} does not print what it predefines"
        raise compiler_error(compiler.command, why)
    return defined


def flags() -> tuple[str, ...]:
    """Return the compiler flags for kernels in the current environment."""
    defined, needed = predefined(find_compiler()), NEEDS[host_machine()]
    if checks := sanitizer_flags():
        # Sanitizers do not see what tile instructions read and write.
        needed = [m for m in needed if not m.startswith("__AMX")]
    narrowed = [f for m, f in WITHOUT.items() if m in defined and m not in needed]
    return (*FLAGS, *narrowed, *checks)


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
    """Return the processor features that `-march=native` depends on."""
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    kinds = ("model name", "flags", "Features", "CPU part")
    return "\n".join(
        sorted({line for line in info.splitlines() if line.startswith(kinds)})
    )
