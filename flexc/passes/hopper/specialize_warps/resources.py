"""What a multiprocessor has room for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from flexc.dialects import tile
from flexc.dialects.tile import TileType, shape_of
from flexc.dialects.tile.schedule import PartsOp
from flexc.dialects.tile.schedule.capacity import RESERVED_BYTES, tile_bytes
from flexc.errors import ScheduleError
from flexc.passes.hopper.products_in_flight import complete_before
from flexc.passes.hopper.specialize_warps.loads import transposed_source
from flexc.passes.hopper.specialize_warps.outputs import Output
from flexc.passes.hopper.specialize_warps.rings import Ring
from flexc.passes.hopper.tile_liveness import Lifetimes

# How many slots of a ring a consumer holds at once, once products are asynchronous.
#
# A producer waits for a slot only while it copies what comes next in program order. So
# nobody waits forever if a consumer that comes to a load holds fewer tiles of its ring
# than there are slots.


Released = Mapping[Operation, Sequence[tile.LoadOp]]


def check_slots(
    block: Block, rings: Mapping[tile.LoadOp, Ring], released: Released
) -> None:
    """Raise if a ring of `rings` has too few slots for the loads of a block.

    `released` has the loads whose last user an op is, in the op's block.
    """
    _Walk(rings, released).visit(block, Counter())


class _Walk:
    """A walk in program order, with the tiles that are held."""

    def __init__(self, rings: Mapping[tile.LoadOp, Ring], released: Released):
        self.rings = rings
        self.released = released

    def visit(self, block: Block, held: Counter[Ring]) -> None:
        """Go through a block that is entered with some tiles held."""
        ops = list(block.ops)
        given_back: dict[int, list[Ring]] = {}
        for op, place in completions(ops).items():
            given_back.setdefault(place, []).extend(
                self.rings[load] for load in self.released.get(op, ())
            )
        for i, op in enumerate(ops):
            held.subtract(given_back.get(i, ()))
            if isinstance(op, tile.LoadOp) and op in self.rings:
                self.hold(self.rings[op], held)
            if isinstance(op, scf.ForOp):
                self.visit(op.body.block, held.copy())

    @staticmethod
    def hold(ring: Ring, held: Counter[Ring]) -> None:
        held[ring] += 1
        if not ring.stays and held[ring] > ring.slots:
            raise ScheduleError(
                f"{held[ring]} tiles of {ring.name} are used at once, and there are "
                f"{ring.slots} slots"
            )


def completions(ops: Sequence[Operation]) -> dict[Operation, int]:
    """The place in a block's ops before which each is complete."""
    found: dict[Operation, int] = {}
    in_flight: list[tile.DotOp] = []
    for i, op in enumerate(ops):
        for _ in range(complete_before(op, [dot.result for dot in in_flight])):
            found[in_flight.pop(0)] = i
        if isinstance(op, tile.DotOp):
            in_flight.append(op)
        else:
            found[op] = i + 1
    return found | {dot: len(ops) for dot in in_flight}


# How many registers a consumer's tiles take.


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


REGISTERS = 65536 // 128
"""Registers of a thread, if one warp group had all of a multiprocessor's."""

PRODUCER_REGISTERS = 24
"""As few as a role can have; it takes a warp group's, though it is one warp."""

MOST_REGISTERS = 240
"""As many as a thread can use; ptxas has 255, in steps of 8."""

LEAST_REGISTERS = 88
"""With fewer no accumulator of use fits."""


def starting_registers(consumers: int, residents: int) -> int:
    """Registers for each thread before roles give some up for others.

    `residents` programs share a multiprocessor; each has a warp group for every
    consumer and one for the producer.
    """
    return REGISTERS // residents // (consumers + 1) // 8 * 8


def consumer_registers(consumers: int, residents: int = 1) -> int:
    """Registers for each thread of a consumer: an equal share of what is left."""
    groups = starting_registers(consumers, residents) * (consumers + 1)
    share = (groups - PRODUCER_REGISTERS) // consumers // 8 * 8
    if share < LEAST_REGISTERS:
        raise ScheduleError(
            f"{consumers} consumers have {share} registers each, which is too few"
        )
    return min(share, MOST_REGISTERS)


def check_shared_memory(
    rings: Iterable[Ring], outputs: Iterable[Output], limit: int, residents: int = 1
) -> None:
    """Raise if slots and barriers do not fit the share of a program.

    `limit` is what one program has that is alone on a multiprocessor.
    """
    needed = sum(r.bytes for r in rings) + sum(o.bytes for o in outputs)
    share = (limit + RESERVED_BYTES) // residents - RESERVED_BYTES
    if needed > share:
        beside = f" for each of {residents} programs" if residents > 1 else ""
        raise ScheduleError(
            f"the schedule needs {needed} bytes of shared memory, and there are "
            f"{share}{beside}"
        )
