"""Plans of a mask: the pairs that each rank computes, and the way of keys in a ring."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from flexc.distributed.layouts import Layout, Span
from flexc.distributed.ranks import Parts
from flexc.frontend.closures import Mod
from flexc.runtime.attention.call import Attention, read_signature
from flexc.runtime.explain import stand_ins
from flexc.runtime.explain.blocks import DEAD, find_blocks
from flexc.runtime.explain.subject import Subject
from flexc.runtime.inputs.notes import Capture, are_still
from flexc.runtime.interface import OUTPUTS
from flexc.runtime.process.recent import Recent


@dataclass(frozen=True, eq=False)
class Visits:
    """The pairs of a mask that kernels compute, block by block."""

    lanes: Tensor
    """The number of batches and heads in which each block of pairs is live, float64."""
    size: tuple[int, int]
    """The rows and columns of a block."""

    def pairs(self, queries: Sequence[range], keys: Sequence[range]) -> Tensor:
        """Return the pairs that are computed for ranges of queries and of keys."""
        rows, columns = (
            _overlaps(ranges, size, count)
            for ranges, size, count in zip(
                (queries, keys), self.size, self.lanes.shape, strict=True
            )
        )
        return rows @ self.lanes @ columns.T

    def between(self, queries: Layout, keys: Layout) -> Tensor:
        """Return the pairs for each rank's queries and each rank's keys."""
        rows, columns = _owners(queries), _owners(keys)
        pairs = self.pairs(queries.runs, keys.runs)
        return rows @ pairs @ columns.T


def _overlaps(ranges: Sequence[range], size: int, count: int) -> Tensor:
    """Return how many positions of each range are in each block."""
    starts, stops = (
        torch.tensor(ends, dtype=torch.float64)[:, None]
        for ends in ([r.start for r in ranges], [r.stop for r in ranges])
    )
    begin = torch.arange(count, dtype=torch.float64) * size
    return (stops.minimum(begin + size) - starts.maximum(begin)).clamp(min=0)


def _owners(layout: Layout) -> Tensor:
    """Return 1 for each rank's own runs, among the runs of all ranks."""
    counts = [len(runs) for runs in layout.ranks]
    return torch.block_diag(*(torch.ones(1, n, dtype=torch.float64) for n in counts))


def block_length(length: int, ends: Iterable[int]) -> int:
    """Return a length of blocks, of which whole ones fit between the given ends if
    that takes few of them.
    """
    size = math.gcd(length, *ends) or 1
    while size % 2 == 0 and length // size < FINE:
        size //= 2
    return size if length // size <= 4 * FINE else -(-length // (2 * FINE))


FINE = 128
"""A number of blocks of a sequence that tells costs of ranks to a percent or so."""


def find_visits(
    mask: Mod | None, call: Attention, lengths: tuple[int, int], ends: Iterable[int]
) -> Visits:
    """Return what kernels compute of a mask over the whole sequence.

    They are found from bounds of the mask, or from blocks planned for it, of whose
    lengths whole ones fit between the given ends.
    """
    batch, heads, _, dim = call.query.shape
    if mask is None or 0 in lengths:
        lanes = torch.full((1, 1), float(batch * heads), dtype=torch.float64)
        return Visits(lanes, (max(lengths[0], 1), max(lengths[1], 1)))
    query, ends = call.query, list(ends)
    with torch.no_grad():
        whole = Attention(
            *stand_ins(
                (batch, heads, *lengths),
                (dim, call.value.size(3)),
                query.dtype,
                query.device,
            ),
            scale=1.0,
            tables=None,
            signature=read_signature(None, mask, query.device),
            outputs=OUTPUTS[False, False],
            backend=call.backend,
        )
        size = block_length(lengths[0], ends), block_length(lengths[1], ends)
        blocks = find_blocks(Subject.of(whole), size)
    lanes = (blocks.classes != DEAD).sum((0, 1), dtype=torch.float64)
    return Visits(lanes, blocks.size)


@dataclass(frozen=True, eq=False)
class Route:
    """The way of keys in a ring, and the calls that a rank makes with them."""

    live: Sequence[Sequence[bool]]
    """By the rank of queries and the rank of keys: False if no pair of them is live."""
    calls: Sequence[Sequence[tuple[Span, Span]]]
    """By step: the queries and keys of each call."""


_known: Recent[tuple[tuple[Capture, ...], Route]] = Recent(16)
"""By a mask's key and layouts: captures, and the route for them."""


def find_route(parts: Parts, mask: Mod | None, own: Attention) -> Route:
    """Return the route of a rank. All ranks find the same of what is live."""
    device, (batch, heads, *_) = own.query.device, own.query.shape
    signature = read_signature(None, mask, device)
    captures = signature.captures
    layouts = parts.queries, parts.keys
    key = (signature.key, batch, heads, *layouts, parts.rank, device)
    if signature.cacheable:
        kept = _known.find(key, lambda found: are_still(found[0], captures))
        if kept is not None:
            return kept[1]
    ends = [end for x in layouts for run in x.runs for end in (run.start, run.stop)]
    lengths = parts.queries.length, parts.keys.length
    visits = find_visits(mask, own, lengths, ends)

    def calls(source: int) -> list[tuple[Span, Span]]:
        queries = parts.queries.spans(parts.rank, "queries", device)
        keys = parts.keys.spans(source, "keys", device)
        pairs = product(queries, keys)
        return [(q, k) for q, k in pairs if visits.pairs(q.runs, k.runs).any()]

    sources = [(parts.rank - step) % parts.keys.size for step in range(parts.keys.size)]
    live = (visits.between(*layouts) > 0).tolist()
    found = Route(live, [*map(calls, sources)])
    if signature.cacheable:
        _known.add(key, (tuple(map(Capture.of, captures)), found))
    return found
