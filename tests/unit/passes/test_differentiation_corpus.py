"""The corpus's score mods: gradients, tangents and Hessians of score and captures."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.support.corpus import (
    CORPUS,
    Problem,
    corpus_scores,
)
from tests.support.derivatives import (
    Imported,
    Points,
    torch_scores,
)
from tests.support.reference import ScoreMod

NAMES = [n for n, c in CORPUS.items() if c.build.__module__ == corpus_scores.__name__]
SHAPE = (2, 3, 5, 7)
CLOSE = 1e-6
"""Some mods make float32 numbers of positions."""


class DoubleProblem(Problem):
    """Its random captured tensors are float64: torch adds gradients in their type."""

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return super().normal(*shape, dtype=torch.float64)


def imported(name: str) -> tuple[Imported, ScoreMod]:
    batch, heads, rows, columns = SHAPE
    problem = DoubleProblem(batch, heads, heads, rows, columns, "cpu")
    mod, _ = CORPUS[name].build(problem)
    assert mod is not None
    return Imported(mod), mod


@pytest.mark.parametrize("name", NAMES)
def test_derivatives(name: str) -> None:
    """Against torch: first order, both modes, and one mode over the other."""
    case, mod = imported(name)
    points = Points.all(3 * torch.randn(SHAPE, dtype=torch.float64))
    leaves = [points.score, *case.tensors.values()]
    tangents = [torch.randn_like(x) for x in leaves]
    cotangent = torch.randn_like(points.score).requires_grad_()
    along = torch.randn_like(points.score)
    for leaf in leaves:
        leaf.requires_grad_()
    scores = torch_scores(mod, points)
    first = torch.autograd.grad(
        scores, leaves, cotangent, create_graph=True, allow_unused=True
    )
    products = [
        (g * t).sum() for g, t in zip(first, tangents, strict=True) if g is not None
    ]
    tangent, *second = torch.autograd.grad(
        sum(products, torch.zeros(())), [cotangent, *leaves],
        allow_unused=True, retain_graph=True,
    )  # fmt: skip
    assert_close(case.pulled_back(points, cotangent.detach()), first)
    assert_close([case.pushed_forward(points, tangents)], [tangent])
    # The tangent of the cotangent adds what it would give by itself.
    by_along = torch.autograd.grad(scores, leaves, along, allow_unused=True)
    assert_close(
        case.second_order(points, cotangent.detach(), along, tangents),
        [added(a, b) for a, b in zip(second, by_along, strict=True)],
    )


def added(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


def assert_close(got: list[Tensor], want: object) -> None:
    assert isinstance(want, list | tuple)
    for g, w in zip(got, want, strict=True):
        w = torch.zeros_like(g) if w is None else w.detach().to(g.dtype)
        torch.testing.assert_close(g, w, rtol=CLOSE, atol=CLOSE)
