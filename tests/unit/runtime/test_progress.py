"""What is said while something is compiled."""

from __future__ import annotations

import io
import logging
import re
import sys
import threading
import time

import pytest
import torch
from torch import Tensor

import flexc
from flexc.runtime.process import progress
from flexc.runtime.process.progress import (
    Compilation,
    Progress,
    compiling,
    described,
)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.01)
    monkeypatch.setattr(progress, "_progress", Progress())
    monkeypatch.setattr(sys, "stderr", io.StringIO())


def wait_for(caplog: pytest.LogCaptureFixture, count: int = 1) -> None:
    until = time.monotonic() + 30
    while len(caplog.messages) < count and time.monotonic() < until:
        time.sleep(0.01)


def test_what_takes_long_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    whole = Compilation(lambda: "attention")
    with compiling(whole), compiling(Compilation(lambda: "a part of it")):
        wait_for(caplog)
    assert caplog.messages == ["compiling attention"]
    assert caplog.records[0].levelno == logging.WARNING
    assert caplog.records[0].name == "flexc"


def test_nothing_is_said_of_what_is_done(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 30)
    compilation = Compilation(lambda: "attention")
    with compiling(compilation):
        (timer,) = progress._progress.running
    progress._progress.show(timer, compilation)
    assert not caplog.messages
    assert not progress._progress.running


def test_a_kernel_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    compilation = Compilation(lambda: "attention")
    for _ in range(2):
        with compiling(compilation):
            wait_for(caplog)
            time.sleep(0.05)
    assert caplog.messages == ["compiling attention"]


def test_all_threads_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    def run(name: str) -> None:
        with compiling(Compilation(lambda: name)):
            wait_for(caplog, 2)

    threads = [threading.Thread(target=run, args=(n,)) for n in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(caplog.messages) == ["compiling one", "compiling two"]


def test_a_terminal_has_a_spinner(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rich")
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with compiling(Compilation(lambda: "attention")):
        until = time.monotonic() + 30
        while "attention" not in terminal.getvalue() and time.monotonic() < until:
            time.sleep(0.01)
    assert "flexc: compiling attention" in terminal.getvalue()
    assert progress._progress.spinner is None
    assert not caplog.messages


def test_without_rich_a_terminal_has_a_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with compiling(Compilation(lambda: "attention")):
        wait_for(caplog)
    assert caplog.messages == ["compiling attention"]


@pytest.mark.parametrize(
    ("source", "about"),
    [
        (
            "\n// flexc kernel attention, target cpp\n// mask: q_idx >= kv_idx\n"
            "// score: score\n// segments: full\n",
            "attention (mask: q_idx >= kv_idx, score: score)",
        ),
        ("# flexc kernel summarize, target triton\n\nimport triton\n", "summarize"),
        ("int main() {}", "a kernel"),
    ],
)
def test_descriptions(source: str, about: str) -> None:
    assert described(source) == about


@pytest.mark.usefixtures("cache_folder")
def test_kernels_of_gradients_are_said_with_their_mask(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def mask(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return q >= k - 4321  # No other test has this kernel.

    q, k, v = (torch.randn(1, 1, 8, 16, requires_grad=True) for _ in range(3))
    out = flexc.flex_attention(q, k, v, mask_mod=mask, backend="cpp")
    assert isinstance(out, Tensor)
    out.sum().backward()
    wait_for(caplog, 2)
    text = "mask: q_idx >= kv_idx - 4321"
    forward = f"compiling attention for cpp, float32 ({text}, score: score)"
    assert caplog.messages.count(forward) == 1
    said = f"compiling attention_backward_gradients for cpp, float32 ({text})"
    assert caplog.messages.count(said) == 1


@pytest.mark.usefixtures("cache_folder")
def test_kernels_are_said_with_the_time_they_took(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def mask(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return q >= k - 4322  # No other test has this kernel.

    caplog.set_level(logging.INFO, "flexc")
    q, k, v = (torch.randn(1, 1, 8, 16) for _ in range(3))
    flexc.flex_attention(q, k, v, mask_mod=mask, backend="cpp")
    text = r"attention for cpp, float32 \(.*4322, .*\) is ready after \d+\.\d s"
    assert any(re.fullmatch(text, message) for message in caplog.messages)
