"""A plug-in that an entry point names runs in `flexc-opt` and in a compile."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import flexc
from flexc import opt
from flexc.errors import OptionError, PassResultError
from flexc.runtime.inputs import options

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"

TEXT = """
func.func @f(%x : f32) -> f32 {
  %y = "smooth.cap"(%x) <{limit = 2.0 : f32}> : (f32) -> f32
  func.return %y : f32
}
"""


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the example as `pip` would: a module and a folder of metadata."""
    info = tmp_path / "smooth_cap-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: smooth-cap\n")
    (info / "entry_points.txt").write_text(
        "[xdsl.universe]\nsmooth = smooth_cap:PLUG_IN\n"
    )
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("smooth_cap", None)
    options._parsed_passes.cache_clear()


def test_in_flexc_opt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cap.mlir"
    path.write_text(TEXT)
    assert opt.main([str(path)]) == 0
    assert "smooth.cap" in capsys.readouterr().out
    assert opt.main([str(path), "-p", "cap-scores{limit=3.0},cse"]) == 0
    text = capsys.readouterr().out
    assert "math.tanh" in text
    assert "smooth.cap" not in text


def _capped(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return 2 * torch.tanh(score / 2)


@pytest.mark.parametrize("backend", ["cpp", "eager"])
def test_in_a_compile(backend: str) -> None:
    """The gradient is that of the scores which the pass makes."""
    inputs = [torch.randn(1, 2, 40, 16, requires_grad=True) for _ in range(3)]
    asked = {"passes": "cap-scores{limit=2.0}"}
    attention: Any = partial(flexc.flex_attention, *inputs, backend=backend)
    out, expected = attention(kernel_options=asked), attention(_capped)
    torch.testing.assert_close(out, expected)
    assert not torch.allclose(out, attention())
    if backend == "cpp":
        seed = torch.randn_like(out)
        found = torch.autograd.grad(out, inputs, seed)
        torch.testing.assert_close(found, torch.autograd.grad(expected, inputs, seed))


def test_in_a_compiled_function() -> None:
    query, key, value = (torch.randn(1, 2, 40, 16) for _ in range(3))
    asked = {"passes": "cap-scores{limit=2.0}"}
    layer = flexc.compile(flexc.flex_attention, options={"kernel_options": asked})
    expected = flexc.flex_attention(query, key, value, _capped)
    torch.testing.assert_close(layer(query, key, value), expected)


@pytest.mark.parametrize("text", ["cap-score", "cap-scores{x=1}", "a,{", 3])
def test_unknown_passes(text: object) -> None:
    query = torch.randn(1, 1, 4, 16)
    with pytest.raises(OptionError, match="kernel option passes"):
        flexc.flex_attention(query, query, query, kernel_options={"passes": text})


def test_a_pass_leaves_the_attention() -> None:
    query = torch.randn(1, 1, 4, 16)
    with pytest.raises(PassResultError, match=r"left 0 flex\.attention"):
        flexc.flex_attention(
            query, query, query, kernel_options={"passes": "flexc-to-tile"}
        )


def test_no_passes() -> None:
    query = torch.randn(1, 1, 4, 16)
    attention: Any = partial(flexc.flex_attention, query, query, query)
    torch.testing.assert_close(attention(kernel_options={"passes": ""}), attention())
    assert options.read_passes("") is None


def test_a_target_whose_module_is_not_installed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent() -> None:
        importlib.import_module("no_such_module")

    monkeypatch.setitem(opt.universe.TARGETS, "absent", absent)
    path = tmp_path / "empty.mlir"
    path.write_text("builtin.module {}")
    assert opt.main([str(path), "-t", "absent"]) == 1
    said = capsys.readouterr().err
    assert said == (
        "flexc-opt: -t absent needs the module no_such_module, which is not installed\n"
    )
