"""Runs block classifiers on torch tensors, and counts live pairs to judge them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from xdsl.context import Context
from xdsl.dialects.builtin import i1, i32
from xdsl.ir import Region

from flexc.dialects.flex import AttentionOp
from flexc.dialects.mod_region import verify_scalar_region
from flexc.frontend.capture import capture_mods
from flexc.frontend.closures import read_mods
from flexc.frontend.import_graph import AttentionCall, build_attention_module
from flexc.passes.flex.flex_simplify_mods import FlexSimplifyModsPass
from flexc.passes.masks.blocks.block_classifier import (
    Classifier,
    Summary,
    build_classifier,
)
from flexc.passes.scalar import WhyNot
from flexc.runtime.interpreters import run_region
from flexc.runtime.interpreters.values import as_value

CALL = AttentionCall(torch.float32, 64, 64, max_length=1 << 24)


@dataclass(frozen=True)
class Mask:
    """The region of a mask, and its captures."""

    region: Region
    captures: list[Tensor]

    def classifier(self, max_length: int, fits: bool) -> Classifier | None:
        """None where no block can be decided."""
        proof = build_classifier(self.region, max_length, fits)
        if isinstance(proof, WhyNot):
            return None
        verify(proof.value, self.region)
        return proof.value


def imported(mask_mod: Callable[..., Any]) -> Mask:
    """A mask as its region, simplified."""
    signature = read_mods(None, mask_mod)
    mods = capture_mods(signature)
    built = build_attention_module(mods.score, mods.mask, CALL)
    FlexSimplifyModsPass().apply(Context(), built.module)
    op = next(o for o in built.module.walk() if isinstance(o, AttentionOp))
    given = built.arguments(signature.captures)
    args = op.mask_mod.block.args[4:]
    captures = [as_value(x, arg.type) for x, arg in zip(given, args, strict=True)]
    return Mask(op.mask_mod.clone(), captures)


def verify(classifier: Classifier, mask: Region) -> None:
    """The rules of scalar regions, for all regions of a classifier."""
    captures = [arg.type for arg in mask.block.args[4:]]
    types = [*[i32] * 6, *captures]
    for summary in classifier.summaries:
        last = summary.region.block.last_op
        assert last is not None
        value = last.operands[0].type
        args = [i32, i32, i32, *captures]
        verify_scalar_region("summary", summary.region, args, [value, i1])
        types += [value, value, *[i1] * (not hasattr(value, "width"))]
    verify_scalar_region("classifier", classifier.region, types, [i1, i1])
    classifier.region.block.verify()


@dataclass(frozen=True)
class Grid:
    """The blocks of a call."""

    batch: int
    heads: int
    q_len: int
    kv_len: int
    q_block: int
    kv_block: int

    def heads_args(self) -> list[Tensor]:
        b = torch.arange(self.batch, dtype=torch.int32)[:, None, None, None]
        return [b, torch.arange(self.heads, dtype=torch.int32)[:, None, None]]

    def blocks(self, axis: str) -> tuple[int, int, int]:
        """Length, size of blocks, and the dimension of blocks in results."""
        if axis == "row":
            return self.q_len, self.q_block, 2
        return self.kv_len, self.kv_block, 3


def summarised(summary: Summary, captures: Sequence[Any], grid: Grid) -> list[Tensor]:
    """lo, hi and, of floats, nan of each block."""
    length, size, dim = grid.blocks(summary.axis)
    b, h = grid.heads_args()
    index = torch.arange(length, dtype=torch.int32)
    args = [b[..., 0], h[..., 0], index, *captures]
    shape = (grid.batch, grid.heads, length)
    value, used = (x.expand(shape) for x in run_region(summary.region, args))
    lows, highs, nans = [], [], []
    for first in range(0, length, size):
        v, u = (x[..., first : first + size] for x in (value, used))
        low, high, nan = _ends(v, u)
        lows.append(low)
        highs.append(high)
        nans.append(nan)
    found = [torch.stack(x, dim=-1) for x in (lows, highs, nans)]
    found = found if value.is_floating_point() else found[:2]
    return [x.unsqueeze(5 - dim) for x in found]


def _ends(value: Tensor, used: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if value.dtype == torch.bool:
        return (value | ~used).all(-1), (value & used).any(-1), used.any(-1)
    nan = value != value
    if value.is_floating_point():
        smallest, largest = float("-inf"), float("inf")
    else:
        smallest, largest = torch.iinfo(value.dtype).min, torch.iinfo(value.dtype).max
    counts = used & ~nan
    low = torch.where(counts, value, largest).amin(-1)
    high = torch.where(counts, value, smallest).amax(-1)
    return low, high, (used & nan).any(-1)


def classified(
    classifier: Classifier, captures: Sequence[Any], grid: Grid
) -> tuple[Tensor, Tensor]:
    """dead and full of (batch, heads, row blocks, column blocks)."""
    ends: list[Tensor] = []
    for axis in ("row", "column"):
        length, size, dim = grid.blocks(axis)
        first = torch.arange(0, length, size, dtype=torch.int32)
        last = (first + size).clamp(max=length) - 1
        shape = [-1, 1] if dim == 2 else [-1]
        ends += [first.reshape(shape), last.reshape(shape)]
    args = [*grid.heads_args(), *ends, *captures]
    for summary in classifier.summaries:
        args += summarised(summary, captures, grid)
    shape = (grid.batch, grid.heads, ends[0].numel(), ends[2].numel())
    dead, full = (x.expand(shape) for x in run_region(classifier.region, args))
    return dead, full


def counted(mask: Mask, grid: Grid) -> tuple[Tensor, Tensor]:
    """Which blocks are dead, and which full, by evaluating every pair."""
    q = torch.arange(grid.q_len, dtype=torch.int32)[:, None]
    kv = torch.arange(grid.kv_len, dtype=torch.int32)
    (live,) = run_region(mask.region, [*grid.heads_args(), q, kv, *mask.captures])
    live = live.expand(grid.batch, grid.heads, grid.q_len, grid.kv_len)
    some = _any_of_blocks(live, grid)
    return ~some, ~_any_of_blocks(~live, grid)


def _any_of_blocks(pairs: Tensor, grid: Grid) -> Tensor:
    for dim, size in ((2, grid.q_block), (3, grid.kv_block)):
        parts = [part.any(dim) for part in pairs.split(size, dim)]
        pairs = torch.stack(parts, dim)
    return pairs
