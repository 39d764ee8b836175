"""Ranks that share DTensors, and parallel modules, compute what one process does."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import flexc
from flexc.errors import ShapeError
from flexc.runtime.torch_compile.operators.higher_order import teach_torch
from tests.support.context_parallel import cases_that_run, run_ranks
from tests.support.dtensors import FOUR, OF_TWO, four_ranks, two_ranks

# The first test waits for what two processes do for many.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def two(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[Any, float]]:
    work = partial(two_ranks, cases=cases_that_run(request))
    return run_ranks(2, tmp_path_factory.mktemp("two"), work, keeps_group=True)


@pytest.mark.parametrize("case", OF_TWO, ids=str)
def test_two_processes(two: list[dict[Any, float]], case: Any) -> None:
    assert max(errors[case] for errors in two) <= 1


@pytest.mark.slow
def test_four_processes(tmp_path: Path) -> None:
    for errors in run_ranks(4, tmp_path, four_ranks, keeps_group=True):
        assert all(errors[case] <= 1 for case in [*FOUR, "both"]), errors


def test_refused_placements(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        mesh, other = init_device_mesh("cpu", (1,)), init_device_mesh("cpu", (1, 1))
        whole = torch.randn(1, 2, 16, 8)
        x = distribute_tensor(whole, mesh, [Shard(2)])
        blocks = flexc.create_block_mask(
            lambda b, h, q, k: q >= k, None, None, 16, 16, "cpu", BLOCK_SIZE=8
        )
        with pytest.raises(ShapeError, match="context_parallel"):
            flexc.flex_attention(x, x, x, block_mask=blocks)
        y = distribute_tensor(whole, other, [Shard(1), Shard(1)])
        with pytest.raises(ShapeError, match="the key expects the query's mesh"):
            flexc.flex_attention(x, y, x)
        with pytest.raises(ShapeError, match="the value is a Tensor"):
            flexc.flex_attention(x, x, whole)
    finally:
        dist.destroy_process_group()


def test_a_rule_that_torch_has_is_kept() -> None:
    teach_torch()
    table = torch.ops.higher_order.flex_attention.python_key_table
    before = table[DTensor]
    teach_torch.__wrapped__()
    assert table[DTensor] is before
