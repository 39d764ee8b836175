"""Ways to compute a GPT's attention: flexc, torch's flex attention, and none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.attention import flex_attention as torch_flex

import flexc
from bench.gpt import CAP, Attend, Batch, same_document


@dataclass(frozen=True)
class System:
    """How attention is computed, and who makes its BlockMask."""

    attend: Attend
    make: Callable[..., Any] | None = None

    def block_mask(self, batch: Batch, compiled: bool = False) -> Any:
        """Of a batch; torch's own is faster if compiled, which takes a while."""
        if self.make is None:
            return None
        is_torch = self.make is torch_flex.create_block_mask
        make = torch.compile(self.make) if compiled and is_torch else self.make
        documents = batch.documents
        rows, length = documents.shape
        sizes, device = (rows, None, length, length), documents.device.type
        return make(same_document(documents), *sizes, device=device)


def by_torch(query, key, value, score_mod, documents, block_mask):
    flex_attention = torch_flex.flex_attention
    return flex_attention(query, key, value, score_mod, block_mask=block_mask)


def by_block_mask(query, key, value, score_mod, documents, block_mask):
    return flexc.flex_attention(query, key, value, score_mod, block_mask=block_mask)


def by_mask_mod(query, key, value, score_mod, documents, block_mask):
    mask = same_document(documents)
    return flexc.flex_attention(query, key, value, score_mod, mask_mod=mask)


def by_definition(query, key, value, score_mod, documents, block_mask):
    """All pairs at once, for tests: it takes gigabytes in the default sizes."""
    scores = (query @ key.mT).float() / query.size(-1) ** 0.5
    live = (documents[:, None, :, None] == documents[:, None, None, :]).tril()
    scores = CAP * torch.tanh(scores / CAP)
    weights = F.softmax(scores.masked_fill(~live, -torch.inf), -1)
    return weights.to(value.dtype) @ value


def by_nothing(query, key, value, score_mod, documents, block_mask):
    return query + key + value


SYSTEMS = {
    "torch-flex": System(by_torch, torch_flex.create_block_mask),
    "flexc": System(by_block_mask, flexc.create_block_mask),
    "flexc-tables": System(by_block_mask, torch_flex.create_block_mask),
    "flexc-mask-mod": System(by_mask_mod),
    "no-attention": System(by_nothing),
    "dense": System(by_definition),
}
"""`flexc-tables` is given torch's BlockMask, `flexc` its own."""

DEFAULT = ("torch-flex", "flexc", "flexc-mask-mod")
