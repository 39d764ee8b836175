"""Loops in loops, and tiles that are used for long: run with roles and without."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import InterpretationError

from flexc.passes.hopper.specialize_warps import tile_specialize_warps
from flexc.passes.hopper.specialize_warps.tile_specialize_warps import (
    TileSpecializeWarpsPass,
)
from flexc.passes.hopper.tile_async_products import TileAsyncProductsPass
from flexc.runtime.interpreters import run_module
from tests.unit.passes.test_specialize_warps import TWO_TILES_AT_ONCE, parse

FILECHECK = Path(__file__).parents[2] / "filecheck" / "passes"
NESTED = (FILECHECK / "tile-specialize-warps-nested.mlir").read_text()

INTERLEAVINGS = [None, 0, 1, 2]


def random(*shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
    draw = torch.Generator().manual_seed(len(shape) + shape[-2])
    return (torch.randn(*shape, generator=draw) / 8).to(dtype)


def run(module: ModuleOp, interleaving: int | None = None) -> list[Tensor]:
    """The outputs of a kernel of query, key and value of three heads, and so on."""
    inputs = [random(1, 3, rows, 64) for rows in (128, 128, 64)]
    sums = random(1, 3, 128, dtype=torch.float32)
    outputs = [torch.zeros(1, 3, 128, 64), torch.zeros(1, 3, 128, 32).half()]
    run_module(module, [*inputs, sums, *outputs, 4], interleaving=interleaving)
    return outputs


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_nested_loops(slots: int) -> None:
    wanted = run(parse(NESTED))
    assert all(w.abs().sum() > 0 for w in wanted)
    module = parse(NESTED)
    for each in (TileSpecializeWarpsPass(slots), TileAsyncProductsPass()):
        each.apply(Context(), module)
        module.verify()
        for interleaving in INTERLEAVINGS:
            for got, want in zip(run(module, interleaving), wanted, strict=True):
                assert got.equal(want)


def run_two_tiles(module: ModuleOp, interleaving: int | None = None) -> Tensor:
    inputs = [random(1, 1, rows, 64, dtype=torch.bfloat16) for rows in (128, 66, 67)]
    out = torch.zeros(1, 1, 128, 64, dtype=torch.bfloat16)
    run_module(module, [*inputs, out, 3], interleaving=interleaving)
    return out


@pytest.mark.parametrize("interleaving", INTERLEAVINGS)
def test_too_few_slots_are_a_deadlock(
    interleaving: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is refused hangs, and one slot more does not."""
    monkeypatch.setattr(tile_specialize_warps, "check_slots", lambda *_: None)
    wanted = run_two_tiles(parse(TWO_TILES_AT_ONCE))
    enough, too_few = (scheduled(TWO_TILES_AT_ONCE, slots) for slots in (2, 1))
    torch.testing.assert_close(run_two_tiles(enough, interleaving), wanted)
    with pytest.raises(InterpretationError, match="deadlock"):
        run_two_tiles(too_few, interleaving)


def scheduled(text: str, slots: int) -> ModuleOp:
    module = parse(text)
    TileSpecializeWarpsPass(slots).apply(Context(), module)
    TileAsyncProductsPass().apply(Context(), module)
    return module
