"""The named pipelines: which passes run, in which order, and why.

Each pipeline is also a pass of its name: `flexc-opt -p flexc-to-tile` stops at a level.
The other passes accept the printed module.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp
from xdsl.transforms.canonicalize import CanonicalizePass
from xdsl.transforms.common_subexpression_elimination import (
    CommonSubexpressionElimination,
)
from xdsl.transforms.loop_invariant_code_motion import LoopInvariantCodeMotionPass

from flexc.passes.blocksparse.blocksparse_merge_segments import (
    BlocksparseMergeSegmentsPass,
)
from flexc.passes.blocksparse.convert_blocksparse_to_tile import (
    ConvertBlocksparseToTilePass,
)
from flexc.passes.cpu.legalize_tile_for_cpp import LegalizeTileForCppPass
from flexc.passes.cpu.products import (
    TileAddProductsPass,
    TileRegisterProductsPass,
    TileStreamProductsPass,
)
from flexc.passes.cpu.tile_assign_buffers import (
    TileAssignBuffersPass,
    TileInsertCopiesPass,
)
from flexc.passes.cpu.tile_early_weights import TileEarlyWeightsPass
from flexc.passes.cpu.tile_fuse_row_maps import TileFuseRowMapsPass
from flexc.passes.cpu.tile_overlap_products import (
    TileOverlapProductsPass,
    TileSplitFunctionsPass,
)
from flexc.passes.cpu.tile_panel_maps import TileAssignLoopsPass, TilePanelMapsPass
from flexc.passes.cpu.tile_put_rows_in_lanes import TilePutRowsInLanesPass
from flexc.passes.cpu.tile_widen_floats import (
    TilePackOperandsPass,
    TileWidenFloatsPass,
)
from flexc.passes.flex.convert_flex_to_blocksparse import ConvertFlexToBlocksparsePass
from flexc.passes.flex.convert_flex_to_planning import (
    ConvertFlexToPlanningPass,
    PlanPart,
)
from flexc.passes.flex.flex_expand_derivatives import FlexExpandDerivativesPass
from flexc.passes.flex.flex_infer_facts import FlexInferFactsPass
from flexc.passes.flex.flex_infer_key_ranges import FlexInferKeyRangesPass
from flexc.passes.flex.flex_simplify_mods import (
    FlexSimplifyModsPass,
    FlexTrustCapturesPass,
)
from flexc.passes.flex.flex_widen_indices import FlexWidenIndicesPass
from flexc.passes.hopper.legalize_tile_for_gluon import (
    LegalizeTileForGluonPass,
    TileRecomputeSlotsPass,
)
from flexc.passes.hopper.specialize_warps.tile_specialize_warps import (
    TileSpecializeWarpsPass,
)
from flexc.passes.hopper.tile_assign_layouts import TileAssignLayoutsPass
from flexc.passes.hopper.tile_async_products import TileAsyncProductsPass
from flexc.passes.hopper.tile_defer_row_sums import TileDeferRowSumsPass
from flexc.passes.hopper.tile_delay_products import TileDelayProductsPass
from flexc.passes.hopper.tile_keep_columns import TileKeepColumnsPass
from flexc.passes.hopper.tile_read_diagonals import TileReadDiagonalsPass
from flexc.passes.hopper.tile_split_loops import TileSplitLoopsPass
from flexc.passes.hopper.tile_split_rows import TileSplitRowsPass
from flexc.passes.hopper.tile_take_turns import TileTakeTurnsPass
from flexc.passes.targets import target_named
from flexc.passes.targets.target import (
    HOPPER_SHARED_MEMORY,
    NO_OPTIONS,
    F32Precision,
    LoweringOptions,
    MachineName,
    Reads,
    Tanh,
    Target,
)
from flexc.passes.tile.captured_loads import TileExpandCapturesPass, TileReadInPlacePass
from flexc.passes.tile.legalize_tile_for_triton import LegalizeTileForTritonPass
from flexc.passes.tile.scalar_math import TileExpandMathPass, TileRelaxScoreMathPass
from flexc.passes.tile.tile_access import TileMaterializeParamsPass
from flexc.passes.tile.tile_split_columns import TileSplitColumnsPass
from flexc.passes.tile.tile_split_maps import (
    TileHoistFromBranchesPass,
    TileLaunchEarlyPass,
    TileReadAheadPass,
    TileSplitMapsPass,
)
from flexc.universe import Passes, Pipeline, run

__all__ = ["Passes", "run"]


@dataclass(frozen=True)
class Canonicalize(CanonicalizePass):
    """xDSL's pass, given the dialect of the constants that ops are folded to."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if ctx.get_optional_dialect(arith.Arith.name) is None:
            ctx.load_dialect(arith.Arith)
        super().apply(ctx, op)


TIDY: Passes = (Canonicalize(), CommonSubexpressionElimination())
"""Passes that drop unused and duplicate ops."""


def to_simple_flex() -> Passes:
    """Return the passes that make the arithmetic of mods exact, and simplify mods."""
    return (
        # First: this pass recognizes the frontend's wrapping of negative indices.
        FlexTrustCapturesPass(),
        # Before simplification, whose rules hold for sums that wrap.
        FlexWidenIndicesPass(),
        FlexSimplifyModsPass(),
    )


def to_key_ranges() -> Passes:
    """Return the passes that simplify mods, and then state the key ranges of masks."""
    return (*to_simple_flex(), FlexInferKeyRangesPass())


def to_blocksparse(convert: ConvertFlexToBlocksparsePass) -> Passes:
    """Return the passes from `flex` to `blocksparse`; `convert` chooses the tiles."""
    return (
        # Before all passes that read mods: a mask that folds to true is no mask.
        *to_simple_flex(),
        # Only later passes use these facts.
        FlexInferFactsPass(),
        # After simplification: derivatives of simpler mods are simpler.
        FlexExpandDerivativesPass(one_pass=convert.rules.one_pass),
        FlexSimplifyModsPass(),
        # Tile sizes depend on the key ranges.
        FlexInferKeyRangesPass(),
        convert,
        *merge_segments(convert.rules),
        # Bounds are written for any mask; for many masks they can be simplified.
        FlexSimplifyModsPass(),
    )


def merge_segments(target: Target) -> Passes:
    """Return the pass that merges loops, for a target that merges segments."""
    if not target.merges_segments:
        return ()
    return (BlocksparseMergeSegmentsPass(into_one=target.one_loop),)


def to_tile(target: str) -> Passes:
    """Return the passes from `blocksparse` to `tile`, with values hoisted and split."""
    return (
        ConvertBlocksparseToTilePass(target),
        # Addresses first: the part of an address that does not vary is then split off.
        TileExpandCapturesPass(),
        *TIDY,
        # This pass makes values of lower rank, which are then split off as well. The
        # pass may replace a GPU's division, whose range is no better; a CPU's division
        # stays exact.
        *([TileRelaxScoreMathPass()] * target_named(target).relaxes_division),
        TileSplitMapsPass(),
        *TIDY,
        # Loads of the values of a head or a row now stand alone and can leave the loop.
        TileHoistFromBranchesPass(),
        LoopInvariantCodeMotionPass(),
        *TIDY,
    )


def to_planning(target: str, part: PlanPart = "all") -> Passes:
    """Return the passes from `flex` to the kernels in `tile` that plan the masks."""
    return (
        *to_simple_flex(),
        ConvertFlexToPlanningPass(target, part),
        # Samples of a block have most of their code in common.
        FlexSimplifyModsPass(),
        *to_planned_tile(),
    )


def to_planned_tile() -> Passes:
    """Return the passes that expand, split and hoist the code of planning kernels."""
    return (
        TileExpandCapturesPass(),
        *TIDY,
        TileSplitMapsPass(),
        *TIDY,
        LoopInvariantCodeMotionPass(),
        *TIDY,
    )


def to_triton(options: LoweringOptions = NO_OPTIONS) -> Passes:
    """Return the passes from `tile` to the ops that the Triton printer accepts."""
    return (
        TileSplitColumnsPass(),
        TileExpandMathPass(options.tanh),
        *([TileReadInPlacePass()] if options.reads == "in_place" else []),
        LegalizeTileForTritonPass(options.f32_precision, options.widens_bytes),
        # Offsets and bounds are maps too, and most of them leave the loop.
        TileSplitMapsPass(),
        *TIDY,
        TileHoistFromBranchesPass(),
        LoopInvariantCodeMotionPass(),
        TileMaterializeParamsPass(),
        *TIDY,
        # After equal reads for keys and for values are one.
        TileReadAheadPass(),
        *TIDY,
        *([TileLaunchEarlyPass()] * options.launches_early),
    )


def to_schedule(options: LoweringOptions = NO_OPTIONS) -> Passes:
    """Return the passes from `tile` to programs with roles and asynchronous products.

    With `overlap`, products run while other work is done. Without it, the products of
    an iteration finish in the same iteration.
    """
    return (
        TileExpandMathPass(options.tanh),
        *([TileReadInPlacePass()] if options.reads == "in_place" else []),
        TileSplitRowsPass(),
        # After rows are split into parts, and before iterations are written more than
        # once.
        TileReadDiagonalsPass(),
        TileDeferRowSumsPass(),
        *([TileDelayProductsPass()] if options.overlap else []),
        # The index of the first iteration is a constant, and a part's rows have one
        # origin.
        *TIDY,
        LoopInvariantCodeMotionPass(),
        *TIDY,
        # Loads and products have their final order: waits for them can be written.
        TileSpecializeWarpsPass(shared_memory=options.shared_memory),
        *TIDY,
        TileAsyncProductsPass(),
        TileTakeTurnsPass(),
        *TIDY,
    )


def to_gluon(options: LoweringOptions = NO_OPTIONS) -> Passes:
    """Return the passes from `tile` to the ops that the Gluon printer accepts."""
    return (
        *to_schedule(options),
        LegalizeTileForGluonPass(),
        TileKeepColumnsPass(),
        TileSplitLoopsPass(),
        # Offsets of tiles that are still loaded and stored by pointers.
        TileSplitMapsPass(),
        *TIDY,
        LoopInvariantCodeMotionPass(),
        TileMaterializeParamsPass(),
        *TIDY,
        # After code motion, which would undo it.
        *([TileRecomputeSlotsPass()] if options.recomputes else []),
        # Only the remaining tiles need layouts.
        TileAssignLayoutsPass(),
        *([TileLaunchEarlyPass()] * options.launches_early),
    )


def to_cpp(machine: MachineName = "avx2") -> Passes:
    """Return the passes from `tile` to the ops that the C++ printer accepts.

    Vectors and register tiles are those of `machine`.
    """
    return (
        # Before loads and stores get strides, which then need no transposes.
        TilePutRowsInLanesPass(machine),
        LegalizeTileForCppPass(),
        # Before hoisting: a tile that is packed or widened for every block may be
        # hoisted.
        TilePackOperandsPass(machine),
        # Only products of narrow weights allow approximate weights.
        TileRelaxScoreMathPass(narrow=True),
        TileWidenFloatsPass(),
        *TIDY,
        LoopInvariantCodeMotionPass(),
        TileMaterializeParamsPass(),
        *TIDY,
        # After hoisting: a tile that is loaded before a loop is worth keeping.
        TileStreamProductsPass(machine),
        TileRegisterProductsPass(machine),
        # Products of the same rows read the same copy.
        CommonSubexpressionElimination(),
        TileAddProductsPass(machine),
        # After common ops are removed, as scores are computed in two places.
        TileEarlyWeightsPass(),
        # After products, which state how many rows they compute.
        TilePanelMapsPass(),
        TileSplitFunctionsPass(),
        TileOverlapProductsPass(),
        # After passes that recognize single maps.
        TileFuseRowMapsPass(),
        # After maps are fused: a fused map has one pair of loops.
        TileAssignLoopsPass(),
        # Last: buffers are assigned to the remaining tiles.
        TileInsertCopiesPass(),
        TileAssignBuffersPass(),
    )


@dataclass(frozen=True)
class _Pipeline(Pipeline):
    """The options of all pipelines; sizes that are not given are chosen."""

    block_m: int | None = None
    block_n: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None
    shared_memory: int = HOPPER_SHARED_MEMORY
    machine: MachineName = "avx2"
    """The machine whose vectors a CPU's kernel uses."""

    def convert(self, target: str) -> ConvertFlexToBlocksparsePass:
        return ConvertFlexToBlocksparsePass(
            target,
            self.block_m,
            self.block_n,
            self.num_warps,
            self.num_stages,
            shared_memory=self.shared_memory,
            machine=self.machine,
        )


@dataclass(frozen=True)
class FlexcToBlocksparsePass(_Pipeline):
    """The pipeline from flex.attention to blocksparse.attention."""

    name = "flexc-to-blocksparse"

    target: str = "triton"

    def passes(self) -> Passes:
        return to_blocksparse(self.convert(self.target))


@dataclass(frozen=True)
class FlexcToTilePass(_Pipeline):
    """The pipeline from flex.attention to a tile.kernel that any target accepts."""

    name = "flexc-to-tile"

    target: str = "triton"

    def passes(self) -> Passes:
        convert = self.convert(self.target)
        return (*to_blocksparse(convert), *to_tile(self.target))


@dataclass(frozen=True)
class FlexcToTritonPass(_Pipeline):
    """The pipeline from flex.attention to the input of `-t triton`.

    `tanh` chooses the computation of tanh, see tile-expand-math. `f32_precision`
    chooses the precision of products of fp32 tiles. `reads` chooses if gathers stay in
    the layout of the scores, see tile-read-in-place. `launches_early` adds
    tile-launch-early.
    """

    name = "flexc-to-triton"

    tanh: Tanh = "exact"
    f32_precision: F32Precision = "ieee"
    reads: Reads = "coalesced"
    launches_early: bool = False

    def passes(self) -> Passes:
        options = LoweringOptions(
            self.tanh,
            self.f32_precision,
            self.reads,
            launches_early=self.launches_early,
        )
        convert = self.convert("triton")
        return (*to_blocksparse(convert), *to_tile("triton"), *to_triton(options))


@dataclass(frozen=True)
class FlexcToGluonPass(_Pipeline):
    """The pipeline from flex.attention to the input of `-t gluon`.

    With `overlap`, products run while the softmax of another block is computed. With
    `recomputes`, see tile-recompute-slots. The other options are those of
    flexc-to-triton.
    """

    name = "flexc-to-gluon"

    tanh: Tanh = "exact"
    reads: Reads = "coalesced"
    overlap: bool = True
    recomputes: bool = False
    launches_early: bool = False

    def passes(self) -> Passes:
        options = LoweringOptions(
            tanh=self.tanh,
            reads=self.reads,
            overlap=self.overlap,
            recomputes=self.recomputes,
            shared_memory=self.shared_memory,
            launches_early=self.launches_early,
        )
        convert = replace(self.convert("gluon"), overlap=self.overlap)
        return (*to_blocksparse(convert), *to_tile("gluon"), *to_gluon(options))


@dataclass(frozen=True)
class FlexcToCppPass(_Pipeline):
    """The pipeline from flex.attention to the input of `-t cpp`."""

    name = "flexc-to-cpp"

    def passes(self) -> Passes:
        convert = self.convert("cpp")
        return (*to_blocksparse(convert), *to_tile("cpp"), *to_cpp(self.machine))
