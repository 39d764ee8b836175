"""Tile properties of ops over segments, and the region that holds their segments."""

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
"""Integer properties that must be at least 1."""


class Tiled(IRDLOperation):
    """An op whose programs own `block_m` rows and visit `block_n` columns at a time."""

    block_m = prop_def(IntegerAttr)
    """The rows of a tile."""
    block_n = prop_def(IntegerAttr)
    """The columns of a tile."""
    num_warps = opt_prop_def(IntegerAttr)
    """The warps of a program on a GPU."""
    num_stages = opt_prop_def(IntegerAttr)
    """The key blocks in flight on a GPU, including the block that is computed."""
    rows_per_part = opt_prop_def(IntegerAttr)
    """The rows that each group of warps computes, if tiles are split by rows."""
    residents = opt_prop_def(IntegerAttr)
    """The number of programs that share a multiprocessor, if more than one."""
    order = opt_prop_def(TileOrderAttr)
    heads_per_group = opt_prop_def(IntegerAttr)
    """The number of heads whose tiles start together.

    The longest tiles then start first, and the keys and values of these heads still
    share the cache.
    """
    short_rows = opt_prop_def(UnitAttr)
    """True if rows may see few keys: fixed costs of programs and loops matter."""


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
