"""What is traced, lowered and built, counted; and what a disk may do to files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import flexc
from flexc.errors import CompilerNotFoundError, OptionError
from flexc.runtime import cache, call, cpp_loader, driver, launches
from flexc.runtime.cache import cache_dir, clear_cache, load_text, store_text
from flexc.runtime.cpp_compiler import find_compiler
from flexc.runtime.driver import counters


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, on disk and in memory."""
    monkeypatch.setenv("FLEXC_CACHE_DIR", str(tmp_path / "cache"))
    forget(monkeypatch)
    return tmp_path / "cache"


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty the caches in memory."""
    monkeypatch.setattr(driver, "_kernels", {})
    monkeypatch.setattr(call, "_compiled", {})
    monkeypatch.setattr(launches, "_launches", {})


def made() -> dict[str, int]:
    return {k: counters[k] for k in ("traced", "lowered", "loaded", "built")}


def new_work(run: Callable[[], Any]) -> dict[str, int]:
    """What a call made anew."""
    before = made()
    run()
    return {k: n - before[k] for k, n in made().items() if n != before[k]}


def attend(score_mod: Any = None, length: int = 24, dim: int = 8) -> Tensor:
    query = torch.ones(1, 2, length, dim)
    return flexc.flex_attention(query, query, query, score_mod)  # pyright: ignore


def with_slope(slope: Any) -> Any:
    def score_mod(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return s + slope * (q - k)

    return score_mod


def with_bias(bias: Tensor) -> Any:
    def score_mod(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return s + bias[h, k]

    return score_mod


def test_second_calls_do_nothing(folder: Path) -> None:
    assert new_work(lambda: attend(with_slope(0.5)))["built"] == 1
    assert not new_work(lambda: attend(with_slope(0.5)))
    assert not new_work(lambda: attend(with_slope(0.25), length=57))
    assert not new_work(lambda: attend(with_slope(-3.0), length=31))


def test_other_captured_tensors_do_nothing(folder: Path) -> None:
    assert new_work(lambda: attend(with_bias(torch.randn(2, 24))))["built"] == 1
    assert not new_work(lambda: attend(with_bias(torch.randn(2, 24))))
    assert not new_work(lambda: attend(with_bias(torch.randn(2, 90)), length=90))


def test_captured_values_count() -> None:
    query = torch.randn(1, 2, 8, 8)
    bias = torch.zeros(2, 8)
    first = flexc.flex_attention(query, query, query, with_bias(bias))
    bias[:, 0] = 50.0
    second = flexc.flex_attention(query, query, query, with_bias(bias))
    assert isinstance(first, Tensor)
    assert isinstance(second, Tensor)
    torch.testing.assert_close(second, query[:, :, :1].expand_as(query))
    assert not torch.allclose(first, second)


def test_other_dims_build(folder: Path) -> None:
    attend()
    assert new_work(lambda: attend(dim=16))["built"] == 1


def test_branches_on_numbers_are_guarded(folder: Path) -> None:
    def capped(limit: float) -> Any:
        def score_mod(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return s.clamp(max=limit) if limit > 0 else s

        return score_mod

    assert new_work(lambda: attend(capped(1.0)))["built"] == 1
    assert not new_work(lambda: attend(capped(2.0)))
    assert new_work(lambda: attend(capped(-1.0)))["traced"] == 1
    assert not new_work(lambda: attend(capped(-2.0)))
    assert not new_work(lambda: attend(capped(3.0)))


def test_equal_code_of_other_functions_shares_a_kernel(folder: Path) -> None:
    attend(lambda s, b, h, q, k: s * 2 + q)
    work = new_work(lambda: attend(lambda score, b, h, q_idx, k: score * 2 + q_idx))
    assert work == {"traced": 1}


def test_disk_serves_a_second_process(folder: Path) -> None:
    code = (
        "import torch, flexc; from flexc.runtime.driver import counters;"
        "q = torch.ones(1, 2, 24, 8);"
        "flexc.flex_attention(q, q, q, lambda s, b, h, q, k: s + q);"
        "print(counters['lowered'], counters['loaded'])"
    )
    said = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        said.append(done.stdout.split())
    assert said == [["1", "0"], ["0", "1"]]
    assert folder.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("pattern", ["spec-*.json", "*.so", "*.sha256", "*.cpp"])
@pytest.mark.parametrize("content", [b"", b"\xff{", b"{}"], ids=str)
def test_damaged_files_are_made_again(
    folder: Path, pattern: str, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = attend()
    (damaged,) = folder.glob(pattern)
    whole = damaged.read_bytes()
    # A loaded library stays mapped: a new file, not other bytes in the old one.
    damaged.unlink()
    damaged.write_bytes(content)
    forget(monkeypatch)
    torch.testing.assert_close(attend(), expected)
    if pattern == "spec-*.json":
        assert damaged.read_bytes() == whole


def test_files_of_others_are_not_loaded(folder: Path) -> None:
    attend()
    (library,) = folder.glob("*.so")
    digest = load_text(f"{library.name}.sha256")
    assert cpp_loader.is_trusted(library, digest)
    library.chmod(0o722)
    assert not cpp_loader.is_trusted(library, digest)


def test_store_load_and_clear(folder: Path) -> None:
    assert load_text("a.txt") is None
    path = store_text("a.txt", "one")
    assert store_text("a.txt", "two") == path
    assert load_text("a.txt") == "two"
    (cache_dir() / "folder").mkdir()
    clear_cache()
    assert list(folder.iterdir()) == []


def test_a_directory_that_cannot_be_made_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "cache", Path("/proc/cache")):
        monkeypatch.setenv("FLEXC_CACHE_DIR", str(path))
        with pytest.raises(OptionError, match=r"cannot be made .* set FLEXC_CACHE_DIR"):
            cache_dir()
    monkeypatch.setenv("FLEXC_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "flexc"


def test_a_directory_that_cannot_be_written_to_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: object) -> None:
        raise OSError(28, "No space left on device")

    cache_dir()
    monkeypatch.setattr("tempfile.mkstemp", fail)
    with pytest.raises(OptionError, match=r"cannot be written to \(No space left"):
        store_text("a.txt", "one")


def test_a_compiler_that_cannot_be_read_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for chosen in ("g++ '", "/no/such/g++"):
        monkeypatch.setenv("CXX", chosen)
        with pytest.raises(CompilerNotFoundError, match="CXX="):
            find_compiler()


def test_a_directory_of_somebody_else_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache._private_dir.cache_clear()
    monkeypatch.setattr("os.getuid", lambda: 12345)
    with pytest.raises(OptionError, match="belongs to another user; set FLEXC_CACHE"):
        cache_dir()
    cache._private_dir.cache_clear()
