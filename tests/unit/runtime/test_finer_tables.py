"""BlockMasks of flexc's own whose blocks are coarser than the kernel's tile."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask as torch_block_mask

import flexc
from flexc.runtime.attention import call as calls
from flexc.runtime.attention.call import Attention, Outputs
from flexc.runtime.attention.run import run
from flexc.runtime.kernels.proofs import MAX_PLANNED_BLOCKS, MaskReading
from tests.support.flex_modules import make_call
from tests.support.reference import attention

LENGTH, COARSE, FINE = 1024, 512, (32, 64)


def documents(ids: Tensor, window: list[int] | None = None) -> Any:
    def mask_mod(b, h, q_idx, kv_idx):
        near = q_idx - kv_idx < window[0] if window else q_idx >= kv_idx
        return (ids[q_idx] == ids[kv_idx]) & (q_idx >= kv_idx) & near

    return mask_mod


def ids() -> Tensor:
    return (torch.arange(LENGTH) // 150).to(torch.int32)


def call_of(block_mask: Any) -> Attention:
    torch.manual_seed(0)
    inputs = [torch.randn(1, 2, LENGTH, 16) for _ in range(3)]
    return make_call(inputs, None, block_mask, 0.25, Outputs(), "cpp")


def block_size(block_mask: Any) -> tuple[int, int]:
    call = call_of(block_mask).resolve_tables()
    assert call.tables is not None
    return call.tables.block_size


def coarse_mask(mask_mod: Any) -> Any:
    return flexc.create_block_mask(mask_mod, None, None, LENGTH, LENGTH, "cpu", COARSE)


def test_finer_blocks_are_planned_once() -> None:
    block_mask = coarse_mask(documents(ids()))
    first = call_of(block_mask).resolve_tables()
    second = call_of(block_mask).resolve_tables()
    assert first.tables is not None
    assert first.tables.block_size == FINE
    assert second.tables is not None
    for a, b in zip(first.tables.tensors, second.tables.tensors, strict=True):
        assert a is b


def test_the_result_is_the_masks() -> None:
    mask_mod = documents(ids())
    call = call_of(coarse_mask(mask_mod))
    expected = attention(call.query, call.key, call.value, None, mask_mod).out
    torch.testing.assert_close(run(call)[0], expected.float(), atol=1e-5, rtol=1e-5)


def test_written_captures_keep_the_blocks_that_were_found() -> None:
    captured = ids()
    block_mask = coarse_mask(documents(captured))
    assert block_size(block_mask) == FINE
    captured[0] = 7
    assert block_size(block_mask) == (COARSE, COARSE)


def test_changed_numbers_keep_the_blocks_that_were_found() -> None:
    window = [300]
    block_mask = coarse_mask(documents(ids(), window))
    assert block_size(block_mask) == FINE
    window[0] = 200
    assert block_size(block_mask) == (COARSE, COARSE)


def test_tensors_of_inference_mode_keep_the_blocks_that_were_found() -> None:
    with torch.inference_mode():
        captured = ids()
    assert block_size(coarse_mask(documents(captured))) == (COARSE, COARSE)


def test_blocks_of_the_same_size_stay() -> None:
    mask_mod = documents(ids())
    lengths = LENGTH, LENGTH
    block_mask = flexc.create_block_mask(mask_mod, None, None, *lengths, "cpu", FINE)
    call = call_of(block_mask).resolve_tables()
    assert call.tables is not None
    assert call.tables.tensors[1].data_ptr() == block_mask.kv_indices.data_ptr()


def test_other_masks_keep_their_blocks() -> None:
    block_mask = torch_block_mask(
        documents(ids()), None, None, LENGTH, LENGTH, "cpu", COARSE
    )
    assert block_size(block_mask) == (COARSE, COARSE)


@pytest.mark.parametrize(("length", "factor"), [(1024, 1), (1 << 18, 2), (1 << 20, 8)])
def test_great_lengths_are_planned_in_greater_blocks(length: int, factor: int) -> None:
    reading: Any = object.__new__(MaskReading)
    object.__setattr__(reading, "planned_block", (64, 64))
    m, n = reading.block_for(length, length)
    assert (m, n) == (64 * factor, 64 * factor)
    assert (length // m) * (length // n) <= MAX_PLANNED_BLOCKS


def test_graphs_plan_what_calls_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """A captured call visits the same blocks, and leaves no table behind."""
    block_mask = coarse_mask(documents(ids()))
    outside = call_of(block_mask).resolve_tables()
    compiled = outside.compiled()
    monkeypatch.setattr(calls, "is_capturing", lambda _: True)
    captured = call_of(block_mask).resolve_tables()
    same = captured.compiled()
    again = call_of(block_mask).resolve_tables()
    assert same is compiled
    assert outside.tables is not None
    assert captured.tables is not None
    assert again.tables is not None
    assert captured.tables.block_size == outside.tables.block_size == FINE
    for own, kept in zip(captured.tables.tensors, outside.tables.tensors, strict=True):
        assert own is not kept
        assert own.equal(kept)
    assert again.tables.tensors[0] is not captured.tables.tensors[0]
    assert run(call_of(block_mask))[0].equal(run(outside)[0])


def test_graphs_keep_the_blocks_that_were_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a mask that changed: in a graph as outside of it."""
    captured = ids()
    block_mask = coarse_mask(documents(captured))
    captured[0] = 7
    monkeypatch.setattr(calls, "is_capturing", lambda _: True)
    assert block_size(block_mask) == (COARSE, COARSE)
