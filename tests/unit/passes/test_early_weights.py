"""Kernels that `tile-early-weights` leaves as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from flexc.passes.cpu.tile_early_weights import TileEarlyWeightsPass
from tests.codegen.cpp_kernels import parse

FILE = Path(__file__).parents[2] / "filecheck/passes/tile-early-weights.mlir"
ALIAS = "!k = tensor<?x64xbf16, strided<[?, 1]>>\n"
WEIGHTS, MOD = (
    f"{ALIAS}tile.kernel {text.partition(chr(10) + '//')[0]}"
    for text in FILE.read_text().split("\ntile.kernel ")[1:]
)

ADD = "%y = arith.addf %x, %f : f32"
MINUS_INF = "arith.constant 0xff800000 : f32"
CHANGES = {
    "another choice": (WEIGHTS, (" attributes {tile.reference}", "")),
    "the least": (WEIGHTS, ("reduce max", "reduce min")),
    "no flag": (WEIGHTS, ("cmpi sgt, %length", "cmpi eq, %length")),
    "two flags": (WEIGHTS, ("cmpi sgt, %length, %c0", "cmpi sgt, %length, %c1")),
    "the old reference": (WEIGHTS, ("yield %m, %l_next", "yield %m_i, %l_next")),
    "a factor of each row": (
        WEIGHTS,
        ("= %factor [] : f32", "= %m_i [0] : !tile.tile<32xf32>"),
    ),
    "a later count": (
        WEIGHTS,
        ("%p = tile.map", "%late = arith.minsi %n, %c1 : i32\n    %p = tile.map"),
        ("tile.pack %p count %n", "tile.pack %p count %late"),
    ),
    "a function": (MOD, (ADD, f"%t = math.tanh %f : f32\n{ADD.replace('%f', '%t')}")),
    "a mask": (
        MOD,
        (
            ADD,
            f"%e = {MINUS_INF}\n%u = arith.cmpf ogt, %x, %f : f32\n"
            "%y = arith.select %u, %x, %e : f32",
        ),
    ),
    "columns of a table": (MOD, ("tile.iota %at :", "tile.full %at : i32 ->")),
    "a count after the mod": (
        MOD,
        ("%row_max =", "%late = arith.minsi %n, %c1 : i32\n    %row_max ="),
        ("max %scores along 0 count %n", "max %scores along 0 count %late"),
    ),
}


def has_early_weights(text: str) -> bool:
    ctx, module = parse(text)
    module.verify()
    TileEarlyWeightsPass().apply(ctx, module)
    module.verify()
    return "%ahead" in str(module)


@pytest.mark.parametrize("text", [WEIGHTS, MOD], ids=["product", "mod"])
def test_early_weights(text: str) -> None:
    assert has_early_weights(text)


@pytest.mark.parametrize("change", CHANGES)
def test_other_computations(change: str) -> None:
    """Computations stay that may be other than a softmax, or late."""
    text, *parts = CHANGES[change]
    for old, new in parts:
        assert old in text
        text = text.replace(old, new)
    assert not has_early_weights(text)
