"""What is measured: one cell is a variant in one shape, called in one way."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bench.gpu.problem import DTYPES as HALF
from bench.problem import leaves
from bench.variants import ANCHORS
from tests.support.corpus import Device, Mods

DTYPES = {**HALF, "fp32": torch.float32}

FORWARD, RECORDED, TRAINING = PASSES = ("forward", "recorded", "training")
"""Without gradient, forward with a gradient recorded, and forward and backward."""

EAGER, COMPILED, GRAPH = MODES = ("eager", "compiled", "graph")
"""A call of its own, within `torch.compile(fullgraph=True)`, replays of a graph."""


def window(B: int, H: int, S: int, dtype: torch.dtype, device: Device) -> Mods:
    """An eighth of the sequence, which is that of other benchmarks at 8,192 tokens."""
    width = max(S // 8, 1)

    def mask_mod(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (q_idx - kv_idx <= width)

    return None, mask_mod


def sliding(B: int, H: int, S: int, dtype: torch.dtype, device: Device) -> Mods:
    """As wide, to both sides."""
    width = max(S // 16, 1)

    def mask_mod(b, h, q_idx, kv_idx):
        return (q_idx - kv_idx).abs() <= width

    return None, mask_mod


VARIANTS: dict[str, Callable[..., Mods]] = {
    "dense": ANCHORS["dense"].build,
    "causal": ANCHORS["causal"].build,
    "alibi": ANCHORS["alibi"].build,
    "window": window,
    "sliding": sliding,
    "document": ANCHORS["document"].build,
    "document-mask-mod": ANCHORS["document"].build,  # Its blocks are to be planned.
}


class Shape(NamedTuple):
    """Of query, key and value."""

    batch: int
    heads: int
    seq: int
    head_dim: int
    dtype: str

    @classmethod
    def parse(cls, text: str) -> Shape:
        """`1x8x1024x64:bf16`, say."""
        sizes, _, dtype = text.partition(":")
        batch, heads, seq, head_dim = map(int, sizes.split("x"))
        if dtype not in DTYPES:
            raise ValueError(text)
        return cls(batch, heads, seq, head_dim, dtype)

    def __str__(self) -> str:
        return f"{self.batch}x{self.heads}x{self.seq}x{self.head_dim}:{self.dtype}"


SMALL = {
    "cuda": (Shape(1, 8, 1024, 64, "bf16"),),
    "cpu": (Shape(1, 1, 16, 64, "fp32"), Shape(1, 8, 128, 64, "fp32")),
}
"""Where the host matters: called in all ways."""
LARGE = {
    "cuda": (Shape(2, 16, 8192, 128, "bf16"), Shape(2, 16, 8192, 64, "bf16")),
    "cpu": (),
}
"""Where the kernel should be all that matters: called in their own right alone, for a
forward and for training."""


class Cell(NamedTuple):
    """A variant, its sizes, and how it is called."""

    variant: str
    shape: Shape
    mode: str
    kind: str


def cells(
    shapes: Iterable[Shape],
    variants: Iterable[str],
    modes: Iterable[str],
    kinds: Iterable[str],
) -> list[Cell]:
    """All that are asked for; there is no graph of a forward that records."""
    found = product(shapes, variants, modes, kinds)
    asked = (Cell(variant, shape, mode, kind) for shape, variant, mode, kind in found)
    return [cell for cell in asked if (cell.mode, cell.kind) != (GRAPH, RECORDED)]


@dataclass(frozen=True)
class Problem:
    """The tensors and mods of a cell."""

    cell: Cell
    inputs: tuple[Tensor, Tensor, Tensor]
    d_out: Tensor
    mods: Mods

    @property
    def device(self) -> str:
        return self.d_out.device.type

    def block_mask(self, make: Callable[..., Any]) -> Any:
        """Made by torch's or by flexc's function; None where nothing is masked."""
        mask_mod, seq = self.mods[1], self.cell.shape.seq
        return mask_mod and make(mask_mod, None, None, seq, seq, device=self.device)


def problem_of(cell: Cell, device: Device) -> Problem:
    """With the same numbers every time; leaves, unless it is a forward alone."""
    *sizes, head_dim, name = cell.shape
    dtype = DTYPES[name]
    torch.manual_seed(0)
    draw = partial(torch.randn, *sizes, head_dim, device=device, dtype=dtype)
    query, key, value, d_out = (draw() for _ in range(4))
    if cell.kind != FORWARD:
        query, key, value = leaves(query, key, value)
    mods = VARIANTS[cell.variant](*sizes, dtype, device)
    return Problem(cell, (query, key, value), d_out, mods)
