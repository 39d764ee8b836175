"""BlockMasks planned on a GPU: equal to torch's, without waiting for the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

import flexc
from flexc.runtime.driver import counters
from tests.block_tables import dense_blocks, differences
from tests.corpus import CORPUS

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
