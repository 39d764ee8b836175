"""The tensors and mods of a cell."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bench.gpu.cells import VARIANTS, Cell
from bench.learned import Learned
from bench.problem import Problem, leaves

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


def problem_of(cell: Cell, setup: Setup) -> Problem:
    """The call of a cell, with the same numbers every time."""
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
        return Problem(leaves(*given), d_out, variant.mods, variant, backward)
    mods = variant.build(setup.batch, *lengths, *where)
    inputs = leaves(*given) if backward else tuple(given)
    return Problem(inputs, d_out, lambda: mods, variant, backward)
