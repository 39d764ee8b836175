"""Constants of a function that its statements call layouts by."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.ir import Attribute, Block
from xdsl.utils.hints import isa

from flexc.dialects import tile
from flexc.dialects.tile import AlongAttr, LayoutAttr, OperandAttr, ProductAttr
from flexc.dialects.tile.schedule import PendingType

LARGEST_PRODUCT = 256
"""Columns of the largest product that one instruction computes."""


def layout_name(layout: LayoutAttr) -> str:
    """What a layout is called."""
    if isinstance(layout, ProductAttr):
        return f"PRODUCT_{layout.columns.data}"
    if isinstance(layout, OperandAttr):
        return f"OPERAND_{layout.parent.columns.data}"
    what = "COLUMNS" if layout.dim.data else "ROWS"
    return f"{what}_{layout.parent.columns.data}"


def layout_call(layout: LayoutAttr, warps: int) -> tuple[str, list[str]]:
    """The function that makes a layout, and its arguments."""
    if isinstance(layout, ProductAttr):
        columns = min(layout.columns.data, LARGEST_PRODUCT)
        shape = f"instr_shape=[16, {columns}, 16]"
        args = ["version=[3, 0]", f"warps_per_cta=[{warps}, 1]", shape]
        return "gl.NVMMADistributedLayout", args
    parent = layout_name(layout.parent)
    if isinstance(layout, AlongAttr):
        return "gl.SliceLayout", [str(1 - layout.dim.data), parent]
    return "gl.DotOperandLayout", ["operand_index=0", f"parent={parent}", "k_width=2"]


def layouts_of(block: Block) -> list[LayoutAttr]:
    """The layouts of a block's tiles, each after the one it is made of."""
    used = {layout for layout in _layouts_within(block)}
    parents = {x if isinstance(x, ProductAttr) else x.parent for x in used}
    others = used - parents
    return [*sorted(parents, key=_order), *sorted(others, key=_order)]


def _order(layout: LayoutAttr) -> tuple[int, str]:
    product = layout if isinstance(layout, ProductAttr) else layout.parent
    return product.columns.data, layout_name(layout)


def _layouts_within(block: Block) -> Iterator[LayoutAttr]:
    for op in block.walk():
        args = (a for r in op.regions for b in r.blocks for a in b.args)
        for value in (*op.results, *args):
            layout = layout_of(value.type)
            if layout is not None:
                yield layout


def layout_of(type_: Attribute) -> LayoutAttr | None:
    """The layout of a tile, or of a product's result."""
    if isinstance(type_, PendingType):
        type_ = type_.tile
    if not isinstance(type_, tile.TileType):
        return None
    layout = type_.get_layout()
    assert layout is None or isa(layout, LayoutAttr)
    return layout
