"""How far a result of attention may be from the exact one.

With u the unit of the scores' type (float32, or float64 for float64 inputs), E the
head dim, n the number of keys, S a bound of |q . k * scale|, X one of the modified
scores and V one of |v|:

1. A score is a sum of E products, of which sum |q_i k_i| * |scale| <= S by Cauchy
   and Schwarz, and a product: d = (E + 4) u S.
2. `score_mod` makes of it D = lip * d + eps * u + tanh * t + fixed: see `values`.
   On a GPU t is 2**-11 for inputs of half precision: the hardware's own tanh.
3. A weight is exp2(x c - m c). Its exponent's roundings, of c, of m c and of the
   sum, come to 6 u X at most, exp2 itself to 4 u; when the maximum moves, sums are
   scaled by such a factor again, once for each of the n / 16 blocks that a loop has
   at most. So weights are relatively wrong by r = 2 D + (n / 16 + 2) u (6 X + 4).
4. Sums over n keys and the division add (n + 8) u. Numerator and denominator share
   the weights, so out is wrong by (2 r + 2 (n + 8) u) V.
5. In half precision weights and the result are rounded, to h / 2 each, and weights
   below the smallest half number vanish: h V + n t V more.
6. lse = m + log(l) is wrong by r + (n + 8) u of l, and D + 2 u X of m.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tests.property.cases import SCORE_BOUND, Case
from tests.support.reference import Reference

SMALLEST_BLOCK = 16
HARDWARE_TANH = 2.0**-11


@dataclass(frozen=True)
class Tolerance:
    """Absolute errors that are allowed."""

    out: float
    lse: float
    max_scores: float

    @classmethod
    def of(cls, case: Case) -> Tolerance:
        double = case.dtype == torch.float64
        u = torch.finfo(torch.float64 if double else torch.float32).eps
        n, bound = case.sizes.kv_len, max(case.score.bound, 1.0)
        largest = float(case.inputs[2].double().abs().max())
        delta = (case.sizes.head_dim + 4) * u * SCORE_BOUND
        half = case.dtype in (torch.float16, torch.bfloat16)
        tanh = HARDWARE_TANH if half and case.device != "cpu" else 0.0
        score = case.score.error(delta, u, tanh)
        blocks = n / SMALLEST_BLOCK + 2
        weight = 2 * score + blocks * u * (6 * bound + 4)
        sums = (n + 8) * u
        out = 2 * weight + 2 * sums
        if half:
            info = torch.finfo(case.dtype)
            out += info.eps + n * info.smallest_normal * info.eps
        maximum = score + 2 * u * bound
        return cls(out * largest, weight + sums + maximum, maximum)


def check(
    case: Case,
    out: Tensor,
    lse: Tensor | None = None,
    max_scores: Tensor | None = None,
    *,
    what: str = "result",
) -> None:
    """Hold results to the case's reference."""
    tolerance, expected = Tolerance.of(case), case.expected
    close(f"{what}: out", out, expected.out, tolerance.out)
    if lse is not None:
        close(f"{what}: lse", lse, expected.lse, tolerance.lse)
    if max_scores is not None:
        wanted = expected.max_scores
        close(f"{what}: max_scores", max_scores, wanted, tolerance.max_scores)
    check_empty_rows(what, out, expected)


def close(what: str, got: Tensor, expected: Tensor, tolerance: float) -> None:
    """Equal where infinite, else no further apart than the tolerance."""
    got = got.double()
    infinite = expected.isinf()
    error = torch.where(infinite & (got == expected), 0.0, (got - expected).abs())
    worst = float(error.nan_to_num(torch.inf, torch.inf).max()) if error.numel() else 0
    if worst <= tolerance:
        return
    place = (~(error <= tolerance)).nonzero()[0].tolist()
    raise AssertionError(
        f"{what} is wrong by {worst:.3g}, of {tolerance:.3g} allowed, first at "
        f"{place}: expected {expected[tuple(place)]}, got {got[tuple(place)]}"
    )


def check_empty_rows(what: str, out: Tensor, expected: Reference) -> None:
    """A row with nothing to attend to is 0 to the bit."""
    empty = expected.max_scores == -torch.inf
    assert (out[empty] == 0).all(), f"{what}: a row that sees nothing is not 0"
