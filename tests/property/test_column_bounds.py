"""Bounds of a mask's queries for blocks of keys: as right as those of its keys.

Rows are keys here, and columns queries: the same mask facts solved for the other
position. Queries beyond the last are columns, which count for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask as torch_block_mask
from xdsl.context import Context

from flexc.dialects import flex
from flexc.frontend.capture import capture_mods
from flexc.frontend.closures import read_mods
from flexc.frontend.import_graph import AttentionCall, build_attention_module
from flexc.passes import pipelines
from flexc.passes.masks.segments.mask_problem import MaskProblem
from flexc.passes.masks.segments.segment_builder import (
    build_segments,
    is_rising,
    order_of,
)
from flexc.passes.scalar import Proven
from flexc.passes.targets.target import TileSizes
from flexc.runtime.inputs.arguments import split_block_mask
from flexc.runtime.inputs.listed_blocks import classes_of, pairs_of
from flexc.runtime.inputs.options import NO_OPTIONS
from flexc.runtime.interpreters import run_region
from flexc.runtime.kernels.build import NO_CALL, Build
from flexc.runtime.kernels.proofs import Prover, attention_of
from flexc.runtime.planner.tables import column_tables
from tests.property.affine_masks import Spelled, masks
from tests.property.block_visits import (
    FULL,
    PARTIAL,
    Sizes,
    Visits,
    brute_force,
    check_rising,
    live_pairs,
    sizes,
    verify,
)
from tests.property.test_key_ranges import FAMILIES, HARD, neighbours
from tests.support.corpus import CORPUS
from tests.support.pairwise import in_turn, pairwise

Mask = Callable[..., Any]


def simplified(
    mask: Mask, s: Sizes, proved: bool = False
) -> tuple[flex.AttentionOp, list[Any]]:
    """A mask's op as segments are built from it, and arguments for its captures.

    `proved` states what is proved of a call of these sizes.
    """
    signature = read_mods(None, mask)
    mods = capture_mods(signature, torch.float32, "cpu")
    call = AttentionCall(torch.float32, 16, 16, max_length=1 << 24)
    made = build_attention_module(None, mods.mask, call)
    module, captures = made.module, made.arguments(signature.captures)
    if proved:
        prover = Prover(module, Build(NO_CALL, "cpp", "cpu", NO_OPTIONS))
        proofs = prover((2, 2, s.q_len, s.kv_len), captures)
        module = proofs.stated_in(module)
    pipelines.run(pipelines.to_simple_flex(), Context(), module)
    return attention_of(module), captures


def check(
    mask: Mask, s: Sizes, multiples: tuple[int, int] = (1, 1), proved: bool = False
) -> tuple[Tensor, Tensor]:
    """The classes that the segments visit, which are sound, and the exact ones."""
    op, captures = simplified(mask, s, proved)
    subject = MaskProblem.of(op, s.transposed)
    row_multiple, column_multiple = multiples
    subject = replace(
        subject, row_multiple=row_multiple, column_multiple=column_multiple
    )
    tile = TileSizes(s.block_m, s.block_n)
    segments = build_segments(subject, tile)
    found, exact = Visits(segments, captures, s).classes(), brute_force(mask, s)
    verify(found, exact)
    for one_loop in ("if faster", "always"):
        in_order = build_segments(subject, tile, one_loop=one_loop)
        Visits(in_order, captures, s).check_one_loop(found)
    if is_rising(subject, tile):
        check_rising(found)
    return found, exact


def check_trimmed(
    mask: Mask, s: Sizes, multiples: tuple[int, int] = (1, 1), proved: bool = False
) -> tuple[Tensor, Tensor]:
    """The same of trimmed segments, for each column."""
    op, captures = simplified(mask, s, proved)
    row_multiple, column_multiple = multiples
    subject = replace(
        MaskProblem.of(op, s.transposed),
        row_multiple=row_multiple,
        column_multiple=column_multiple,
    )
    segments = build_segments(subject, TileSizes(s.block_m, s.block_n), trimmed=True)
    assert all(segment.is_trimmed for segment in segments)
    single = replace(s, block_n=1)
    found = Visits(segments, captures, single, s.block_n).classes()
    exact = brute_force(mask, single)
    verify(found, exact)
    return found, exact


def is_solved(mask: Mask, s: Sizes, transposed: bool) -> bool:
    subject = MaskProblem.of(simplified(mask, s)[0], transposed)
    return isinstance(subject.ranges(s.block_m, s.block_n), Proven)


@given(masks, sizes(transposed=True), st.booleans())
def test_bounds_are_never_wrong(mask: Spelled, s: Sizes, proved: bool) -> None:
    check(mask.function, s, proved=proved)


SIZES = [
    Sizes(150, 150, 16, 32, True),
    Sizes(200, 130, 64, 16, True),
    Sizes(97, 200, 32, 32, True),
]


@given(masks, st.booleans().flatmap(sizes), st.booleans())
def test_trimmed_bounds_are_never_wrong(mask: Spelled, s: Sizes, proved: bool) -> None:
    check_trimmed(mask.function, s, proved=proved)


@pytest.mark.parametrize(("name", "s"), in_turn(list(FAMILIES), SIZES))
def test_families_are_exact(name: str, s: Sizes) -> None:
    found, exact = check(FAMILIES[name], s)
    assert torch.equal(found, exact)


@pytest.mark.parametrize(
    ("name", "s", "transposed"), pairwise(list(FAMILIES), SIZES, [False, True])
)
def test_trimmed_families_are_exact(name: str, s: Sizes, transposed: bool) -> None:
    found, exact = check_trimmed(FAMILIES[name], replace(s, transposed=transposed))
    assert torch.equal(found, exact)


@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("s", SIZES)
def test_large_numbers(name: str, s: Sizes) -> None:
    check(HARD[name], s)
    check(HARD[name], s, proved=True)
    check_trimmed(HARD[name], s)


def corpus_mask(name: str, s: Sizes) -> Mask:
    mask = CORPUS[name].factory(s.batches, s.heads, s.heads, s.q_len, s.kv_len)[1]
    assert mask is not None
    return mask


MASKED = [n for n, c in CORPUS.items() if c.factory(1, 1, 1, 16, 16)[1] is not None]
SMALL = Sizes(96, 96, 16, 32, batches=2)
SOLVED = [n for n in MASKED if is_solved(corpus_mask(n, SMALL), SMALL, False)]

REMAINDERS = {
    "dilated",
    "strided",
    "checkerboard",
    "floored_difference",
    "some_rows_empty",
}
"""What they leave of a block at an edge is not known."""


@pytest.mark.parametrize(("name", "s"), in_turn(SOLVED, SIZES))
def test_corpus_is_exact(name: str, s: Sizes) -> None:
    s = replace(s, batches=2)
    found, exact = check(corpus_mask(name, s), s)
    assert is_solved(corpus_mask(name, s), s, True)
    assert name in REMAINDERS or torch.equal(found, exact)
    found, exact = check_trimmed(corpus_mask(name, s), s)
    assert name in REMAINDERS or torch.equal(found, exact)


@pytest.mark.parametrize("name", [n for n in MASKED if n not in SOLVED])
def test_other_masks_visit_every_block(name: str) -> None:
    s = Sizes(130, 97, 32, 16, True, batches=2)
    assert check(corpus_mask(name, s), s)[0].bool().all()
    assert check_trimmed(corpus_mask(name, s), s)[0].bool().all()


@pytest.mark.parametrize("transposed", [False, True])
def test_whole_blocks_need_no_test(transposed: bool) -> None:
    s = Sizes(192, 128, 32, 64, transposed)
    for name in ("causal", "window", "chunks", "prefix"):
        for checked in (check, check_trimmed):
            found, exact = checked(FAMILIES[name], s, multiples=(64, 64))
            assert torch.equal(found, exact)


STRIDE, WIDTH = 3, 20
strides = torch.tensor([2, 3], dtype=torch.int32)

FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "moved": lambda x, h: x + STRIDE,
    "moved and divided": lambda x, h: (x + STRIDE) // 7,
    "divided": lambda x, h: (x - 20) // 7,
    "divided by a captured number": lambda x, h: x // WIDTH,
    "start of a chunk": lambda x, h: x - x % 16,
    "end of a chunk": lambda x, h: -(-x // 7) * 7,
    "falling in steps": lambda x, h: x // 7 * -3 + 90,
    "multiplied by a captured tensor": lambda x, h: x * strides[h],
    "clamped": lambda x, h: x.clamp(20, 90),
    "clamped to a captured number": lambda x, h: x.clamp(max=WIDTH),
    "the greater of two": lambda x, h: torch.maximum(x - 40, x // 2),
    "the lesser of two": lambda x, h: torch.minimum(x + 40, 2 * x),
    "falling, then rising": lambda x, h: torch.maximum(x, 60 - x),
    "a distance": lambda x, h: 2 * (x - 50).abs() + 3,
    "chosen": lambda x, h: torch.where(x < 50, x // 2, x),
    "chosen by a captured number": lambda x, h: torch.where(x < WIDTH, 0, x),
}
"""Of the one position and of the other: what is undone, and what is computed."""


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("transposed", [False, True])
def test_both_positions_are_solved_for(name: str, transposed: bool) -> None:
    f, s = FUNCTIONS[name], Sizes(150, 170, 16, 32, transposed)
    compared: list[Mask] = [
        lambda b, h, q, k: f(q, h) >= k,
        lambda b, h, q, k: f(k, h) >= q,
        lambda b, h, q, k: f(q, h) < k,
        lambda b, h, q, k: f(k, h) < q,
    ]
    for mask in compared:
        found, exact = check(mask, s)
        assert torch.equal(found, exact)


def test_image_rows_are_solved_for() -> None:
    """Dilated neighbourhoods, by the rows of the image."""
    found, exact = check(neighbours, Sizes(192, 192, 32, 16, True))
    assert torch.equal(found, exact)


def test_segments_keep_the_mask_itself() -> None:
    """What pairs are tested with is in terms of (b, h, q_idx, kv_idx)."""
    s = Sizes(70, 90, 16, 32, True)
    mask = FAMILIES["sinks and window"]
    op, captures = simplified(mask, s)
    segments = build_segments(MaskProblem.of(op, True), TileSizes(16, 32))
    b = h = torch.zeros((), dtype=torch.int32)
    kv_idx = torch.arange(s.kv_len, dtype=torch.int32)[:, None]
    q_idx = torch.arange(s.q_len, dtype=torch.int32)
    for segment in segments:
        assert (segment.mask_mod is None) == segment.is_full
        if segment.mask_mod is not None:
            args = [b, h, q_idx, kv_idx, *captures]
            (live,) = run_region(segment.mask_mod, args)
            assert torch.equal(live.bool(), live_pairs(mask, s)[0, 0])


@pytest.mark.parametrize("tile", [(32, 16), (16, 8), (32, 4)])
@pytest.mark.parametrize("multiple", [1, 64])
def test_tables_are_read_by_blocks_of_keys(
    tile: tuple[int, int], multiple: int
) -> None:
    """Tables of 32 keys by 16 queries, in tiles that divide these blocks."""
    s = Sizes(192 if multiple > 1 else 157, 210, *tile, True, batches=2)
    mask = corpus_mask("documents_per_batch", s)
    query, key = (torch.zeros(2, s.heads, n, 16) for n in (s.q_len, s.kv_len))
    made = torch_block_mask(mask, 2, None, s.q_len, s.kv_len, "cpu", (16, 32))
    _, tables = split_block_mask(made, None, query, key)
    assert tables is not None
    columns = column_tables(tables, query, key)
    call = AttentionCall(torch.float32, 16, 16, sparse_block=(16, 32), full_tables=True)
    module = build_attention_module(None, None, call).module
    subject = replace(
        MaskProblem.of(attention_of(module)),
        transposed=True,
        sparse_block=columns.block_size,
        column_multiple=multiple,
    )
    segments = build_segments(subject, TileSizes(*tile))
    assert [segment.inside is not None for segment in segments] == [multiple > 1] * 2
    classes = classes_of(pairs_of(columns.tensors), -(-s.q_len // 16), (PARTIAL, FULL))
    _, _, rows, blocks = s.shape
    expected = classes.repeat_interleave(32 // tile[0], 2)
    expected = expected.repeat_interleave(16 // tile[1], 3)[:, :, :rows, :blocks]
    found = Visits(segments, list(columns.tensors), s).classes()
    assert torch.equal(found, expected.expand(found.shape).to(found.dtype))


@pytest.mark.parametrize("step", [5, 8, 16, 96])
@pytest.mark.parametrize("multiple", [1, 64])
@pytest.mark.parametrize("block", [(16, 32), (64, 16), (32, 1024)])
def test_listed_blocks_are_trimmed(
    step: int, multiple: int, block: tuple[int, int]
) -> None:
    """The block over the last key has fewer, and some iterations of it none."""
    s = Sizes(150, 192 if multiple > 1 else 131, 16, 1, batches=2)
    mask = corpus_mask("documents_per_batch", s)
    query, key = (torch.zeros(2, s.heads, n, 16) for n in (s.q_len, s.kv_len))
    made = torch_block_mask(mask, 2, None, s.q_len, s.kv_len, "cpu", block)
    _, tables = split_block_mask(made, None, query, key)
    assert tables is not None
    call = AttentionCall(torch.float32, 16, 16, sparse_block=block, full_tables=True)
    module = build_attention_module(None, None, call).module
    subject = MaskProblem.of(attention_of(module))
    subject = replace(subject, column_multiple=multiple)
    segments = build_segments(subject, TileSizes(16, step), trimmed=True)
    skips = step < block[1] and multiple % block[1] > 0
    assert [segment.may_skip is not None for segment in segments] == [skips] * 2
    columns = -(-s.kv_len // block[1])
    classes = classes_of(pairs_of(tables.tensors), columns, (PARTIAL, FULL))
    expected = classes.repeat_interleave(block[0] // 16, 2)
    expected = expected.repeat_interleave(block[1], 3)
    _, _, rows, _ = s.shape
    found = Visits(segments, list(tables.tensors), s, step).classes()
    expected = expected[:, :, :rows, : s.kv_len].expand(found.shape)
    assert torch.equal(found, expected.to(found.dtype))


def test_keys_with_most_queries_come_first() -> None:
    s = Sizes(96, 96, 16, 16)
    for name, here, there in (
        ("causal", "descending", "ascending"),
        ("above the diagonal", "ascending", "descending"),
        ("window", None, None),
    ):
        op, _ = simplified(FAMILIES[name], s)
        for transposed, expected in ((False, here), (True, there)):
            order = order_of(MaskProblem.of(op, transposed), TileSizes(16, 16))
            assert (order and order.value) == expected
