"""A GPT whose attention is given, and packed documents for it to learn.

Each layer projects to queries, keys and values at once; attention is given their
transposed views. Scores have a soft cap; no token attends beyond its document.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.support.corpus import Device

CAP = 30.0
PHRASES = 16
"""Tokens after which a document repeats itself at the latest, which can be learnt."""

Attend = Callable[..., Any]
"""(query, key, value, score_mod, documents, block_mask) to the output."""


def soft_cap(score, b, h, q_idx, kv_idx):
    return CAP * torch.tanh(score / CAP)


def same_document(documents: Tensor) -> Callable[..., Any]:
    """The mask of packed documents: causal, within each."""

    def mask_mod(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (documents[b, q_idx] == documents[b, kv_idx])

    return mask_mod


@dataclass(frozen=True)
class Sizes:
    """124M parameters, those of positions not counted, and the tokens of a batch."""

    layers: int = 12
    heads: int = 12
    head_dim: int = 64
    vocabulary: int = 50_304
    batch: int = 4
    tokens: int = 4096

    @property
    def width(self) -> int:
        return self.heads * self.head_dim


@dataclass
class Batch:
    """Tokens, those that follow them, and numbers of documents; all (B, S)."""

    tokens: Tensor
    following: Tensor
    documents: Tensor
    block_mask: Any = None

    def to(self, device: Device, copy: bool = False) -> Batch:
        """Its tensors there; a BlockMask is made where it is used."""
        tensors = self.tokens, self.following, self.documents
        return Batch(*(t.to(device, copy=copy) for t in tensors))


def batches(sizes: Sizes, count: int, mean: int, seed: int = 0) -> list[Batch]:
    """Documents of random lengths, `mean` on average, one after the other."""
    generator = torch.Generator().manual_seed(seed)
    rows = [packed_row(sizes, mean, generator) for _ in range(count * sizes.batch)]
    tokens, documents = (torch.stack(part) for part in zip(*rows, strict=True))
    split = (tokens[:, :-1], tokens[:, 1:], documents[:, :-1])
    parts = zip(*(t.contiguous().split(sizes.batch) for t in split), strict=True)
    return [Batch(*part) for part in parts]


def packed_row(
    sizes: Sizes, mean: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Tokens and numbers of documents, one more than a sequence has."""
    tokens: list[Tensor] = []
    lengths: list[int] = []
    while sum(lengths) <= sizes.tokens:
        spread = torch.empty(()).exponential_(generator=generator)
        length = 2 + int(spread * max(mean - 2, 0))
        period = int(torch.randint(1, PHRASES + 1, (), generator=generator))
        phrase = torch.randint(sizes.vocabulary, (period,), generator=generator)
        tokens.append(phrase.repeat(length // period + 1)[:length])
        lengths.append(length)
    numbers = torch.arange(len(lengths), dtype=torch.int32)
    documents = numbers.repeat_interleave(torch.tensor(lengths))
    end = sizes.tokens + 1
    return torch.cat(tokens)[:end], documents[:end]


class Layer(nn.Module):
    """Attention and a perceptron, each added to what comes in."""

    def __init__(self, sizes: Sizes, attend: Attend):
        super().__init__()
        width, self.heads, self.attend = sizes.width, sizes.heads, attend
        self.norms = nn.ModuleList(nn.LayerNorm(width, bias=False) for _ in range(2))
        self.project = nn.Linear(width, 3 * width, bias=False)
        self.merge = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, documents: Tensor, block_mask: Any) -> Tensor:
        heads = self.project(self.norms[0](x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = (t.transpose(1, 2) for t in heads.unbind(2))
        out = self.attend(query, key, value, soft_cap, documents, block_mask)
        x = x + self.merge(out.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class GPT(nn.Module):
    """The mean loss of a batch, in nats. The embedding is the last layer's too."""

    def __init__(self, sizes: Sizes, attend: Attend):
        super().__init__()
        self.embed = nn.Embedding(sizes.vocabulary, sizes.width)
        self.places = nn.Embedding(sizes.tokens, sizes.width)
        self.layers = nn.ModuleList(Layer(sizes, attend) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.width, bias=False)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(
        self, tokens: Tensor, following: Tensor, documents: Tensor, block_mask: Any
    ) -> Tensor:
        x = self.embed(tokens) + self.places.weight
        for layer in self.layers:
            x = layer(x, documents, block_mask)
        logits = F.linear(self.norm(x), self.embed.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), following.flatten())
