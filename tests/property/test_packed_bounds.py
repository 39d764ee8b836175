"""Bounds of packed sequences: sound, and as tight as those of each sequence alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from xdsl.context import Context

from flexc.dialects import flex
from flexc.frontend.capture import capture_mods
from flexc.frontend.closures import read_mods
from flexc.frontend.import_graph import (
    AttentionCall,
    AttentionModule,
    build_attention_module,
)
from flexc.passes import pipelines
from flexc.passes.flex.flex_infer_facts import rows_never_empty
from flexc.passes.masks.segments.mask_problem import MaskProblem
from flexc.passes.masks.segments.segment_builder import build_segments, is_rising
from flexc.passes.scalar import Proven
from flexc.passes.targets.target import TileSizes
from flexc.runtime.kernels.proofs import attention_of
from flexc.runtime.varlen import Sequences, packed_mods
from tests.property.block_visits import (
    DEAD,
    FULL,
    Sizes,
    Visits,
    brute_force,
    check_rising,
    verify,
)

WINDOWS = torch.tensor([3, 70, 0, 9, 200, 1], dtype=torch.int32)

MASKS: dict[str, Callable[..., Any] | None] = {
    "none": None,
    "causal": lambda b, h, q, k: q >= k,
    "anticausal": lambda b, h, q, k: q <= k,
    "window": lambda b, h, q, k: (q >= k) & (q - k < 20),
    "window_by_sequence": lambda b, h, q, k: (q >= k) & (q - k < WINDOWS[b]),
    "prefix": lambda b, h, q, k: (q >= k) | (k < WINDOWS[b]),
    "sink": lambda b, h, q, k: (k < 4) | ((q >= k) & (q - k < 20)),
    "some_rows": lambda b, h, q, k: (q >= 10) & (k >= q),
    "some_sequences": lambda b, h, q, k: (WINDOWS[b] > 5) & (q >= k),
    "suffix": lambda b, h, q, k: k >= WINDOWS[b],
    "distance": lambda b, h, q, k: (q - k).abs() <= 15,
    "third": lambda b, h, q, k: (q >= k) & (k % 3 == 0),
    "no_bounds": lambda b, h, q, k: (q * k) % 7 < 3,
}


def sequences(q_lens: list[int], k_lens: list[int] | None) -> Sequences:
    def place(lens: list[int]) -> tuple[Tensor, Tensor]:
        lengths = torch.tensor(lens)
        starts = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        of = torch.arange(len(lens)).repeat_interleave(lengths)
        return starts.to(torch.int32), of.to(torch.int32)

    query_starts, of_query = place(q_lens)
    key_starts, of_key = (query_starts, of_query) if k_lens is None else place(k_lens)
    return Sequences(of_query, of_key, query_starts, key_starts)


@cache
def packed_module(name: str, is_self: bool) -> AttentionModule:
    """The simplified module of a mask."""
    _, packed = packed_mods(None, MASKS[name], sequences([1], None if is_self else [1]))
    mods = capture_mods(read_mods(None, packed), torch.float32, "cpu")
    call = AttentionCall(torch.float32, 16, 16, max_length=1 << 24, has_pairs=True)
    made = build_attention_module(None, mods.mask, call)
    pipelines.run(pipelines.to_simple_flex(), Context(), made.module)
    return made


def packed_op(
    name: str, given: Sequences
) -> tuple[flex.AttentionOp, list[Any], Callable[..., Any]]:
    """An op as segments are built from it, arguments for its captures, and its mask."""
    made = packed_module(name, given.of_query is given.of_key)
    _, packed = packed_mods(None, MASKS[name], given)
    captures = made.arguments(read_mods(None, packed).captures)
    return attention_of(made.module), captures, packed


lengths = st.lists(st.integers(0, 90) | st.sampled_from([0, 1, 16, 64]), max_size=6)


@st.composite
def problems(draw: Any) -> tuple[Sequences, Sizes]:
    q_lens = draw(lengths.filter(any))
    n = len(q_lens)
    k_lens = None
    if draw(st.booleans()):
        others = st.lists(st.integers(0, 90), min_size=n, max_size=n)
        k_lens = draw(others.filter(any))
    given = sequences(q_lens, k_lens)
    blocks = [draw(st.sampled_from(sizes)) for sizes in ([1, 7, 16, 64], [8, 16, 64])]
    totals = given.of_query.numel(), given.of_key.numel()
    return given, Sizes(*totals, *blocks, transposed=draw(st.booleans()), heads=1)


def hull(live: Tensor) -> Tensor:
    """The blocks from the first to the last live one of each row of blocks."""
    some = (live != DEAD).to(torch.int64)
    after = some.flip(-1).cumsum(-1).flip(-1) > 0
    return (some.cumsum(-1) > 0) & after


@given(st.sampled_from(sorted(MASKS)), problems())
def test_visits(name: str, drawn: tuple[Sequences, Sizes]) -> None:
    given, s = drawn
    op, captures, packed = packed_op(name, given)
    problem, tile = MaskProblem.of(op, s.transposed), TileSizes(s.block_m, s.block_n)
    assert name in ("third", "no_bounds") or isinstance(problem.solution, Proven)
    found = Visits(build_segments(problem, tile), captures, s).classes()
    exact = brute_force(packed, s)
    verify(found, exact)
    for one_loop in ("if faster", "always"):
        in_order = build_segments(problem, tile, one_loop=one_loop)
        Visits(in_order, captures, s).check_one_loop(found)
    if is_rising(problem, tile):
        check_rising(found)
    if given.of_query is given.of_key and name in ("none", "causal", "anticausal"):
        assert not ((found != DEAD) & ~hull(exact)).any()
        whole = torch.arange(1, s.shape[2] + 1) * s.block_m <= s.lengths[0]
        assert torch.equal(found[:, :, whole] == FULL, exact[:, :, whole] == FULL)


@given(problems())
def test_causal_rows_of_one_packing_see_a_key(drawn: tuple[Sequences, Sizes]) -> None:
    given, _ = drawn
    op, *_ = packed_op("causal", given)
    is_self = given.of_query is given.of_key
    assert isinstance(rows_never_empty(op), Proven) == is_self
