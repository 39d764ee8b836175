"""Blocks that a classifier calls dead have no live pair; full ones no other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flexc.passes.scalar.canonicalization import simplify_region
from tests.property.builder import Builder
from tests.property.captures import Captures
from tests.property.cases import Case, ModSource, Sizes
from tests.property.classifier_reference import (
    Grid,
    Mask,
    classified,
    counted,
    imported,
)
from tests.property.mask_regions import mask_regions
from tests.property.strategies import mask_condition
from tests.property.values import Real

LENGTHS = (1, 2, 7, 16, 31, 48, 65)
BLOCKS = (1, 3, 7, 16, 32)


def check_sound(mask: Mask, grid: Grid, fits: bool) -> None:
    longest = max(grid.q_len, grid.kv_len)
    dead, full = counted(mask, grid)
    for max_length in (longest, 1 << 24):
        classifier = mask.classifier(max_length, fits)
        if classifier is None:
            continue
        found_dead, found_full = classified(classifier, mask.captures, grid)
        assert not (found_dead & ~dead).any(), "a dead block has live pairs"
        assert not (found_full & ~full).any(), "a full block has dead pairs"


@st.composite
def grids(draw: Any) -> Grid:
    lengths, blocks = st.sampled_from(LENGTHS), st.sampled_from(BLOCKS)
    return Grid(2, 3, draw(lengths), draw(lengths), draw(blocks), draw(blocks))


@st.composite
def written_masks(draw: Any, grid: Grid) -> Case:
    """A mask as source text, that no sum of wraps around."""
    captures = Captures(1.0)
    counts = {"b": 2, "h": 3, "q_idx": grid.q_len, "kv_idx": grid.kv_len}
    builder = Builder(draw, counts, captures)
    kind = draw(st.sampled_from(("causal", "simple", "random", "random")))
    condition = mask_condition(builder, kind, 4)
    return Case(
        sizes=Sizes(2, 3, 3, grid.q_len, grid.kv_len, 16, 16),
        dtype=torch.float32,
        layouts=("contiguous",) * 3,
        scale=None,
        seed=draw(st.integers(0, 1000)),
        score_mod=None,
        mask_mod=ModSource(tuple(builder.lines), condition.text),
        score=Real("score", 1.0),
        tensors=captures.tensors,
        numbers=captures.numbers,
        block_size=None,
    )


@pytest.mark.timeout(3600)
@settings(max_examples=settings().max_examples * 4)
@given(st.data())
def test_written_masks(data: st.DataObject) -> None:
    grid = data.draw(grids())
    case = data.draw(written_masks(grid))
    _, mask_mod = case.given_mods
    assert mask_mod is not None
    check_sound(imported(mask_mod), grid, fits=data.draw(st.booleans()))


@pytest.mark.timeout(3600)
@settings(max_examples=settings().max_examples * 8)
@given(st.data())
def test_regions_in_which_anything_wraps_around(data: st.DataObject) -> None:
    grid = data.draw(grids())
    mask = data.draw(mask_regions(max(grid.q_len, grid.kv_len)))
    if data.draw(st.booleans()):
        simplify_region(mask.region, {})
    check_sound(mask, grid, fits=False)


LEAST, MOST, FACTOR = -(2**63), 2**63 - 1, 3
least, again, most = (torch.full((65,), n) for n in (LEAST, LEAST, MOST))
above, least_of_b = least + 1, torch.tensor([LEAST, LEAST])
chunk = torch.arange(65) // 9

EXTREMES: dict[str, Any] = {
    "equal least": lambda b, h, q, k: least[q] == again[k],
    "unequal least": lambda b, h, q, k: least[q] != again[k],
    "least and the next": lambda b, h, q, k: above[q] > least[k],
    "least, from": lambda b, h, q, k: least[q] >= again[k],
    "least of a batch": lambda b, h, q, k: (least[q] < least_of_b[b]) | (k < 3),
    "from the least of a batch": lambda b, h, q, k: (
        (least_of_b[b] >= least[k]) & (chunk[k] <= chunk[q])
    ),
    "a sum that wraps": lambda b, h, q, k: (q + most[k] > 5) & (q * FACTOR >= k),
    "a product in a sum that wraps": lambda b, h, q, k: q * FACTOR + most[k] > 5,
    "a difference that wraps": lambda b, h, q, k: (
        ((q * FACTOR - least[k]).abs() < 5) | (chunk[k] == chunk[q])
    ),
}


@pytest.mark.parametrize("fits", [False, True])
@pytest.mark.parametrize("name", EXTREMES)
def test_extreme_numbers(name: str, fits: bool) -> None:
    check_sound(imported(EXTREMES[name]), Grid(2, 3, 48, 65, 8, 7), fits)
