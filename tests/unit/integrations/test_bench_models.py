"""Models of `bench.models`: flexc computes what eager attention does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from bench.models import FAMILIES, Work, build, runs_of
from flexc.integrations.transformers import register


@pytest.mark.parametrize("family", FAMILIES)
def test_families(family: str) -> None:
    """Prompts, gradients, and tokens that are generated with either cache."""
    register()
    work = Work(length=64, new=4)
    torch.manual_seed(1)
    models = {system: build(family, system, work) for system in ("eager", "flexc")}
    given = work.inputs(models["eager"])
    runs = {s: runs_of(model, given, work) for s, model in models.items()}
    for task in runs["eager"]:
        expected, found = (runs[s][task]() for s in models)
        if task == "prompt":
            torch.testing.assert_close(
                found.logits, expected.logits, atol=1e-4, rtol=1e-4
            )
        elif task != "training step":
            assert torch.equal(found, expected), task
    grads: list[dict[str, Any]] = [
        {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        for model in models.values()
    ]
    torch.testing.assert_close(grads[1], grads[0], atol=1e-4, rtol=1e-3)


def test_frequencies_of_rotations_are_fp32() -> None:
    model = build("Llama", "eager", Work(dtype=torch.bfloat16))
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32
