"""What is measured: one cell is one variant in one shape, dtype and direction."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from bench.problem import Problem, leaves
from bench.variants import Anchor
from tests.support.corpus import Device, Mods
from tests.support.corpus_masks import causal_mask
from tests.support.reference import visible_pairs

WINDOW, DOCUMENTS, CAP = 256, 8, 20.0


class Shape(NamedTuple):
    """Sizes of a call of one batch."""

    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int

    @property
    def pairs(self) -> int:
        return self.q_len * self.kv_len

    @property
    def decodes(self) -> bool:
        """Few queries: how fast keys and values are read is what counts."""
        return self.q_len < 16

    @property
    def described(self) -> str:
        """For people who do not know its name."""
        shared = f" ({self.kv_heads} of keys)" if self.kv_heads < self.heads else ""
        lengths = f"{self.q_len:,} x {self.kv_len:,}"
        return f"{self.heads} heads{shared}, {lengths}, head dim {self.head_dim}"


def square(heads: int, length: int, head_dim: int) -> Shape:
    return Shape(heads, heads, length, length, head_dim)


SHAPES = {
    "s1k": square(8, 1024, 64),
    "s4k": square(8, 4096, 64),
    "s4k128": square(8, 4096, 128),
    "s16k": square(4, 16384, 64),
    "decode": Shape(32, 8, 1, 8192, 64),
    "decode128": Shape(32, 8, 1, 8192, 128),
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
DIRECTIONS = ("fwd", "bwd")


class Cell(NamedTuple):
    """A variant, the name of its shape, its dtype and the direction."""

    variant: str
    shape: str
    dtype: str
    direction: str

    @property
    def sizes(self) -> Shape:
        return SHAPES[self.shape]

    def __str__(self) -> str:
        return f"{self.dtype} {self.direction} {self.shape} {self.variant}"


def _window(B: int, H: int, S: int, dtype: torch.dtype, device: Device) -> Mods:
    def mask_mod(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (q_idx - kv_idx < WINDOW)

    return None, mask_mod


def _alibi(B: int, H: int, S: int, dtype: torch.dtype, device: Device) -> Mods:
    return _with_slopes(torch.exp2(-8 * torch.arange(1, H + 1, device=device) / H))


def _steep_alibi(B: int, H: int, S: int, dtype: torch.dtype, device: Device) -> Mods:
    """Slopes of 1/16 to 1: most weights are too small to count."""
    steps = torch.arange(H, device=device) / max(H - 1, 1)
    return _with_slopes(torch.exp2(-4 * steps))


def _with_slopes(slopes: Tensor) -> Mods:
    def score_mod(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (kv_idx - q_idx)

    return score_mod, None


def _softcap(B: int, H: int, S: int, dtype: torch.dtype, device: Device) -> Mods:
    def score_mod(score, b, h, q_idx, kv_idx):
        return CAP * torch.tanh(score / CAP)

    return score_mod, None


def _documents(B: int, H: int, S: int, dtype: torch.dtype, device: Device) -> Mods:
    generator = torch.Generator().manual_seed(0)
    places = torch.randperm(S - 1, generator=generator)[: DOCUMENTS - 1]
    cuts = torch.sort(places + 1).values
    ids = torch.searchsorted(cuts, torch.arange(S), right=True).to(device, torch.int32)

    def mask_mod(b, h, q_idx, kv_idx):
        return ids[q_idx] == ids[kv_idx]

    return None, mask_mod


VARIANTS = {
    anchor.name: anchor
    for anchor in (
        Anchor("dense", lambda *sizes: (None, None), sdpa={}),
        Anchor("causal", lambda *sizes: (None, causal_mask), sdpa={"is_causal": True}),
        Anchor("window", _window),
        Anchor("alibi", _alibi),
        Anchor("steep-alibi", _steep_alibi),
        Anchor("softcap", _softcap),
        Anchor("documents", _documents, planned=True),
    )
}
"""By name; their definitions must not change. All but causal and window are
bidirectional, so that scores of alibi grow beyond the diagonal."""

DECODED = ("dense", "alibi")
"""Variants that mean something to one query."""


def cells(
    variants: Iterable[str],
    shapes: Iterable[str],
    dtypes: Iterable[str],
    directions: Iterable[str],
) -> list[Cell]:
    """All that are asked for, shapes in the outermost loop."""
    found = product(shapes, dtypes, directions, variants)
    return [
        Cell(variant, shape, dtype, direction)
        for shape, dtype, direction, variant in found
        if not SHAPES[shape].decodes or (direction == "fwd" and variant in DECODED)
    ]


def problem_of(cell: Cell) -> Problem:
    """The call of a cell, with the same numbers every time."""
    return make_problem(cell.variant, cell.sizes, DTYPES[cell.dtype], cell.direction)


def make_problem(
    name: str, sizes: Shape, dtype: torch.dtype, direction: str
) -> Problem:
    variant = VARIANTS[name]
    generator = torch.Generator().manual_seed(0)

    def draw(heads: int, length: int) -> Tensor:
        shape = (1, heads, length, sizes.head_dim)
        return torch.randn(shape, generator=generator).to(dtype)

    rows = (sizes.heads, sizes.q_len)
    columns = (sizes.kv_heads, sizes.kv_len)
    given = (draw(*rows), draw(*columns), draw(*columns))
    mods = variant.build(1, sizes.heads, sizes.kv_len, dtype, "cpu")
    backward = direction == "bwd"
    inputs = leaves(*given) if backward else given
    return Problem(inputs, draw(*rows), lambda: mods, variant, backward)


def flops_of(cell: Cell) -> float:
    """Of unmasked pairs: two products, and five of a backward."""
    sizes = cell.sizes
    forward = 4.0 * sizes.heads * sizes.head_dim * pairs_of(cell.variant, sizes)
    return forward * (2.5 if cell.direction == "bwd" else 1)


def bytes_of(cell: Cell) -> float:
    """Of keys and values, read once."""
    sizes = cell.sizes
    elements = 2 * sizes.kv_heads * sizes.kv_len * sizes.head_dim
    return float(elements * DTYPES[cell.dtype].itemsize)


@cache
def pairs_of(variant: str, sizes: Shape) -> int:
    """Unmasked ones of a head; no mask of the benchmark looks at the head."""
    lengths = (sizes.q_len, sizes.kv_len)
    build = VARIANTS[variant].build
    mask = build(1, sizes.heads, sizes.kv_len, torch.float32, "cpu")[1]
    return visible_pairs(mask, 0, *lengths)
