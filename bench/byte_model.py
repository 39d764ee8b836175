"""A small causal language model of bytes, and the text that it learns.

Its attention is given: flexc's, or another with the same arguments. Each layer learns a
relative bias, which the score mod captures, and a sink for each head, to which
gradients flow through log-sum-exp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Attend = Callable[..., tuple[Tensor, Tensor]]
"""(query, key, value, score_mod, mask_mod) to out and log-sum-exp."""

BYTES = 256


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model, and of the batches that it is trained on."""

    width: int = 64
    heads: int = 4
    layers: int = 2
    window: int = 64
    length: int = 256
    batch: int = 4


@dataclass(frozen=True)
class Batch:
    """Tokens, the tokens that follow them, and the numbers of their documents."""

    tokens: Tensor
    following: Tensor
    documents: Tensor


@dataclass(frozen=True)
class Corpus:
    """Documents, one after the other."""

    tokens: Tensor
    documents: Tensor
    """The number of the document that each token is of."""

    @classmethod
    def of_python(cls) -> Corpus:
        """The topics of `help()`, which come with Python."""
        texts = [topics[name].encode() for name in sorted(topics)]
        numbers = torch.arange(len(texts), dtype=torch.int32)
        lengths = torch.tensor([len(text) for text in texts])
        tokens = torch.frombuffer(bytearray(b"".join(texts)), dtype=torch.uint8)
        return cls(tokens.long(), numbers.repeat_interleave(lengths))

    def batches(self, sizes: Sizes, count: int) -> Iterator[Batch]:
        """Sequences from random places, the same at every run."""
        generator = torch.Generator().manual_seed(0)
        last = len(self.tokens) - sizes.length
        for _ in range(count):
            starts = torch.randint(last, (sizes.batch, 1), generator=generator)
            at = starts + torch.arange(sizes.length)
            yield Batch(self.tokens[at], self.tokens[at + 1], self.documents[at])


class Attention(nn.Module):
    """Causal attention within a window, and within a document.

    A bias for each head and distance is added to scores. A sink is one more logit of
    each row, which has no value: it leaves sigmoid(lse - sink) of the rest.
    """

    def __init__(self, sizes: Sizes, attend: Attend):
        super().__init__()
        self.heads, self.window, self.attend = sizes.heads, sizes.window, attend
        self.project = nn.Linear(sizes.width, 3 * sizes.width, bias=False)
        self.merge = nn.Linear(sizes.width, sizes.width, bias=False)
        self.bias = nn.Parameter(torch.zeros(sizes.heads, sizes.window))
        self.sinks = nn.Parameter(torch.zeros(sizes.heads))

    def forward(self, x: Tensor, documents: Tensor) -> Tensor:
        bias, window = self.bias, self.window

        def score_mod(score, b, h, q_idx, kv_idx):
            return score + bias[h, (q_idx - kv_idx).clamp(0, window - 1)]

        def mask_mod(b, h, q_idx, kv_idx):
            near = (q_idx >= kv_idx) & (q_idx - kv_idx < window)
            return near & (documents[b, q_idx] == documents[b, kv_idx])

        parts = self.project(x).unflatten(-1, (3, self.heads, -1))
        query, key, value = parts.transpose(1, 3).unbind(2)
        out, lse = self.attend(query, key, value, score_mod, mask_mod)
        out = out * torch.sigmoid(lse - self.sinks[:, None])[..., None]
        return self.merge(out.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Attention and a perceptron, each added to what comes in."""

    def __init__(self, sizes: Sizes, attend: Attend):
        super().__init__()
        width = sizes.width
        self.attention = Attention(sizes, attend)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, documents: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x), documents)
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Model(nn.Module):
    """Logits of the byte that follows each byte."""

    def __init__(self, sizes: Sizes, attend: Attend):
        super().__init__()
        self.embed = nn.Embedding(BYTES, sizes.width)
        self.layers = nn.ModuleList(Layer(sizes, attend) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.width)
        self.head = nn.Linear(sizes.width, BYTES, bias=False)

    def forward(self, tokens: Tensor, documents: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, documents)
        return self.head(self.norm(x))

    def loss(self, batch: Batch) -> Tensor:
        """Nats for each byte."""
        logits = self(batch.tokens, batch.documents)
        return F.cross_entropy(logits.flatten(0, 1), batch.following.flatten())
