"""How many registers a consumer's tiles take."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.ir import Block, SSAValue

from flexc.dialects import tile
from flexc.dialects.tile import TileType, shape_of
from flexc.dialects.tile.schedule import PartsOp
from flexc.dialects.tile.schedule.capacity import tile_bytes
from flexc.errors import ScheduleError
from flexc.passes.analysis.tile_liveness import Lifetimes
from flexc.passes.specialize_warps.loads import transposed_source

THREADS = 128
REGISTER_BYTES = 4

OTHER_REGISTERS = 32
"""Left for values per row, addresses and what maps compute with.

Head dim 64 with three consumers has no more than that, and does not spill.
"""


def check_registers(parts: PartsOp, staged: list[tile.LoadOp], registers: int) -> None:
    """Raise if the tiles that are alive at a product leave too few registers."""
    needed = peak_registers(parts, staged) + OTHER_REGISTERS
    if needed > registers:
        raise ScheduleError(
            f"tiles need about {needed} registers of each thread, and there are "
            f"{registers}"
        )


def peak_registers(parts: PartsOp, staged: list[tile.LoadOp]) -> int:
    """The registers of each thread that hold matrices where most of them are alive.

    What is in shared memory takes none, nor do tiles of one constant. A product's
    result takes the place of what it is added to.
    """
    block = parts.body.block
    lives = Lifetimes.of(block)
    shared = {load.result for load in staged}
    spans = [
        (lives.definition(v), lives.last_use(v), v)
        for v in tiles_of(block)
        if transposed_source(v) not in shared and not isinstance(v.owner, tile.FullOp)
    ]
    peak = 0
    for dot in block.walk():
        if isinstance(dot, tile.DotOp):
            at = lives.start[dot]
            alive = {v for start, end, v in spans if start < at <= end}
            if lives_until(lives, dot.acc, dot):
                alive.discard(dot.acc)
            peak = max(peak, sum(map(register_count, [*alive, dot.result])))
    return peak


def tiles_of(block: Block) -> Iterator[SSAValue]:
    """All matrices that are computed or carried within a block."""
    for op in block.walk():
        inner = (a for region in op.regions for b in region.blocks for a in b.args)
        for value in (*op.results, *inner):
            if len(shape_of(value.type)) == 2:
                yield value


def lives_until(lives: Lifetimes, value: SSAValue, op: tile.DotOp) -> bool:
    """Whether nothing after a product uses a value."""
    return lives.last_use(value) <= lives.start[op]


def register_count(value: SSAValue) -> int:
    """The registers of each thread that a tile takes."""
    assert isinstance(value.type, TileType)
    return -(-tile_bytes(value.type) // (THREADS * REGISTER_BYTES))
