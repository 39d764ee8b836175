"""Calls whose gradients are recorded, again and again: tapes, and what they follow."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

import flexc
from flexc.runtime.autograd.gradient_kernels import DerivativeRun
from flexc.runtime.replay.equal_facts import FactsCache
from tests.support.dense_gradients import attention
from tests.unit.runtime.repeated import attend, causal, leaves, same

LENGTH = 1040
"""Long enough for two heads' blocks to be planned."""

Mods = tuple[Any, Any]

pytestmark = pytest.mark.usefixtures("known")


def biased(table: Tensor) -> Any:
    return lambda s, b, h, q, k: s + table[h, k]


def check(
    run: Callable[..., Any], mods: Mods, learned: tuple[Tensor, ...] = (), length=40
) -> None:
    """Results and gradients of new tensors are those of the dense definition."""
    tensors = leaves(length)
    inputs = [*tensors, *learned]
    query, key, value = tensors
    out = run(*tensors)
    expected = attention(query, key, value, *mods).out
    torch.testing.assert_close(out, expected, rtol=0, atol=5e-6)
    cotangent = torch.randn_like(out)
    found = torch.autograd.grad(out, inputs, cotangent)
    right = torch.autograd.grad(expected, inputs, cotangent)
    for a, b in zip(found, right, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5)


def test_an_equal_call_is_replayed_in_both_directions(
    backwards: list[DerivativeRun],
) -> None:
    for _ in range(4):
        table = torch.randn(2, 40, requires_grad=True)
        score = biased(table)
        check(
            lambda *t, score=score: attend(*t, score, mask_mod=causal),
            (score, causal),
            (table,),
        )
    assert len(backwards) == 2  # The second is recorded.


def test_the_retained_graph_of_a_first_call_is_replayed(
    backwards: list[DerivativeRun],
) -> None:
    query, key, value = tensors = leaves()
    out = attend(*tensors, mask_mod=causal)
    expected = attention(query, key, value, None, causal).out
    for _ in range(4):
        cotangent = torch.randn_like(out)
        found = torch.autograd.grad(out, tensors, cotangent, retain_graph=True)
        right = torch.autograd.grad(expected, tensors, cotangent, retain_graph=True)
        for a, b in zip(found, right, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5)
    assert len(backwards) == 2  # The second is recorded.


def test_other_needs_and_cotangents_have_tapes_of_their_own() -> None:
    for step in range(12):
        query, key, value = tensors = leaves()
        out, lse = attend(*tensors, mask_mod=causal, return_lse=True)
        expected = attention(query, key, value, None, causal)
        result, right = (out, expected.out) if step % 3 else (lse, expected.lse)
        wanted = tensors[:2] if step % 2 else tensors[1:2]
        cotangent = torch.randn(())
        cotangent = cotangent.expand(result.shape)  # Of strides 0.
        found = torch.autograd.grad(result, wanted, cotangent, retain_graph=True)
        again = torch.autograd.grad(result, wanted, cotangent.contiguous())
        right = torch.autograd.grad(right, wanted, cotangent)
        for a, b, c in zip(found, again, right, strict=True):
            torch.testing.assert_close(a, c, rtol=1e-4, atol=2e-5)
            torch.testing.assert_close(b, c, rtol=1e-4, atol=2e-5)


def test_second_derivatives_of_a_replayed_call() -> None:
    for _ in range(4):
        tensors = [t.double().detach().requires_grad_() for t in leaves(12)]
        found, right = (
            _second(f(*tensors), tensors)
            for f in (
                lambda *t: attend(*t, mask_mod=causal),
                lambda q, k, v: attention(q, k, v, None, causal).out,
            )
        )
        for a, b in zip(found, right, strict=True):
            torch.testing.assert_close(a, b)


def _second(out: Tensor, tensors: list[Tensor]) -> tuple[Tensor, ...]:
    first = torch.autograd.grad(out.square().sum(), tensors, create_graph=True)
    total = torch.stack([g.square().sum() for g in first]).sum()
    return torch.autograd.grad(total, tensors)


def documents(length: int) -> Iterator[Tensor]:
    while True:
        yield torch.randint(5, (length,)).sort().values


def test_masks_are_planned_at_every_call() -> None:
    for _, ids in zip(range(4), documents(LENGTH), strict=False):
        mask = same(ids)
        check(
            lambda *t, mask=mask: attend(*t, mask_mod=mask),
            (None, mask),
            length=LENGTH,
        )


@pytest.mark.parametrize("block", [16, 128])
def test_block_masks(block: int) -> None:
    """New ones, and the same again: what was derived of one is not another's."""
    for _, ids in zip(range(2), documents(LENGTH), strict=False):
        mask = same(ids)
        made = flexc.create_block_mask(mask, None, None, LENGTH, LENGTH, "cpu", block)
        for _ in range(3):
            check(
                lambda *t, made=made: attend(*t, block_mask=made),
                (None, mask),
                length=LENGTH,
            )


def test_tables_that_were_written_to_are_read_anew() -> None:
    made: Any = flexc.create_block_mask(causal, None, None, 64, 64, "cpu", 16)
    tensors = leaves(64)
    for _ in range(3):
        assert attend(*tensors, block_mask=made).abs().sum() > 0
    made.kv_num_blocks.zero_()
    made.full_kv_num_blocks.zero_()
    assert attend(*tensors, block_mask=made).abs().sum() == 0


def test_what_a_block_mask_captures_may_change() -> None:
    ids = torch.arange(64) // 16
    mask = same(ids)
    made = flexc.create_block_mask(mask, None, None, 64, 64, "cpu", 64)
    for _ in range(3):
        check(
            lambda *t: attend(*t, block_mask=made),
            (None, mask),
            length=64,
        )
        ids.copy_(torch.randint(3, (64,)).sort().values)


def test_plans_are_bounded(known: FactsCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "most", 4)
    for length in range(1, 12):
        attend(*leaves(length)).sum().backward()
        assert len(known) <= 4


def test_plans_hold_no_block_mask() -> None:
    made = flexc.create_block_mask(causal, None, None, 64, 64, "cpu", 16)
    listed = BlockMask.from_kv_blocks(
        made.kv_num_blocks, made.kv_indices, BLOCK_SIZE=16, seq_lengths=(64, 64)
    )
    alive = [weakref.ref(made), weakref.ref(listed)]
    for _ in range(3):
        for masked in ({"block_mask": made}, {"block_mask": listed}):
            attend(*leaves(64), **masked).sum().backward()
            attend(*(t.detach() for t in leaves(64)), **masked)
        masked = {}
    del made, listed
    gc.collect()
    assert [reference() for reference in alive] == [None, None]
