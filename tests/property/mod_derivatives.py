"""A generated score mod's derivatives at all pairs, by torch, and how certain they are.

A derivative has an error of its own kind: where a mod has a kink (relu, clamp, where)
a score that is rounded to its other side has another derivative. So derivatives are
taken at the ends of what rounding may make of a score as well, in double precision
and in the types that the mod itself computes in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from tests.property.cases import Case, Mods, ModSource, reference_live
from tests.support.dense_gradients import IndexAsOp, grid

ROUNDINGS = 16
"""Roundings of one statement's derivative."""


@dataclass(frozen=True)
class Mod:
    """A modified score and its derivatives: (B, Hq, Sq, Skv) each."""

    modified: Tensor
    by_score: Tensor
    by_reads: list[Tensor]
    """By each read of a captured tensor, in the order that the mod reads in."""

    @property
    def all(self) -> list[Tensor]:
        return [self.modified, self.by_score, *self.by_reads]

    @classmethod
    def of(cls, values: Sequence[Tensor]) -> Mod:
        modified, by_score, *by_reads = values
        return cls(modified, by_score, by_reads)


class ModPoints:
    """The score mod of a case, in double precision, at the pairs of its call."""

    def __init__(self, case: Case):
        self.case = case
        s = case.sizes
        self.shape = (s.batch, s.heads, s.q_len, s.kv_len)
        self.wide = widened(case)
        self.leaves = {
            name: value.requires_grad_()
            for name, value in self.wide.captured_values.items()
            if isinstance(value, Tensor) and value.is_floating_point()
        }

    @cached_property
    def mods(self) -> Mods:
        """Both mods in double precision, of tensors that require gradients."""
        return self.wide.mods(reference_live)

    def certain(self, scores: Tensor, delta: float) -> tuple[Mod, Mod]:
        """The mod at exact scores, and bounds of what another finds at its own.

        `delta` bounds the error of the scores.
        """
        case = self.case
        double = case.dtype == torch.float64
        type_ = torch.float64 if double else torch.float32
        own = own_reads(case).mods(reference_live)
        exact = evaluated(self.mods, scores).all
        near = [scores - delta, scores + delta]
        others = [evaluated(self.mods, s).all for s in near]
        others += [evaluated(own, s.to(type_)).all for s in (scores, *near)]
        source = case.score_mod
        steps = 0 if source is None else len(source.lines)
        unit = ROUNDINGS * steps * torch.finfo(type_).eps
        bounds = [
            2 * torch.stack([difference(a, value) for a in at]).amax(0)
            + unit * (size(value) + size(value).amax())
            for value, *at in zip(exact, *others, strict=True)
        ]
        return Mod.of(exact), Mod.of(bounds)

    def scattered(
        self, values: Sequence[Tensor], create_graph: bool = False
    ) -> dict[str, Tensor]:
        """A number for each read of each pair, added up where it was read."""
        pairs = [p for p in zip(self.reads, values, strict=True) if p[0].requires_grad]
        if not pairs:
            return {name: torch.zeros_like(v) for name, v in self.leaves.items()}
        reads, weights = zip(*((r, v.flatten()) for r, v in pairs), strict=True)
        sums = torch.autograd.grad(
            reads,
            list(self.leaves.values()),
            weights,
            retain_graph=True,
            create_graph=create_graph,
            allow_unused=True,
            materialize_grads=True,
        )
        return dict(zip(self.leaves, sums, strict=True))

    def gathered(self, values: Mapping[str, Tensor]) -> list[Tensor]:
        """For each read of each pair, what a tensor of other values holds there."""
        weights = [
            torch.zeros(self.shape).double().requires_grad_() for _ in self.reads
        ]
        sums = self.scattered(weights, create_graph=True)
        total = sum((sums[n] * v).sum() for n, v in values.items())
        if not isinstance(total, Tensor) or not total.requires_grad:
            return weights
        return list(
            torch.autograd.grad(
                total, weights, allow_unused=True, materialize_grads=True
            )
        )

    @cached_property
    def reads(self) -> tuple[Tensor, ...]:
        """What is read at all pairs, in a row each, as torch recorded it."""
        score_mod, _ = self.mods
        if score_mod is None:
            return ()

        def read(*args: Tensor) -> tuple[Tensor, ...]:
            with IndexAsOp() as mode:
                score_mod(*args)
            return tuple(mode.reads)

        scores = torch.zeros(self.shape, dtype=torch.float64).flatten()
        return torch.vmap(read)(scores, *grid(self.shape))


def size(value: Tensor) -> Tensor:
    """Magnitudes, 0 of what is infinite."""
    return torch.where(value.isinf(), 0.0, value.abs())


def difference(a: Tensor, b: Tensor) -> Tensor:
    return torch.where(a == b, 0.0, (a - b).abs())


def evaluated(mods: Mods, scores: Tensor) -> Mod:
    """By torch, in the types that a mod has for such scores."""
    score_mod, _ = mods
    if score_mod is None:
        return Mod(scores.double(), torch.ones_like(scores, dtype=torch.float64), [])
    indices = grid(scores.shape)
    types: list[torch.dtype] = []

    def plain(*args: Tensor) -> Tensor:
        with IndexAsOp() as mode:
            result = score_mod(*args)
        types[:] = [r.dtype for r in mode.reads]
        return result

    flat = scores.detach().flatten()
    with torch.no_grad():
        torch.vmap(plain)(flat, *indices)

    def probed(score: Tensor, *rest: Tensor) -> Tensor:
        with IndexAsOp(rest[4:]):
            return score_mod(score, *rest[:4])

    probes = [torch.zeros(flat.shape, dtype=t, requires_grad=True) for t in types]
    flat.requires_grad_()
    modified = torch.vmap(probed)(flat, *indices, *probes)
    found = torch.autograd.grad(
        modified.sum(), [flat, *probes], allow_unused=True, materialize_grads=True
    )
    values = [modified.detach(), *found]
    return Mod.of([v.double().view(scores.shape) for v in values])


def widened(case: Case) -> Case:
    """The same numbers and mods in double precision."""
    wide = own_reads(case)
    values = {
        name: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v
        for name, v in case.captured_values.items()
    }
    source = wide.source.replace("torch.float32", "torch.float64")
    vars(wide).update(captured_values=values, source=source)
    return wide


def own_reads(case: Case) -> Case:
    """A case in which tensors without dimensions are read by an index too."""
    names = [f"= {n}" for n, spec in case.tensors.items() if not spec.shape]
    changed = replace(case, score_mod=_indexed(case.score_mod, names))
    vars(changed).update(captured_values=case.captured_values)
    return changed


def _indexed(mod: ModSource | None, names: Sequence[str]) -> ModSource | None:
    if mod is None:
        return None
    lines = (f"{x}[()]" if x[x.find("= ") :] in names else x for x in mod.lines)
    return replace(mod, lines=tuple(lines))
