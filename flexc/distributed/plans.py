"""Plans of a mask: what each rank computes, and the layout and method that cost least.

A cost is in seconds, of the forward and the backward: pairs over a machine's rate, and
bytes over that of its links.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise, product
from typing import Any

import torch
from torch import Tensor

from flexc.distributed.layouts import MOST_RUNS, Layout, Runs, Span, carried_keys, union
from flexc.distributed.ranks import Parts
from flexc.errors import OptionError
from flexc.frontend.closures import Mod
from flexc.runtime.attention.call import Attention, read_signature
from flexc.runtime.explain import check_inputs, stand_ins, where
from flexc.runtime.explain.blocks import DEAD, FULL, PARTIAL, Blocks, find_blocks
from flexc.runtime.explain.subject import Subject
from flexc.runtime.inputs.notes import Capture, are_still
from flexc.runtime.inputs.options import BACKENDS
from flexc.runtime.interface import OUTPUTS
from flexc.runtime.process.recent import Recent


@dataclass(frozen=True, eq=False)
class Visits:
    """The pairs of a mask that kernels compute, block by block."""

    live_heads: Tensor
    """In how many heads, of all batches, each block of pairs is live, float64. A block
    that is live in parts counts as the share of its live parts.
    """
    size: tuple[int, int]
    """The rows and columns of a block."""

    def pairs(self, queries: Sequence[range], keys: Sequence[range]) -> Tensor:
        """Return the pairs that are computed for ranges of queries and of keys."""
        rows, columns = self._overlaps(queries, keys)
        return rows @ (self.live_heads @ columns.T)

    def work(self, queries: Layout, keys: Layout) -> Work:
        """Return what each rank computes, and the keys that it needs."""
        rows, columns = self._of_ranks(queries, keys)
        live = rows @ self.live_heads
        needed = live > 0
        tokens = needed.double() @ columns.T
        gathered = (tokens.sum(1) - tokens.diagonal()).max()
        carried = list(map(_carried, range(keys.size), columns, [needed] * keys.size))
        all_need_keys = bool(tokens.any(1).all())
        return Work((live @ columns.T).tolist(), carried, int(gathered), all_need_keys)

    def needs(self, queries: Layout) -> list[Runs]:
        """Return the keys that each rank's queries need, by rank."""
        (rows,) = self._of_ranks(queries)
        most = None if queries.is_listed else MOST_RUNS
        needed = rows @ self.live_heads > 0
        n = self.size[1]
        found: list[Runs] = []
        for row in needed:
            edges = torch.nn.functional.pad(row.to(torch.int8), (1, 1)).diff()
            ends = (n * edges.nonzero()[:, 0]).tolist()
            found.append(union(map(range, ends[::2], ends[1::2]), most))
        return found

    def pooled(self, most: int) -> Visits:
        """Return the means of squares of blocks, at most so many along a sequence."""
        times = 1
        while max(self.live_heads.shape) > most * times:
            times *= 2
        means = torch.nn.functional.avg_pool2d(
            self.live_heads[None], times, ceil_mode=True, count_include_pad=False
        )
        return Visits(means[0], (self.size[0] * times, self.size[1] * times))

    def _of_ranks(self, *layouts: Layout) -> Iterator[Tensor]:
        """Yield how many positions of each rank are in each block."""
        overlaps = self._overlaps(*(layout.runs for layout in layouts))
        for layout, found in zip(layouts, overlaps, strict=True):
            total = found.new_zeros(layout.size, found.size(1))
            yield total.index_add_(0, _owners(layout), found)

    def _overlaps(self, *ranges: Sequence[range]) -> Iterator[Tensor]:
        return map(_overlaps, ranges, self.size, self.live_heads.shape)


@dataclass(frozen=True)
class Work:
    """The pairs that ranks compute, and the keys that move."""

    pairs: Sequence[Sequence[float]]
    """By the rank of queries and the rank of keys: the pairs that are computed."""
    carried: Sequence[Sequence[float]]
    """By the rank of keys and the step of a ring: those that a later rank needs."""
    gathered: int
    """The most keys of other ranks that a rank needs."""
    all_need_keys: bool
    """True if each rank needs some keys."""

    def regathers(self, keys: Layout, problem: Problem) -> bool:
        """Return True if gathered keys are gathered again for the backward.

        They are kept if they take no more memory than the rank's own tokens and output,
        which are kept anyway. Ranks that need no keys could not take part.
        """
        own = max(keys.lengths) * (problem.q_bytes + problem.kv_bytes)
        return self.all_need_keys and self.gathered * problem.kv_bytes > own


def _carried(source: int, tokens: Tensor, needed: Tensor) -> list[float]:
    """Return how many of a rank's tokens are needed at each step or later."""
    (own,) = tokens.nonzero(as_tuple=True)
    by_step = needed[:, own].roll(-source, 0).to(torch.int8)
    later = by_step.flip(0).cummax(0).values.flip(0)
    return (later.double() @ tokens[own]).tolist()


def _overlaps(ranges: Sequence[range], size: int, count: int) -> Tensor:
    """Return how many positions of each range are in each block."""
    starts, stops = (
        torch.tensor(ends, dtype=torch.float64, device="cpu")[:, None]
        for ends in ([r.start for r in ranges], [r.stop for r in ranges])
    )
    begin = torch.arange(count, dtype=torch.float64, device="cpu") * size
    return (stops.minimum(begin + size) - starts.maximum(begin)).clamp(min=0)


def _owners(layout: Layout) -> Tensor:
    """Return the rank that has each run, among the runs of all ranks."""
    owners = [rank for rank, runs in enumerate(layout.ranks) for _ in runs]
    return torch.tensor(owners, dtype=torch.long, device="cpu")


def block_length(length: int, ranks: int, ends: Iterable[int]) -> int:
    """Return the length of the blocks that a sequence is cut into for a plan.

    The ends lie between blocks, unless that takes more blocks than a plan needs.
    """
    most = max(4 * FINE, 2 * ranks)
    size = math.gcd(length, *ends) or 1
    while size % 2 == 0 and length // size < FINE:
        size //= 2
    return size if length // size <= most else -(-length // (most // 2))


FINE = 128
"""The number of blocks that a sequence is cut into. If few of them are partial, the
costs of ranks are then exact to about a percent.
"""

MOST_PARTIAL = 0.1
"""The share of partial blocks beyond which finer blocks are counted."""

FINEST = 4096
"""The most finer blocks along a sequence."""

TILE = 128
"""About the length of the blocks that kernels visit."""


@dataclass(frozen=True)
class Problem:
    """The attention of all ranks together, apart from the mask and the lengths."""

    batch: int
    heads: int
    kv_heads: int
    dims: tuple[int, int]
    """The head dimensions of the key and of the value."""
    dtype: torch.dtype
    device: torch.device
    backend: str

    @classmethod
    def of(cls, call: Attention) -> Problem:
        query, dims = call.query, (call.key.size(3), call.value.size(3))
        batch, heads, kv_heads = *query.shape[:2], call.key.size(1)
        place = query.dtype, query.device, call.backend
        return cls(batch, heads, kv_heads, dims, *place)

    @property
    def kv_bytes(self) -> int:
        """The bytes of a key and its value."""
        return self.batch * self.kv_heads * sum(self.dims) * self.dtype.itemsize

    @property
    def q_bytes(self) -> int:
        """The bytes of a query and its output."""
        return self.batch * self.heads * sum(self.dims) * self.dtype.itemsize


def find_visits(
    mask: Mod | None,
    problem: Problem,
    lengths: tuple[int, int],
    ranks: int,
    ends: Iterable[int],
) -> Visits:
    """Return what kernels compute of a mask over the whole sequence.

    The visits follow from the mask's bounds, or from blocks that are planned for it.
    `ends` are the ends of the ranks' runs: blocks are cut there, if `block_length` can.
    """
    heads = problem.batch, problem.heads
    if mask is None or 0 in lengths:
        every = torch.tensor([[math.prod(heads)]], dtype=torch.float64, device="cpu")
        return Visits(every, (max(lengths[0], 1), max(lengths[1], 1)))
    device, ends = problem.device, list(ends)
    with torch.no_grad():
        whole = Attention(
            *stand_ins((*heads, *lengths), problem.dims, problem.dtype, device),
            scale=1.0,
            tables=None,
            signature=read_signature(None, mask, device),
            outputs=OUTPUTS[False, False],
            backend=problem.backend,
        )
        rows, columns = (block_length(length, ranks, ends) for length in lengths)
        subject = Subject.of(whole)
        blocks = find_blocks(subject, (rows, columns))
        visits = _live(blocks)
        times = _refinement(blocks)
        if times > 1:
            finer = find_blocks(subject, (rows // times, columns // times))
            if finer.size == (rows // times, columns // times):
                visits = _live(finer)
    return visits


def _live(blocks: Blocks) -> Visits:
    """Return the pairs of blocks. Of a partial one, half of the tiles are live, and
    those that its mask's edge crosses.
    """
    classes, times = _distinct(blocks.classes)
    edge = min(1.0, TILE / max(blocks.size))
    full, partial = ((classes == kind).sum((0, 1)).double() for kind in (FULL, PARTIAL))
    return Visits(times * (full + (1 + edge) / 2 * partial), blocks.size)


def _distinct(classes: Tensor) -> tuple[Tensor, int]:
    """Return the classes of batches and heads that differ, and how often each is."""
    times = 1
    for dim in range(2):
        if classes.stride(dim) == 0:
            times *= classes.size(dim)
            classes = classes.narrow(dim, 0, 1)
    return classes, times


def _refinement(blocks: Blocks) -> int:
    """Return how many times finer blocks tell more of the pairs, 1 if none do.

    In windows and documents most blocks are partial, and much of these is dead.
    """
    classes, _ = _distinct(blocks.classes)
    times = 1
    if (classes == PARTIAL).sum() <= MOST_PARTIAL * (classes != DEAD).sum():
        return times
    sizes, count = blocks.size, max(blocks.classes.shape[2:])
    while (
        all(size % (2 * times) == 0 and size // (2 * times) >= TILE for size in sizes)
        and 2 * times * count <= FINEST
    ):
        times *= 2
    return times


@dataclass(frozen=True, eq=False)
class Route:
    """The way of keys, and the calls that a rank of a ring makes with them."""

    work: Work
    needs: Sequence[Runs]
    """By rank: the keys that its queries need."""
    carried: Sequence[Sequence[Runs]]
    """By the rank of keys and the step of a ring: those at a rank, at first all."""
    calls: Sequence[Sequence[tuple[Span, Span]]]
    """By step: the queries and keys of each call."""


_known: Recent[tuple[tuple[Capture, ...], Any]] = Recent(32)
"""By a mask's key and more: captures, and what was found for them."""


def _kept(mask: Mod | None, device: torch.device, key: Any, make: Any) -> Any:
    """Return what is made for a mask, kept while what it captures is unchanged."""
    signature = read_signature(None, mask, device)
    captures = signature.captures
    if not signature.cacheable:
        return make()
    key = (signature.key, device, key)
    kept = _known.find(key, lambda found: are_still(found[0], captures))
    if kept is None:
        kept = _known.add(key, (tuple(map(Capture.of, captures)), make()))
    return kept[1]


def find_route(parts: Parts, mask: Mod | None, problem: Problem) -> Route:
    """Return the route of a rank. All ranks find the same of what is live."""
    layouts = parts.queries, parts.keys

    def make() -> Route:
        ends = [end for x in layouts for r in x.runs for end in (r.start, r.stop)]
        lengths = parts.queries.length, parts.keys.length
        visits = find_visits(mask, problem, lengths, parts.queries.size, ends)
        needs = visits.needs(parts.queries)
        carried = carried_keys(parts.keys, needs)
        own = parts.queries.ranks[parts.rank]
        queries = parts.queries.spans(own, "queries", problem.device)

        def calls(step: int) -> list[tuple[Span, Span]]:
            visiting = carried[(parts.rank - step) % len(carried)][step]
            pairs = product(queries, parts.keys.spans(visiting, "keys", problem.device))
            return [(q, k) for q, k in pairs if visits.pairs(q.runs, k.runs).any()]

        steps = [*map(calls, range(len(carried)))]
        return Route(visits.work(*layouts), needs, carried, steps)

    return _kept(mask, problem.device, (problem, *layouts, parts.rank), make)


@dataclass(frozen=True)
class Machine:
    """The rates of each rank. The defaults are guesses for a kind of device."""

    flops: float
    """Operations of attention's products in a second."""
    bandwidth: float
    """Bytes that a rank sends in a second, while it receives as many."""
    latency: float
    """Seconds before a message moves."""

    def __post_init__(self) -> None:
        rates, latency = (self.flops, self.bandwidth), self.latency
        if not (all(0 < r < math.inf for r in rates) and 0 <= latency < math.inf):
            raise OptionError(
                "a Machine expects rates above 0 and a latency of 0 or more seconds, "
                f"got {self}"
            )

    @classmethod
    def usual(cls, device: torch.device) -> Machine:
        return cls(5e10, 1e9, 3e-4) if device.type == "cpu" else cls(5e14, 3e11, 3e-5)


BACKWARD = 2.5
"""The products of a backward, in those of a forward."""

TINY = 1e-12
"""Seconds that stand for none, which have no logarithm."""

METHODS = ("all-gather", "ring", "all-to-all")


@dataclass(frozen=True)
class Estimate:
    """The cost of a layout and a method, forward and backward."""

    layout: Layout
    method: str
    seconds: float
    compute: float
    """The seconds of products of the rank that has most, step by step."""
    imbalance: float
    """These seconds, in those of an equal share."""
    memory: int
    """Bytes of other ranks' tokens that a rank holds at a time."""
    regathers: bool = False
    """True if gathered keys are not kept for the backward, but gathered again."""

    @classmethod
    def of(
        cls, method: str, layout: Layout, work: Work, problem: Problem, machine: Machine
    ) -> Estimate:
        n, pairs = layout.size, work.pairs
        second = machine.flops / (2 * sum(problem.dims))  # The pairs in it.

        def moved(size: float, messages: int = 1) -> float:
            return size / machine.bandwidth + messages * machine.latency

        share = sum(map(sum, pairs)) / n / second
        regathers = False
        match method:
            case "all-gather":
                memory = work.gathered * problem.kv_bytes
                compute = max(map(sum, pairs)) / second
                regathers = work.regathers(layout, problem)
                moves = (2 + regathers) * moved(memory, n - 1)
                seconds = (1 + BACKWARD) * compute + moves
            case "all-to-all":
                part = max(layout.lengths)
                memory = part * (problem.q_bytes + problem.kv_bytes)
                compute = share
                seconds = (1 + BACKWARD) * compute + 2 * moved(memory * (n - 1) / n, n)
            case _:
                steps = [
                    max(pairs[rank][(rank - step) % n] for rank in range(n)) / second
                    for step in range(n)
                ]
                carried = [*map(max, zip(*work.carried, strict=True))][1:]
                sizes = [*(problem.kv_bytes * x for x in carried if x), 0]
                memory = 2 * sizes[0]
                wide = 1 + max(4 / problem.dtype.itemsize, 1)
                compute, seconds = sum(steps), 0.0
                for step, size in zip(steps, sizes, strict=False):
                    seconds += max(step, moved(size) if size else 0)
                    back = moved(size * wide, 2) if size else 0
                    seconds += max(BACKWARD * step, back)
                seconds += moved(sizes[-2] * wide, 2) if sizes[0] else 0
        imbalance = compute / share if share else 1.0
        compute *= 1 + BACKWARD
        return cls(layout, method, seconds, compute, imbalance, int(memory), regathers)


def cheapest(parts: Parts, work: Work, problem: Problem, most: float) -> Estimate:
    """Return what the cheapest method costs, of those that hold at most so many bytes
    of gathered keys.
    """
    machine = Machine.usual(problem.device)
    found = [
        Estimate.of(method, parts.keys, work, problem, machine)
        for method in methods(problem, parts.keys.size)
    ]
    fit = [e for e in found if e.method == "ring" or e.memory <= most]
    return min(fit, key=lambda e: e.seconds)


def methods(problem: Problem, ranks: int) -> tuple[str, ...]:
    """Return the methods that a call may have."""
    whole = problem.heads % ranks == problem.kv_heads % ranks == 0
    return METHODS if whole else METHODS[:2]


def layouts_of(visits: Visits, length: int, ranks: int) -> Iterator[Layout]:
    """Yield the layouts that are compared."""
    part, rest = divmod(length, ranks)
    yield Layout.contiguous([part + (rank < rest) for rank in range(ranks)])
    yield Layout.zig_zag(length, ranks)
    for parts in (2, 4, 16):
        if ranks * parts <= length:
            yield balanced(visits, length, ranks, parts)


def balanced(visits: Visits, length: int, ranks: int, parts: int) -> Layout:
    """Give each rank as many parts, so that the pairs of their queries are alike.

    The dearest part goes to the rank with the least so far that has room.
    """
    count = ranks * parts
    ends = [length * i // count for i in range(count + 1)]
    ranges = [range(a, b) for a, b in pairwise(ends)]
    costs = visits.pairs(ranges, [range(length)])[:, 0].tolist()
    owners, room = [0] * count, [parts] * ranks
    free = [(0.0, rank) for rank in range(ranks)]
    for i in sorted(range(count), key=lambda i: -costs[i]):
        so_far, owner = heappop(free)
        owners[i] = owner
        room[owner] -= 1
        if room[owner]:
            heappush(free, (so_far + costs[i], owner))
    return Layout.of_owners(length, owners, ranks, f"balanced, {parts} parts a rank")


@dataclass(frozen=True)
class Plan:
    """The layouts and methods for a mask, and what they cost."""

    title: str
    machine: Machine
    estimates: tuple[Estimate, ...]
    """The cheapest first, by layout and method."""

    @property
    def layout(self) -> Layout:
        return self.estimates[0].layout

    @property
    def method(self) -> str:
        return self.estimates[0].method

    def __str__(self) -> str:
        m = self.machine
        lines = [
            self.title,
            f"each rank: {m.flops / 1e12:g} TFLOP/s, {m.bandwidth / 1e9:g} GB/s each "
            f"way, {m.latency * 1e6:g} us a message",
            "",
            f"{'layout':28}{'method':12}{'ms':>10}{'compute':>10}{'imbalance':>11}"
            f"{'MiB':>8}",
        ]
        lines += [
            f"{e.layout.name:28}{e.method:12}{e.seconds * 1e3:10.3g}"
            f"{e.compute * 1e3:10.3g}{e.imbalance:11.2f}{e.memory / 2**20:8.0f}"
            for e in self.estimates
        ]
        return "\n".join(lines)


def compare(
    mask: Mod | None,
    problem: Problem,
    length: int,
    ranks: int,
    machine: Machine | None = None,
) -> tuple[Estimate, ...]:
    """Return what layouts and methods cost, the cheapest first."""
    rates = machine or Machine.usual(problem.device)

    def make() -> tuple[Estimate, ...]:
        parts = ranks * max(2, min(16, 4 * FINE // ranks))
        ends = [length * i // parts for i in range(parts)]
        visits = find_visits(mask, problem, (length, length), ranks, ends)
        visits = visits.pooled(max(4 * FINE, 2 * ranks))
        found = [
            Estimate.of(method, layout, work, problem, rates)
            for layout in layouts_of(visits, length, ranks)
            for work in [visits.work(layout, layout)]
            for method in methods(problem, ranks)
            if method != "all-to-all" or layout.name == "contiguous"
        ]
        # Of those within a percent or two, the simplest comes first.
        return tuple(
            sorted(found, key=lambda e: round(50 * math.log(e.seconds or TINY)))
        )

    return _kept(mask, problem.device, (problem, length, ranks, rates), make)


def plan(
    mask_mod: Mod | None,
    B: int,
    H: int,
    length: int,
    *,
    ranks: int,
    kv_heads: int | None = None,
    head_dim: int = 128,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    machine: Machine | None = None,
) -> Plan:
    """Compare the layouts and methods for self-attention over several ranks.

    Nothing is computed or sent, and no process group is needed.

    Args:
        mask_mod: `mask_mod(b, h, q_idx, kv_idx)`, or None.
        B: the number of batches.
        H: the number of query heads.
        length: the length of the whole sequence.
        ranks: the number of ranks.
        kv_heads: the number of key heads, H by default.
        head_dim: the head dimension of query, key and value.
        dtype: the dtype of query, key and value, as for `flexc.explain`.
        device: as for `flexc.explain`.
        machine: the rates of a rank; by default guesses for the device.

    Returns:
        A Plan, which prints as a table. Its `layout` and `method` cost least.
    """
    if kv_heads is None:
        kv_heads = H
    for name, size in (
        *(("B", B), ("H", H), ("length", length), ("ranks", ranks)),
        ("kv_heads", kv_heads),
    ):
        if type(size) is not int or size < 1:
            raise OptionError(f"plan expects {name} of 1 or more, got {size!r}")
    if H % kv_heads:
        raise OptionError(f"plan expects kv_heads to divide H = {H}, got {kv_heads}")
    if not isinstance(machine, Machine | None):
        raise OptionError(f"plan expects a Machine, got {machine!r}")
    place, backend = where(None, mask_mod, device)
    dtype = BACKENDS[backend].usual_dtype if dtype is None else dtype
    check_inputs(dtype, head_dim, BACKENDS[backend].device)
    dims = head_dim, head_dim
    problem = Problem(B, H, kv_heads, dims, dtype, place, backend)
    if machine is None:
        machine = Machine.usual(torch.device(device or place))
    name = getattr(mask_mod, "__name__", "no mask" if mask_mod is None else "mask")
    title = (
        f"{name}: {length:,} tokens on {ranks} ranks, B={B}, H={H} of "
        f"{kv_heads}, head dim {head_dim}, {str(dtype).removeprefix('torch.')}"
    )
    return Plan(title, machine, compare(mask_mod, problem, length, ranks, machine))
