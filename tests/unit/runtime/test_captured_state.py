"""Every kind of state that a mod may read: a second call sees that it changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import flexc
from tests.captured_state import KINDS, Kind

ROUNDING = 4e-6
"""Sums of 5 products of fp32, of numbers up to 10, in any order."""


@pytest.fixture(autouse=True)
def _settings() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = False


def tensors() -> list[Tensor]:
    return [torch.randn(1, 2, 5, 4, dtype=torch.float32) for _ in range(3)]


def results(attention: Any, kind: Kind, given: list[Tensor]) -> list[Tensor | None]:
    """The output, and gradients of query, key, value and what is learned."""
    inputs = [t.clone().requires_grad_() for t in given]
    out = attention(*inputs, kind.mod)
    leaves = [*inputs, *kind.learned]
    if not out.requires_grad:
        return [out, *[None] * len(leaves)]
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    found = torch.autograd.grad((out * weights).sum(), leaves, allow_unused=True)
    return [out, *found]


def eager(q: Tensor, k: Tensor, v: Tensor, mod: Any) -> Any:
    """Attention as Python says it, pair by pair."""
    _, heads, rows, dim = q.shape
    scores = q.double() @ k.double().mT / dim**0.5
    zero = torch.tensor(0)
    pairs = [
        mod(scores[0, h, i, j].float(), zero, *map(torch.tensor, (h, i, j)))
        for h in range(heads)
        for i in range(rows)
        for j in range(rows)
    ]
    return torch.stack(pairs).view_as(scores).double().softmax(-1) @ v.double()


def compiled(q: Tensor, k: Tensor, v: Tensor, mod: Any) -> Any:
    return flexc.flex_attention(q, k, v, mod, backend="eager")


def assert_equal(found: list[Tensor | None], expected: list[Tensor | None]) -> None:
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            error = (a.double() - b.double()).abs().max().item()
            assert error <= ROUNDING * max(1, b.abs().max().item())


@pytest.mark.parametrize("name", KINDS)
def test_a_second_call_sees_the_change(name: str) -> None:
    kind, given = KINDS[name](), tensors()
    before = results(eager, kind, given)
    for _ in range(2):  # The second is served by what the first one left.
        assert_equal(results(compiled, kind, given), before)
    kind.change()
    after = results(eager, kind, given)
    for _ in range(2):
        assert_equal(results(compiled, kind, given), after)
    out, other = before[0], after[0]
    assert out is not None
    assert other is not None
    assert (out - other).abs().max() > 1e-3
