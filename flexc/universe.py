"""What `flexc-opt` knows: names of dialects, passes and targets.

A name stands for `module:object`, imported when it is first asked for, so that
starting the tool costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy(path: str) -> Callable[[], Any]:
    """A factory that imports `module:object` when it is called."""

    def load() -> Any:
        module, name = path.split(":")
        return getattr(import_module(module), name)

    return load


DIALECTS = {
    "flex": lazy("flexc.dialects.flex:Flex"),
    "blocksparse": lazy("flexc.dialects.blocksparse:BlockSparse"),
    "tile": lazy("flexc.dialects.tile:Tile"),
}


def _pass(path: str) -> Callable[[], Any]:
    return lazy(f"flexc.passes.{path}")


PASSES: dict[str, Callable[[], Any]] = {
    "convert-flex-to-blocksparse": _pass(
        "convert_flex_to_blocksparse:ConvertFlexToBlocksparsePass"
    ),
    "convert-flex-to-planning": _pass(
        "convert_flex_to_planning:ConvertFlexToPlanningPass"
    ),
    "convert-blocksparse-to-tile": _pass(
        "convert_blocksparse_to_tile:ConvertBlocksparseToTilePass"
    ),
    "flex-differentiate": _pass("flex_differentiate:FlexDifferentiatePass"),
    "flex-expand-derivatives": _pass(
        "flex_expand_derivatives:FlexExpandDerivativesPass"
    ),
    "flex-fold-heads": _pass("flex_fold_heads:FlexFoldHeadsPass"),
    "flex-infer-facts": _pass("flex_infer_facts:FlexInferFactsPass"),
    "flex-simplify-mods": _pass("flex_simplify_mods:FlexSimplifyModsPass"),
    "blocksparse-merge-segments": _pass(
        "blocksparse_merge_segments:BlocksparseMergeSegmentsPass"
    ),
    "tile-hoist-from-branches": _pass(
        "tile_hoist_from_branches:TileHoistFromBranchesPass"
    ),
    "flex-trust-captures": _pass("flex_trust_captures:FlexTrustCapturesPass"),
    "flex-widen-indices": _pass("flex_widen_indices:FlexWidenIndicesPass"),
    "legalize-tile-for-cpp": _pass("legalize_tile_for_cpp:LegalizeTileForCppPass"),
    "legalize-tile-for-triton": _pass(
        "legalize_tile_for_triton:LegalizeTileForTritonPass"
    ),
    "tile-async-products": _pass("tile_async_products:TileAsyncProductsPass"),
    "legalize-tile-for-gluon": _pass(
        "legalize_tile_for_gluon:LegalizeTileForGluonPass"
    ),
    "tile-assign-layouts": _pass("tile_assign_layouts:TileAssignLayoutsPass"),
    "tile-assign-buffers": _pass("tile_assign_buffers:TileAssignBuffersPass"),
    "tile-delay-products": _pass("tile_delay_products:TileDelayProductsPass"),
    "tile-expand-captures": _pass("tile_expand_captures:TileExpandCapturesPass"),
    "tile-expand-math": _pass("tile_expand_math:TileExpandMathPass"),
    "tile-insert-copies": _pass("tile_insert_copies:TileInsertCopiesPass"),
    "tile-materialize-params": _pass(
        "tile_materialize_params:TileMaterializeParamsPass"
    ),
    "tile-panel-maps": _pass("tile_panel_maps:TilePanelMapsPass"),
    "tile-put-rows-in-lanes": _pass("tile_put_rows_in_lanes:TilePutRowsInLanesPass"),
    "tile-read-diagonals": _pass("tile_read_diagonals:TileReadDiagonalsPass"),
    "tile-read-in-place": _pass("tile_read_in_place:TileReadInPlacePass"),
    "tile-add-products": _pass("tile_add_products:TileAddProductsPass"),
    "tile-register-products": _pass("tile_register_products:TileRegisterProductsPass"),
    "tile-relax-score-math": _pass("tile_relax_score_math:TileRelaxScoreMathPass"),
    "tile-specialize-warps": _pass("tile_specialize_warps:TileSpecializeWarpsPass"),
    "tile-split-maps": _pass("tile_split_maps:TileSplitMapsPass"),
    "tile-split-rows": _pass("tile_split_rows:TileSplitRowsPass"),
    "tile-stream-products": _pass("tile_stream_products:TileStreamProductsPass"),
    "tile-widen-floats": _pass("tile_widen_floats:TileWidenFloatsPass"),
    "flexc-to-blocksparse": _pass("pipelines:FlexcToBlocksparsePass"),
    "flexc-to-tile": _pass("pipelines:FlexcToTilePass"),
    "flexc-to-triton": _pass("pipelines:FlexcToTritonPass"),
    "flexc-to-gluon": _pass("pipelines:FlexcToGluonPass"),
    "flexc-to-cpp": _pass("pipelines:FlexcToCppPass"),
}

TARGETS: dict[str, Callable[[], Any]] = {
    "cpp": lazy("flexc.codegen.cpp.target:CppTarget"),
    "gluon": lazy("flexc.codegen.gluon.target:GluonTarget"),
    "triton": lazy("flexc.codegen.triton.target:TritonTarget"),
}
