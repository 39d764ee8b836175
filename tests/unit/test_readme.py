"""Examples and commands of the README and the pages that continue it run, in order."""

from __future__ import annotations

import functools
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

from flexc import cli, opt

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "docs/training.md",
    "docs/caches.md",
    "docs/integrations.md",
    "docs/levels.md",
)
TEXT = "\n".join((ROOT / page).read_text("utf-8") for page in PAGES)

TOOLS = {"flexc": cli.main, "flexc-opt": opt.main}


def blocks(language: str) -> list[str]:
    """The fenced code of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def quickly(compile: Any, *args: Any, backend: str = "aot_eager", **rest: Any) -> Any:
    """Compile without Inductor."""
    options = {"inductor": False} if backend == "flexc" else None
    return compile(*args, backend=backend, options=options, **rest)


def test_python_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch, "compile", functools.partial(quickly, torch.compile))
    found: dict[str, Any] = {"__name__": "readme"}
    for code in blocks("python"):
        exec(compile(code, "README.md", "exec"), found)
    assert found["bias"].grad.isfinite().all()
    assert found["sinks"].grad.abs().min() > 0
    assert found["moved"].shape == found["query"].shape
    assert (tmp_path / "window.svg").exists()
    said = capsys.readouterr().out
    shown = next(t for t in blocks("text") if t.startswith("window_with_sinks:"))
    for part in shown.split("  ...\n"):
        assert part in said


def test_what_is_said_of_gradients() -> None:
    import flexc

    bias = torch.zeros(8, 1000, requires_grad=True)

    def relative_bias(score, b, h, q_idx, kv_idx):
        return score + bias[h, (q_idx - kv_idx).abs()]

    def causal(b, h, q_idx, kv_idx):
        return q_idx >= kv_idx

    found = flexc.explain(causal, 2, 8, 1000, score_mod=relative_bias, device="cpu")
    shown = next(t for t in blocks("text") if t.startswith("gradients"))
    assert shown in str(found)


def test_commands_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    mods = blocks("python")[0].partition("\nquery, key")[0]
    (tmp_path / "mods.py").write_text(mods)
    commands = [c for block in blocks("sh") for c in block.splitlines() if "flexc" in c]
    assert len(commands) >= 11
    for command in commands:
        name, *args = shlex.split(command)
        target = args[args.index(">") + 1 :] if ">" in args else []
        if target:
            args = args[: args.index(">")]
        assert TOOLS[name](args) == 0
        said = capsys.readouterr().out
        assert said
        for path in target:
            (tmp_path / path).write_text(said)
