"""Compiling and loading: what is cached, what is refused, what errors say."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from flexc.codegen.kernel_spec import KernelSpec, ParamSpec
from flexc.errors import CompilationError, CompilerNotFoundError
from flexc.runtime.cpp_compiler import Compiler
from flexc.runtime.cpp_loader import build, load_cpp

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


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLEXC_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The sources that were compiled."""
    compiled: list[Path] = []
    original = Compiler.build

    def counted(self: Compiler, source: Path, output: Path) -> None:
        compiled.append(source)
        original(self, source, output)

    monkeypatch.setattr(Compiler, "build", counted)
    return compiled


def test_run() -> None:
    x, out = torch.randn(5), torch.empty(5)
    load_cpp(SPEC)((1, 1, 1), [x, out, 5])
    assert torch.equal(out, 2 * x)


def test_compiled_once(builds: list[Path], cache: Path) -> None:
    assert build(SPEC) == build(SPEC)
    assert len(builds) == 1
    assert cache.stat().st_mode & 0o777 == 0o700
    assert builds[0].read_text() == SPEC.source


def test_other_source_is_compiled(builds: list[Path]) -> None:
    other = dataclasses.replace(SPEC, source=SPEC.source.replace("2 *", "3 *"))
    assert build(SPEC) != build(other)
    assert len(builds) == 2


@pytest.mark.parametrize("content", [b"", b"\x7fELF and something else"])
def test_what_was_changed_is_not_loaded(builds: list[Path], content: bytes) -> None:
    library = build(SPEC)
    library.write_bytes(content)
    build(SPEC)
    assert len(builds) == 2
    test_run()


def test_what_others_may_write_is_not_loaded(builds: list[Path]) -> None:
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
