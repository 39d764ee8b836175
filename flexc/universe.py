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

PASSES: dict[str, Callable[[], Any]] = {
    "flex-simplify-mods": lazy("flexc.passes.flex_simplify_mods:FlexSimplifyModsPass"),
    "tile-expand-math": lazy("flexc.passes.tile_expand_math:TileExpandMathPass"),
    "legalize-tile-for-cpp": lazy(
        "flexc.passes.legalize_tile_for_cpp:LegalizeTileForCppPass"
    ),
    "tile-widen-floats": lazy("flexc.passes.tile_widen_floats:TileWidenFloatsPass"),
    "tile-insert-copies": lazy("flexc.passes.tile_insert_copies:TileInsertCopiesPass"),
    "tile-assign-buffers": lazy(
        "flexc.passes.tile_assign_buffers:TileAssignBuffersPass"
    ),
    "legalize-tile-for-triton": lazy(
        "flexc.passes.legalize_tile_for_triton:LegalizeTileForTritonPass"
    ),
    "tile-expand-captures": lazy(
        "flexc.passes.tile_expand_captures:TileExpandCapturesPass"
    ),
    "tile-split-maps": lazy("flexc.passes.tile_split_maps:TileSplitMapsPass"),
    "tile-materialize-params": lazy(
        "flexc.passes.tile_materialize_params:TileMaterializeParamsPass"
    ),
    "convert-flex-to-blocksparse": lazy(
        "flexc.passes.convert_flex_to_blocksparse:ConvertFlexToBlocksparsePass"
    ),
    "convert-blocksparse-to-tile": lazy(
        "flexc.passes.convert_blocksparse_to_tile:ConvertBlocksparseToTilePass"
    ),
}

TARGETS: dict[str, Callable[[], Any]] = {
    "cpp": lazy("flexc.codegen.cpp.target:CppTarget"),
    "triton": lazy("flexc.codegen.triton.target:TritonTarget"),
}
