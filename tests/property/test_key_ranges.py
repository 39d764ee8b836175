"""Bounds in closed form against every pair: never wrong, and exact for families."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.nn.attention.flex_attention import create_mask
from xdsl.context import Context

from flexc import flex_attention
from flexc.dialects.blocksparse import AttentionOp, SegmentOp
from flexc.frontend.capture import capture_mods
from flexc.frontend.closures import read_mods
from flexc.frontend.import_graph import AttentionCall, build_attention_module
from flexc.passes import pipelines
from flexc.passes.flex.convert_flex_to_blocksparse import ConvertFlexToBlocksparsePass
from flexc.passes.scalar.ranges.intervals import Interval
from flexc.runtime.kernels.proofs import attention_of, most_seen_keys
from tests.property.affine_masks import Spelled, masks
from tests.property.block_visits import Sizes, Visits, brute_force, sizes, verify
from tests.support.pairwise import in_turn


def lowered(mask: Callable[..., Any], s: Sizes) -> tuple[AttentionOp, list[Any]]:
    """A mask's op at the level of blocks, and the arguments for its captures."""
    signature = read_mods(None, mask)
    mods = capture_mods(signature, torch.float32, "cpu")
    call = AttentionCall(torch.float32, 16, 16, max_length=1 << 24)
    made = build_attention_module(None, mods.mask, call)
    # Blocks as they are; `test_column_bounds` has runs that are exact to a column.
    convert = ConvertFlexToBlocksparsePass("cpp", s.block_m, s.block_n, trimmed=False)
    pipelines.run(pipelines.to_blocksparse(convert), Context(), made.module)
    made.module.verify()
    op = next(o for o in made.module.walk() if isinstance(o, AttentionOp))
    return op, made.arguments(signature.captures)


def check(mask: Callable[..., Any], s: Sizes) -> tuple[Tensor, Tensor]:
    op, captures = lowered(mask, s)
    segments = [o for o in op.segments.block.ops if isinstance(o, SegmentOp)]
    found, exact = Visits(segments, captures, s).classes(), brute_force(mask, s)
    verify(found, exact)
    return found, exact


@given(masks, sizes())
def test_bounds_are_never_wrong(mask: Spelled, s: Sizes) -> None:
    check(mask.function, s)


def most_seen(mask: Callable[..., Any], s: Sizes) -> int | None:
    """The limit to the keys of a row that is found from a call's numbers."""
    signature = read_mods(None, mask)
    mods = capture_mods(signature, torch.float32, "cpu")
    call = AttentionCall(torch.float32, 16, 16, max_length=1 << 24)
    made = build_attention_module(None, mods.mask, call)
    facts = [
        tuple(c.shape) if isinstance(c, Tensor) else c
        for c in made.arguments(signature.captures)
    ]
    extents = (1, 2, s.q_len, s.kv_len)
    positions = [Interval(0, n - 1) for n in extents]
    return most_seen_keys(attention_of(made.module), positions, facts)


def seen(mask: Callable[..., Any], s: Sizes) -> int:
    live = create_mask(mask, 1, 2, s.q_len, s.kv_len, "cpu")
    return int(live.sum(-1).max())


@given(masks, sizes())
def test_rows_see_no_more_keys_than_the_limit(mask: Spelled, s: Sizes) -> None:
    found = most_seen(mask.function, s)
    assert found is None or found >= seen(mask.function, s)


WINDOW, CHUNK, SINK, GLOBAL, SHIFT = 37, 50, 9, 20, 13
per_head = torch.tensor([5, 50], dtype=torch.int32)
nothing_for_head_1 = torch.tensor([12, -1])
prefix = torch.tensor([77])
shift = torch.tensor(-13)

FAMILIES: dict[str, Callable[..., Any]] = {
    "causal": lambda b, h, q, k: q >= k,
    "above the diagonal": lambda b, h, q, k: q < k,
    "bottom-right causal": lambda b, h, q, k: q + SHIFT >= k,
    "shifted by a scalar": lambda b, h, q, k: q + shift >= k,
    "window": lambda b, h, q, k: (q >= k) & (q - k <= WINDOW),
    "window per head": lambda b, h, q, k: (q - k).abs() <= per_head[h],
    "empty window": lambda b, h, q, k: (q - k).abs() <= nothing_for_head_1[h],
    "window grows with heads": lambda b, h, q, k: (q >= k) & (q - k < 16 * (h + 1)),
    "chunks": lambda b, h, q, k: q // CHUNK == k // CHUNK,
    "chunks, causal": lambda b, h, q, k: (q // CHUNK == k // CHUNK) & (k <= q),
    "block causal": lambda b, h, q, k: q // 64 >= k // 64,
    "chunks up to two behind": lambda b, h, q, k: (
        (q // CHUNK >= k // CHUNK) & (q // CHUNK - k // CHUNK < 3)
    ),
    "up to the chunk's end": lambda b, h, q, k: k < (q // CHUNK + 1) * CHUNK,
    "from the chunk's start": lambda b, h, q, k: (q - q % CHUNK <= k) & (k <= q),
    "prefix": lambda b, h, q, k: (k < prefix[b]) | (q >= k),
    "padding": lambda b, h, q, k: (k < prefix[b]) & (q < prefix[b]),
    "sinks and window": lambda b, h, q, k: (q >= k) & ((q - k < WINDOW) | (k < SINK)),
    "global and local": lambda b, h, q, k: (
        ((q - k).abs() <= WINDOW) | (k < GLOBAL) | (q < GLOBAL)
    ),
    "negated": lambda b, h, q, k: ~((q >= k) & (k > SINK)),
    "chosen by row": lambda b, h, q, k: torch.where(q < GLOBAL, q >= k, k < GLOBAL),
    "other slopes": lambda b, h, q, k: q * 2 >= k * 3,
    "rows of an image, clamped": lambda b, h, q, k: (
        ((q // 16).clamp(1, 8) - k // 16).abs() <= 1
    ),
    "everything but the diagonal": lambda b, h, q, k: q != k,
    "a stripe that ends before the rows do": lambda b, h, q, k: (q + 71 == k) | (q < k),
    "a gap that ends before the rows do": lambda b, h, q, k: (
        ~((k > 61) | (q + SHIFT == k // 3))
    ),
}


@pytest.mark.parametrize(
    ("name", "s"),
    in_turn(
        list(FAMILIES),
        [Sizes(150, 150, 16, 32), Sizes(130, 200, 64, 16), Sizes(200, 97, 32, 32)],
    ),
)
def test_families_are_exact(name: str, s: Sizes) -> None:
    limit = most_seen(FAMILIES[name], s)
    assert limit is None or limit >= seen(FAMILIES[name], s)
    found, exact = check(FAMILIES[name], s)
    assert torch.equal(found, exact)


BIG = torch.tensor([2**40 - 3000])
MODERATE = torch.tensor([10_000_000], dtype=torch.int32)
LIMIT = torch.tensor([5])
NEAR_WRAP = torch.full((400,), 2**30 + 5, dtype=torch.int32)
EXTREME = torch.tensor([2**63 - 1])
MINUS = torch.tensor([-5])
WIDE, FAR = 2**41, 2**62

HARD: dict[str, Callable[..., Any]] = {
    "least of a large product": lambda b, h, q, k: (
        torch.minimum(k * 2**20, LIMIT[b]) <= 7
    ),
    "clamp of a large product": lambda b, h, q, k: (
        torch.clamp(k * 2**20, max=5) <= LIMIT[b] + 4
    ),
    "greatest of a large difference": lambda b, h, q, k: (
        torch.maximum(k - q * 2**20, LIMIT[b]) >= LIMIT[b]
    ),
    "large multiple of a captured value": lambda b, h, q, k: (
        k * 1_000_000 <= (MODERATE[b].long() * 1000 + q) * 3
    ),
    "large captured divisor": lambda b, h, q, k: (
        (k * 1_000_000) // (MODERATE[b].long() * 1000) <= 2
    ),
    "chunks longer than all": lambda b, h, q, k: (q // WIDE + 1) * WIDE > k,
    "a multiple that wraps": lambda b, h, q, k: (q // FAR + 2) * FAR > k,
    "a multiple of a literal that wraps": lambda b, h, q, k: (
        ((q + MINUS[b]) // 4611686018427387907 - 1) * 4611686018427387907 - k <= 5
    ),
    "a maximum in a sum that wraps": lambda b, h, q, k: (
        torch.maximum(q, EXTREME[b]) + k <= 100
    ),
    "a clamp in a sum that wraps": lambda b, h, q, k: (
        q.clamp(min=9223372036854775807) + k <= 100
    ),
    "a minimum beyond all sums": lambda b, h, q, k: (
        k + 5 <= torch.minimum(q, -EXTREME[b] - 1)
    ),
    "nested factors": lambda b, h, q, k: ((q * 2**20 - k * 2**20) + 5) * 8192 >= 0,
    "chunks moved far": lambda b, h, q, k: (k + BIG[b]) // 64 == (q + BIG[b]) // 64,
    "shifted far": lambda b, h, q, k: (k + BIG[b]) >> 3 <= (q + BIG[b]) >> 3,
    "a sum that wraps": lambda b, h, q, k: q + EXTREME[b] >= k,
    "a sum that wraps on both sides": lambda b, h, q, k: (
        q + EXTREME[b] >= k + EXTREME[b]
    ),
    "loaded values wrap although indices fit": lambda b, h, q, k: (
        (q * q >= 0) & ((NEAR_WRAP[q] + NEAR_WRAP[k]) >= 0)
    ),
    "bytes wrap although indices fit": lambda b, h, q, k: (
        (q * q >= 0) & (torch.clamp(k, max=100).to(torch.int8) + q.to(torch.int8) >= 0)
    ),
}


@pytest.mark.parametrize(
    ("name", "s"), in_turn(list(HARD), [Sizes(96, 400, 16, 32), Sizes(300, 64, 16, 8)])
)
def test_large_numbers(name: str, s: Sizes) -> None:
    """Where 64 bits, or saturated bounds, do not hold what a mask computes."""
    check(HARD[name], s)
    query, key = (torch.randn(1, 1, n, 16) for n in (s.q_len, s.kv_len))
    out: Any = flex_attention(query, key, key, mask_mod=HARD[name])
    live = create_mask(HARD[name], 1, 1, s.q_len, s.kv_len, device="cpu")
    scores = (query @ key.transpose(-1, -2) / 4).masked_fill(~live, -torch.inf)
    exact = torch.nan_to_num(torch.softmax(scores.double(), -1)) @ key.double()
    assert (out - exact).abs().max() < 1e-5


def neighbours(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Of an image 16 wide and 12 high, 5 by 5, shifted at the borders."""
    near_row = ((q // 16).clamp(2, 9) - k // 16).abs() <= 2
    return near_row & (((q % 16).clamp(2, 13) - k % 16).abs() <= 2)


@pytest.mark.parametrize(
    "mask",
    [
        neighbours,
        lambda b, h, q, k: ((q - k) % 3 == 0) & (q >= k) & (q - k < 70),
        lambda b, h, q, k: (k % 10 < 3) & (k <= q),
        lambda b, h, q, k: (q % 16 == k % 16) & (k <= q),
    ],
)
def test_dilated_masks_are_exact_away_from_the_edges(mask: Callable[..., Any]) -> None:
    found, exact = check(mask, Sizes(192, 192, 16, 32))
    assert torch.equal(found, exact)
