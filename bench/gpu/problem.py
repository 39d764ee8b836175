"""The tensors and mods of a cell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bench.gpu.cells import VARIANTS, Cell
from bench.learned import Learned
from bench.variants import Anchor
from tests.corpus import Mods
from tests.reference import attention

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Setup:
    """What is the same in all cells: that of the published figures by default."""

    dtype: torch.dtype = torch.bfloat16
    device: str = "cuda"
    batch: int = 2
    heads: int = 16
    """Half as many where the head dim is above 128."""

    def heads_of(self, head_dim: int) -> int:
        return max(1, self.heads // 2) if head_dim > 128 else self.heads


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

    @classmethod
    def of(cls, cell: Cell, setup: Setup) -> Problem:
        torch.manual_seed(0)
        variant, backward = VARIANTS[cell.variant], cell.direction == "bwd"
        heads = setup.heads_of(cell.head_dim)
        shape = (setup.batch, heads, cell.seq, cell.head_dim)
        drawn = [
            torch.randn(shape, device=setup.device, dtype=setup.dtype) for _ in range(4)
        ]
        *given, d_out = drawn
        lengths, where = (heads, cell.seq), (setup.dtype, setup.device)
        if isinstance(variant, Learned):
            given.append(variant.draw(*lengths, *where))
            return cls(leaves(*given), d_out, variant.mods, variant, backward)
        mods = variant.build(setup.batch, *lengths, *where)
        inputs = leaves(*given) if backward else tuple(given)
        return cls(inputs, d_out, lambda: mods, variant, backward)

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
