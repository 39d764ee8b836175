"""Generated score mods have the derivatives that torch gives them.

Everything is computed in double precision, so that only a wrong derivative differs.
"""

from __future__ import annotations

import torch
from hypothesis import assume, given
from torch import Tensor

from tests.property.cases import Case, reference_live
from tests.property.strategies import SCORE_BOUND, cases
from tests.support.derivatives import (
    Imported,
    Points,
    torch_scores,
)

POINTS = 48


def widen(case: Case) -> None:
    """Make all floats of the case's mods double precision."""
    values = {
        name: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v
        for name, v in case.captured_values.items()
    }
    source = case.source.replace("torch.float32", "torch.float64")
    vars(case).update(captured_values=values, source=source)


def points_of(case: Case) -> Points:
    """Pairs drawn from the case's seed, with scores within its bound."""
    generator = torch.Generator().manual_seed(case.seed)
    s = case.sizes
    indices = [
        torch.randint(0, n, (POINTS,), generator=generator)
        for n in (s.batch, s.heads, s.q_len, s.kv_len)
    ]
    scores = torch.rand(POINTS, generator=generator, dtype=torch.float64)
    return Points((2 * scores - 1) * SCORE_BOUND, indices)


def assert_where_known(got: Tensor, want: Tensor | None) -> None:
    """Equal where torch's answer is a number."""
    want = torch.zeros_like(got) if want is None else want.detach()
    known = ~want.isnan()
    torch.testing.assert_close(got[known], want[known], rtol=1e-7, atol=1e-7)


@given(cases((torch.float64,), longest=33))
def test_derivatives(case: Case) -> None:
    assume(case.score_mod is not None)
    widen(case)
    mod, _ = case.mods(reference_live)
    assert mod is not None
    imported, points = Imported(mod), points_of(case)
    generator = torch.Generator().manual_seed(case.seed)

    def random(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator, dtype=torch.float64)

    leaves = [points.score, *imported.tensors.values()]
    for leaf in leaves:
        leaf.requires_grad_()
    tangents = [random(x) for x in leaves]
    cotangent = random(points.score).requires_grad_()
    scores = torch_scores(mod, points)
    first = torch.autograd.grad(
        scores, leaves, cotangent, create_graph=True, allow_unused=True
    )
    for got, want in zip(
        imported.pulled_back(points, cotangent.detach()), first, strict=True
    ):
        assert_where_known(got, want)
    products = [
        (g * t).sum() for g, t in zip(first, tangents, strict=True) if g is not None
    ]
    tangent, *second = torch.autograd.grad(
        sum(products, torch.zeros(())), [cotangent, *leaves], allow_unused=True
    )
    assert_where_known(imported.pushed_forward(points, tangents), tangent)
    still = torch.zeros_like(points.score)
    found = imported.second_order(points, cotangent.detach(), still, tangents)
    for got, want in zip(found, second, strict=True):
        assert_where_known(got, want)
