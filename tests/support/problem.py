"""What a case of the corpus is: mods made to fit the sizes of a problem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tests.support.reference import MaskMod, ScoreMod

Mods = tuple[ScoreMod | None, MaskMod | None]
Device = torch.device | str


@dataclass
class Problem:
    """The sizes of one attention, and a source of captured tensors."""

    B: int
    H: int
    Hkv: int
    Sq: int
    Skv: int
    device: Device
    generator: torch.Generator = field(
        default_factory=lambda: torch.Generator().manual_seed(0)
    )

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        values = torch.randn(shape, generator=self.generator)
        return values.to(self.device, dtype)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Numbers in [low, high) as int32."""
        values = torch.randint(low, max(high, low + 1), shape, generator=self.generator)
        return values.to(self.device, torch.int32)

    def documents(self, length: int, count: int) -> Tensor:
        """Ids of consecutive documents of random lengths, counted up from 0."""
        cuts = torch.randperm(max(1, length - 1), generator=self.generator)
        cuts = cuts[: count - 1].sort().values + 1
        ids = torch.searchsorted(cuts, torch.arange(length), right=True)
        return ids.to(self.device, torch.int32)

    @property
    def longest(self) -> int:
        return max(self.Sq, self.Skv)


@dataclass(frozen=True)
class Case:
    """A named pair of mods."""

    name: str
    build: Callable[[Problem], Mods]

    def factory(
        self, B: int, H: int, Hkv: int, Sq: int, Skv: int, device: Device = "cpu"
    ) -> Mods:
        """The mods for these sizes, with captured tensors on `device`."""
        return self.build(Problem(B, H, Hkv, Sq, Skv, device))


CORPUS: dict[str, Case] = {}


def case(build: Callable[[Problem], Mods]) -> Callable[[Problem], Mods]:
    """Enter a factory into the corpus under its function's name."""
    CORPUS[build.__name__] = Case(build.__name__, build)
    return build
