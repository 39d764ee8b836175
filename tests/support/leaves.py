"""Cases of the corpus whose captured floats are learned: leaves that a test gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tests.support.problem import Problem


@dataclass
class Learned(Problem):
    """A problem that hands out tensors that it is `given`, or draws and keeps them."""

    given: Sequence[Tensor] = ()
    tensors: list[Tensor] = field(default_factory=list[Tensor])
    """What mods capture, in the order that they ask for it."""

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        drawn = super().normal(*shape, dtype=dtype)
        self.tensors.append(self.given[len(self.tensors)] if self.given else drawn)
        return self.tensors[-1]
