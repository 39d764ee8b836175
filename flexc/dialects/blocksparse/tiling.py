"""What ops over segments share: their tiles, and the region of their segments."""

from __future__ import annotations

from xdsl.dialects.builtin import IntegerAttr, UnitAttr
from xdsl.ir import Block, Region
from xdsl.irdl import IRDLOperation, opt_prop_def, prop_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from flexc.dialects.blocksparse.segment import SegmentOp, TileOrderAttr

TILING = (
    "block_m",
    "block_n",
    "num_warps",
    "num_stages",
    "heads_per_group",
    "rows_per_part",
    "residents",
)
"""Properties that are numbers of something."""


class Tiled(IRDLOperation):
    """An op whose programs own `block_m` rows and visit `block_n` columns at a time."""

    block_m = prop_def(IntegerAttr)
    """Query rows of a tile."""
    block_n = prop_def(IntegerAttr)
    """Key columns of a tile."""
    num_warps = opt_prop_def(IntegerAttr)
    """Warps of a program on a GPU."""
    num_stages = opt_prop_def(IntegerAttr)
    """Key blocks in flight on a GPU, the one being computed with included."""
    rows_per_part = opt_prop_def(IntegerAttr)
    """Rows of a tile that one group of warps computes: tiles are split by rows."""
    residents = opt_prop_def(IntegerAttr)
    """Programs that are to share a multiprocessor, if more than one."""
    order = opt_prop_def(TileOrderAttr)
    heads_per_group = opt_prop_def(IntegerAttr)
    """Heads whose tiles are started together, so that the longest come first and
    their keys and values still share the cache."""
    short_rows = opt_prop_def(UnitAttr)
    """Rows may see few keys: what a program or a loop costs once is felt."""


def verify_segments(segments: Region) -> None:
    for op in segments.block.ops:
        if not isinstance(op, SegmentOp):
            raise VerifyException(
                f"segments expects blocksparse.segment ops only, got {op.name}"
            )


def print_segments(printer: Printer, segments: Region) -> None:
    printer.print_string(" segments ")
    printer.print_region(
        segments, print_entry_block_args=False, print_empty_block=False
    )


def parse_segments(parser: Parser) -> Region:
    parser.parse_keyword("segments")
    segments = parser.parse_region()
    if not segments.blocks:  # Nothing is visited.
        segments.add_block(Block())
    return segments
