"""Values that threads of their own make, and kernels of gradients that are such."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import flexc
from flexc.errors import CompilationError
from flexc.runtime.kernels import cpp_loader
from flexc.runtime.kernels.driver import counters
from flexc.runtime.process import recent
from flexc.runtime.process.recent import Background

attend: Any = flexc.flex_attention


def test_all_who_ask_have_one_value() -> None:
    asked, made = threading.Event(), list[int]()

    def make() -> int:
        asked.wait(60)
        made.append(1)
        return 5

    value = Background(make)
    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(value.get) for _ in range(4)]
        asked.set()
        assert [f.result() for f in found] == [5] * 4
    assert value.get() == 5
    assert made == [1]


def test_an_error_is_of_those_who_ask_and_who_ask_again_try_again() -> None:
    tries: list[str] = []

    def make() -> int:
        tries.append(threading.current_thread().name)
        if len(tries) == 1:
            raise CompilationError("no memory")
        return 5

    value = Background(make)
    with pytest.raises(CompilationError, match="no memory"):
        value.get()
    assert value.get() == 5
    assert tries == ["flexc", threading.current_thread().name]


def test_without_apart_errors_come_at_once() -> None:
    with pytest.raises(ZeroDivisionError):
        Background(lambda: 1 // 0, apart=False)
    assert Background(lambda: 5, apart=False).get() == 5


def test_without_threads_who_asks_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(recent, "Thread", Refused)
    assert Background(lambda: 5).get() == 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_makes_what_its_parent_had_begun() -> None:
    go = threading.Event()
    here = os.getpid()

    def make() -> int:
        if os.getpid() == here:
            go.wait(60)
        return os.getpid()

    value = Background(make)
    child = os.fork()
    if not child:
        os._exit(0 if value.get() == os.getpid() else 1)
    _, status = os.waitpid(child, 0)
    go.set()
    assert status == 0
    assert value.get() == here


def inputs() -> list[Tensor]:
    return [torch.randn(1, 2, 40, 24, requires_grad=True) for _ in range(3)]


def cosines(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return s * torch.cos(q * h + s)


def sines(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return s * torch.sin(q * h - s)


@pytest.mark.usefixtures("cache_folder")
def test_kernels_of_gradients_are_begun_with_that_of_the_call() -> None:
    out = attend(*inputs(), cosines)
    assert isinstance(out, Tensor)
    before = counters.copy()
    out.sum().backward()
    assert counters == before


@pytest.fixture
def no_gradients(monkeypatch: pytest.MonkeyPatch, cache_folder: Path) -> set[str]:
    """Kernels that no compiler is had for."""
    refused = {"attention_backward_gradients"}
    build = cpp_loader.build

    def may_build(spec: Any) -> Path:
        if spec.entry in refused:
            raise CompilationError("no room for this one")
        return build(spec)

    monkeypatch.setattr(cpp_loader, "build", may_build)
    return refused


def test_what_is_wrong_with_gradients_is_said_when_they_are_asked_for(
    no_gradients: set[str],
) -> None:
    given = inputs()
    out = attend(*given, sines)
    assert isinstance(out, Tensor)
    with pytest.raises(CompilationError, match="no room"):
        out.sum().backward(retain_graph=True)
    no_gradients.clear()
    out.sum().backward()
    assert all(t.grad is not None for t in given)


def test_a_process_may_end_before_its_compilers(tmp_path: Path) -> None:
    """It waits for them, and what they make is there for the next."""
    code = (
        "import torch, flexc\n"
        "q = torch.randn(1, 2, 40, 24, requires_grad=True)\n"
        "flexc.flex_attention(q, q, q, mask_mod=lambda b, h, q, k: q >= k)\n"
    )
    environment = os.environ | {"FLEXC_CACHE_DIR": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=True
    )
    assert b"Error" not in ended.stderr
    found = {p.name.rpartition("-")[0] for p in tmp_path.rglob("*.so")}
    assert found >= {"attention", "attention_backward_gradients"}
