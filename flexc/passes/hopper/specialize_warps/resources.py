"""Assign slots and barriers to a schedule, and check memory, slots and registers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from flexc.dialects import tile
from flexc.dialects.tile import TileType, shape_of
from flexc.dialects.tile.schedule import (
    BarriersOp,
    BarriersType,
    OfPartOp,
    PartsOp,
    SharedOp,
    SharedType,
    ShareOp,
    SharesType,
)
from flexc.dialects.tile.schedule.memory import BARRIER_BYTES
from flexc.dialects.tile.types import tile_bytes
from flexc.errors import ScheduleError
from flexc.passes.hopper.specialize_warps.loads import (
    Companions,
    is_loaded,
    name_of,
    released_after,
    users_of,
    viewed_source,
    why_not_tma,
)
from flexc.passes.hopper.specialize_warps.slices import dependent_on
from flexc.passes.hopper.tile_async_products import complete_before
from flexc.passes.hopper.tile_split_rows import adds_product
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.targets.gluon import (
    LEAST_REGISTERS,
    MOST_REGISTERS,
    PART_WARPS,
    REGISTER_STEP,
    REGISTERS,
    RESERVED_BYTES,
)
from flexc.passes.tile.tile_values import Lifetimes, defined_values


@dataclass(eq=False)
class SlotRing:
    """Slots in shared memory that hold some tiles in program order.

    A slot holds one tile for all parts, or one for each part. A `full` barrier says
    that its slot holds a tile. An `empty` barrier says that all consumers have read the
    slot's tile. If a load runs only once, its tile stays: there is one slot and no
    `empty` barrier. Nor has a ring without loads, of tiles that parts share, an `empty`
    barrier (see `EXCHANGED`).
    """

    name: str
    type: TileType
    slots: int
    tiles: int
    """The tiles of a slot: 1, or the number of parts."""
    stays: bool = False
    per_part: bool = False
    """True if each part reads its own tile of a slot."""
    loads: list[tile.LoadOp] = field(default_factory=list[tile.LoadOp])
    vectors: dict[SSAValue, TileType] = field(default_factory=dict[SSAValue, TileType])
    """The tensors of which a slot also holds a vector, with the vector's type."""
    shared: SSAValue = field(init=False)
    shared_vectors: dict[SSAValue, SSAValue] = field(
        default_factory=dict[SSAValue, SSAValue], init=False
    )
    full: SSAValue = field(init=False)
    empty: SSAValue | None = field(default=None, init=False)

    @property
    def slot_bytes(self) -> int:
        """The number of bytes of a slot."""
        vectors = sum(map(tile_bytes, self.vectors.values()))
        return self.tiles * tile_bytes(self.type) + vectors

    @property
    def returns(self) -> bool:
        """True if consumers return slots to the producer."""
        return bool(self.loads) and not self.stays

    @property
    def bytes(self) -> int:
        """The number of bytes that all slots and barriers take."""
        barriers = self.slots * (2 if self.returns else 1)
        return self.slots * self.slot_bytes + barriers * BARRIER_BYTES

    def allocate(self, code: ScalarCode, consumers: int) -> None:
        """Append the ops that allocate slots and barriers."""
        shared = SharedOp(SharedType(self.slots * self.tiles, self.type))
        self.shared = code.insert(shared, f"{self.name}_s")
        for tensor, type_ in self.vectors.items():
            vectors = SharedOp(SharedType(self.slots, type_))
            name = f"{tensor.name_hint or 'vector'}_s"
            self.shared_vectors[tensor] = code.insert(vectors, name)
        writers = 1 if self.loads else consumers
        full = BarriersOp(BarriersType(self.slots, writers))
        self.full = code.insert(full, f"{self.name}_full")
        if self.returns:
            type_ = BarriersType(self.slots, consumers)
            by_warps = PART_WARPS if consumers <= MOST_BY_WARPS else None
            empty = BarriersOp(type_, by_warps)
            self.empty = code.insert(empty, f"{self.name}_empty")


@dataclass(eq=False)
class Outgoing(SlotRing):
    """A slot for each part, of a tile that the writer adds to memory.

    The part of a slot fills it, and the writer returns it.
    """

    @property
    def bytes(self) -> int:
        return self.slot_bytes + 2 * self.tiles * BARRIER_BYTES

    def allocate(self, code: ScalarCode, consumers: int) -> None:
        shared = SharedOp(SharedType(self.tiles, self.type))
        self.shared = code.insert(shared, f"{self.name}_s")
        each = BarriersType(self.tiles, 1)
        self.full = code.insert(BarriersOp(each), f"{self.name}_full")
        self.empty = code.insert(BarriersOp(each), f"{self.name}_empty")


@dataclass(eq=False)
class Turns:
    """A barrier for each addition that consumers do in their program's turn.

    It says that all parts have added. The writer then reports the program's progress.
    """

    additions: Sequence[tile.AddToOp]
    barriers: SSAValue = field(init=False)

    @property
    def bytes(self) -> int:
        return len(self.additions) * BARRIER_BYTES

    def allocate(self, code: ScalarCode, consumers: int) -> None:
        if self.additions:
            type_ = BarriersType(len(self.additions), consumers)
            self.barriers = code.insert(BarriersOp(type_), "added")


MOST_BY_WARPS = 2
"""The most consumers whose warps release slots one by one.

Three consumers are faster if their warps stay together (docs/measurements, 2026-11-24).
"""


class Key(NamedTuple):
    """The properties that all loads of one ring share."""

    tensor: SSAValue
    type: TileType
    per_part: bool


def assign_rings(
    parts: PartsOp, staged: Sequence[tile.LoadOp], slots: int
) -> dict[tile.LoadOp, SlotRing]:
    """Return a ring for each load.

    Loads of a tensor share a ring if one of them is in a loop and their tile types are
    equal. Raise `ScheduleError` if the address of a load in a loop depends on the part.
    """
    varying = dependent_on(parts.body.block.args[0])
    in_loops: dict[Key, str] = {}
    for load in staged:
        if isinstance(load.parent_op(), scf.ForOp):
            in_loops.setdefault(_key(load, varying), _name(load))
    rings: dict[tile.LoadOp, SlotRing] = {}
    shared: dict[Key, SlotRing] = {}
    for load in staged:
        key = _key(load, varying)
        ring = shared.get(key)
        if ring is None:
            count = parts.count.value.data if key.per_part else 1
            ring = SlotRing(_name(load), key.type, 1, count, True, key.per_part)
            if key in in_loops:
                if key.per_part:
                    raise ScheduleError(
                        f"a load of {name_of(load)} in a loop depends on the part"
                    )
                ring = SlotRing(in_loops[key], key.type, slots, 1)
                shared[key] = ring
        ring.loads.append(load)
        rings[load] = ring
    return rings


def add_vectors(rings: Mapping[tile.LoadOp, SlotRing], companions: Companions) -> None:
    """Give rings the vectors that are copied along with their matrices.

    Raise `ScheduleError` if only some of a ring's slots have a vector.
    """
    for vector, matrix in companions.items():
        assert isinstance(vector.result.type, TileType)
        rings[matrix].vectors[vector.tensor] = vector.result.type
    for load, ring in rings.items():
        own = {v.tensor for v, matrix in companions.items() if matrix is load}
        if own != set(ring.vectors):
            raise ScheduleError(f"a load of {name_of(load)} comes without a vector")


def _key(load: tile.LoadOp, varying: set[SSAValue]) -> Key:
    assert isinstance(load.result.type, TileType)
    per_part = any(v in varying for v in load.indices)
    return Key(load.tensor, load.result.type, per_part)


def _name(load: tile.LoadOp) -> str:
    return load.result.name_hint or load.tensor.name_hint or "tile"


EXCHANGED = 2
"""The slots of a ring of tiles that parts share.

Between two shares, a part waits for the tiles of all parts and reads them. So once a
part has the next tiles of all parts, nobody reads the earlier tiles, and their slot is
free.
"""


def assign_exchanges(
    parts: PartsOp, staged: Sequence[tile.LoadOp]
) -> dict[SSAValue, SlotRing]:
    """Map values that parts share to the rings that hold them.

    Consumers fill these rings. A tile that is copied to shared memory needs no ring.
    Raise `ScheduleError` if a part may read a tile after it shares the next one.
    """
    count, found = parts.count.value.data, dict[SSAValue, SlotRing]()
    for op in parts.body.walk():
        if isinstance(op, ShareOp) and not is_loaded(op, staged):
            assert isinstance(op.value.type, TileType)
            name = op.value.name_hint or "shared"
            ring = SlotRing(name, op.value.type, EXCHANGED, count)
            for value in dependent_on(op.result):
                if isinstance(value.type, SharesType):
                    found[value] = ring
                    check_reads(value, op)
    return found


def check_reads(shares: SSAValue, share: ShareOp) -> None:
    """Raise `ScheduleError` if an earlier value is read after `share`.

    A product has read its operands where its result is used.
    """
    block, owner = share.parent_block(), shares.owner
    assert block is not None
    is_earlier = owner is block or (
        isinstance(owner, Operation) and owner.is_before_in_block(share)
    )
    for read in [use.operation for use in shares.uses]:
        if not is_earlier or not isinstance(read, OfPartOp):
            continue
        ends = [read, *(end for dot in users_of(read) for end in users_of_sum(dot))]
        for end in map(block.find_ancestor_op_in_block, ends):
            if end is not None and share.is_before_in_block(end):
                raise ScheduleError("a tile is read after the next one was shared")


def users_of_sum(product: Operation) -> Iterator[Operation]:
    """Yield the ops that use a product, or the last of a chain that adds to it."""
    for use in product.results[0].uses:
        op = use.operation
        if isinstance(op, tile.DotOp) and op.operands[use.index] is op.acc:
            yield from users_of_sum(op)
        else:
            yield op


@dataclass(eq=False)
class Output:
    """The slots, one for each part, through which a store's tile leaves.

    The slots are those of `ring` if all reads of its tiles come before the store, and
    maybe those of an earlier output. If `ring` is None, the output has slots of its
    own.
    """

    name: str
    type: TileType
    parts: int
    ring: SlotRing | None
    is_reused: bool = False
    """True if an earlier output may still leave through the slots."""
    shared: SSAValue = field(init=False)

    @property
    def bytes(self) -> int:
        return 0 if self.ring else self.parts * tile_bytes(self.type)

    def allocate(self, code: ScalarCode) -> None:
        """Append the op that allocates slots, unless the output uses a ring's slots."""
        if self.ring is not None:
            self.shared = self.ring.shared
        else:
            shared = SharedOp(SharedType(self.parts, self.type))
            self.shared = code.insert(shared, f"{self.name}_s")


def assign_outputs(
    kernel: tile.KernelOp, parts: PartsOp, rings: Collection[SlotRing]
) -> dict[Operation, Output]:
    """Return the slots of each addition of a product, and of each store after loops.

    Other additions are done once. Consumers do them without slots, which are scarce.
    Raise `ScheduleError` if TMA cannot do an addition of a product.
    """
    count = parts.count.value.data
    free = [r for r in rings if r.stays and r.tiles == count and not is_shared(r)]
    outputs: dict[Operation, Output] = {}
    sums: dict[tuple[SSAValue, TileType], Output] = {}
    for add in parts.body.walk():
        if adds_product(add):
            type_ = add.value.type
            assert isinstance(type_, TileType)
            why = why_not_tma(kernel, add.memref, type_, adds=True)
            if why is not None:
                raise ScheduleError(f"an addition to memory {why}")
            name, ring = output_name(add), None
            if add.progress is not None:
                ring = Outgoing(name, type_, 1, count, per_part=True)
            output = Output(name, type_, count, ring, is_reused=ring is None)
            outputs[add] = sums.setdefault((add.memref, type_), output)
    used: set[SlotRing] = set()
    for store in parts.body.block.ops:
        type_ = store.value.type if isinstance(store, tile.StoreOp) else None
        if not isinstance(store, tile.StoreOp) or not isinstance(type_, TileType):
            continue
        if why_not_tma(kernel, store.memref, type_) is not None:
            continue
        fitting = [r for r in free if r.type == type_ and _is_read(r, store)]
        ring = min(fitting, key=lambda r: r in used, default=None)
        outputs[store] = Output(output_name(store), type_, count, ring, ring in used)
        if ring is not None:
            used.add(ring)
    return outputs


def assign_turns(parts: PartsOp, outputs: Collection[Operation]) -> Turns:
    """Return the additions in turn that do not leave through slots."""
    ops = (op for op in parts.body.block.ops if isinstance(op, tile.AddToOp))
    return Turns([op for op in ops if op.progress is not None and op not in outputs])


def output_name(op: tile.StoreOp | tile.AddToOp) -> str:
    return op.value.name_hint or op.memref.name_hint or "out"


def is_shared(ring: SlotRing) -> bool:
    """Return True if other parts read a part's tile."""
    return any(
        isinstance(use.operation, ShareOp)
        for load in ring.loads
        for use in load.result.uses
    )


def _is_read(ring: SlotRing, store: tile.StoreOp) -> bool:
    """Return True if all reads of a ring's tiles come before a store."""
    return all(op.is_before_in_block(store) for op in released_after(ring.loads))


Released = Mapping[Operation, Sequence[tile.LoadOp]]


def check_slots(
    block: Block, rings: Mapping[tile.LoadOp, SlotRing], released: Released
) -> None:
    """Raise `ScheduleError` if a ring has too few slots for the loads of a block.

    Products are asynchronous when this schedule runs. A producer waits for a slot only
    while it copies the next tile in program order. So there is no deadlock if a
    consumer that reaches a load holds fewer tiles of the load's ring than the ring has
    slots. `released` maps an op to the loads whose tiles are not read after the op.
    """
    _Walk(rings, released).visit(block, Counter())


class _Walk:
    """A walk over ops in program order that counts the tiles held of each ring."""

    def __init__(self, rings: Mapping[tile.LoadOp, SlotRing], released: Released):
        self.rings = rings
        self.released = released

    def visit(self, block: Block, held: Counter[SlotRing]) -> None:
        """Visit a block that is entered with `held` tiles of each ring."""
        ops = list(block.ops)
        given_back: dict[int, list[SlotRing]] = {}
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
    def hold(ring: SlotRing, held: Counter[SlotRing]) -> None:
        held[ring] += 1
        if not ring.stays and held[ring] > ring.slots:
            raise ScheduleError(
                f"{held[ring]} tiles of {ring.name} are used at once, and there are "
                f"{ring.slots} slots"
            )


def completions(ops: Sequence[Operation]) -> dict[Operation, int]:
    """Return, for each op, the index in `ops` before which the op is complete."""
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


THREADS = 128
"""The threads of a warp group."""


REGISTER_BYTES = 4


OTHER_REGISTERS = 16
"""The registers of a thread kept for values per row, addresses and maps."""


def check_registers(parts: PartsOp, staged: list[tile.LoadOp], registers: int) -> None:
    """Raise `ScheduleError` if live tiles leave too few registers at a product."""
    needed = peak_registers(parts, staged) + OTHER_REGISTERS
    if needed > registers:
        raise ScheduleError(
            f"tiles need about {needed} registers of each thread, and there are "
            f"{registers}"
        )


def peak_registers(parts: PartsOp, staged: list[tile.LoadOp]) -> int:
    """Return the most registers of each thread that live matrices take at a product.

    A matrix in shared memory takes none, nor does a tile of one constant. A product's
    result takes the place of its accumulator if no later op uses the accumulator.
    """
    block = parts.body.block
    lives = Lifetimes.of(block)
    shared = {load.result for load in staged}
    spans = [
        (lives.definition(v), lives.last_use(v), v)
        for v in tiles_of(block)
        if not is_in_memory(v, shared) and not isinstance(v.owner, tile.FullOp)
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


def is_in_memory(value: SSAValue, staged: Collection[SSAValue]) -> bool:
    """Return True if a tile lies in shared memory."""
    source = viewed_source(value)
    return source in staged or isinstance(source.owner, OfPartOp)


def tiles_of(block: Block) -> Iterator[SSAValue]:
    """Yield all matrices that ops of a block define or loops in it carry."""
    for op in block.walk():
        yield from (v for v in defined_values(op) if len(shape_of(v.type)) == 2)


def lives_until(lives: Lifetimes, value: SSAValue, op: tile.DotOp) -> bool:
    """Return True if no op after a product uses a value."""
    return lives.last_use(value) <= lives.start[op]


def register_count(value: SSAValue) -> int:
    """Return the number of registers of each thread that a tile takes."""
    assert isinstance(value.type, TileType)
    return -(-tile_bytes(value.type) // (THREADS * REGISTER_BYTES))


SERVICE_REGISTERS = LEAST_REGISTERS
"""The registers of a thread of roles of one warp, which take those of a group."""


LEAST_CONSUMER_REGISTERS = 88
"""The fewest registers of a consumer's thread that hold a useful accumulator."""


def starting_registers(consumers: int, residents: int) -> int:
    """Return the registers of each thread before roles pass registers to each other.

    `residents` programs share a multiprocessor. Each program has one warp group for
    every consumer and one for the producer.
    """
    share = REGISTERS // THREADS // residents // (consumers + 1)
    return share // REGISTER_STEP * REGISTER_STEP


def consumer_registers(consumers: int, residents: int = 1) -> int:
    """Return the registers of each consumer thread: an equal share of the rest.

    Raise `ScheduleError` if a share is less than `LEAST_CONSUMER_REGISTERS`.
    """
    groups = starting_registers(consumers, residents) * (consumers + 1)
    share = (groups - SERVICE_REGISTERS) // consumers // REGISTER_STEP * REGISTER_STEP
    if share < LEAST_CONSUMER_REGISTERS:
        raise ScheduleError(
            f"{consumers} consumers have {share} registers each, which is too few"
        )
    return min(share, MOST_REGISTERS)


def needed_bytes(users: Iterable[SlotRing | Output | Turns]) -> int:
    """Return the shared memory of slots and barriers."""
    return sum(user.bytes for user in users)


def share_of(limit: int, residents: int) -> int:
    """Return the shared memory of each of `residents` programs."""
    return (limit + RESERVED_BYTES) // residents - RESERVED_BYTES


def shrink_rings(
    block: Block,
    rings: Mapping[tile.LoadOp, SlotRing],
    released: Released,
    excess: int,
) -> None:
    """Give up slots of rings until at least `excess` bytes are saved, if possible.

    The ring that is loaded last gives up slots first: the producer has the rest of an
    iteration to fill its only slot. A ring keeps the slots that its tiles need at once.
    """
    for ring in reversed(dict.fromkeys(rings.values())):
        while excess > 0 and ring.returns and ring.slots > 1:
            before, slots = ring.bytes, ring.slots
            ring.slots //= 2
            try:
                check_slots(block, rings, released)
            except ScheduleError:
                ring.slots = slots
                break
            excess -= before - ring.bytes


def check_shared_memory(
    users: Iterable[SlotRing | Output | Turns], limit: int, residents: int = 1
) -> None:
    """Raise `ScheduleError` if slots and barriers exceed a program's shared memory.

    `limit` is the number of bytes that a program has when it is alone on a
    multiprocessor. `residents` programs share them.
    """
    needed, share = needed_bytes(users), share_of(limit, residents)
    if needed > share:
        beside = f" for each of {residents} programs" if residents > 1 else ""
        raise ScheduleError(
            f"the schedule needs {needed} bytes of shared memory, and there are "
            f"{share}{beside}"
        )
