"""The gradient of a captured tensor, added up from the sums of its reads' adjoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from flexc.passes.scalar.reads.captured_read import CapturedRead
from flexc.runtime.captured_gradients.places import Places, Site
from flexc.runtime.captured_gradients.spread import Spread
from flexc.runtime.captured_gradients.sums import AXES, Chunk, Sizes


class Scatter:
    """Where the sums of one read's adjoints are added. Serves all calls."""

    def __init__(self, read: CapturedRead):
        self.index_class = read.index_class
        axes = AXES[read.index_class]
        self.parts = [
            Places(part, tuple(a for a in axes if a & part.along))
            for part in read.parts
        ]


class CapturedGradient:
    """The gradient of one captured tensor in one call.

    `captures` are the values of the mods' arguments, in order, of which `tensor` is
    one; sums come in `dtype`. Without `deterministic`, a GPU may add in any order what
    has a place of its own for each pair.
    """

    def __init__(
        self,
        tensor: Tensor,
        captures: Sequence[Any],
        sizes: Sizes,
        dtype: torch.dtype = torch.float32,
        deterministic: bool = True,
    ):
        self.dtype, self.site = tensor.dtype, Site(sizes, captures, tensor.device)
        self.deterministic = deterministic
        wide = torch.promote_types(dtype, torch.float32)
        self.total = torch.zeros(tensor.shape, dtype=wide, device=tensor.device)
        self.spreads: dict[Scatter, Spread] = {}

    @torch.no_grad()
    def add(self, scatter: Scatter, sums: Tensor, chunk: Chunk | None = None) -> None:
        """Add the sums of a read's adjoints, of a chunk or of the whole call.

        Of shape `sums_shape`, with dimensions after the heads that are still to be
        summed: any of class HEAD, one of class DIAGONAL.
        """
        if sums.numel() == 0:
            return
        if scatter not in self.spreads:
            self.spreads[scatter] = Spread(
                scatter.parts, self.site, self.total, self.deterministic
            )
        axes = list(AXES[scatter.index_class])
        chunk = chunk or Chunk.whole(self.site.sizes)
        self.spreads[scatter].add(sums, axes, chunk)

    @torch.no_grad()
    def result(self) -> Tensor:
        """The gradient, of the tensor's shape and dtype."""
        for spread in self.spreads.values():
            spread.finish()
        self.spreads.clear()
        return self.total.to(self.dtype)
