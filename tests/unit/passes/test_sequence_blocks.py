"""Blocks that begin where packed sequences begin, against the `flex` module."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.utils.exceptions import InterpretationError

from flexc.dialects import blocksparse, flex, tile
from flexc.passes import pipelines
from flexc.passes.flex.convert_flex_to_blocksparse import ConvertFlexToBlocksparsePass
from flexc.passes.targets.target import LoweringOptions
from flexc.runtime.interpreters import run_module
from flexc.runtime.varlen import packed_mods
from tests.property.test_packed_bounds import MASKS, sequences
from tests.support.flex_modules import make_call, make_module
from tests.support.pairwise import in_turn

LONG = 64
"""The mean length from which sequences are long here, so that tests are quick."""

TOLERANCE = 0.02
"""Weights are rounded to bf16, 2^-8, and values are rarely above 4."""

SLOPES = torch.tensor([0.5, 0.25])
TABLE = torch.randn(8, 2, 600, generator=torch.Generator().manual_seed(1))

SCORES = {
    "none": None,
    "alibi": lambda s, b, h, q, k: s + SLOPES[h] * (k - q),
    "table": lambda s, b, h, q, k: s + TABLE[b, h, k] - TABLE[b, h, q],
}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "LONG_SEQUENCE", LONG)


def packed(
    mask: str, score: str, queries: list[int], keys: list[int] | None, dim: int = 32
) -> tuple[ModuleOp, list[object]]:
    """Return the `flex` module of packed sequences with two heads, and arguments."""
    mods = packed_mods(SCORES[score], MASKS[mask], sequences(queries, keys))
    draw = torch.Generator().manual_seed(0)
    lengths = sum(queries), sum(queries if keys is None else keys)
    q, k, v = (
        torch.randn(1, heads, length, dim, generator=draw).bfloat16()
        for heads, length in ((2, lengths[0]), (1, lengths[1]), (1, lengths[1]))
    )
    module, args = make_module(make_call((q, k, v), *mods, 0.125))
    for op in module.walk():
        if isinstance(op, flex.AttentionOp):
            op.long_sequences = op.captures_inside = op.indices_fit = UnitAttr()
    return module, args


def lowered(module: ModuleOp) -> ModuleOp:
    """Return a module of Hopper's kernel, before it has roles."""
    module = module.clone()
    convert = ConvertFlexToBlocksparsePass("gluon")
    passes = *pipelines.to_blocksparse(convert), *pipelines.to_tile("gluon")
    pipelines.run(passes, Context(), module)
    module.verify()
    return module


def scheduled(module: ModuleOp) -> ModuleOp:
    module = lowered(module)
    pipelines.run(pipelines.to_schedule(LoweringOptions()), Context(), module)
    module.verify()
    return module


def check(found: list[Tensor], wanted: list[Tensor]) -> None:
    """Check results; a kernel's results are NaN where no program writes them."""
    for got, want in zip(found, wanted, strict=True):
        got, want = got.double(), want.double()
        torch.testing.assert_close(got, want, atol=TOLERANCE, rtol=0.01)


PACKINGS = [
    ([130, 0, 70, 300], None),
    ([1, 127, 128, 129, 200], None),
    ([200, 0, 50, 128], [100, 10, 140, 0]),
]


@pytest.mark.parametrize(("mask", "lengths"), in_turn(list(MASKS), PACKINGS), ids=str)
def test_kernels(mask: str, lengths: tuple[list[int], list[int] | None]) -> None:
    module, args = packed(mask, "table", *lengths)
    check(run_module(lowered(module), args), run_module(module, args))


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("mask", ["none", "causal", "window"])
def test_schedules(mask: str, score: str) -> None:
    module, args = packed(mask, score, [130, 0, 70, 300], None)
    check(run_module(scheduled(module), args), run_module(module, args))


@settings(max_examples=20)
@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=6),
    st.sampled_from(["none", "causal", "window"]),
)
def test_every_row_is_written(lengths: list[int], mask: str) -> None:
    assume(0 < sum(lengths) >= LONG * len(lengths))
    module, args = packed(mask, "none", lengths, None, dim=16)
    check(run_module(lowered(module), args), run_module(module, args))


def test_a_missing_program_is_seen() -> None:
    """More sequences than the grid has programs for leave rows unwritten."""
    module, args = packed("none", "none", [20] * 8, None)
    out = run_module(lowered(module), args)[0]
    assert out.isnan().any()


def test_mods_find_no_sequence() -> None:
    """Mods get the sequence and positions within it, and read no table of them."""
    module = packed("causal", "alibi", [130, 70], None)[0].clone()
    convert = ConvertFlexToBlocksparsePass("gluon")
    pipelines.run(pipelines.to_blocksparse(convert), Context(), module)
    (op,) = (o for o in module.walk() if isinstance(o, blocksparse.AttentionOp))
    assert op.sequence_blocks is not None
    reads = [o for o in op.walk() if isinstance(o, flex.LoadCaptureOp)]
    assert len(reads) == 1  # The slope.
    kernel = lowered(module)
    assert any(isinstance(o, tile.ReturnUnlessOp) for o in kernel.walk())


def test_segments_have_no_interpreter() -> None:
    module, args = packed("causal", "none", [130, 70], None)
    convert = ConvertFlexToBlocksparsePass("gluon")
    pipelines.run(pipelines.to_blocksparse(convert), Context(), module)
    with pytest.raises(InterpretationError, match="run the kernel"):
        run_module(module, args)
