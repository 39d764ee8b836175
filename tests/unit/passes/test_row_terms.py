"""Terms of rows beside the scores: what is taken out, and that nothing is lost."""

from __future__ import annotations

import math
from collections.abc import Callable
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from flexc.passes import pipelines
from flexc.passes.blocksparse.programs import attention as programs
from flexc.passes.flex.convert_flex_to_blocksparse import ConvertFlexToBlocksparsePass
from flexc.runtime.attention.call import Outputs
from flexc.runtime.interpreters import run_module
from tests.support.flex_modules import LSE_AND_MAX, make_call, make_module
from tests.support.reference import (
    MaskMod,
    Reference,
    ScoreMod,
    attention,
)

QUERIES, KEYS, DIM = 150, 300, 32
SCALE = 0.25
LARGEST = torch.finfo(torch.float32).max


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


SLOPES = torch.tensor([0.5, -0.125])
ROWS = 3 * torch.randn(QUERIES, generator=generator())
COLUMNS = torch.randn(KEYS, generator=generator())


def tile_module(
    score_mod: ScoreMod,
    mask_mod: MaskMod | None,
    inputs: tuple[Tensor, Tensor, Tensor],
    outputs: Outputs = LSE_AND_MAX,
) -> tuple[ModuleOp, list[object]]:
    """The tile program of a call for Hopper, and its arguments."""
    call = make_call(inputs, score_mod, mask_mod, SCALE, outputs)
    module, args = make_module(call)
    convert = ConvertFlexToBlocksparsePass("gluon")
    passes = (*pipelines.to_blocksparse(convert), *pipelines.to_tile("gluon"))
    pipelines.run(passes, Context(), module)
    module.verify()
    return module, args


def inputs(
    heads: int = 2, queries: int = QUERIES, keys: int = KEYS
) -> tuple[Tensor, Tensor, Tensor]:
    draw = generator()

    def rows(length: int) -> Tensor:
        made = torch.randn(1, heads, length, DIM, generator=draw)
        return made.to(torch.bfloat16)

    return rows(queries), rows(keys), rows(keys)


def is_split(module: ModuleOp) -> bool:
    return any(
        result.name_hint == "block_max" for op in module.walk() for result in op.results
    )


def whole_scores() -> mock._patch[object]:  # pyright: ignore[reportPrivateUsage]
    """Within, programs add everything to each score."""
    return mock.patch.object(programs, "split_score", return_value=None)


def results(
    score_mod: ScoreMod, mask_mod: MaskMod | None, args: tuple[Tensor, Tensor, Tensor]
) -> tuple[Reference, Reference, Reference]:
    """By a program with terms apart, by one without, and in double precision."""
    module, given = tile_module(score_mod, mask_mod, args)
    assert is_split(module)
    apart = Reference(*run_module(module, given))
    with whole_scores():
        module, given = tile_module(score_mod, mask_mod, args)
    assert not is_split(module)
    whole = Reference(*run_module(module, given))
    return apart, whole, attention(*args, score_mod, mask_mod, scale=SCALE)


def causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q >= k


def ahead(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Leaves rows and blocks without any pair."""
    return (k >= q + 100) & (q > 20)


SPLIT: dict[str, Callable[..., Tensor]] = {
    "slope": lambda s, b, h, q, k: s + SLOPES[h] * (k - q),
    "reversed": lambda s, b, h, q, k: s - (q - k) * 0.5,
    "negated": lambda s, b, h, q, k: -((q - k) / 3.0) + s,
    "floats": lambda s, b, h, q, k: s + SLOPES[h] * (k.float() - q.float()),
    "slope of rows": lambda s, b, h, q, k: s + ROWS[q] * (q - k),
    "bias of rows": lambda s, b, h, q, k: s + ROWS[q],
    "all": lambda s, b, h, q, k: (s - ROWS[q] + COLUMNS[k]) + SLOPES[h] * (k - q),
    "capped": lambda s, b, h, q, k: 9 * torch.tanh(s / 9) + SLOPES[h] * (k - q),
    "its own mask": lambda s, b, h, q, k: torch.where(
        q >= k, s + SLOPES[h] * (k - q), -math.inf
    ),
    "large and negative": lambda s, b, h, q, k: (
        torch.where((q >= k) & (q > 9), s, -1e30) + SLOPES[h] * (k - q)
    ),
    "the most negative": lambda s, b, h, q, k: (
        torch.where((q >= k) & (q > 9), s, -LARGEST) + SLOPES[h] * (k - q)
    ),
    "large scores": lambda s, b, h, q, k: s * 1e4 + SLOPES[h] * (k - q),
}

WHOLE: dict[str, Callable[..., Tensor]] = {
    "of columns": lambda s, b, h, q, k: s + COLUMNS[k],
    "of both": lambda s, b, h, q, k: s + SLOPES[h] * (k - q).abs(),
    "a factor of rows": lambda s, b, h, q, k: s * ROWS[q],
    "positions compared": lambda s, b, h, q, k: s + torch.where(q > k, 1.0, 2.0),
    "may cancel": lambda s, b, h, q, k: s + (COLUMNS[k] - ROWS[q]),
    "steps": lambda s, b, h, q, k: s - 0.5 * ((q - k) // 2),
    "no floats": lambda s, b, h, q, k: s + 0.5 * (q - k + (1 << 24)),
    "inside": lambda s, b, h, q, k: torch.exp(s + ROWS[q]),
    "close bounds": lambda s, b, h, q, k: torch.tanh(s) + torch.sin(ROWS[q]),
}


@pytest.mark.parametrize("mask", [None, causal, ahead])
@pytest.mark.parametrize("name", SPLIT)
def test_terms_are_taken_out(name: str, mask: MaskMod | None) -> None:
    apart, whole, exact = results(SPLIT[name], mask, inputs())
    assert_close(apart.out.double(), exact.out, atol=0.02, rtol=0.02)
    for ours, theirs, right in zip(apart[1:], whole[1:], exact[1:], strict=True):
        error = (theirs.double() - right).abs().nan_to_num(0, 0, 0).max().item()
        assert_close(ours.double(), right, atol=2 * error + 1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", WHOLE)
def test_what_stays_with_the_scores(name: str) -> None:
    module, _ = tile_module(WHOLE[name], causal, inputs(), Outputs(lse=True))
    assert not is_split(module)


def test_exact_parts_of_lse_know_only_one_shift() -> None:
    """They are asked for where scores are large."""
    module, _ = tile_module(
        SPLIT["slope"], causal, inputs(), Outputs(lse=True, lse_rest=True)
    )
    assert not is_split(module)


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, -1e9, 1e9, -1e30, -LARGEST]
)
@pytest.mark.parametrize("mask", [None, causal, ahead])
def test_terms_that_hold_nothing_of_the_scores(
    value: float, mask: MaskMod | None
) -> None:
    """Weights stay within bounds, rows without pairs empty, and what is NaN is NaN."""
    rows = ROWS.clone()
    rows[::3] = value
    apart, whole, exact = results(lambda s, b, h, q, k: s + rows[q], mask, inputs())
    ordinary = torch.arange(QUERIES) % 3 != 0
    assert_close(
        apart.out[:, :, ordinary].double(),
        exact.out[:, :, ordinary],
        atol=0.02,
        rtol=0.02,
    )
    for ours, theirs in zip(apart, whole, strict=True):
        assert torch.equal(ours.isnan(), theirs.isnan())
        assert torch.equal(ours == -math.inf, theirs == -math.inf)
    assert apart.out.nan_to_num().abs().max() < 5
    assert_close(apart.lse, whole.lse, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("slope", [1.0, -0.25])
def test_far_away_nothing_is_lost(slope: float) -> None:
    """Scores near a million times the slope, which whole scores round."""
    far = 1_000_000

    def beyond(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return k >= far

    args = inputs(heads=1, queries=40, keys=far + 300)
    apart, whole, exact = results(
        lambda s, b, h, q, k: s + slope * (k - q), beyond, args
    )
    errors = [(r.out.double() - exact.out).abs().max().item() for r in (apart, whole)]
    assert errors[0] < 0.015
    assert errors[0] <= errors[1]
    size = far * abs(slope)
    assert (apart.lse.double() - exact.lse).abs().max() <= 2.0**-23 * size + 1e-5


@pytest.mark.parametrize("slope", [10.0, 1e3, 1e5])
def test_steep_slopes_round_scores(slope: float) -> None:
    """As sums with what the slope makes of a block's columns."""
    args = inputs()
    apart, _, exact = results(lambda s, b, h, q, k: s + slope * (k - q), causal, args)
    widest = 128
    error = 2.0**-23 * slope * widest + 1e-5
    assert (apart.lse.double() - exact.lse).abs().max() <= error
    assert_close(apart.out.double(), exact.out, atol=0.02, rtol=0.02)
