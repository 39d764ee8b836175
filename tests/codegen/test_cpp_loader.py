"""Compiling and loading: what is cached, what is refused, what errors say."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from flexc.codegen.kernel_spec import KernelSpec, ParamSpec
from flexc.errors import CompilationError, CompilerNotFoundError
from flexc.runtime.kernels import cpp_compiler
from flexc.runtime.kernels.cpp_compiler import Compiler, find_compiler
from flexc.runtime.kernels.cpp_loader import (
    build,
    is_whole,
    load_cpp,
)
from flexc.runtime.kernels.kernel import launch
from flexc.runtime.process.cache import cache_dir

pytestmark = pytest.mark.usefixtures("cache_folder")

SPEC = KernelSpec(
    target="cpp",
    entry="twice",
    params=(
        ParamSpec("x", "f32", "input", "argument", 0),
        ParamSpec("out", "f32", "output", "argument", 1),
        ParamSpec("n", "i32", "scalar", "dim", 0),
    ),
    grid="affine_map<(b, h, q_len) -> (q_len, h, b)>",
    source="""#include "flexc_support.h"
FLEXC_KERNEL void twice(const float* x, float* out, const int32_t n,
    int64_t grid_0, int64_t grid_1, int64_t grid_2, int32_t threads) {
    for (int32_t i = 0; i < n; ++i) out[i] = 2 * x[i];
}
""",
)

REAL = find_compiler().command[0]


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources that were compiled."""
    compiled: list[str] = []
    original = Compiler.build

    def counted(self: Compiler, *inputs: Path, **options: Any) -> None:
        compiled.extend(p.read_text() for p in inputs if p.suffix == ".cpp")
        original(self, *inputs, **options)

    monkeypatch.setattr(Compiler, "build", counted)
    return compiled


def test_run() -> None:
    x, out = torch.randn(5), torch.empty(5)
    launch(load_cpp(SPEC), (1, 1, 1), [x, out, 5])
    assert torch.equal(out, 2 * x)


def test_compiled_once(builds: list[str], cache_folder: Path) -> None:
    assert build(SPEC) == build(SPEC)
    assert len(builds) == 1
    assert cache_folder.stat().st_mode & 0o777 == 0o700
    assert builds == [SPEC.source]


def test_shared_templates_are_compiled_once(builds: list[str]) -> None:
    """Two kernels of the same products, and a shared object that was damaged."""
    template = "LoadTransposed<float, 16, 16, float>"
    head = '#include "flexc_support.h"\nusing namespace flexc;\n'
    declared = f"extern template struct {template};\n"
    source = f"{head}{declared}{SPEC.source}"
    spec = dataclasses.replace(SPEC, source=source, shared=(template,))
    other = dataclasses.replace(spec, source=source.replace("2 *", "3 *"))
    build(spec)
    build(other)
    assert len(builds) == 3
    (shared,) = (s for s in builds if s.startswith(f"{head}template struct"))
    assert f"flexc::{template}" in shared
    (entry,) = cache_dir().glob("shared-*.o")
    entry.write_bytes(b"junk")
    build(dataclasses.replace(spec, source=source.replace("2 *", "4 *")))
    assert builds.count(shared) == 2


def test_other_source_is_compiled(builds: list[str]) -> None:
    other = dataclasses.replace(SPEC, source=SPEC.source.replace("2 *", "3 *"))
    assert build(SPEC) != build(other)
    assert len(builds) == 2


@pytest.mark.parametrize("content", [b"", b"\x7fELF and something else"])
def test_what_was_changed_is_not_loaded(builds: list[str], content: bytes) -> None:
    library = build(SPEC)
    library.write_bytes(content)
    build(SPEC)
    assert len(builds) == 2
    test_run()


def test_what_others_may_write_is_not_loaded(builds: list[str]) -> None:
    library = build(SPEC)
    library.chmod(0o666)
    build(SPEC)
    assert len(builds) == 2
    assert library.stat().st_mode & 0o022 == 0


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(CompilerNotFoundError, match=r"apt install g\+\+"):
        build(SPEC)


def test_chosen_compiler_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -v")
    with pytest.raises(CompilerNotFoundError, match="CXX=no-such-compiler"):
        build(SPEC)


def test_compiler_refuses() -> None:
    with pytest.raises(CompilationError, match="does not name a type"):
        build(dataclasses.replace(SPEC, source="FLEXC_KERNEL void"))


FAULTS = {
    "exit 3": "ended with status 3",
    "kill -9 $$": "was killed by signal 9",
    "echo '\\377\\376junk'": "does not print what it predefines",
    ":": "does not print what it predefines",
    "exec yes": "was killed by signal 13",
    "cat": "does not print what it predefines",
    "sleep 100 & wait": "did not end in 1 seconds",
}
"""What a compiler does instead, and what is said of it."""


@pytest.fixture
def impostor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script that is given as the compiler."""
    path = tmp_path / "the compiler"
    monkeypatch.setenv("CXX", f"'{path}'")
    return path


def write_script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)


@pytest.mark.parametrize("action", FAULTS)
def test_what_is_no_compiler(
    action: str, impostor: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        cpp_compiler, "SECONDS_TO_ANSWER", 1 if "wait" in action else 60
    )
    write_script(impostor, action)
    with pytest.raises(CompilerNotFoundError, match=FAULTS[action]) as caught:
        build(SPEC)
    assert str(caught.value).endswith("set CXX to one that does")


def test_what_cannot_be_run(impostor: Path) -> None:
    impostor.mkdir()
    with pytest.raises(CompilerNotFoundError, match="set CXX to it"):
        build(SPEC)
    impostor.rmdir()
    impostor.write_text("int main() {}")
    with pytest.raises(CompilerNotFoundError, match="set CXX to it"):
        build(SPEC)
    impostor.chmod(0o700)
    impostor.write_bytes(b"\x7fELF")
    with pytest.raises(CompilerNotFoundError, match=r"cannot be run: .*Exec format"):
        build(SPEC)


WRITES = {
    ":": "wrote no object",
    'echo junk > "$out"': "wrote no object",
    'mkdir "$out"': "wrote no object",
    f'{REAL} "$@"; head -c 500 "$out" > "$out.2"; mv "$out.2" "$out"': "or half of",
    f'case "$out" in *.so) exec {REAL} "$@";; esac; '
    f'echo "int a;" | {REAL} -x c++ -fPIC -c -o "$out" -': "cannot be loaded",
    "echo '\\377' >&2; exit 1": "ended with status 1",
    "sleep 100": "did not end in 1 seconds",
    "kill -9 $$": "was killed by signal 9",
}
"""What a compiler does when it is to compile, and what is said of it."""


@pytest.mark.parametrize("action", WRITES)
def test_what_does_not_compile(
    action: str, impostor: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        cpp_compiler, "SECONDS_TO_BUILD", 1 if "sleep" in action else 60
    )
    (real,) = Compiler(("g++",), "").command
    builds = f'case "$*" in *" -o "*) ;; *) exec {REAL} "$@";; esac'
    lines = f"real={real}; for out; do :; done\n{builds}"
    write_script(impostor, f"{lines}\n{action}")
    for _ in range(2):
        with pytest.raises(CompilationError, match=WRITES[action]):
            load_cpp(SPEC)
    assert not list(cache_folder.iterdir())
    # The same compiler, in another mood: nothing of what it did before is left.
    write_script(impostor, f'exec {REAL} "$@"')
    test_run()


def test_a_cut_object_is_told() -> None:
    data = build(SPEC).read_bytes()
    assert is_whole(data)
    assert not any(is_whole(data[:n]) for n in (0, 4, 50, 63, len(data) // 2))


@pytest.mark.parametrize("directory", ["/no/such/directory", "/proc"])
def test_no_directory_for_temporary_files(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", directory)
    test_run()
