"""The named pipelines: which passes run, in which order, and why there.

Each is also a pass of its name, so that `flexc-opt -p flexc-to-tile` stops at a
level, and what it prints goes on with the passes that are left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.transforms.loop_invariant_code_motion import LoopInvariantCodeMotionPass

from flexc.passes.blocksparse.blocksparse_merge_segments import (
    BlocksparseMergeSegmentsPass,
)
from flexc.passes.blocksparse.convert_blocksparse_to_tile import (
    ConvertBlocksparseToTilePass,
)
from flexc.passes.cpu.legalize_tile_for_cpp import LegalizeTileForCppPass
from flexc.passes.cpu.tile_panel_maps import TilePanelMapsPass
from flexc.passes.cpu.tile_put_rows_in_lanes import TilePutRowsInLanesPass
from flexc.passes.cpu.tile_read_in_place import TileReadInPlacePass
from flexc.passes.cpu.tile_stream_products import TileStreamProductsPass
from flexc.passes.cpu.tile_widen_floats import TileWidenFloatsPass
from flexc.passes.flex.convert_flex_to_blocksparse import ConvertFlexToBlocksparsePass
from flexc.passes.flex.convert_flex_to_planning import ConvertFlexToPlanningPass, Part
from flexc.passes.flex.flex_expand_derivatives import FlexExpandDerivativesPass
from flexc.passes.flex.flex_infer_facts import FlexInferFactsPass
from flexc.passes.flex.flex_simplify_mods import FlexSimplifyModsPass
from flexc.passes.flex.flex_trust_captures import FlexTrustCapturesPass
from flexc.passes.flex.flex_widen_indices import FlexWidenIndicesPass
from flexc.passes.hopper.legalize_tile_for_gluon import LegalizeTileForGluonPass
from flexc.passes.hopper.specialize_warps.tile_specialize_warps import (
    TileSpecializeWarpsPass,
)
from flexc.passes.hopper.tile_assign_buffers import TileAssignBuffersPass
from flexc.passes.hopper.tile_assign_layouts import TileAssignLayoutsPass
from flexc.passes.hopper.tile_async_products import TileAsyncProductsPass
from flexc.passes.hopper.tile_delay_products import TileDelayProductsPass
from flexc.passes.hopper.tile_insert_copies import TileInsertCopiesPass
from flexc.passes.hopper.tile_read_diagonals import TileReadDiagonalsPass
from flexc.passes.hopper.tile_split_rows import TileSplitRowsPass
from flexc.passes.sizes.tile_sizes import HOPPER_SHARED_MEMORY
from flexc.passes.sizes.vector_machine import MachineName
from flexc.passes.tidy import TidyCanonicalizePass, TidyCsePass
from flexc.passes.tile.legalize_tile_for_triton import LegalizeTileForTritonPass
from flexc.passes.tile.tile_add_products import TileAddProductsPass
from flexc.passes.tile.tile_expand_captures import TileExpandCapturesPass
from flexc.passes.tile.tile_expand_math import TileExpandMathPass
from flexc.passes.tile.tile_hoist_from_branches import TileHoistFromBranchesPass
from flexc.passes.tile.tile_materialize_params import TileMaterializeParamsPass
from flexc.passes.tile.tile_register_products import TileRegisterProductsPass
from flexc.passes.tile.tile_relax_score_math import TileRelaxScoreMathPass
from flexc.passes.tile.tile_split_maps import TileSplitMapsPass

Target = Literal["triton", "gluon", "cpp"]
Tanh = Literal["exact", "nvidia", "exp2"]
F32Precision = Literal["ieee", "tf32"]
Reads = Literal["coalesced", "in_place"]
Passes = tuple[ModulePass, ...]


TIDY: Passes = (TidyCanonicalizePass(), TidyCsePass())
"""Drop what a pass left unused or doubled."""


def to_simple_flex() -> Passes:
    """Mods of exact arithmetic in their simplest form, which says most."""
    return (
        # First, as it reads how the frontend wraps negative indices.
        FlexTrustCapturesPass(),
        # Before simplification, whose rules hold for sums that wrap.
        FlexWidenIndicesPass(),
        FlexSimplifyModsPass(),
    )


def to_blocksparse(convert: ConvertFlexToBlocksparsePass) -> Passes:
    """From `flex` to `blocksparse`, with the tiles that `convert` is told."""
    return (
        # Before anything reads the mods: a mask that folds to true is no mask.
        *to_simple_flex(),
        # Of no use but to what follows.
        FlexInferFactsPass(),
        # Of mods in their simplest form, whose derivatives are simpler for it.
        FlexExpandDerivativesPass(one_pass=in_one_pass(convert.target)),
        FlexSimplifyModsPass(),
        convert,
        *merge_segments(convert.target),
        # Bounds are written with more care than many masks need.
        FlexSimplifyModsPass(),
    )


def in_one_pass(target: Target) -> bool:
    """Whether gradients of all inputs are made in one visit to each pair.

    It adds to memory that no other program may touch: a CPU has few programs.
    """
    return target == "cpp"


def merge_segments(target: Target) -> Passes:
    """Fewer loops, where a loop costs something; one, where it is scheduled as one."""
    if target == "cpp":
        return ()
    return (BlocksparseMergeSegmentsPass(into_one=target == "gluon"),)


def to_tile(target: Target) -> Passes:
    """From `blocksparse` to `tile`, every value at its own rank and depth."""
    return (
        ConvertBlocksparseToTilePass(target),
        # Addresses first: the part of one that does not vary is then split off.
        TileExpandCapturesPass(),
        *TIDY,
        # Makes values of lower rank, which are then split off as well. A GPU's own
        # division has no better range; a CPU's is exact and stays so.
        *([TileRelaxScoreMathPass()] if target != "cpp" else []),
        TileSplitMapsPass(),
        *TIDY,
        # Loads of a head's or a row's values now stand alone: out of the loop.
        TileHoistFromBranchesPass(),
        LoopInvariantCodeMotionPass(),
        *TIDY,
    )


def to_planning(target: Target, part: Part = "all") -> Passes:
    """From `flex` to the kernels in `tile` that plan the masks."""
    return (
        *to_simple_flex(),
        ConvertFlexToPlanningPass(target, part),
        # Samples of a block share most of what they compute.
        FlexSimplifyModsPass(),
        TileExpandCapturesPass(),
        *TIDY,
        TileSplitMapsPass(),
        *TIDY,
        LoopInvariantCodeMotionPass(),
        *TIDY,
    )


def to_triton(
    tanh: Tanh = "exact",
    f32_precision: F32Precision = "ieee",
    reads: Reads = "coalesced",
) -> Passes:
    """From `tile` to what the Triton printer can print."""
    return (
        TileExpandMathPass(tanh),
        *([TileReadInPlacePass()] if reads == "in_place" else []),
        LegalizeTileForTritonPass(f32_precision),
        # Offsets and bounds are maps too, and most of them leave the loop.
        TileSplitMapsPass(),
        *TIDY,
        TileHoistFromBranchesPass(),
        LoopInvariantCodeMotionPass(),
        TileMaterializeParamsPass(),
        *TIDY,
    )


def to_schedule(
    tanh: Tanh = "exact",
    reads: Reads = "coalesced",
    overlap: bool = True,
    shared_memory: int = HOPPER_SHARED_MEMORY,
) -> Passes:
    """From `tile` to programs of roles, whose products run beside other work.

    Without `overlap` an iteration's products are done in the same.
    """
    return (
        TileExpandMathPass(tanh),
        *([TileReadInPlacePass()] if reads == "in_place" else []),
        TileSplitRowsPass(),
        # Of a part's rows, and before iterations are written more than once.
        TileReadDiagonalsPass(),
        *([TileDelayProductsPass()] if overlap else []),
        # The first iteration knows its index, and a part's rows begin at one place.
        *TIDY,
        LoopInvariantCodeMotionPass(),
        *TIDY,
        # Loads and products are where they stay: who waits for what is written now.
        TileSpecializeWarpsPass(shared_memory=shared_memory),
        *TIDY,
        TileAsyncProductsPass(),
        *TIDY,
    )


def to_gluon(
    tanh: Tanh = "exact",
    reads: Reads = "coalesced",
    overlap: bool = True,
    shared_memory: int = HOPPER_SHARED_MEMORY,
) -> Passes:
    """From `tile` to what the Gluon printer can print."""
    return (
        *to_schedule(tanh, reads, overlap, shared_memory),
        LegalizeTileForGluonPass(),
        # Offsets of what is still loaded and stored by pointers.
        TileSplitMapsPass(),
        *TIDY,
        LoopInvariantCodeMotionPass(),
        TileMaterializeParamsPass(),
        *TIDY,
        # Last: layouts are of the tiles that are left.
        TileAssignLayoutsPass(),
    )


def to_cpp(machine: MachineName = "avx2") -> Passes:
    """From `tile` to what the C++ printer can print, for a machine's vectors."""
    return (
        # Before loads and stores have strides, which then need no transposes.
        TilePutRowsInLanesPass(machine),
        LegalizeTileForCppPass(),
        # Before hoisting: what is widened for every block may not need to be.
        TileWidenFloatsPass(),
        *TIDY,
        LoopInvariantCodeMotionPass(),
        TileMaterializeParamsPass(),
        *TIDY,
        # After hoisting: what is loaded before a loop is worth a tile.
        TileStreamProductsPass(machine),
        TileRegisterProductsPass(machine),
        TileAddProductsPass(machine),
        # After products, which say how many rows they look at.
        TilePanelMapsPass(),
        # Last: buffers are assigned to the tiles that are left.
        TileInsertCopiesPass(),
        TileAssignBuffersPass(),
    )


def run(passes: Passes, ctx: Context, module: ModuleOp) -> None:
    """Run passes one after another, without verifying in between."""
    for each in passes:
        each.apply(ctx, module)


@dataclass(frozen=True)
class _Pipeline(ModulePass):
    """Options that all pipelines have; those not given are chosen."""

    block_m: int | None = None
    block_n: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None
    shared_memory: int = HOPPER_SHARED_MEMORY
    machine: MachineName = "avx2"
    """Whose vectors a CPU's kernel is for."""

    def convert(self, target: Target) -> ConvertFlexToBlocksparsePass:
        return ConvertFlexToBlocksparsePass(
            target,
            self.block_m,
            self.block_n,
            self.num_warps,
            self.num_stages,
            self.shared_memory,
            machine=self.machine,
        )


@dataclass(frozen=True)
class FlexcToBlocksparsePass(_Pipeline):
    """The pipeline from flex.attention to blocksparse.attention."""

    name = "flexc-to-blocksparse"

    target: Target = "triton"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        run(to_blocksparse(self.convert(self.target)), ctx, op)


@dataclass(frozen=True)
class FlexcToTilePass(_Pipeline):
    """The pipeline from flex.attention to a tile.kernel that any target takes on."""

    name = "flexc-to-tile"

    target: Target = "triton"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        convert = self.convert(self.target)
        run((*to_blocksparse(convert), *to_tile(self.target)), ctx, op)


@dataclass(frozen=True)
class FlexcToTritonPass(_Pipeline):
    """The pipeline from flex.attention to what `-t triton` prints.

    `tanh` says how tanh is computed, see tile-expand-math; `f32_precision` how
    products of fp32 tiles are; `reads` whether gathers stay in the layout of the
    scores, see tile-read-in-place.
    """

    name = "flexc-to-triton"

    tanh: Tanh = "exact"
    f32_precision: F32Precision = "ieee"
    reads: Reads = "coalesced"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        legalize = to_triton(self.tanh, self.f32_precision, self.reads)
        convert = self.convert("triton")
        run((*to_blocksparse(convert), *to_tile("triton"), *legalize), ctx, op)


@dataclass(frozen=True)
class FlexcToGluonPass(_Pipeline):
    """The pipeline from flex.attention to what `-t gluon` prints.

    `overlap` says whether products run beside the softmax of another block; `tanh`
    and `reads` are those of flexc-to-triton.
    """

    name = "flexc-to-gluon"

    tanh: Tanh = "exact"
    reads: Reads = "coalesced"
    overlap: bool = True

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        schedule = to_gluon(self.tanh, self.reads, self.overlap, self.shared_memory)
        convert = replace(self.convert("gluon"), overlap=self.overlap)
        run((*to_blocksparse(convert), *to_tile("gluon"), *schedule), ctx, op)


@dataclass(frozen=True)
class FlexcToCppPass(_Pipeline):
    """The pipeline from flex.attention to what `-t cpp` prints."""

    name = "flexc-to-cpp"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        convert = self.convert("cpp")
        run((*to_blocksparse(convert), *to_tile("cpp"), *to_cpp(self.machine)), ctx, op)
