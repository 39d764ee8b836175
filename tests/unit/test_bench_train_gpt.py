"""The benchmark of a whole model's step, in sizes that take no time, without a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bench.gpt import GPT, Sizes, batches
from bench.gpt_systems import DEFAULT, SYSTEMS
from bench.kernel_trace import busy, counts, launched
from bench.train_gpt import main, parser, report, run

TINY = "--layers 1 --heads 2 --tokens 40 --batch 2 --vocabulary 64 --document 12"
QUICK = "--steps 4 --turn 2 --warmup 1 --device cpu --backend aot_eager"


def test_the_default_model_has_124_million_parameters() -> None:
    with torch.device("meta"):
        model = GPT(Sizes(), SYSTEMS["flexc"].attend)
    count = sum(p.numel() for p in model.parameters()) - model.places.weight.numel()
    assert round(count / 1e6) == 124
    assert (Sizes().heads, Sizes().width, Sizes().tokens) == (12, 768, 4096)


def test_documents_are_packed() -> None:
    sizes = Sizes(batch=3, tokens=50, vocabulary=100)
    first, again = (batches(sizes, 2, mean=10) for _ in range(2))
    assert len(first) == 2
    for batch, same in zip(first, again, strict=True):
        assert batch.tokens.shape == batch.documents.shape == (3, 50)
        assert torch.equal(batch.tokens, same.tokens)
        assert torch.equal(batch.tokens[:, 1:], batch.following[:, :-1])
        steps = batch.documents.diff()
        assert ((steps == 0) | (steps == 1)).all()
        assert steps.any()


def test_systems_learn_the_same() -> None:
    names = ("dense", "flexc", "flexc-tables", "flexc-mask-mod")
    arguments = f"{TINY} {QUICK} --precision fp32 --systems {' '.join(names)}"
    found = run(parser().parse_args(arguments.split()))
    losses = torch.stack([torch.stack(trainer.losses) for trainer in found])
    assert losses.shape == (4, 5)
    assert (losses - losses[0]).abs().max() <= 1e-5
    assert all(len(trainer.wall) == 2 for trainer in found)
    header, *lines = report(found)
    assert "/dense" in header
    assert [line.split()[0] for line in lines] == list(names)


def test_a_gpu_is_asked_for_where_one_is_needed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--device", "cpu", "--profile"]) == 2
    assert "--device cuda" in capsys.readouterr().err
    assert parser().parse_args([]).systems == list(DEFAULT)


def event(cat: str, name: str, ts: float, dur: float, **more: Any) -> dict[str, Any]:
    correlation, tid = more.get("correlation"), more.get("tid", 1)
    args = {} if correlation is None else {"correlation": correlation}
    return {
        **{"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid},
        "args": args,
    }


def test_kernels_are_attentions_by_name_or_by_who_launched_them() -> None:
    trace = [
        event("cpu_op", "flexc::attention", 10, 10),
        event("cuda_driver", "cuLaunchKernel", 12, 1, correlation=1),
        event("cuda_driver", "cuLaunchKernel", 13, 1, correlation=2, tid=2),
        event("cuda_runtime", "cudaGraphLaunch", 30, 1, correlation=3),
        event("kernel", "copy", 100, 10, correlation=1),
        event("kernel", "gemm", 105, 15, correlation=2),
        event("kernel", "attention_1", 130, 5, correlation=3),
        event("kernel", "triton_tem_fused_flex_attention_0", 140, 5, correlation=3),
        event("gpu_user_annotation", "attention", 90, 100),
        {"ph": "i", "name": "attention", "cat": "kernel", "ts": 1},
    ]
    found = launched(trace)
    assert [kernel.is_attention for kernel in found] == [True, False, True, True]
    assert busy(found) == 30
    assert counts(found)["copy"] == 1
