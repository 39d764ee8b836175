"""The machine's C++ compiler: which it is, its flags, and the vectors it compiles for.

Two environment variables change what kernels are built as:

- `FLEXC_MACHINE`: one of `MACHINES`, in the place of the widest vectors that the host
  has. Instructions that such a machine lacks are then not used.
- `FLEXC_SANITIZE`: "address", "undefined" or both with a comma between: kernels check
  themselves, by gcc's or clang's sanitizers (see `tests/support/sanitize.py`).
"""

from __future__ import annotations

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
from flexc.passes.sizes.vector_machine import MACHINES, MachineName

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
"""Maps are explicit vectors: higher levels take longer and make them no faster. Without
the second flag, GCC contracts no products and sums, on which stated errors rely."""

SHARED_LEVEL: Level = ("-O3",)
"""Products, which kernels share, keep blocks of vectors in registers."""

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

GCC_LIBRARIES = ("-nodefaultlibs", "-lgomp", "-lm", "-lgcc", "-lc")
"""What GCC links: without exceptions kernels need nothing of its C++ library, which
would take a linker three times as long as all the rest."""

SANITIZERS = ("address", "undefined")
SANITIZE_FLAGS = ("-O1", "-g", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all")

SECONDS_TO_ANSWER = 60
SECONDS_TO_BUILD = 900
"""After which a compiler is taken to hang."""

MOST_SAID = 1 << 20
"""Bytes of what a compiler prints that are read: more than any of them prints."""


@dataclass(frozen=True)
class Answer:
    """What a command printed, and what went wrong with it."""

    text: str
    fault: str | None = None


def ask(command: Sequence[str], seconds: float, **variables: str) -> Answer:
    """Run what is said to be a compiler, and end it with all that it started."""
    told = shlex.join(command)
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
        return Answer("", f"{told} cannot be run: {error}")
    with process:
        try:
            said, errors = _listen(process, time.monotonic() + seconds)
        except subprocess.TimeoutExpired:
            return Answer("", f"{told} did not end in {seconds:g} seconds")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode == 0:
        return Answer(said)
    return Answer(said, f"{told} {_ending(process.returncode)}, and said:\n{errors}")


def _listen(process: subprocess.Popen[bytes], until: float) -> tuple[str, str]:
    """What a process prints and complains of, until it ends."""
    assert process.stdout is not None
    assert process.stderr is not None
    pipes = (process.stdout, process.stderr)
    heard = [bytearray() for _ in pipes]
    with DefaultSelector() as selector:
        for pipe, said in zip(pipes, heard, strict=True):
            selector.register(pipe, EVENT_READ, said)
        while selector.get_map() and max(map(len, heard)) < MOST_SAID:
            for key, _ in selector.select(max(until - time.monotonic(), 0)):
                if chunk := os.read(key.fd, MOST_SAID):
                    key.data.extend(chunk)
                else:
                    selector.unregister(key.fileobj)
            if time.monotonic() > until:
                break
    for pipe in pipes:
        pipe.close()  # Who still prints ends.
    process.wait(max(until - time.monotonic(), 0))
    out, errors = (said.decode(errors="replace") for said in heard)
    return out, errors


def _ending(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    return f"was killed by signal {-status}"


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: how it is called, and what it calls itself."""

    command: tuple[str, ...]
    version: str

    def build(self, *inputs: Path, output: Path, level: Level = KERNEL_LEVEL) -> None:
        """Compile sources and link objects, up to what the output's suffix says.

        What the compiler leaves behind is beside the output.
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
                f"\nsee that it has memory, and room in {output.parent.parent}; if it "
                "has, this is a bug of flexc"
            )


def find_compiler() -> Compiler:
    """`$CXX`, or the first of the usual compilers that is installed."""
    return _describe(find_command())


def find_command() -> tuple[str, ...]:
    """Return how the compiler is called, which is not asked what it is."""
    chosen = os.environ.get("CXX")
    try:
        given = [tuple(shlex.split(chosen))] if chosen else []
    except ValueError:  # A quotation that does not end.
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
        raise no_compiler(command, answer.fault)
    compiler = Compiler(command, answer.text)
    machines_of(compiler)  # What prints a version need not know C++.
    return compiler


def no_compiler(command: Sequence[str], why: str) -> CompilerNotFoundError:
    return CompilerNotFoundError(
        f"{shlex.join(command)} is no C++ compiler that works: {why}\nset CXX to one "
        "that does"
    )


def host_machine() -> MachineName:
    """The machine whose vectors kernels are built for, here and now.

    Without a compiler it is "portable": code can be looked at then, but not built.
    """
    variables = ("FLEXC_MACHINE", "CXX", "PATH")
    asked, *rest = (os.environ.get(name) for name in variables)
    try:
        return _machine(asked, *rest)
    except CompilerNotFoundError:
        # Not remembered: the next call may find one.
        return _among(("portable",), asked)


@cache
def _machine(asked: str | None, *_: str | None) -> MachineName:
    """That for values of the variables that it depends on."""
    return _among(machines_of(find_compiler()), asked)


def _among(found: Sequence[MachineName], asked: str | None) -> MachineName:
    """The machine that was asked for, or the widest."""
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
    defined = predefined(compiler)
    return tuple(n for n in MACHINES if defined.issuperset(NEEDS[n]))


def libraries_of(compiler: Compiler) -> tuple[str, ...]:
    """Which libraries a kernel is linked with, where it is not left to the compiler."""
    is_gcc = "__clang__" not in predefined(compiler)
    return GCC_LIBRARIES if is_gcc and not sanitizer_flags() else ()


@cache
def predefined(compiler: Compiler) -> frozenset[str]:
    """The names of the macros that a compiler predefines for the host."""
    command = [*compiler.command, NATIVE, "-dM", "-E", "-x", "c++", os.devnull]
    answer = ask(command, SECONDS_TO_ANSWER)
    if answer.fault is not None:
        raise no_compiler(compiler.command, answer.fault)
    defined = frozenset(re.findall(r"^#define (\w+)", answer.text, re.MULTILINE))
    if not defined:
        why = f"{shlex.join(command)} does not print what it predefines"
        raise no_compiler(compiler.command, why)
    return defined


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
