"""How far the derivatives of attention may be from the exact ones, number by number.

Notation of `tolerance`: u is the unit of the scores' type, h that of the inputs' type
if it is half precision, else 0, and n the numbers that are summed. What a computation
may be wrong by is propagated through the formulas of the derivatives in double
precision, every product and sum by the magnitudes of what goes into it:

    dp = d_out . v           (Ev + 4) u |d_out| . |v|, and h / 2 of it: weighed rows of
                             cotangents are rounded
    delta = d_out . out      the same, and |d_out| times the error of out
    x = score_mod(s)         see `mod_derivatives`, which measures it, and
                             lip d + eps u as in `tolerance`
    p = exp(x - lse)         relatively e^r - 1: r is the error of x, that of lse, and
                             the exponent's roundings
    dx = p (dp - delta)
    ds = dx m'               m' is the mod's derivative, known as x is; what goes
                             through a number of f32 is rounded to that
    dq = scale sum ds k      ds is rounded to h / 2, sums of n numbers are wrong by n u

and so on for the tangents. Results are rounded to their own type.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from tests.property.cases import SCORE_BOUND
from tests.property.gradient_cases import INPUTS, GradientCase
from tests.property.mod_derivatives import size
from tests.property.tolerance import SMALLEST_BLOCK
from tests.property.values import EPS32
from tests.support.dense_gradients import (
    Pairs,
    pairs_of,
    repeated,
)

HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Known:
    """A value, and a bound of the error of what was computed for it."""

    value: Tensor
    error: Tensor

    @property
    def size(self) -> Tensor:
        """The most that what was computed may be."""
        return self.value.abs() + self.error

    def times(self, other: Known, unit: float) -> Known:
        """The product, rounded."""
        error = self.size * other.size - self.value.abs() * other.value.abs()
        return Known(self.value * other.value, error + unit * self.size * other.size)

    def rounded(self, unit: float, tiny: float = 0.0) -> Known:
        return Known(self.value, self.error + unit * self.size + tiny)

    def matmul(self, other: Known, unit: float) -> Known:
        """The matrix product, whose sums are wrong by n units."""
        n = self.value.shape[-1] + 8
        most = self.size @ other.size
        least = self.value.abs() @ other.value.abs()
        return Known(self.value @ other.value, most - least + n * unit * most)

    def sum(self, dim: int, unit: float) -> Known:
        n = self.value.shape[dim] + 8
        error = self.error.sum(dim) + n * unit * self.size.sum(dim)
        return Known(self.value.sum(dim), error)

    @property
    def mT(self) -> Known:
        return Known(self.value.mT, self.error.mT)


def exactly(value: Tensor) -> Known:
    return Known(value, torch.zeros_like(value))


def added(terms: Iterable[Known], unit: float) -> Known:
    first, *rest = terms
    for term in rest:
        first = Known(first.value + term.value, first.error + term.error)
    return first.rounded((len(rest) + 1) * unit)


class Bounds:
    """Errors that are allowed of a case's derivatives."""

    def __init__(self, given: GradientCase):
        self.given, self.case = given, given.case
        dtype = given.case.dtype
        self.unit = torch.finfo(given.score_dtype).eps
        is_half = dtype in HALF
        self.half = torch.finfo(dtype).eps / 2 if is_half else 0.0
        self.tiny = smallest(dtype) if is_half else 0.0
        self.mod_unit = 4 * max(self.unit, EPS32 if given.has_floats32 else 0.0)
        self.tensors = {n: given.leaves[n].detach() for n in INPUTS}

    def of(self, name: str) -> Known:
        """A tensor with as many heads and batches as the query."""
        query = self.tensors["query"]
        return exactly(
            repeated(self.tensors[name], query) if name != "query" else query
        )

    # What all derivatives share

    @cached_property
    def pairs(self) -> Pairs:
        query, key, _ = self.tensors.values()
        with torch.no_grad():
            return pairs_of(query, key, *self.given.points.mods, self.case.scale)

    @cached_property
    def mod(self) -> tuple[Known, ...]:
        """Modified scores, and the mod's derivatives by the score and by each read."""
        case, unit = self.case, self.unit
        dots = (case.sizes.head_dim + 4) * unit * SCORE_BOUND
        # What a mod of a call in double precision computes in single precision.
        fixed = case.score.fixed if case.dtype == torch.float64 else 0.0
        of_score = replace(case.score, fixed=fixed).error(dots, unit)
        delta = dots + case.score.eps * unit
        exact, errors = self.given.points.certain(self.pairs.scores, delta)
        errors.modified.add_(of_score)
        live = self.pairs.live
        return tuple(
            Known(torch.where(live, v, 0.0), torch.where(live, e, 0.0))
            for v, e in zip(exact.all, errors.all, strict=True)
        )

    @cached_property
    def weights(self) -> Known:
        """p, as it is computed from scores and lse."""
        weights, score = self.pairs.weights, self.mod[0].error
        keys = self.case.sizes.kv_len
        largest = size(self.pairs.modified).amax(-1, keepdim=True) + math.log(keys)
        lse = (weights * score).sum(-1, keepdim=True)
        # Each block of keys may move the maximum, and scale what came before.
        lse = lse + (keys / SMALLEST_BLOCK + 2) * self.unit * (6 * largest + 4)
        error = score + lse + (keys + 16) * self.unit + 4 * self.unit * largest
        return Known(weights, weights * torch.expm1(error.clamp(max=100)))

    @cached_property
    def out(self) -> Known:
        p = self.weights.rounded(self.half, self.tiny)
        out = p.matmul(self.of("value"), self.unit)
        return out.rounded(self.half, self.tiny)

    # Reverse mode

    @cached_property
    def d_out(self) -> Known:
        given = self.given.cotangents[0]
        if given is None:
            return exactly(torch.zeros_like(self.out.value))
        return exactly(given.detach().double()).rounded(self.half, self.tiny)

    @cached_property
    def dx(self) -> Known:
        """p * (dp - delta)."""
        dp = self.d_out.matmul(self.of("value").mT, self.unit)
        terms = [self.d_out.times(self.out, self.unit).sum(-1, self.unit)]
        if (d_lse := self.given.cotangents[1]) is not None:
            empty = self.given.exact.lse == -torch.inf
            d_lse = torch.where(empty, 0.0, d_lse.double())
            terms.append(exactly(-d_lse).rounded(8 * self.unit))
        delta = added(terms, self.unit)
        delta = Known(-delta.value[..., None], delta.error[..., None])
        return self.weights.times(added([dp, delta], self.unit), self.unit)

    @cached_property
    def ds(self) -> Known:
        return self.dx.times(self.mod[1], self.mod_unit)

    def gradients(self) -> dict[str, Known]:
        """Of all tensors."""
        unit, scale = self.unit, self.case.scale_value
        ds = self.ds.rounded(self.half, self.tiny)
        p = self.weights.rounded(self.half, self.tiny)
        by_query = ds.matmul(self.of("key"), unit)
        by_key = ds.mT.matmul(self.of("query"), unit)
        found = {
            "query": scaled(by_query, scale),
            "key": self.shared(scaled(by_key, scale)),
            "value": self.shared(p.mT.matmul(self.d_out, unit)),
        }
        reads = [self.dx.times(j, self.mod_unit) for j in self.mod[2:]]
        found |= self.captured(reads)
        return {n: self.finished(n, k) for n, k in found.items()}

    def captured(self, reads: list[Known]) -> dict[str, Known]:
        """What was read where, added up; each number in its turn, at worst."""
        add = self.given.points.scattered
        values, errors = add([r.value for r in reads]), add([r.error for r in reads])
        sizes = add([r.size for r in reads])
        counts = add([torch.ones_like(r.value) for r in reads])
        return {
            name: Known(
                values[name],
                errors[name] + (counts[name] + 8) * self.unit * sizes[name],
            )
            for name in values
        }

    def shared(self, known: Known) -> Known:
        """The sum over the heads and batches that share a key."""
        of = self.tensors["key"].shape
        batch, heads = known.value.shape[:2]

        def total(x: Tensor) -> Tensor:
            x = x.unflatten(1, (of[1], heads // of[1])).sum(2)
            return x.sum(0, keepdim=True) if of[0] < batch else x

        terms = heads // of[1] * (batch // of[0])
        error = total(known.error) + terms * self.unit * total(known.size)
        return Known(total(known.value), error)

    def finished(self, name: str, known: Known) -> Known:
        dtype = self.given.given[name].dtype
        unit = torch.finfo(dtype).eps
        return known.rounded(max(unit, 4 * self.unit), smallest(dtype))

    # Forward mode

    def tangents(self) -> tuple[Known, Known]:
        """Of out and of lse."""
        unit, named = self.unit, self.given.tangents
        moved = {n: exactly(t.detach().double()) for n, t in named.items()}
        query = self.tensors["query"]

        def spread(name: str) -> Known:
            return exactly(repeated(moved[name].value, query))

        dots: list[Known] = []
        if "query" in moved:
            dots.append(moved["query"].matmul(self.of("key").mT, unit))
        if "key" in moved:
            dots.append(self.of("query").matmul(spread("key").mT, unit))
        terms: list[Known] = []
        if dots:
            t_s = scaled(added(dots, unit), self.case.scale_value).rounded(2 * unit)
            terms.append(t_s.times(self.mod[1], self.mod_unit))
        terms += self.read_terms({n: k for n, k in moved.items() if n not in INPUTS})
        zeros = exactly(torch.zeros_like(self.pairs.weights))
        t_x = added([zeros, *terms], unit)
        moving = self.weights.times(t_x, unit)
        t_lse = moving.sum(-1, unit).rounded(4 * unit)
        sums = [moving.rounded(self.half, self.tiny).matmul(self.of("value"), unit)]
        if "value" in moved:
            p = self.weights.rounded(self.half, self.tiny)
            sums.append(p.matmul(spread("value"), unit))
        shift = Known(-t_lse.value[..., None], t_lse.error[..., None])
        t_out = added([*sums, shift.times(self.out, unit)], 4 * unit)
        return t_out.rounded(2 * self.half, self.tiny), t_lse

    def read_terms(self, moved: Mapping[str, Known]) -> list[Known]:
        """What the tangents of captured tensors add to that of the score."""
        if not moved:
            return []
        given = self.given.points.gathered({n: k.value for n, k in moved.items()})
        return [
            exactly(t).times(j, self.mod_unit)
            for t, j in zip(given, self.mod[2:], strict=True)
        ]


def scaled(known: Known, factor: float) -> Known:
    return Known(known.value * factor, known.error * abs(factor))


def smallest(dtype: torch.dtype) -> float:
    """What vanishes at most."""
    info = torch.finfo(dtype)
    return info.smallest_normal if dtype != torch.float16 else 2.0**-24


def check(
    what: str, got: Mapping[str, Tensor], want: Mapping[str, Known | Tensor]
) -> float:
    """Hold derivatives to their bounds; the largest part of one that was used."""
    return max(
        (_check(f"{what}: {n}", g, want[n]) for n, g in got.items()), default=0.0
    )


def _check(what: str, got: Tensor, want: Known | Tensor) -> float:
    assert isinstance(want, Known)
    assert got.shape == want.value.shape, f"{what}: {got.shape}, {want.value.shape}"
    if not got.numel():
        return 0.0
    error = (got.detach().double() - want.value).abs().nan_to_num(torch.inf)
    used = torch.where((error == 0) | want.error.isinf(), 0.0, error / want.error)
    worst = float(used.max())
    if worst <= 1:
        return worst
    place = tuple((used > 1).nonzero()[0].tolist())
    raise AssertionError(
        f"{what} is wrong by {worst:.3g} times of what is allowed, first at {place}: "
        f"expected {want.value[place]:.9g} within {want.error[place]:.3g}, got "
        f"{got[place]:.9g}"
    )
