"""A generated call of attention: its source text, its tensors, its reference."""

from __future__ import annotations

import linecache
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from tests.property.captures import TensorSpec, laid_out, moved
from tests.property.values import Real
from tests.support import reference

_numbers = count()

SIGNATURES = {
    "score_mod": "score, b, h, q_idx, kv_idx",
    "mask_mod": "b, h, q_idx, kv_idx",
}


@dataclass(frozen=True)
class Sizes:
    """The sizes of one call."""

    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    value_dim: int


@dataclass(frozen=True)
class ModSource:
    """The statements of a mod, and what it returns."""

    lines: tuple[str, ...]
    result: str

    def text(self, name: str) -> str:
        body = "".join(f"        {line}\n" for line in self.lines)
        returned = f"        return {self.result}\n"
        return f"    def {name}({SIGNATURES[name]}):\n{body}{returned}"


Mods = tuple[Callable[..., Tensor] | None, Callable[..., Tensor] | None]


@dataclass(frozen=True, repr=False, eq=False)
class Case:
    """A call of attention."""

    sizes: Sizes
    dtype: torch.dtype
    layouts: tuple[str, ...]
    scale: float | None
    seed: int
    score_mod: ModSource | None
    mask_mod: ModSource | None
    score: Real
    """What is known of the score that score_mod returns."""
    tensors: dict[str, TensorSpec]
    numbers: dict[str, int | float]
    block_size: int | tuple[int, int] | None
    device: str = "cpu"
    others: dict[str, tuple[float, ...] | str] = field(default_factory=dict)
    """What else captured numbers may be, in another call of the same mods."""

    def __repr__(self) -> str:
        facts = f"{self.sizes}\n{self.dtype}, {self.layouts}, scale {self.scale}"
        facts += f", block_size {self.block_size}, seed {self.seed}"
        captured = "".join(f"\n{n} = {v}" for n, v in self.captured.items())
        return f"{facts}{captured}\n{self.source}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What Hypothesis prints for a case that fails."""
        printer.text(f"\n{self!r}")

    @property
    def captured(self) -> dict[str, Any]:
        return self.tensors | self.numbers

    @cached_property
    def source(self) -> str:
        """A factory of both mods, which close over what they capture."""
        names = ", ".join(["live", *self.captured])
        mods = (("score_mod", self.score_mod), ("mask_mod", self.mask_mod))
        bodies = [mod.text(name) for name, mod in mods if mod is not None]
        returned = ", ".join(n if mod is not None else "None" for n, mod in mods)
        return f"def make({names}):\n{''.join(bodies)}    return {returned}\n"

    def mods(
        self,
        live: Callable[[Tensor, int], Tensor],
        captured: Mapping[str, Any] | None = None,
    ) -> Mods:
        """The functions; `live` is applied to indices that a mask must guard.

        They close over what is `captured`, or over the case's own values.
        """
        filename = f"<generated mods {next(_numbers)}>"
        lines = self.source.splitlines(keepends=True)
        linecache.cache[filename] = (len(self.source), None, lines, filename)
        scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
        exec(compile(self.source, filename, "exec"), scope)
        values = self.captured_values if captured is None else captured
        return scope["make"](live, **values)

    @cached_property
    def captured_values(self) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(self.seed)
        tensors = {
            name: moved(spec.make(generator), self.device)
            for name, spec in self.tensors.items()
        }
        return tensors | self.numbers

    @cached_property
    def given_mods(self) -> Mods:
        """The mods as a user has them, once for the whole case."""
        return self.mods(lambda index, size: index)

    @property
    def scale_value(self) -> float:
        if self.scale is not None:
            return self.scale
        return 1 / math.sqrt(self.sizes.head_dim)

    @cached_property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, whose scores stay below the case's bound."""
        s = self.sizes
        generator = torch.Generator().manual_seed(self.seed + 1)
        longest = math.sqrt(SCORE_SLACK * SCORE_BOUND / abs(self.scale_value))
        shapes = (
            (s.batch, s.heads, s.q_len, s.head_dim),
            (s.batch, s.kv_heads, s.kv_len, s.head_dim),
            (s.batch, s.kv_heads, s.kv_len, s.value_dim),
        )

        def fill(shape: tuple[int, ...]) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        made = []
        for i, (shape, layout) in enumerate(zip(shapes, self.layouts, strict=True)):
            x = fill((1, *shape[1:]) if layout == "expanded" else shape)
            if i < 2:
                norm = x.norm(dim=-1, keepdim=True)
                x = x * (longest / norm.clamp(min=longest))
            made.append(moved(with_layout(x, shape, layout, self.dtype), self.device))
        return made[0], made[1], made[2]

    @cached_property
    def block_mask(self) -> BlockMask | None:
        if self.block_size is None:
            return None
        s = self.sizes
        # Of the reference's mods: torch reads what the mask should have hidden.
        _, mask = self.mods(reference_live)
        assert mask is not None
        made = create_block_mask(
            mask, s.batch, s.heads, s.q_len, s.kv_len, self.device, self.block_size
        )
        _, given = self.given_mods
        assert given is not None
        made.mask_mod = given
        return made

    @cached_property
    def expected(self) -> reference.Reference:
        """Dense attention in double precision."""
        score_mod, mask_mod = self.mods(reference_live)
        return reference.attention(
            *self.inputs, score_mod, mask_mod, scale=self.scale, enable_gqa=True
        )


SCORE_BOUND = 8.0
SCORE_SLACK = 0.95
"""Rounding inputs to bfloat16 makes them longer by at most 1 / 256 each."""


def with_layout(
    x: Tensor, shape: tuple[int, ...], layout: str, dtype: torch.dtype
) -> Tensor:
    """The same numbers in another type, lying in memory in some way."""
    if layout == "expanded":
        return x.to(dtype).expand(shape)
    if layout == "interleaved":
        return x.to(dtype).transpose(1, 2).contiguous().transpose(1, 2)
    if layout != "contiguous":
        return laid_out(x.shape, layout, lambda s: x.new_zeros(s, dtype=dtype)).copy_(x)
    return x.to(dtype)


def reference_live(index: Tensor, size: int) -> Tensor:
    """torch refuses to read outside of a tensor even where a mask hides it."""
    return index.clamp(-size, size - 1)
