"""A small language model trained with flexc's attention, and with dense attention.

`python -m bench.train`, and a part of `make demo`, on the CPU. From the same seed and
on the same batches both have the same losses but for rounding: the bias and the sinks
that each layer learns get the gradients that torch's autograd finds.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bench.byte_model import Attend, Batch, Corpus, Model, Sizes

STEPS, EVERY = 300, 30
"""Steps, and steps of a printed line."""

TOLERANCE = 1e-4
"""Largest difference allowed between losses, of two nats.

They differ by less than 1e-6. Without the gradient of one layer's bias they differ by
more than this after ten steps, and by more and more.
"""


def dense(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Any, mask_mod: Any
) -> tuple[Tensor, Tensor]:
    """Attention by its definition: mods at all pairs at once, and torch's autograd."""
    batch, heads, length, dim = query.shape
    b = torch.arange(batch)[:, None, None, None]
    h = torch.arange(heads)[:, None, None]
    q_idx, kv_idx = torch.arange(length)[:, None], torch.arange(length)
    scores = query @ key.mT / math.sqrt(dim)
    scores = score_mod(scores, b, h, q_idx, kv_idx)
    scores = scores.masked_fill(~mask_mod(b, h, q_idx, kv_idx), -math.inf)
    return scores.softmax(-1) @ value, scores.logsumexp(-1)


def fused(flex_attention: Callable[..., Any]) -> Attend:
    """The same by flexc."""

    def attend(
        query: Tensor, key: Tensor, value: Tensor, score_mod: Any, mask_mod: Any
    ) -> tuple[Tensor, Tensor]:
        mods = {"score_mod": score_mod, "mask_mod": mask_mod}
        return flex_attention(query, key, value, **mods, return_lse=True)

    return attend


class Trainer:
    """A model in training, and the seconds that its steps took."""

    def __init__(self, sizes: Sizes, attend: Attend):
        torch.manual_seed(0)
        self.model = Model(sizes, attend)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=3e-3, betas=(0.9, 0.95)
        )
        self.seconds: list[float] = []

    def step(self, batch: Batch) -> float:
        """Learn from a batch; the loss that it had before."""
        start = time.perf_counter()
        self.optimizer.zero_grad()
        loss = self.model.loss(batch)
        loss.backward()
        self.optimizer.step()
        self.seconds.append(time.perf_counter() - start)
        return loss.item()

    @property
    def milliseconds(self) -> float:
        """Of a step that compiles nothing."""
        return 1e3 * statistics.median(self.seconds)


@dataclass(frozen=True)
class Training:
    """Two models that are trained side by side."""

    flexc: Trainer
    dense: Trainer

    @classmethod
    def of(cls, flex_attention: Callable[..., Any], sizes: Sizes) -> Training:
        return cls(Trainer(sizes, fused(flex_attention)), Trainer(sizes, dense))

    def losses(self, sizes: Sizes, steps: int) -> Iterator[tuple[float, float]]:
        """Train, and yield the losses of each step: flexc's and the dense model's."""
        for batch in Corpus.of_python().batches(sizes, steps):
            yield self.flexc.step(batch), self.dense.step(batch)

    def parameter_difference(self) -> float:
        """The largest difference of a parameter between the two models."""
        pairs = zip(
            self.flexc.model.parameters(), self.dense.model.parameters(), strict=True
        )
        with torch.no_grad():
            return max((a - b).abs().max().item() for a, b in pairs)


def report(
    flex_attention: Callable[..., Any],
    sizes: Sizes | None = None,
    steps: int = STEPS,
    every: int = EVERY,
) -> bool:
    """Train both models and print their losses; whether these agree and fall."""
    sizes = sizes or Sizes()
    training = Training.of(flex_attention, sizes)
    count = sum(p.numel() for p in training.flexc.model.parameters())
    print(
        f"  {count:,} parameters in {sizes.layers} layers of {sizes.heads} heads; "
        f"{sizes.batch} x {sizes.length} bytes of Python's help topics a step.\n"
        "  Attention is causal, within a document and a window of "
        f"{sizes.window}; a bias for each\n  head and distance, and a sink for each "
        "head, are learnt with the rest. Losses are means, in nats.\n\n"
        f"  {'steps':>9}{'flexc':>10}{'dense':>10}{'difference':>13}"
    )
    shown: list[tuple[float, float]] = []
    means: list[float] = []
    largest = 0.0
    for i, losses in enumerate(training.losses(sizes, steps), 1):
        shown.append(losses)
        if i % every == 0 or i == steps:
            ours, own = map(statistics.fmean, zip(*shown, strict=True))
            worst = max(abs(a - b) for a, b in shown)
            print(
                f"  {i - len(shown) + 1:>4}-{i:<4}{ours:10.4f}{own:10.4f}{worst:13.1e}",
                flush=True,
            )
            means.append(ours)
            largest = max(largest, worst)
            shown.clear()
    agree = largest <= TOLERANCE
    print(
        f"\n  largest difference of a step's loss: {largest:.1e} "
        f"({'within' if agree else 'BEYOND'} {TOLERANCE:.0e}), of a parameter at the "
        f"end: {training.parameter_difference():.1e}\n"
        f"  a step takes {training.flexc.milliseconds:.0f} ms with flexc, "
        f"{training.dense.milliseconds:.0f} ms with dense attention"
    )
    return agree and means[-1] < means[0]


def main() -> int:
    import flexc

    return 0 if report(flexc.flex_attention) else 1


if __name__ == "__main__":
    sys.exit(main())
