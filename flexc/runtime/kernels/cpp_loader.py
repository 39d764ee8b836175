"""Compilation of C++ source to a loaded function, with a cache on disk.

The name of a shared object is a digest of everything that the object depends on: its
source, the support headers, the compiler and its flags, and the instruction set of the
machine. flexc loads an object only if the cache confirms that flexc wrote it. Otherwise
flexc compiles the object again.
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
from flexc.runtime.process.cache import cache_dir, load, store, workspace
from flexc.runtime.process.progress import compiling, described
from flexc.runtime.process.recent import Background, turn


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
    with compiling(lambda: described(spec.source)):
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
    return open_symbol(Symbol(build(spec).name, spec.entry, tuple(types)))
