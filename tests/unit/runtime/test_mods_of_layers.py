"""Mods that read the layer they are made in: what a second call makes anew."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

import flexc
from flexc.runtime.kernels.driver import counters
from tests.support import reference


def new_work(run: Callable[[], Any]) -> dict[str, int]:
    """What a call traced, lowered or built."""
    before = counters.copy()
    run()
    return dict(counters - before)


class Layer(torch.nn.Module):
    """A layer whose mods read it, as layers of models do."""

    def __init__(self) -> None:
        super().__init__()
        self.window = 5
        self.bias_table = torch.nn.Parameter(torch.randn(2, 47))
        self.slopes = torch.nn.Buffer(torch.rand(2))
        self.project = torch.nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        def score_mod(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return s + self.slopes[h] * (k - q) + self.bias_table[h, q - k + 23]

        def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return (q >= k) & (q - k < self.window)

        args = (x, x, self.project(x).detach(), score_mod)
        self.expected = reference.attention(*args, mask_mod)
        out = flexc.flex_attention(*args, mask_mod=mask_mod)
        assert isinstance(out, Tensor)
        return out


def test_mods_that_read_their_layer() -> None:
    layer, x = Layer().requires_grad_(False), torch.randn(1, 2, 24, 8)
    results: list[Tensor] = []

    def check() -> None:
        results.append(layer(x))
        torch.testing.assert_close(results[-1], layer.expected.out.float())

    assert new_work(check)["traced"] == 1
    assert not new_work(check)
    layer.window = 9
    assert not new_work(check)
    layer.bias_table = torch.nn.Parameter(torch.randn(2, 47), requires_grad=False)
    assert not new_work(check)
    layer.slopes.add_(1)
    assert not new_work(check)
    layer.load_state_dict({k: v * 2 for k, v in layer.state_dict().items()})
    assert not new_work(check)
    assert torch.equal(results[0], results[1])
    assert all(not torch.equal(a, b) for a, b in pairwise(results[1:]))
