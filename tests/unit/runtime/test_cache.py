"""What is traced, lowered and built, counted; and what a disk may do to files."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import flexc
from flexc.errors import CompilerNotFoundError, OptionError
from flexc.runtime.kernels import driver
from flexc.runtime.kernels.cpp_compiler import find_compiler
from flexc.runtime.kernels.driver import counters
from flexc.runtime.process.cache import (
    cache_dir,
    clear_cache,
    entries,
    load,
    store,
    workspace,
)
from flexc.runtime.process.recent import Recent
from flexc.runtime.replay import repeats
from tests.support.threads import torch_threads


@pytest.fixture
def folder(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, on disk and in memory."""
    forget(monkeypatch)
    return cache_folder


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty the caches in memory."""
    monkeypatch.setattr(driver, "_kernels", Recent())
    driver._traced.clear()
    repeats.KNOWN.clear()


def made() -> dict[str, int]:
    return {k: counters[k] for k in ("traced", "lowered", "loaded", "built")}


def new_work(run: Callable[[], Any]) -> dict[str, int]:
    """What a call made anew."""
    before = made()
    run()
    return {k: n - before[k] for k, n in made().items() if n != before[k]}


def attend(score_mod: Any = None, length: int = 40, dim: int = 8) -> Tensor:
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
    assert not new_work(lambda: attend(with_slope(-3.0), length=33))


def test_a_planned_mask_compiles_what_is_run(folder: Path) -> None:
    """Kernels that store classes are for `flexc.create_block_mask`."""
    ids = torch.arange(1024) // 300
    query = torch.ones(1, 1, 1024, 8)
    flexc.flex_attention(
        query, query, query, mask_mod=lambda b, h, q, k: ids[q] == ids[k]
    )
    kernels = {path.name.split("-")[0] for path in folder.glob("*.so")}
    assert kernels == {"attention", "list_rows"}


def test_other_captured_tensors_do_nothing(folder: Path) -> None:
    bias = torch.randn(2, 40)
    assert new_work(lambda: attend(with_bias(bias)))["built"] == 1
    assert not new_work(lambda: attend(with_bias(bias.clone())))
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
        "import torch, flexc; from flexc.runtime.kernels.driver import counters;"
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


@pytest.mark.parametrize("pattern", ["spec-*.json", "*.so"])
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


def test_a_spec_that_is_another_ones_is_not_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = attend(with_slope(0.5))
    (own,) = folder.glob("spec-*.json")
    attend()
    (other,) = set(folder.glob("spec-*.json")) - {own}
    shutil.copy(other, own)
    forget(monkeypatch)
    torch.testing.assert_close(attend(with_slope(0.5)), expected)


def test_threads_compile_the_same_kernel(folder: Path) -> None:
    slopes = [0.0, 0.25, 0.5, 1.0] * 2
    with ThreadPoolExecutor(8) as pool:
        outs = list(pool.map(lambda slope: attend(with_slope(slope)), slopes))
    for slope, out in zip(slopes, outs, strict=True):
        torch.testing.assert_close(out, attend(with_slope(slope)))
    assert not [p for p in folder.iterdir() if p.name.startswith(".")]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_its_parents_threads(folder: Path) -> None:
    with torch_threads(2):
        expected = attend(length=300)
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(60)
            os._exit(0 if torch.equal(attend(length=300), expected) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert torch.equal(attend(length=300), expected)


ENTRY = f"attention-{'0' * 32}.so"


def test_store_load_and_clear(folder: Path) -> None:
    assert load(ENTRY) is None
    path = store(ENTRY, b"one")
    assert store(ENTRY, b"two") == path
    assert load(ENTRY) == b"two"
    clear_cache()
    assert load(ENTRY) is None


def test_clearing_removes_only_what_flexc_wrote(folder: Path) -> None:
    digest = "0123456789abcdef" * 2
    own = [f"attention-{digest}{end}" for end in (".py", ".so")]
    own += [f"shared-{digest}.o", f"kernel-{digest}{digest}.json"]
    others = ["a.txt", ".bashrc", "thesis-2026.json", f"{digest}.so", "old.so"]
    for name in (*own, *others):
        (cache_dir() / name).write_bytes(b"x")
    (folder / "photos").mkdir()
    (folder / f"damaged-{digest}.so").mkdir()
    (folder / f"link-{digest}.so").symlink_to(folder)
    os.utime(folder / ".bashrc", (0, 0))
    assert {entry.path.name for entry in entries(folder)} == set(own)
    clear_cache()
    assert {path.name for path in folder.iterdir()} == {*others, "photos"}


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def replaced(path: Path, make: Callable[[], None]) -> None:
    path.unlink()
    make()


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "empty": lambda p: p.write_bytes(b""),
    "half": lambda p: p.write_bytes(p.read_bytes()[: p.stat().st_size // 2]),
    "flipped": flipped,
    "longer": lambda p: p.write_bytes(p.read_bytes() + b"junk"),
    "directory": lambda p: replaced(p, lambda: (p / "full").mkdir(parents=True)),
    "another": lambda p: p.write_bytes((p.parent / "b.txt").read_bytes()),
    "loop": lambda p: replaced(p, lambda: p.symlink_to(p)),
    "link": lambda p: (
        p.rename(p.parent / "c.txt").with_name(p.name).symlink_to("c.txt")
    ),
    "pipe": lambda p: replaced(p, lambda: os.mkfifo(p, 0o600)),
    "writable": lambda p: p.chmod(0o620),
    "unreadable": lambda p: p.chmod(0o200),
    "gone": lambda p: p.unlink(),
}
"""What may become of an entry."""


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_made_again(folder: Path, damage: str) -> None:
    path = store("a.txt", b"one")
    store("b.txt", b"two")
    entry = path.read_bytes()
    DAMAGES[damage](path)
    if damage != "unreadable" or os.geteuid():
        assert load("a.txt") is None
    store("a.txt", b"one")
    assert load("a.txt") == b"one"
    assert path.read_bytes() == entry
    assert not [p for p in folder.iterdir() if p.name.startswith(".")]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_entries_of_others_are_not_trusted(folder: Path) -> None:
    path = store("a.txt", b"one")
    os.chown(path, 12345, -1)
    assert load("a.txt") is None
    store("a.txt", b"one")
    assert path.stat().st_uid == 0
    os.chown(folder, 12345, -1)
    with pytest.raises(OptionError, match="belongs to another user; set FLEXC_CACHE"):
        load("a.txt")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give links away")
def test_links_of_others_are_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("own")
    monkeypatch.setenv("FLEXC_CACHE_DIR", str(tmp_path / "link" / "cache"))
    assert cache_dir() == tmp_path / "own" / "cache"
    os.chown(tmp_path / "link", 12345, -1, follow_symlinks=False)
    with pytest.raises(OptionError, match=r"another user's symbolic link .*link; set"):
        cache_dir()


def test_what_anyone_may_write_entries_are_planted_in(folder: Path) -> None:
    """The directory is made private; what lies there is trusted by its seal alone."""
    folder.mkdir(mode=0o700)
    folder.chmod(0o777)
    (folder / "a.txt").write_bytes(b"planted")
    assert load("a.txt") is None
    assert folder.stat().st_mode & 0o777 == 0o700


def test_entries_are_private_whatever_the_umask(folder: Path) -> None:
    before = os.umask(0)
    try:
        path = store("a.txt", b"one")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert load("a.txt") == b"one"


def test_a_directory_that_is_removed_is_made_again(folder: Path) -> None:
    store("a.txt", b"one")
    shutil.rmtree(folder)
    assert load("a.txt") is None
    store("a.txt", b"one")
    assert load("a.txt") == b"one"


def test_what_the_dead_left_is_removed(folder: Path) -> None:
    with workspace() as old, workspace() as young:
        os.utime(old, (0, 0))
        store(ENTRY, b"one")
        assert not old.exists()
        clear_cache()
        assert list(folder.iterdir()) == [young]


@pytest.mark.parametrize(
    "name", ["with space", "größe", "a'b;c", "re/la/tive", "\udcff"], ids=ascii
)
def test_any_name_will_do(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLEXC_CACHE_DIR", name)
    forget(monkeypatch)
    attend()
    forget(monkeypatch)
    assert new_work(attend)["loaded"] == 1
    assert len(list((tmp_path / name).glob("*.so"))) == 1


def test_a_directory_that_cannot_be_made_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "broken").symlink_to(tmp_path / "file" / "cache")
    names = ("file", "file/cache", "loop", "loop/cache", "broken")
    for path in (*(tmp_path / name for name in names), Path("/proc/cache")):
        monkeypatch.setenv("FLEXC_CACHE_DIR", str(path))
        with pytest.raises(OptionError, match=r"cannot be made .* set FLEXC_CACHE_DIR"):
            cache_dir()
    monkeypatch.setenv("FLEXC_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "flexc"


def test_a_home_that_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("FLEXC_CACHE_DIR", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "flexc"
    monkeypatch.setenv("FLEXC_CACHE_DIR", "~/here")
    assert cache_dir() == tmp_path / "here"
    monkeypatch.setenv("FLEXC_CACHE_DIR", "~nobody-of-this-name/here")
    with pytest.raises(OptionError, match=r"not known; set FLEXC_CACHE_DIR"):
        cache_dir()


def test_a_folder_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setenv("FLEXC_CACHE_DIR", "cache")
    with pytest.raises(OptionError, match=r"cannot be made .* set FLEXC_CACHE_DIR"):
        cache_dir()


@pytest.mark.parametrize("failing", ["tempfile.mkdtemp", "pathlib.Path.write_bytes"])
def test_a_directory_that_cannot_be_written_to_is_said(
    folder: Path, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(failing, fail)
    with pytest.raises(OptionError, match=r"cannot be written to \(No space left"):
        store("a.txt", b"one")
    assert list(folder.iterdir()) == []


def test_a_compiler_that_cannot_be_read_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for chosen in ("g++ '", "/no/such/g++"):
        monkeypatch.setenv("CXX", chosen)
        with pytest.raises(CompilerNotFoundError, match="CXX="):
            find_compiler()
