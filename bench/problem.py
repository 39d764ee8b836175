"""One call of attention that is measured, and gradients of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bench.learned import Learned
from bench.variants import Anchor
from tests.support.corpus import Mods
from tests.support.reference import attention


@dataclass(frozen=True)
class Problem:
    """One call of attention, and what gradients are taken of."""

    inputs: tuple[Tensor, ...]
    """Query, key, value, and what is learned; leaves for a backward."""
    d_out: Tensor
    mods_of: Callable[..., Mods]
    """The mods of what is learned."""
    variant: Anchor | Learned
    backward: bool

    @property
    def mods(self) -> Mods:
        return self.mods_of(*self.inputs[3:])

    @property
    def qkv(self) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value, *_ = self.inputs
        return query, key, value

    @property
    def lengths(self) -> tuple[int, int]:
        return self.inputs[0].size(2), self.inputs[1].size(2)

    @property
    def anchor(self) -> Anchor | None:
        return self.variant if isinstance(self.variant, Anchor) else None

    def gradients(self, out: Tensor) -> tuple[Tensor, ...]:
        """What is timed of a backward."""
        return gradients(out, self.inputs, self.d_out)

    def exact(self) -> tuple[Tensor, ...]:
        """The gradients of dense attention in float64."""
        wide = replace(self, inputs=leaves(*(t.double() for t in self.inputs)))
        return wide.gradients(attention(*wide.qkv, *wide.mods).out)

    def unfused(self) -> tuple[Tensor, ...]:
        """Those of dense attention with products of the inputs' precision."""
        out = attention(*self.qkv, *self.mods, precision=self.d_out.dtype).out
        return self.gradients(out)


def gradients(
    out: Tensor, inputs: tuple[Tensor, ...], d_out: Tensor
) -> tuple[Tensor, ...]:
    """Of an output that was computed before, which is kept."""
    given: Any = d_out.to(out.dtype)
    return torch.autograd.grad(out, inputs, given, retain_graph=True)


def leaves(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The values of tensors, of which gradients are taken."""
    return tuple(t.detach().requires_grad_() for t in tensors)
