"""Attention in a ring: keys and values travel from rank to rank, and so do their
gradients.

Rank r computes with its own part of the keys first, then with that of rank r - 1, and
so on, while the next part is on its way. Results are merged by their log-sum-exp. In
the backward the same parts travel the same way, and the gradient of each part follows
it one step behind, growing at each rank; the last rank sends it home.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from flexc.distributed.layouts import Span
from flexc.distributed.plans import Route
from flexc.distributed.ranks import exchange
from flexc.errors import GradientError
from flexc.runtime.attention.call import Attention
from flexc.runtime.autograd import derivatives
from flexc.runtime.autograd.functions import settle
from flexc.runtime.autograd.template import INPUTS, Template, split


@dataclass(frozen=True)
class Ring:
    """The ranks of a group, in their order, and the parts that visit each of them."""

    group: dist.ProcessGroup
    lengths: tuple[int, ...]
    """The number of keys of each rank."""
    route: Route
    moving: int | None = None
    """The place of the listed positions of visiting keys among captured tensors."""

    @property
    def rank(self) -> int:
        return dist.get_rank(self.group)

    @property
    def size(self) -> int:
        return len(self.lengths)

    def source(self, step: int) -> int:
        """Return the rank whose keys visit this rank at a step."""
        return (self.rank - step) % self.size

    def visits_here(self, step: int) -> bool:
        """Return True if keys are at this rank at a step, to be used or sent on."""
        return step < self.size and step <= self.last(self.source(step))

    def last(self, source: int) -> int:
        """Return the last step at which a rank needs the keys of another rank."""
        steps, pairs = range(self.size), self.route.pairs
        needed = [s for s in steps if pairs[(source + s) % self.size][source]]
        return max(needed, default=0)

    def captured(self, tensors: Sequence[Tensor], keys: Span) -> list[Tensor]:
        """Return the captured tensors for these keys, given those of the own ones."""
        found = list(tensors)
        if self.moving is not None:
            assert isinstance(keys.origin, Tensor)
            found[self.moving] = keys.origin
        return found

    def exchange(
        self, sent: Sequence[tuple[Tensor, int]], received: Sequence[tuple[Tensor, int]]
    ) -> list[dist.Work]:
        """Start to send tensors to ranks, and to receive tensors from ranks."""
        ops = [
            dist.P2POp(op, tensor, group=self.group, group_peer=peer)
            for op, pairs in ((dist.isend, sent), (dist.irecv, received))
            for tensor, peer in pairs
        ]
        with exchange(self.group):
            return dist.batch_isend_irecv(ops) if ops else []

    def wait(self, works: Sequence[dist.Work]) -> None:
        with exchange(self.group):
            for work in works:
                work.wait()

    def visits(self, own: Packed) -> Iterator[tuple[int, Packed | None]]:
        """Yield each step and its keys and values, the own ones first.

        The keys are None if neither this rank nor a later one needs them. The next ones
        are on their way while the caller computes.
        """
        here: Packed | None = own
        for step in range(self.size):
            sent, received, following = [], [], None
            if here is not None and self.last(self.source(step)) > step:
                sent = [(here.flat, (self.rank + 1) % self.size)]
            if self.visits_here(step + 1):
                following = own.of_length(self.lengths[self.source(step + 1)])
                received = [(following.flat, (self.rank - 1) % self.size)]
            works = self.exchange(sent, received)
            yield step, here
            self.wait(works)
            here = following


class Packed:
    """Keys and values in one tensor, which is sent as one message."""

    def __init__(self, flat: Tensor, key: torch.Size, value: torch.Size):
        self.flat = flat
        sizes = [math.prod(key), math.prod(value)]
        first, second = flat.split(sizes)
        self.key, self.value = first.view(key), second.view(value)

    @classmethod
    def of(cls, key: Tensor, value: Tensor) -> Packed:
        flat = torch.cat([key.reshape(-1), value.reshape(-1)])
        return cls(flat, key.shape, value.shape)

    def of_length(self, length: int, dtype: torch.dtype | None = None) -> Packed:
        """Return uninitialised keys and values of another length."""
        shapes = [
            torch.Size((*t.shape[:2], length, t.size(3)))
            for t in (self.key, self.value)
        ]
        count = sum(map(math.prod, shapes))
        flat = self.flat.new_empty(count, dtype=dtype or self.flat.dtype)
        return Packed(flat, *shapes)


Found = tuple[Span, Tensor, Tensor]
"""Some keys, and gradients of them and of their values."""


class Homecoming:
    """The gradients of keys and values on their way around the ring and home."""

    def __init__(self, ring: Ring, own: Packed, dtype: torch.dtype):
        self.ring, self.own, self.dtype = ring, own, dtype
        self.home: Packed | None = None
        """The gradients of the rank's own keys, complete when all steps are done."""
        self._arriving: Packed | None = None
        self._works: list[dist.Work] = []

    def step(self, step: int, here: Packed | None, found: Sequence[Found]) -> None:
        """Add what was found at this rank to the gradients of the keys that are here,
        and send the sum on, or home after the last step.
        """
        ring, source = self.ring, self.ring.source(step)
        ring.wait(self._works)
        sent, received = [], []
        arrived, self._arriving = self._arriving, None
        if here is not None:
            total = arrived
            if total is None:
                total = here.of_length(here.key.size(2), self.dtype)
                total.flat.zero_()
            for keys, d_key, d_value in found:
                keys.of(total.key).add_(d_key)
                keys.of(total.value).add_(d_value)
            if ring.last(source) > step:
                sent.append((total.flat, (ring.rank + 1) % ring.size))
            elif step:
                sent.append((total.flat, source))
            else:
                self.home = total
        if ring.visits_here(step + 1):
            length = ring.lengths[ring.source(step + 1)]
            self._arriving = self.own.of_length(length, self.dtype)
            received.append((self._arriving.flat, (ring.rank - 1) % ring.size))
        if step and ring.last(ring.rank) == step:
            self.home = self.own.of_length(ring.lengths[ring.rank], self.dtype)
            received.append((self.home.flat, (ring.rank + step) % ring.size))
        self._works = ring.exchange(sent, received)

    def wait(self) -> Packed:
        self.ring.wait(self._works)
        assert self.home is not None
        return self.home


class Merged:
    """The results of the same queries with several parts of the keys, merged.

    Outputs are added in float32. The log-sum-exps of rows are few, and in float64, so
    that the rest that float32 loses is kept.
    """

    def __init__(self, query: Tensor, value_dim: int):
        rows = query.shape[:3]
        self.dtype = torch.promote_types(query.dtype, torch.float32)
        self.out = query.new_zeros((*rows, value_dim), dtype=self.dtype)
        self.log_sum = query.new_full(rows, -math.inf, dtype=torch.float64)

    def add(self, queries: Span, out: Tensor, lse: Tensor, has_rest: bool) -> None:
        merged, log_sum = queries.of(self.out), queries.of(self.log_sum)
        here = lse.double().sum(1) if has_rest else lse.double()
        total = torch.logaddexp(log_sum, here)
        finite = total.masked_fill(total == -math.inf, 0.0)
        old, new = (
            (part - finite).exp().to(self.dtype)[..., None] for part in (log_sum, here)
        )
        merged.mul_(old).add_(new * out)
        log_sum.copy_(total)

    def lse(self, has_rest: bool) -> Tensor:
        """Return the log-sum-exp, with the rest lost to rounding if asked for."""
        lse = self.log_sum.to(self.dtype)
        if not has_rest:
            return lse
        rest = (self.log_sum - lse.double()).to(self.dtype)
        return torch.stack([lse, rest.masked_fill(lse.isinf(), 0.0)], 1)


Prepare = Callable[[Span, Span, Tensor, Tensor, Tensor], Attention]
"""A function from queries, keys and the tensors that they are in to their call."""


@dataclass(frozen=True)
class Visit:
    """A call of some of the rank's queries with some visiting keys."""

    queries: Span
    keys: Span
    template: Template


class RingAttention(torch.autograd.Function):
    """The Function from (ring, prepare, query, key, value, *captured) to out and lse.

    The captured tensors are those of the mods, in the order of a template's tensors.
    """

    @staticmethod
    def forward(
        ctx: Any, ring: Ring, prepare: Prepare, *tensors: Tensor
    ) -> tuple[Tensor, Tensor]:
        query, key, value, *captured = tensors
        merged = Merged(query, value.size(3))
        visits: list[list[Visit]] = []
        tables: list[Tensor] = []
        has_rest = False
        for step, here in ring.visits(Packed.of(key, value)):
            visits.append([])
            for queries, keys in ring.route.calls[step]:
                assert here is not None
                call = prepare(queries, keys, query, here.key, here.value)
                template, given = split(settle(call))
                tables += given[INPUTS + len(captured) :]
                has_rest = template.lse_rest
                out, lse, _ = template.run(given)
                assert lse is not None
                merged.add(queries, out, lse, has_rest)
                visits[step].append(Visit(queries, keys, template))
        out, lse = merged.out.to(query.dtype), merged.lse(has_rest)
        ctx.ring, ctx.visits, ctx.has_rest = ring, visits, has_rest
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, *tables, out, lse)
        return out, lse.select(1, 0).clone() if has_rest else lse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        d_out, d_lse = grads
        if torch.is_grad_enabled():
            raise GradientError(
                'context_parallel_attention(method="ring") has first derivatives only; '
                'method="all-gather" has second ones too'
            )
        needs = ctx.needs_input_grad[2:]
        saved: Sequence[Tensor] = ctx.saved_tensors
        tensors, (*tables, out, lse) = saved[: len(needs)], saved[len(needs) :]
        if d_lse is not None and ctx.has_rest:
            d_lse = torch.stack([d_lse, torch.zeros_like(d_lse)], 1)
        query, key, value, *captured = tensors
        wide = torch.promote_types(query.dtype, torch.float32)
        totals = [
            torch.zeros_like(t, dtype=wide) if need and t.is_floating_point() else None
            for t, need in zip(tensors, needs, strict=True)
        ]
        ring: Ring = ctx.ring
        own = Packed.of(key, value)
        travels = needs[1] or needs[2]
        homecoming = Homecoming(ring, own, wide)

        def run(visit: Visit, here: Packed) -> Found:
            """Add to the totals, and return the gradients of visiting keys."""
            queries, keys, template = visit.queries, visit.keys, visit.template
            inputs = [queries.of(query), keys.of(here.key), keys.of(here.value)]
            given = [*inputs, *ring.captured(captured, keys)]
            given += [tables.pop(0) for _ in range(template.tables)]
            wanted = template.wanted(
                (needs[0], travels, travels, *needs[INPUTS:])
                + (False,) * template.tables
            )
            along = (
                None if d_out is None else queries.of(d_out),
                None if d_lse is None else queries.of(d_lse, -1),
            )
            call, of_rows = template.bind(given), (queries.of(out), queries.of(lse, -1))
            gradients = derivatives.backward(call, *of_rows, along, wanted)
            found: Any = template.spread(gradients, None)
            for i, total in enumerate(totals):
                if total is not None and i not in (1, 2) and found[i] is not None:
                    total = queries.of(total) if i == 0 else total
                    total += found[i]
            return keys, found[1], found[2]

        for step, here in ring.visits(own):
            found = [run(visit, here) for visit in ctx.visits[step] if here is not None]
            if travels:
                homecoming.step(step, here, found)
        if travels:
            home = homecoming.wait()
            totals[1:INPUTS] = [home.key, home.value]
        return (
            None,
            None,
            *(
                None if total is None else total.to(t.dtype)
                for total, t in zip(totals, tensors, strict=True)
            ),
        )
