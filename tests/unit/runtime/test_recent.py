"""What is kept in a process, and what goes."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

import flexc
from flexc.runtime.kernels import (
    cpp_loader,
    driver,
    kernel,
)
from flexc.runtime.kernels.cpp_loader import load_cpp
from flexc.runtime.kernels.kernel import launch
from flexc.runtime.process.recent import Recent
from flexc.runtime.replay import repeats
from flexc.runtime.tapes.tape import Prepared
from tests.codegen.test_cpp_loader import SPEC


def test_what_was_used_last_is_kept() -> None:
    recent = Recent[str](3)
    for key in "abc":
        assert recent.add(key, key.upper()) == key.upper()
    assert recent.find("a") == "A"
    recent.add("d", "D")
    assert [recent.find(key) for key in "abcd"] == ["A", None, "C", "D"]
    assert len(recent) == 3


def test_values_of_a_key_are_told_apart() -> None:
    recent = Recent[int](3)
    for n in (1, 2, 3):
        recent.add("n", n)
    assert recent.find("n", lambda n: n > 1) == 2
    assert recent.find("n", lambda n: n > 3) is None
    recent.add("other", 4)
    assert recent.find("n", lambda n: n == 1) is None  # The oldest of them.
    assert recent.find("other") == 4
    assert [recent.take("n") for _ in range(3)] == [2, 3, None]
    assert len(recent) == 1
    recent.clear()
    assert len(recent) == 0
    assert recent.find("other") is None


def test_one_key_has_no_more_than_all() -> None:
    recent = Recent[int](3)
    for n in range(10):
        recent.add("n", n)
    assert len(recent) == 3
    assert recent.find("n") == 7


def test_what_goes_is_freed() -> None:
    class Thing:
        pass

    recent = Recent[Thing](1)
    gone = weakref.ref(recent.add("a", Thing()))
    recent.add("b", Thing())
    gc.collect()
    assert gone() is None


def test_many_threads() -> None:
    recent = Recent[int](50)

    def work(seed: int) -> None:
        for n in range(2000):
            key = n * seed % 100
            found = recent.find(key)
            assert found in (None, key)
            if found is None:
                recent.add(key, key)
            if n % 7 == 0:
                assert recent.take(key) in (None, key)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, (3, 7, 11, 13, 17, 19, 23, 29)))
    assert len(recent) <= 50
    assert len(recent) == sum(len(v) for v in recent._values.values())


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_in_the_middle_of_an_access() -> None:
    recent, stop = Recent[int](5), threading.Event()

    def work() -> None:
        while not stop.is_set():
            recent.add(1, 1)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                os._exit(recent.find(1) or recent.add(1, 1))
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    finally:
        stop.set()
        thread.join()


def mapped(path: Path) -> bool:
    return str(path) in Path("/proc/self/maps").read_text()


needs_proc = pytest.mark.skipif(
    not Path("/proc/self/maps").exists(), reason="there are no maps to look at"
)


@needs_proc
def test_a_library_is_closed_with_the_last_that_runs_it(cache_folder: Path) -> None:
    load_cpp(SPEC)  # One stays open.
    spec = replace(SPEC, source=SPEC.source + "// Another.")
    first, second = load_cpp(spec), load_cpp(spec)
    library = cpp_loader.build(spec)
    assert mapped(library)
    del first
    assert mapped(library)
    x, out = torch.randn(5), torch.empty(5)
    launch(second, (1, 1, 1), [x, out, 5])
    assert torch.equal(out, 2 * x)
    del second
    gc.collect()
    assert not mapped(library)
    launch(load_cpp(spec), (1, 1, 1), [x, out, 5])


def scaled(factor: int) -> Any:
    """A mod whose code is its own: the number is a constant of it."""
    scope: dict[str, Any] = {}
    exec(f"def score_mod(s, b, h, q, k): return s * {factor}", scope)
    return scope["score_mod"]


def test_kernels_are_bounded(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call is right when its kernel is gone, or held by nothing but its launch."""
    monkeypatch.setattr(driver, "_kernels", Recent(2))
    repeats.KNOWN.clear()
    x = torch.randn(1, 2, 8, 8)
    zeros = torch.zeros_like(x)
    for factor in (2, 3, 4, 5, 2, 3):
        # Scores are captured: with weights of one key they are lse.
        _, lse = flexc.flex_attention(
            x[:, :, :1], x[:, :, :1], zeros[:, :, :1], scaled(factor), return_lse=True
        )
        score = (x[:, :, :1] ** 2).sum(-1) / 8**0.5
        torch.testing.assert_close(lse, score * factor)
    assert len(driver._kernels) == 2


class Nothing:
    """What takes the place of a compiled kernel."""

    def prepare(self, *args: Any) -> Prepared:
        launcher: Any = SimpleNamespace(launch=lambda: None)
        return Prepared(launcher, [], (), on_stream=False)


def resident() -> int:
    return psutil.Process().memory_info().rss


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_memory_does_not_grow(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 3,000 mods with codes of their own none leaves more than torch's notes.

    What is kept for one takes 50,000 bytes and more.
    """
    monkeypatch.setattr(driver, "_kernels", Recent(20))
    monkeypatch.setattr(driver, "_traced", Recent(20))
    monkeypatch.setattr(repeats.KNOWN, "most", 20)
    monkeypatch.setattr(kernel, "load", lambda spec: Nothing())
    x = torch.randn(1, 2, 8, 8)
    sizes: list[int] = []
    for factor in range(3100):
        flexc.flex_attention(x, x, x, scaled(factor + 2))
        if factor in (99, 3099):
            gc.collect()
            sizes.append(resident())
    assert sizes[1] - sizes[0] < 3000 * 10_000


def test_threads_that_ask_for_the_same_wait_for_the_first() -> None:
    kept: Recent[str] = Recent()
    made: list[int] = []
    together = threading.Barrier(8)

    def make() -> str:
        made.append(1)
        time.sleep(0.05)
        return "value"

    def ask() -> str:
        together.wait()
        return kept.get("key", make)

    with ThreadPoolExecutor(8) as pool:
        found = [f.result() for f in [pool.submit(ask) for _ in range(8)]]
    assert found == ["value"] * 8
    assert len(made) == 1


def test_what_cannot_be_made_is_tried_again() -> None:
    kept: Recent[str] = Recent()

    def fail() -> str:
        raise ValueError("not made")

    for _ in range(2):
        with pytest.raises(ValueError, match="not made"):
            kept.get("key", fail)
    assert kept.get("key", lambda: "value") == "value"
