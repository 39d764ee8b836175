"""Whether results are right: errors of flexc beside those of unfused attention."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from bench.problem import Problem
from tests.support.reference import apply_mods

SAMPLED_ROWS = 128
FEW_ROWS = 16

ROUNDING = 1e-6
"""What sums and exponentials of fp32 may add, which those of 16 bits do not show."""

DISAGREEMENT = 2.0**-5
"""Of the largest element: by so much two systems do not compute the same."""


@dataclass(frozen=True)
class Errors:
    """flexc's largest error, and that of torch's unfused code of the same precision."""

    own: float
    peer: float
    slack: float
    what: str = "out"

    @property
    def right(self) -> bool:
        return self.own <= 2 * self.peer + self.slack

    def __str__(self) -> str:
        wrong = "" if self.right else " WRONG"
        return f"{self.what} {self.own:.1e} ({self.peer:.1e}){wrong}"


def forward_errors(problem: Problem, out: Tensor) -> Errors:
    """Of some rows of the first head and of the last: first, middle and last ones.

    Of few rows those of all heads: the largest of so few errors is left to chance.
    """
    dtype, own, peer, size = problem.d_out.dtype, 0.0, 0.0, 0.0
    batch, heads, rows, _ = out.shape
    starts = sorted({0, rows // 2, max(0, rows - SAMPLED_ROWS)})
    places = {(0, 0), (batch - 1, heads - 1)}
    if rows < FEW_ROWS:
        places = set(product(range(batch), range(heads)))
    for b, h in places:
        for start in starts:
            exact = some_rows(problem, b, h, start, torch.float64)
            rough = some_rows(problem, b, h, start, dtype)
            got = out[b, h, start : start + SAMPLED_ROWS].double()
            own = max(own, float((got - exact).abs().max().nan_to_num(torch.inf)))
            peer = max(peer, float((rough - exact).abs().max()))
            size = max(size, float(exact.abs().max()))
    return Errors(own, peer, slack=size * torch.finfo(dtype).eps / 4 + ROUNDING)


def some_rows(
    problem: Problem, b: int, h: int, start: int, precision: torch.dtype
) -> Tensor:
    """Dense attention of some rows of a head, with products of that precision."""
    heads, kv_heads = (t.size(1) for t in problem.qkv[:2])
    places = (h, *[h * kv_heads // heads] * 2)
    query, key, value = (
        t.detach()[b, place].to(precision)
        for t, place in zip(problem.qkv, places, strict=True)
    )
    work = torch.promote_types(precision, torch.float32)
    query = query[start : start + SAMPLED_ROWS]
    scores = (query @ key.T).to(work) / math.sqrt(query.size(1))
    scores = apply_mods(scores, *problem.mods, b, h, start)
    out = torch.softmax(scores, dim=-1).to(precision) @ value
    return out.to(problem.d_out.dtype if precision != torch.float64 else work)


def gradient_errors(problem: Problem, out: Tensor) -> dict[str, tuple[float, float]]:
    """For each input the relative errors of its gradient: of a system and unfused ones.

    `out` is the system's output.
    """
    got = problem.gradients(out)
    exact, rough = problem.exact(), problem.unfused()
    names = ("query", "key", "value", "captured")
    return {
        name: (relative_error(a, e), relative_error(r, e))
        for name, a, r, e in zip(names, got, rough, exact, strict=False)
    }


def worst(found: dict[str, tuple[float, float]], dtype: torch.dtype) -> Errors:
    """Errors of the input whose gradient is worst beside unfused code's."""
    name = max(found, key=lambda n: found[n][0] / max(found[n][1], 1e-12))
    return Errors(*found[name], torch.finfo(dtype).eps / 4 + ROUNDING, f"d_{name}")


def relative_error(found: Tensor, exact: Tensor) -> float:
    error = (found - exact).abs().max().nan_to_num(torch.inf)
    return float(error / exact.abs().max())


def agrees(out: Tensor, other: Tensor) -> bool:
    """Whether two systems computed the same."""
    size = float(out.abs().max())
    return float((out.float() - other.float()).abs().max()) <= DISAGREEMENT * size
