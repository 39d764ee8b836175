"""Bounds in closed form against every pair: never wrong, and exact for families."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import create_mask
from xdsl.context import Context
from xdsl.ir import Region

from flexc import flex_attention
from flexc.dialects.blocksparse import AttentionOp, SegmentOp
from flexc.frontend.capture import capture_mods
from flexc.frontend.closures import read_mods
from flexc.frontend.import_graph import AttentionCall, build_attention_module
from flexc.passes import pipelines
from flexc.passes.convert_flex_to_blocksparse import ConvertFlexToBlocksparsePass
from flexc.runtime.interpreters import run_region
from tests.property.affine_masks import Spelled, masks

HEADS = 2
DEAD, PARTIAL, FULL = 0, 1, 2


@dataclass(frozen=True)
class Sizes:
    """Lengths, and the blocks that they are cut into."""

    q_len: int
    kv_len: int
    block_m: int
    block_n: int

    @property
    def shape(self) -> tuple[int, int, int]:
        rows, columns = -(-self.q_len // self.block_m), -(-self.kv_len // self.block_n)
        return HEADS, rows, columns


sizes = st.builds(
    Sizes,
    st.integers(1, 200),
    st.integers(1, 200),
    st.sampled_from([1, 7, 16, 64]),
    st.sampled_from([8, 16, 64]),
)


def lowered(mask: Callable[..., Any], s: Sizes) -> tuple[AttentionOp, list[Any]]:
    """A mask's op at the level of blocks, and the arguments for its captures."""
    signature = read_mods(None, mask)
    mods = capture_mods(signature, torch.float32, "cpu")
    call = AttentionCall(torch.float32, 16, 16, max_length=1 << 24)
    made = build_attention_module(None, mods.mask, call)
    convert = ConvertFlexToBlocksparsePass("cpp", s.block_m, s.block_n)
    pipelines.run(pipelines.to_blocksparse(convert), Context(), made.module)
    made.module.verify()
    op = next(o for o in made.module.walk() if isinstance(o, AttentionOp))
    return op, made.arguments(signature.captures)


def visits(op: AttentionOp, captures: list[Any], s: Sizes) -> Tensor:
    """The class of every block, by running the segments' own code."""
    heads, rows, columns = s.shape
    classes = torch.zeros(s.shape, dtype=torch.int64)
    h = torch.arange(heads, dtype=torch.int32)[:, None, None]
    q_start = torch.arange(rows, dtype=torch.int32)[:, None] * s.block_m
    lengths = [s.q_len, s.kv_len]

    def run(region: Region, *i: Tensor) -> list[Tensor]:
        found = run_region(region, [0, h, q_start, *i, *lengths, *captures])
        shape = (heads, rows, i[0].shape[-1] if i else 1)
        return [x.expand(shape) for x in found]

    for segment in op.segments.block.ops:
        assert isinstance(segment, SegmentOp)
        begin, end = run(segment.bounds)
        count = int((end - begin).max().clamp(min=0))
        i = begin + torch.arange(count, dtype=torch.int32)
        (start,) = run(segment.block, i)
        used = i < end
        inside = start + s.block_n <= s.kv_len
        assert (~used | (start >= 0) & (start < s.kv_len)).all()
        assert not start[used].remainder(s.block_n).any()
        assert segment.inside is None or inside[used].all()
        column = torch.where(used, start // s.block_n, columns).to(torch.int64)
        marks = torch.zeros((heads, rows, columns + 1), dtype=torch.int64)
        marks.scatter_add_(-1, column, used.to(torch.int64))
        marks = marks[..., :columns]
        assert marks.max() <= 1
        assert not (marks.bool() & classes.bool()).any()
        classes += marks * (FULL if segment.is_full else PARTIAL)
    return classes


def brute_force(mask: Callable[..., Any], s: Sizes) -> Tensor:
    """The class of every block, from all its pairs; blocks that stick out over the
    last key are never full, those over the last row may be."""
    live = create_mask(mask, 1, HEADS, s.q_len, s.kv_len, device="cpu")[0]
    heads, rows, columns = s.shape
    tall, wide = rows * s.block_m, columns * s.block_n
    some = torch.zeros((heads, tall, wide), dtype=torch.bool)
    some[:, : s.q_len, : s.kv_len] = live
    every = some.clone()
    every[:, s.q_len :] = True
    blocked = (heads, rows, s.block_m, columns, s.block_n)
    is_live = some.view(blocked).any(4).any(2)
    is_full = is_live & every.view(blocked).all(4).all(2)
    return is_live.to(torch.int64) + is_full


def check(mask: Callable[..., Any], s: Sizes) -> tuple[Tensor, Tensor]:
    op, captures = lowered(mask, s)
    found, exact = visits(op, captures, s), brute_force(mask, s)
    assert not ((found == DEAD) & (exact != DEAD)).any(), "a skipped block is live"
    assert not ((found == FULL) & (exact != FULL)).any(), "a full block has a dead pair"
    return found, exact


@given(masks, sizes)
def test_bounds_are_never_wrong(mask: Spelled, s: Sizes) -> None:
    check(mask.function, s)


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


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(
    "s", [Sizes(150, 150, 16, 32), Sizes(130, 200, 64, 16), Sizes(200, 97, 32, 32)]
)
def test_families_are_exact(name: str, s: Sizes) -> None:
    found, exact = check(FAMILIES[name], s)
    assert torch.equal(found, exact)


BIG = torch.tensor([2**40 - 3000])
MODERATE = torch.tensor([10_000_000], dtype=torch.int32)
LIMIT = torch.tensor([5])
NEAR_WRAP = torch.full((400,), 2**30 + 5, dtype=torch.int32)
EXTREME = torch.tensor([2**63 - 1])

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


@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("s", [Sizes(96, 400, 16, 32), Sizes(300, 64, 16, 8)])
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
