"""What of a build and of flexc itself tells kernels apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from xdsl.dialects.builtin import ModuleOp

from flexc.frontend.import_graph import AttentionCall
from flexc.runtime.inputs.options import TileOptions
from flexc.runtime.kernels import driver
from flexc.runtime.kernels.driver import Build
from flexc.runtime.process import cache


def test_precision_of_products_is_part_of_the_key() -> None:
    module = ModuleOp([])
    of_call = AttentionCall(torch.float32, 64, 64)
    build = Build(of_call, "triton", "cuda", TileOptions(), f32_precision="ieee")
    tf32 = replace(build, f32_precision="tf32")
    assert build != tf32
    assert driver.kernel_key(module, build) != driver.kernel_key(module, tf32)


def test_flexc_itself_is_part_of_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An editable checkout changes, its version does not."""
    monkeypatch.setattr(cache, "PACKAGE", tmp_path)
    (tmp_path / "printer.py").write_text("old")
    before = cache.own_digest()
    assert before == cache.own_digest()
    (tmp_path / "printer.py").write_text("new")
    assert before != cache.own_digest()
