"""What tests of compiled functions share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import flexc
from flexc.runtime.kernels.driver import counters
from flexc.runtime.torch_compile.dynamo import OPERATOR
from tests.support import reference

COMPILE: Any = functools.partial(flexc.compile, backend="eager")
"""Most tests are about captures, and need no kernels."""


def causal(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return q_idx >= kv_idx


def qkv(length: int = 12, heads: int = 2, dim: int = 8) -> Any:
    return torch.randn(3, 1, heads, length, dim).unbind(0)


def dense(*args: Any, **kwargs: Any) -> Tensor:
    return reference.attention(*args, **kwargs).out.float()


def traces(call: Callable[[], Any]) -> int:
    before = counters["functions traced"]
    call()
    return counters["functions traced"] - before


def operators(compiled: Any, *args: Any) -> int:
    graph = compiled.graph(*args)
    return len([n for n in graph.graph.nodes if n.target is OPERATOR])


class Block(nn.Module):
    """A transformer's block, with a learned bias that it computes itself."""

    def __init__(self, dim: int = 16, heads: int = 2):
        super().__init__()
        self.heads = heads
        self.window = 4
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Sequential(nn.Linear(dim, dim), nn.Dropout(0.5))
        self.bias = nn.Parameter(torch.randn(heads, 64))

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Any:
        table = self.bias.tanh()
        window = self.window

        def score(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return s + table[h, (q - k).abs()]

        def mask(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return (q >= k) & (q - k < window)

        return flexc.flex_attention(query, key, value, score, mask_mod=mask)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, dim = x.shape
        heads = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1)
        out = self.attend(*heads.permute(2, 0, 3, 1, 4).unbind(0))
        return x + self.out(out.transpose(1, 2).reshape(batch, length, dim))
