"""BlockMasks planned on a GPU: equal to torch's, without waiting for the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

import flexc
from flexc.runtime.kernels.driver import counters
from tests.support.block_tables import dense_blocks, differences
from tests.support.corpus import CORPUS

pytestmark = pytest.mark.gpu

MASKS = [
    name
    for name, case in CORPUS.items()
    if case.factory(1, 1, 1, 16, 16)[1] is not None
]


@pytest.mark.parametrize("name", MASKS)
def test_equals_torch(name: str) -> None:
    shapes: list[tuple[int, int, Any]] = [(700, 1030, 128), (500, 300, (64, 32))]
    for q_len, kv_len, block in shapes:
        mask: Any = CORPUS[name].factory(2, 3, 3, q_len, kv_len, "cuda")[1]
        sizes = (2, 3, q_len, kv_len)
        torchs = create_block_mask(mask, *sizes, "cuda", block)
        ours = flexc.create_block_mask(mask, *sizes, "cuda", block)
        assert differences(ours, torchs) == []
        unrefined = flexc.create_block_mask(mask, *sizes, "cuda", block, refine=False)
        (live, full), (torchs_live, torchs_full) = map(
            dense_blocks, (unrefined, torchs)
        )
        assert not (torchs_live & ~live).any()
        assert not (full & ~torchs_full).any()


def test_each_call_reads_what_is_captured_now() -> None:
    def documents(ids: torch.Tensor, window: int) -> Any:
        def mask(b, h, q_idx, kv_idx):
            return (ids[q_idx] == ids[kv_idx]) & (q_idx - kv_idx < window)

        return mask

    ids = torch.arange(4000, device="cuda") // 300
    made = []
    for length, window in ((300, 5000), (77, 5000), (77, 40)):
        ids.copy_(torch.arange(4000, device="cuda") // length)
        mask = documents(ids, window)
        ours = flexc.create_block_mask(mask, None, None, 4000, 4000, "cuda")
        made.append((ours, create_block_mask(mask, None, None, 4000, 4000, "cuda")))
    # Later calls have not written into earlier results.
    assert [differences(*pair) for pair in made] == [[], [], []]


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_does_not_wait_for_the_device() -> None:
    ids = torch.arange(65536, device="cuda") // 3001

    def documents(b, h, q_idx, kv_idx):
        return (ids[q_idx] == ids[kv_idx]) & (q_idx >= kv_idx)

    flexc.create_block_mask(documents, None, None, 65536, 65536, "cuda")
    before = dict(counters)
    torch.cuda.set_sync_debug_mode("error")
    try:
        flexc.create_block_mask(documents, None, None, 65536, 65536, "cuda")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert dict(counters) == before


LENGTH = 2048

QKV = tuple[Tensor, Tensor, Tensor]


def documents(ids: Tensor) -> Any:
    def mask(b, h, q_idx, kv_idx):
        return (ids[q_idx] == ids[kv_idx]) & (q_idx >= kv_idx)

    return mask


def operands() -> QKV:
    shape = (2, 4, LENGTH, 64)
    q, k, v = (
        torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3)
    )
    return q, k, v


def replayed(call: Callable[[], tuple[Tensor, ...]], inputs: QKV) -> None:
    """Check that a captured call has the bits of the call, for other inputs too."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    before = call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call()
    graph.replay()
    torch.cuda.synchronize()
    assert all(map(torch.equal, results, before))
    with torch.no_grad():
        for new, old in zip(operands(), inputs, strict=True):
            old.copy_(new)
    graph.replay()
    torch.cuda.synchronize()
    assert all(map(torch.equal, results, call()))


GIVEN: dict[str, Callable[[Any], dict[str, Any]]] = {
    "own": lambda mask: {
        "block_mask": flexc.create_block_mask(mask, None, None, LENGTH, LENGTH, "cuda")
    },
    "own-coarse": lambda mask: {
        "block_mask": flexc.create_block_mask(
            mask, None, None, LENGTH, LENGTH, "cuda", 512
        )
    },
    "torchs": lambda mask: {
        "block_mask": create_block_mask(mask, None, None, LENGTH, LENGTH, "cuda")
    },
    "function": lambda mask: {"mask_mod": mask},
}


@pytest.mark.parametrize("given", GIVEN)
def test_graphs_have_the_bits_of_calls(given: str) -> None:
    inputs = operands()
    mask = documents(torch.arange(LENGTH, device="cuda") // 150)
    kwargs = GIVEN[given](mask)
    attend: Any = flexc.flex_attention

    def call() -> tuple[Tensor, ...]:
        with torch.no_grad():
            return attend(*inputs, return_lse=True, **kwargs)

    replayed(call, inputs)


@pytest.mark.parametrize("given", GIVEN)
def test_graphs_have_the_bits_of_gradients(given: str) -> None:
    inputs = operands()
    for tensor in inputs:
        tensor.requires_grad_()
    d_out = operands()[0]
    mask = documents(torch.arange(LENGTH, device="cuda") // 150)
    kwargs = GIVEN[given](mask)
    attend: Any = flexc.flex_attention

    def call() -> tuple[Tensor, ...]:
        out = attend(*inputs, kernel_options={"deterministic": True}, **kwargs)
        return torch.autograd.grad(out, inputs, d_out)

    replayed(call, inputs)


def test_graphs_plan_for_what_is_captured_at_a_replay() -> None:
    """Finer blocks are found anew, so the mask may be of other documents then."""
    inputs = operands()
    ids = torch.arange(LENGTH, device="cuda") // 150
    mask = documents(ids)
    kwargs = GIVEN["own-coarse"](mask)
    attend: Any = flexc.flex_attention

    def call(**given: Any) -> Tensor:
        with torch.no_grad():
            return attend(*inputs, **given)

    call(**kwargs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call(**kwargs)
    ids.copy_(torch.arange(LENGTH, device="cuda") // 400)
    graph.replay()
    torch.cuda.synchronize()
    # Weights and results are rounded to bfloat16, by half a unit of 2**-7 each.
    bound = float(inputs[2].abs().max()) * 2**-7
    torch.testing.assert_close(out, call(mask_mod=mask), atol=bound, rtol=0)
