"""Tables for blocks of keys list what those for blocks of queries list."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.attention.flex_attention import create_block_mask as torch_block_mask

import flexc
from flexc.errors import BlockMaskError
from flexc.frontend.closures import read_mods
from flexc.passes.targets.cpp import PLANNED_BLOCK, CppTarget
from flexc.runtime.attention.call import Attention, Outputs
from flexc.runtime.attention.run import run
from flexc.runtime.inputs.arguments import Tables, split_block_mask
from flexc.runtime.inputs.listed_blocks import classes_of, pairs_of
from flexc.runtime.kernels.driver import trace_mods
from flexc.runtime.planner.plans import MOST_SUMMARIZED, PlanningProblem
from flexc.runtime.planner.tables import (
    KINDS,
    column_tables,
    ordered,
    plan_problem,
    transposed,
)
from tests.support.block_tables import listed_blocks
from tests.support.dense_gradients import attention as dense_attention
from tests.support.flex_modules import make_call

BATCH, HEADS, Q_LEN, KV_LEN = 2, 3, 200, 330
BLOCK = (16, 32)
ROWS, COLUMNS = 13, 11


def document_mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return (IDS[b, q_idx] == IDS[b, kv_idx]) & (q_idx + 40 * h >= kv_idx)


IDS = torch.stack([torch.arange(400) // 70, torch.arange(400) // 33])


def inputs(heads: int = HEADS) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(BATCH, heads, Q_LEN, 16), torch.randn(BATCH, heads, KV_LEN, 16)


def torchs(compute_q_blocks: bool = True, heads: int = HEADS) -> BlockMask:
    mask = torch_block_mask(
        document_mask, BATCH, heads, Q_LEN, KV_LEN, "cpu", BLOCK_SIZE=BLOCK
    )
    if compute_q_blocks:
        return mask
    return BlockMask.from_kv_blocks(
        mask.kv_num_blocks,
        mask.kv_indices,
        mask.full_kv_num_blocks,
        mask.full_kv_indices,
        BLOCK,
        document_mask,
        (Q_LEN, KV_LEN),
        compute_q_blocks=False,
    )


def tables_of(block_mask: BlockMask) -> Tables:
    _, tables = split_block_mask(block_mask, None, *inputs())
    assert tables is not None
    return tables


def listed(tensors: Any, rows: int, columns: int) -> list[Tensor]:
    """Which blocks are listed as partial, and which as full."""
    pairs = zip(tensors[::2], tensors[1::2], strict=True)
    return [listed_blocks(c, i, columns)[..., :rows, :] for c, i in pairs]


def verify(tables: Tables, columns: Tables) -> None:
    """The same blocks, in the same classes."""
    assert columns.block_size == tables.block_size[::-1]
    seen = listed(tables.tensors, ROWS, COLUMNS)
    turned = listed(columns.tensors, COLUMNS, ROWS)
    assert len(seen) == len(turned)
    for a, b in zip(seen, turned, strict=True):
        assert a.any()
        assert torch.equal(a, b.transpose(-1, -2))


def test_those_of_a_block_mask_are_taken() -> None:
    block_mask = torchs()
    tables = tables_of(block_mask)
    columns = column_tables(tables, *inputs())
    assert block_mask.q_indices is not None
    assert columns.tensors[1].data_ptr() == block_mask.q_indices.data_ptr()
    verify(tables, columns)


def test_a_block_mask_may_be_without() -> None:
    tables = tables_of(torchs(compute_q_blocks=False))
    columns = column_tables(tables, *inputs())
    verify(tables, columns)
    torchs_own = column_tables(tables_of(torchs()), *inputs()).tensors
    for ours, theirs in zip(columns.tensors[::2], torchs_own[::2], strict=True):
        assert torch.equal(ours, theirs)


def test_flexcs_own_have_both() -> None:
    own = flexc.create_block_mask(
        document_mask, BATCH, HEADS, Q_LEN, KV_LEN, "cpu", BLOCK
    )
    tables = tables_of(own)
    columns = column_tables(tables, *inputs())
    assert own.q_indices is not None
    assert columns.tensors[1].data_ptr() == own.q_indices.data_ptr()
    verify(tables, columns)


def test_they_are_made_once() -> None:
    block_mask = torchs(compute_q_blocks=False)
    first, second = (resolved(block_mask) for _ in range(2))
    assert first is second
    block_mask.kv_num_blocks[0, 0, 3] = 0
    third = resolved(block_mask)
    assert third is not first
    assert third.columns is not None
    verify(third, third.columns)
    block_mask.kv_num_blocks = block_mask.kv_num_blocks.clone()
    assert resolved(block_mask) is not third


def resolved(block_mask: BlockMask) -> Tables:
    tables = attention(block_mask).resolve_tables(both=True).tables
    assert tables is not None
    return tables


def test_tables_narrower_than_the_keys() -> None:
    """Of these torch makes tables that leave blocks out."""
    counts = torch.ones(BATCH, 1, ROWS, dtype=torch.int32)
    indices = (torch.arange(ROWS, dtype=torch.int32) % COLUMNS).view(1, 1, ROWS, 1)
    block_mask = BlockMask(
        (Q_LEN, KV_LEN), counts, indices, None, None, counts[..., :1],
        indices[..., :1, :], None, None, BLOCK,
    )  # fmt: skip
    tables = tables_of(block_mask)
    verify(tables, column_tables(tables, *inputs()))


def test_repeated_batches_and_heads_stay_repeated() -> None:
    block_mask = torchs(compute_q_blocks=False, heads=1)
    for tensor in column_tables(tables_of(block_mask), *inputs()).tensors:
        assert tensor.shape[:2] == (BATCH, HEADS)
        assert tensor.stride(1) == 0


def planned(
    mask: Any,
    query: Tensor,
    key: Tensor,
    block: tuple[int, int],
    derived: tuple[int, int] | None = None,
    refine: bool = False,
    both: bool = False,
) -> Tables:
    """The tables of a mask."""
    signature, mods = trace_mods(read_mods(None, mask), torch.float32, query.device)
    batch, heads, q_len = query.shape[:3]
    problem = PlanningProblem(batch, heads, q_len, key.size(2), *block, derived)
    return plan_problem(signature, mods, problem, query.device, "cpp", both, refine)


def test_planned_masks_are_planned_for_both() -> None:
    query, key = inputs()
    tables = planned(document_mask, query, key, BLOCK, refine=True, both=True)
    assert tables.columns is not None
    verify(tables, tables.columns)
    alone = planned(document_mask, query, key, BLOCK, refine=True)
    assert alone.columns is None
    verify(alone, column_tables(alone, query, key))


@pytest.mark.parametrize("refine", [False, True])
def test_derivatives_have_blocks_of_their_own(refine: bool) -> None:
    made = partial(planned, document_mask, *inputs(), refine=refine)
    coarse = 48, 64
    alone, derived = made(BLOCK, both=False), made(coarse, both=True)
    both = made(BLOCK, coarse, both=True)
    assert both.packed is not None
    for found in (both, both.packed.unpack(both.packed.tensor)):
        assert found.columns is None
        assert found.derivative is not None
        assert found.derivative.block_size == coarse
        same(found, alone)
        same(found.derivative, derived)
        assert found.derivative.columns is not None
        assert derived.columns is not None
        same(found.derivative.columns, derived.columns)
    assert made(BLOCK, coarse, both=False).derivative is None


def same(tables: Tables, expected: Tables) -> None:
    """Both list the same blocks."""
    assert tables.block_size == expected.block_size
    lines, entries = expected.tensors[1].shape[-2:]
    pairs = zip(
        listed(tables.tensors, lines, entries),
        listed(expected.tensors, lines, entries),
        strict=True,
    )
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("columns", [1, 32, 33, MOST_SUMMARIZED, MOST_SUMMARIZED + 1])
def test_all_kernels_list_the_same(columns: int) -> None:
    """Those that summarize by themselves, from summaries, and from classes."""
    torch.manual_seed(columns)
    kv_len = BLOCK[1] * columns - 5
    numbers = torch.randn(BATCH, kv_len + Q_LEN).sort(dim=-1).values

    def mask_mod(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        near = (numbers[b, q_idx] - numbers[b, kv_idx]).abs() < 0.2
        return near & (q_idx + 40 * h >= kv_idx)

    query = torch.randn(BATCH, HEADS, Q_LEN, 16)
    key = torch.randn(BATCH, HEADS, kv_len, 16)
    alone = planned(mask_mod, query, key, BLOCK)
    both = planned(mask_mod, query, key, BLOCK, both=True)
    exact = planned(mask_mod, query, key, BLOCK, refine=True)
    assert both.columns is not None
    partial, full = found = listed(alone.tensors, ROWS, columns)
    assert all(map(torch.equal, found, listed(both.tensors, ROWS, columns)))
    turned = [t.mT for t in listed(both.columns.tensors, columns, ROWS)]
    assert all(map(torch.equal, found, turned))
    some, whole = listed(exact.tensors, ROWS, columns)
    assert (some | whole).any()
    assert not ((some | whole) & ~(partial | full)).any()
    assert not (full & ~whole).any()


def attention(mask: Any) -> Attention:
    query, key = inputs()
    return make_call((query, key, key), None, mask, 0.25, Outputs(), "cpp")


def test_finer_tables_are_planned_for_both() -> None:
    def documents(b, h, q_idx, kv_idx):
        return (ids[q_idx] == ids[kv_idx]) & (q_idx >= kv_idx)

    length = 2048
    ids = torch.arange(length) // 300
    coarse = flexc.create_block_mask(documents, None, None, length, length, "cpu", 512)
    query = torch.randn(1, 2, length, 16)
    _, tables = split_block_mask(coarse, None, query, query)
    call = replace(
        attention(documents), query=query, key=query, value=query, tables=tables
    )
    planned = call.resolve_tables(both=True)
    assert planned.tables is not None
    assert planned.tables.block_size == PLANNED_BLOCK
    assert planned.tables.columns is not None
    again = call.resolve_tables()
    assert again.tables is not None
    assert again.tables.tensors[0] is planned.tables.tensors[0]
    rows, columns = (length // size for size in PLANNED_BLOCK)
    seen = listed(planned.tables.tensors, rows, columns)
    turned = listed(planned.tables.columns.tensors, columns, rows)
    for a, b in zip(seen, turned, strict=True):
        assert torch.equal(a, b.transpose(-1, -2))


@given(
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(0, 6),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_any_tables_are_transposed(
    rows: int, columns: int, width: int, seed: int, full: bool
) -> None:
    """What no row lists, and what lies beyond the last column, may be anything."""
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.randint(0, 3, (2, 2, rows, columns), generator=generator)
    tensors: list[Tensor] = []
    for kind in (1, 2)[: 1 + full]:
        is_kind = (kinds == kind).to(torch.int8)
        order = torch.argsort(is_kind, dim=-1, descending=True).to(torch.int32)
        counts = (kinds == kind).sum(-1, dtype=torch.int32)
        unused = torch.arange(columns) >= counts[..., None]
        order[unused] = -7
        wide = torch.nn.functional.pad(order, (0, width), value=columns + 3)
        tensors += [counts, wide]
    expected = [(kinds == k).transpose(-1, -2) for k in (1, 2)[: 1 + full]]
    for found in (
        transposed(tensors, rows, columns),
        ordered(
            classes_of(pairs_of(tensors), columns, KINDS)
            .transpose(-1, -2)
            .contiguous(),
            "cpp",
        )[: len(tensors)],
    ):
        assert all(t.dtype is torch.int32 for t in found)
        for ours, exact in zip(listed(found, columns, rows), expected, strict=True):
            assert torch.equal(ours, exact)


def test_tables_with_more_than_fits_are_refused() -> None:
    block_mask = torchs()
    run(attention(block_mask))
    indices = block_mask.kv_indices
    block_mask.kv_num_blocks[1, 0, 2] = indices.size(-1) + 5
    with pytest.raises(BlockMaskError, match="counts 16 blocks in a row of a table 11"):
        run(attention(block_mask))


@pytest.mark.parametrize("block", [COLUMNS, -1, 1 << 30])
def test_blocks_beyond_the_last_are_refused(block: int) -> None:
    block_mask = torchs()
    row = int(block_mask.kv_num_blocks[0, 0].argmax())
    block_mask.kv_indices[0, 0, row, 0] = block
    how = "make one for this length" if block > 0 else "flexc.pages_of_torch"
    match = f"lists block {block}, of 11 blocks of keys; .*{how}"
    with pytest.raises(BlockMaskError, match=match):
        run(attention(block_mask))


def test_entries_that_do_not_count_may_be_anything() -> None:
    block_mask = torchs()
    expected, _, _ = run(attention(block_mask))
    used = torch.arange(COLUMNS) < block_mask.kv_num_blocks[..., None]
    block_mask.kv_indices[~used] = 1 << 30
    found, _, _ = run(attention(block_mask))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("way", ["inline", "block mask", "torch.compile"])
def test_gradients_with_blocks_of_their_own(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """As on a GPU, where kernels of derivatives have larger tiles."""
    block, used = (4 * PLANNED_BLOCK[0], 384), set[Any]()
    monkeypatch.setattr(CppTarget, "derivative_block", lambda *_: block)
    resolve = Attention.for_derivatives

    def for_derivatives(call: Attention) -> Attention:
        found = resolve(call)
        used.add(found.tables and found.tables.block_size)
        return found

    monkeypatch.setattr(Attention, "for_derivatives", for_derivatives)
    length = 1500
    ids = (torch.arange(length) // 190).to(torch.int32)

    def document(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (ids[q_idx] == ids[kv_idx]) & (q_idx >= kv_idx)

    lengths: Any = None, None, length, length, "cpu"

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        kept: Any = {"mask_mod": document}
        if way == "block mask":
            kept = {"block_mask": flexc.create_block_mask(document, *lengths)}
        found: Any = flexc.flex_attention(query, key, value, **kept)
        return found

    torch.manual_seed(2)
    inputs: Any = [torch.randn(1, 2, length, 16).requires_grad_() for _ in range(3)]
    run = torch.compile(attend, backend="flexc") if way == "torch.compile" else attend
    query, key, value = inputs
    expected = dense_attention(query, key, value, None, document).out
    d_out = torch.randn_like(inputs[0])
    right = torch.autograd.grad(expected, inputs, d_out)
    for _ in range(3):  # Later calls are replayed.
        out = run(*inputs)
        found = torch.autograd.grad(out, inputs, d_out)
        for a, b in zip((out, *found), (expected, *right), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5)
    assert used == {block}


@pytest.mark.parametrize(("rows", "columns"), [(128, 384), (256, 768), (64, 384)])
def test_tables_of_blocks_keep_blocks_that_are_classified(
    monkeypatch: pytest.MonkeyPatch, rows: int, columns: int
) -> None:
    """In a block of derivatives a table must be read at one place."""
    monkeypatch.setattr(CppTarget, "derivative_block", lambda *_: (128, 384))
    table = torch.rand(40, 40, generator=torch.Generator().manual_seed(1)) < 0.5

    def mask_mod(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return table[q_idx // rows, kv_idx // columns] & (q_idx >= kv_idx)

    query = torch.randn(1, 1, 2048, 16)
    call = replace(attention(mask_mod), query=query, key=query, value=query)
    found = call.resolve_tables(both=True).tables
    assert found is not None
    is_derived = found.derivative is not None
    assert is_derived == (rows % 128 == 0 and columns % 384 == 0)
