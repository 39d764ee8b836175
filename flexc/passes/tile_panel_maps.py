"""`tile-panel-maps`: maps over rows of vectors, which combine rows on the way.

1. A `tile.map` of two dimensions becomes a `tile.panel_map`. Where all that look at its
   results look at the first rows only, as many as one count says, it computes no more;
   nor does a `tile.register_product`.
2. A map whose results only another reads, element by element, becomes a part of it.
3. A `tile.reduce` along the first dimension of what a map yields is an outcome of that
   map: rows are combined as they are computed. A tile that nobody else reads is then
   not kept.

Maps that compute with numbers of 64 bits, whose vectors have fewer lanes, and those
that do not stay apart.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from flexc.dialects import tile
from flexc.passes.panel_maps.demand import Demands, count_for
from flexc.passes.panel_maps.fusion import (
    combine_rows,
    drop_unused,
    fuse_into,
    reduces_of,
    sole_reader,
)
from flexc.passes.tidy import erase_dead


def make_panel_map(op: tile.MapOp, count: SSAValue | None) -> None:
    """tile.map -> tile.panel_map."""
    rows, columns = op.shape
    spans = [op.span(i) for i in range(len(op.inputs))]
    outcomes = [tile.KEPT] * len(op.results)
    body = op.detach_region(op.body)
    new = tile.PanelMapOp((rows, columns), count, op.inputs, spans, outcomes, body)
    for old, result in zip(op.results, new.results, strict=True):
        result.name_hint = old.name_hint
    Rewriter.replace_op(op, new)


def count_rows(kernel: tile.KernelOp) -> None:
    """Maps of two dimensions as panel maps, of the rows that are needed."""
    demands = Demands()
    maps = [o for o in kernel.walk() if isinstance(o, tile.MapOp) and len(o.shape) > 1]
    products = [o for o in kernel.walk() if isinstance(o, tile.RegisterProductOp)]
    counts = [count_for(op, demands) for op in maps]
    rows = [count_for(op, demands) for op in products]
    for op, count in zip(maps, counts, strict=True):
        make_panel_map(op, count)
    for op, count in zip(products, rows, strict=True):
        if op.rows is None and count is not None:
            limit_rows(op, count)


def limit_rows(op: tile.RegisterProductOp, rows: SSAValue) -> None:
    """Let a product compute the first rows only."""
    new = tile.RegisterProductOp(
        op.lhs,
        op.rhs,
        op.acc,
        op.result.type,
        op.register_tile,
        op.base,
        op.strides,
        rows,
        op.inner,
        op.next,
    )
    new.result.name_hint = op.result.name_hint
    Rewriter.replace_op(op, new)


def fuse(block: Block) -> None:
    """Maps with the maps that read them, then with what combines their rows."""
    for op in panel_maps(block):
        while op.parent is not None and (reader := sole_reader(op)) is not None:
            op = fuse_into(op, reader)
    for op in panel_maps(block):
        while found := reduces_of(op):
            op = combine_rows(op, found[0])
        drop_unused(op)


def panel_maps(block: Block) -> list[tile.PanelMapOp]:
    return [op for op in block.ops if isinstance(op, tile.PanelMapOp)]


@dataclass(frozen=True)
class TilePanelMapsPass(ModulePass):
    """Combine rows where they are computed, and compute no others."""

    name = "tile-panel-maps"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.ops:
            if not isinstance(kernel, tile.KernelOp):
                continue
            count_rows(kernel)
            for inner in list(kernel.walk()):
                for region in inner.regions:
                    if not isinstance(inner, tile.PanelMapOp | tile.MapOp):
                        for block in region.blocks:
                            fuse(block)
        erase_dead(op.body)
