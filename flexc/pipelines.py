"""The named pipelines: which passes run, in which order, and why there.

Each is also a pass of its name, so `flexc-opt -p flexc-to-tile` stops anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.transforms.canonicalize import CanonicalizePass
from xdsl.transforms.common_subexpression_elimination import (
    CommonSubexpressionElimination,
)
from xdsl.transforms.loop_invariant_code_motion import LoopInvariantCodeMotionPass

from flexc.passes.convert_blocksparse_to_tile import ConvertBlocksparseToTilePass
from flexc.passes.convert_flex_to_blocksparse import ConvertFlexToBlocksparsePass
from flexc.passes.flex_simplify_mods import FlexSimplifyModsPass
from flexc.passes.legalize_tile_for_triton import LegalizeTileForTritonPass
from flexc.passes.tile_expand_captures import TileExpandCapturesPass
from flexc.passes.tile_expand_math import TileExpandMathPass
from flexc.passes.tile_materialize_params import TileMaterializeParamsPass
from flexc.passes.tile_split_maps import TileSplitMapsPass

Target = Literal["triton", "cpp"]
Tanh = Literal["exact", "nvidia", "exp2"]
F32Precision = Literal["ieee", "tf32"]

TIDY: tuple[ModulePass, ...] = (CanonicalizePass(), CommonSubexpressionElimination())
"""Drop what a pass left unused or doubled."""


def to_blocksparse(
    target: Target,
    block_m: int | None = None,
    block_n: int | None = None,
    num_warps: int | None = None,
    num_stages: int | None = None,
) -> tuple[ModulePass, ...]:
    """From `flex` to `blocksparse`."""
    return (
        # Before anything reads the mods: a mask that folds to true is no mask.
        FlexSimplifyModsPass(),
        ConvertFlexToBlocksparsePass(target, block_m, block_n, num_warps, num_stages),
    )


def to_tile(target: Target) -> tuple[ModulePass, ...]:
    """From `blocksparse` to `tile`, every value at its own rank and depth."""
    return (
        ConvertBlocksparseToTilePass(target),
        # Addresses first: the part of one that does not vary is then split off.
        TileExpandCapturesPass(),
        *TIDY,
        TileSplitMapsPass(),
        *TIDY,
        # Loads of a head's or a row's values now stand alone: out of the loop.
        LoopInvariantCodeMotionPass(),
        *TIDY,
    )


def to_triton(
    tanh: Tanh = "exact", f32_precision: F32Precision = "ieee"
) -> tuple[ModulePass, ...]:
    """From `tile` to what the Triton printer can print."""
    return (
        TileExpandMathPass(tanh),
        LegalizeTileForTritonPass(f32_precision),
        # Offsets and bounds are maps too, and most of them leave the loop.
        TileSplitMapsPass(),
        *TIDY,
        LoopInvariantCodeMotionPass(),
        TileMaterializeParamsPass(),
        *TIDY,
    )


def run(passes: tuple[ModulePass, ...], ctx: Context, module: ModuleOp) -> None:
    """Run passes one after another, without verifying in between."""
    for each in passes:
        each.apply(ctx, module)


@dataclass(frozen=True)
class FlexcToBlocksparsePass(ModulePass):
    """The pipeline from flex.attention to blocksparse.attention."""

    name = "flexc-to-blocksparse"

    target: Target = "triton"
    block_m: int | None = None
    block_n: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        sizes = (self.block_m, self.block_n, self.num_warps, self.num_stages)
        run(to_blocksparse(self.target, *sizes), ctx, op)


@dataclass(frozen=True)
class FlexcToTilePass(FlexcToBlocksparsePass):
    """The pipeline from flex.attention to a tile.kernel, for any target."""

    name = "flexc-to-tile"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        super().apply(ctx, op)
        run(to_tile(self.target), ctx, op)


@dataclass(frozen=True)
class FlexcToTritonPass(ModulePass):
    """The pipeline from flex.attention to what `-t triton` prints.

    `tanh` says how tanh is computed: see tile-expand-math.
    """

    name = "flexc-to-triton"

    block_m: int | None = None
    block_n: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None
    tanh: Tanh = "exact"
    f32_precision: F32Precision = "ieee"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        sizes = (self.block_m, self.block_n, self.num_warps, self.num_stages)
        run(to_blocksparse("triton", *sizes), ctx, op)
        run(to_tile("triton"), ctx, op)
        run(to_triton(self.tanh, self.f32_precision), ctx, op)
