"""Graphs of torch.compile that run again and again: their operators replay tapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

import flexc
from flexc.errors import BlockMaskError
from flexc.runtime.attention.call import Attention, Outputs
from flexc.runtime.autograd.gradient_kernels import DerivativeRun
from flexc.runtime.inputs.options import NO_CHOICES
from flexc.runtime.torch_compile.graph_call import GraphCall, Operands
from flexc.runtime.torch_compile.mod_graphs import ModGraphs
from flexc.runtime.torch_compile.operators.traced import TracedAttention
from tests.support.dense_gradients import attention
from tests.unit.runtime.repeated import attend, causal, same

pytestmark = pytest.mark.usefixtures("known")

LENGTH = 96


def compiled(**options: Any) -> Any:
    torch._dynamo.reset()

    def fn(q: Tensor, k: Tensor, v: Tensor, *mods: Any) -> Tensor:
        return attend(q, k, v, *mods, **options)

    return torch.compile(fn, backend="aot_eager", fullgraph=True)


def inputs(records: bool = True) -> list[Tensor]:
    """Of two batches, where masks are the same for both."""
    shape = (2, 2, LENGTH, 16)
    return [torch.randn(shape, requires_grad=records) for _ in range(3)]


def check(run: Any, mods: tuple[Any, Any]) -> None:
    """Results and gradients of new tensors are those of the dense definition."""
    given = inputs()
    out, expected = run(*given), attention(*given, *mods).out  # pyright: ignore
    torch.testing.assert_close(out, expected, rtol=0, atol=5e-6)
    cotangent = torch.randn_like(out)
    found = torch.autograd.grad(out, given, cotangent)
    right = torch.autograd.grad(expected, given, cotangent)
    for a, b in zip(found, right, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("make", [create_block_mask, flexc.create_block_mask])
def test_block_masks_are_replayed(
    make: Any, executed: list[Attention], backwards: list[DerivativeRun]
) -> None:
    """Their tables are checked at each call, and still read by a tape."""
    mask = same(torch.arange(LENGTH) // 20)
    made = make(mask, None, None, LENGTH, LENGTH, "cpu", BLOCK_SIZE=32)
    run = compiled(block_mask=made)
    for _ in range(4):
        check(run, (None, mask))
    assert len(executed) == len(backwards) == 2
    plain = inputs(records=False)
    for _ in range(4):
        expected = attention(*plain, None, mask).out  # pyright: ignore
        torch.testing.assert_close(run(*plain), expected, rtol=0, atol=5e-6)
    assert len(executed) == 4


def test_tables_that_list_what_is_not_there_are_refused() -> None:
    made: Any = create_block_mask(causal, None, None, 96, 96, "cpu", BLOCK_SIZE=32)
    run, given = compiled(block_mask=made), inputs(records=False)
    for _ in range(4):
        run(*given)
    made.kv_indices[0, 0, 1, 0] = 7
    with pytest.raises(BlockMaskError, match="lists block 7, of 3"):
        run(*given)
    made.kv_indices[0, 0, 1, 0] = 1
    run(*given)
    made.kv_num_blocks[0, 0, 1] = 9
    with pytest.raises(BlockMaskError, match="counts 9 blocks in a row of a table 3"):
        run(*given)


def test_captured_tensors_may_change(executed: list[Attention]) -> None:
    table = torch.randn(2, LENGTH)

    def score(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return s + table[h, k]

    run = compiled(mask_mod=causal)
    for _ in range(4):
        check(lambda *given: run(*given, score), (score, causal))
        table.normal_()
    assert len(executed) == 2


def test_what_was_replayed_may_be_recorded() -> None:
    """An operator is called with other needs than those of its tape."""
    own: Any = torch.ops.flexc.attention.default
    call = GraphCall(
        ModGraphs.of((None, None), ((), ())), Outputs(lse=True), NO_CHOICES
    )
    query, key, value = inputs(records=False)
    operands = Operands(query, key, value, None, (), (LENGTH, LENGTH), (0, 0), ())
    _, _, _, *rest = TracedAttention.of(call, operands).arguments()
    for _ in range(4):
        out, _ = own(query, key, value, *rest)
        assert not out.requires_grad
    query.requires_grad_()
    for _ in range(2):
        with torch.no_grad():
            assert not own(query, key, value, *rest)[0].requires_grad
        out, lse = own(query, key, value, *rest)
        (found,) = torch.autograd.grad((out.sum(), lse.sum()), query)
        dense = attention(query, key, value, None, None)
        (right,) = torch.autograd.grad((dense.out.sum(), dense.lse.sum()), query)
        torch.testing.assert_close(found, right, rtol=1e-4, atol=2e-5)
