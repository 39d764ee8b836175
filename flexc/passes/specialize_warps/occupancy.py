"""How many slots of a ring a consumer holds at once, once products are asynchronous.

A producer waits for a slot only while it copies what comes next in program order. So
nobody waits forever if a consumer that comes to a load holds fewer tiles of its ring
than there are slots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from xdsl.dialects import scf
from xdsl.ir import Block, Operation

from flexc.dialects import tile
from flexc.errors import ScheduleError
from flexc.passes.analysis.products_in_flight import complete_before
from flexc.passes.specialize_warps.rings import Ring

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
