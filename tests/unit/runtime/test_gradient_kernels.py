"""Programs of gradients: how many own keys, and when a query head has its own."""

from __future__ import annotations

import pytest
import torch

from flexc.runtime.attention.call import Attention, read_signature
from flexc.runtime.autograd.gradient_kernels import DerivativeFacts
from flexc.runtime.explain.gradients import BY_HEAD, gradients_of
from flexc.runtime.explain.subject import Subject
from flexc.runtime.inputs.arguments import Outputs
from flexc.runtime.inputs.options import Choices
from tests.support.corpus import CORPUS


def call_of(
    case: str, batch: int, heads: tuple[int, int], length: int, deterministic: bool
) -> Attention:
    """A call of a GPU's kernels, on tensors that hold a single row of each head."""
    query, key = (
        torch.zeros(batch, h, 1, 128, dtype=torch.bfloat16)
        .expand(-1, -1, length, -1)
        .requires_grad_()
        for h in heads
    )
    mods = CORPUS[case].factory(batch, *heads, length, length)
    signature = read_signature(*mods, torch.device("cpu"))
    return Attention(
        *(query, key, key, 0.1, None, signature, Outputs(), "triton"),
        Choices(deterministic=deterministic),
    )


@pytest.mark.parametrize(
    ("case", "batch", "heads", "length", "deterministic", "by_head"),
    [
        ("causal", 2, (16, 1), 8192, False, True),  # 128 programs
        ("dense", 2, (16, 1), 8192, False, False),
        ("sliding_window", 2, (16, 1), 8192, False, False),
        ("dense", 2, (16, 1), 4096, False, True),  # 64
        ("dense", 3, (16, 1), 8192, False, True),  # 192: a multiprocessor has 1 or 2
        ("causal", 1, (32, 8), 2048, False, True),
        ("causal", 1, (32, 8), 4096, False, False),  # 256
        ("causal", 1, (32, 8), 1024, False, False),  # They end early.
        ("causal", 1, (32, 8), 4096, True, True),
        ("causal", 1, (2, 2), 4096, True, False),
    ],
)
def test_programs_of_query_heads(
    case: str,
    batch: int,
    heads: tuple[int, int],
    length: int,
    deterministic: bool,
    by_head: bool,
) -> None:
    """Where few programs would own keys, or programs add in a fixed order."""
    call = call_of(case, batch, heads, length, deterministic)
    facts = DerivativeFacts(call).facts([])
    assert ("ordered" in facts) == deterministic
    assert ("paired_heads" in facts) == (heads[0] == heads[1])
    assert ("per_query_head" in facts) == by_head
    described = gradients_of(Subject.of(call))
    lines = dict(described.lines())
    if by_head:
        assert described.deterministic == deterministic
    order = "a fixed" if deterministic else "any"
    assert lines.get("key, value") == (BY_HEAD.format(order) if by_head else None)
