"""Parameters of layers that FSDP2 shards: mods read them, and they have gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import flexc

LENGTH = 9


@pytest.fixture(autouse=True)
def _process_group(tmp_path: Path) -> Iterator[None]:
    store = f"file://{tmp_path}/store"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rel = nn.Embedding(2 * LENGTH, 2)
        self.gain = nn.Parameter(torch.rand(2, LENGTH))
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor, attend: Callable[..., Any]) -> Any:
        def mod(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return s * self.gain[h, k] + self.rel(q - k + LENGTH)[h]

        q, k, v = self.qkv(x).view(1, LENGTH, 3, 2, 4).permute(2, 0, 3, 1, 4)
        return attend(q, k, v, mod)


def dense(q: Tensor, k: Tensor, v: Tensor, mod: Callable[..., Any]) -> Tensor:
    scores = q @ k.mT / 2
    zero, rows = torch.tensor(0), range(LENGTH)
    pairs = [
        mod(scores[0, h, i, j], zero, *map(torch.tensor, (h, i, j)))
        for h in range(2)
        for i in rows
        for j in rows
    ]
    return torch.stack(pairs).view_as(scores).softmax(-1) @ v


def gradients(layer: Layer, x: Tensor, attend: Callable[..., Any]) -> list[Any]:
    layer.zero_grad()
    layer(x, attend).square().sum().backward()
    return [p.grad for p in layer.parameters()]


def test_sharded_parameters_have_gradients() -> None:
    torch.manual_seed(0)
    layer, x = Layer(), torch.randn(1, LENGTH, 8)
    expected = [g.clone() for g in gradients(layer, x, dense)]
    fully_shard(layer, mesh=init_device_mesh("cpu", (1,)))
    for _ in range(2):
        found = gradients(layer, x, flexc.flex_attention)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a.full_tensor(), b)
