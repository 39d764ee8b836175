"""From C++ source to a function: a compiler, a cache.

A shared object is named after all that it depends on: its source, the support
headers, the compiler and its flags, and the machine's instruction set. It is loaded
only if the cache knows it for what it compiled; else it is compiled again.
"""

from __future__ import annotations

import hashlib
import shlex
import struct
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from flexc.codegen.kernel_spec import KernelSpec
from flexc.errors import CompilationError
from flexc.runtime.kernels.cpp_compiler import (
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
from flexc.runtime.kernels.cpp_library import (
    ADDRESS,
    CppFunction,
    Symbol,
    check_sanitizer,
    open_symbol,
)
from flexc.runtime.process.beside import Beside
from flexc.runtime.process.cache import (
    cache_dir,
    load,
    store,
    workspace,
)
from flexc.runtime.process.progress import compiling, described
from flexc.runtime.process.recent import turn


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
    with compiling(lambda: described(spec.source)):
        # A pool of threads takes no work while the process ends.
        shared = Beside(lambda: shared_objects(spec, compiler))
        objects = [compiled(spec.source, compiler), *shared.get()]
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


def load_cpp(spec: KernelSpec) -> CppFunction:
    """A function that runs a kernel over a grid with its arguments."""
    check_sanitizer()
    types = (p.dtype if p.role == "scalar" else ADDRESS for p in spec.params)
    return open_symbol(Symbol(build(spec).name, spec.entry, tuple(types)))
