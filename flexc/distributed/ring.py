"""Attention in a ring: keys and values travel from rank to rank, and so do their
gradients.

Rank r computes with its own part of the keys first, then with that of rank r - 1, and
so on, while the next part is on its way. Results are merged by their log-sum-exp. In
the backward the same parts travel the same way, and the gradient of each part follows
it one step behind, growing at each rank; the last rank sends it back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from flexc.distributed.layouts import Runs, Span, count, places, take, without
from flexc.distributed.plans import Route
from flexc.distributed.shared_memory import exchange
from flexc.errors import GradientError
from flexc.runtime.attention.call import Attention
from flexc.runtime.autograd import derivatives
from flexc.runtime.autograd.functions import resolve_tables
from flexc.runtime.autograd.template import INPUTS, Template, split
from flexc.runtime.inputs.tensor_facts import sum_dtype


@dataclass(frozen=True)
class Ring:
    """The ranks of a group, in their order, and the parts that visit each of them."""

    group: dist.ProcessGroup
    route: Route
    key_positions: int | None = None
    """The index, among captured tensors, of the list of positions of visiting keys.

    None if positions are not listed.
    """

    @property
    def rank(self) -> int:
        return dist.get_rank(self.group)

    @property
    def size(self) -> int:
        return len(self.route.carried)

    def source(self, step: int) -> int:
        """Return the rank whose keys visit this rank at a step."""
        return (self.rank - step) % self.size

    def carried(self, source: int, step: int) -> Runs:
        """Return the keys of a rank that are needed at a step or later."""
        return self.route.carried[source][step] if step < self.size else ()

    def here(self, step: int) -> Runs:
        """Return the keys that are at this rank at a step."""
        return self.carried(self.source(step), step)

    def onward(self, step: int) -> Runs:
        """Return those of them that the next rank gets."""
        return self.carried(self.source(step), step + 1)

    def captured(self, tensors: Sequence[Tensor], keys: Span) -> list[Tensor]:
        """Return the captured tensors for these keys, given those of the own ones."""
        found = list(tensors)
        if self.key_positions is not None:
            assert isinstance(keys.origin, Tensor)
            found[self.key_positions] = keys.origin
        return found

    def exchange(
        self, sent: Sequence[Message], received: Sequence[Message]
    ) -> Callable[[], None]:
        """Start to send keys and values to ranks, and to receive some from ranks.

        Return what waits for them. It holds the tensors that are being sent.
        """
        ops = [
            dist.P2POp(op, tensor, group=self.group, group_peer=peer)
            for op, messages in ((dist.isend, sent), (dist.irecv, received))
            for tensors, peer in messages
            for tensor in tensors
        ]
        with exchange(self.group):
            works = dist.batch_isend_irecv(ops) if ops else []

        def wait() -> None:
            with exchange(self.group):
                for work in works:
                    work.wait()
            ops.clear()

        return wait

    def visits(
        self, own: KeyValue
    ) -> Generator[tuple[int, KeyValue | None], None, None]:
        """Yield each step and its keys and values, the own ones first.

        The keys are None if neither this rank nor a later one needs them. The next ones
        are on their way while the caller computes. If the caller fails and closes this,
        they are waited for: gloo closes the connections of an exchange that is dropped.
        """
        here: KeyValue | None = own
        for step in range(self.size):
            sent, received, following = [], [], None
            if onward := self.onward(step):
                assert here is not None
                part = here.take(self.here(step), onward)
                sent = [(part, (self.rank + 1) % self.size)]
            if coming := self.here(step + 1):
                following = own.empty(count(coming))
                received = [(following, (self.rank - 1) % self.size)]
            wait = self.exchange(sent, received)
            try:
                yield step, here
            finally:
                wait()
            here = following


class KeyValue(NamedTuple):
    """Keys and values of some tokens, or gradients of them, to be sent."""

    key: Tensor
    value: Tensor

    @classmethod
    def of(cls, key: Tensor, value: Tensor) -> KeyValue:
        return cls(key.contiguous(), value.contiguous())

    def empty(self, length: int, dtype: torch.dtype | None = None) -> KeyValue:
        """Return uninitialised keys and values of another length."""
        shapes = [(*t.shape[:2], length, t.size(3)) for t in self]
        return KeyValue(*(self.key.new_empty(s, dtype=dtype) for s in shapes))

    def take(self, runs: Runs, some: Runs) -> KeyValue:
        """Return some of the tokens of runs, given all in order."""
        return KeyValue.of(*(take(t, runs, some) for t in self))

    def put(self, runs: Runs, part: KeyValue, some: Runs) -> None:
        """Write some of the tokens of runs."""
        for whole, given in zip(self, part, strict=True):
            pieces = given.split([*map(len, some)], 2)
            for place, piece in zip(places(runs, some), pieces, strict=True):
                whole[:, :, place.start : place.stop] = piece


Message = tuple[KeyValue, int]
"""The keys and values that are sent or received, and the other rank."""


class KeyGradients:
    """The gradients of keys and values, on their way around the ring and back."""

    def __init__(self, ring: Ring, own: KeyValue, dtype: torch.dtype):
        self.ring, self.own, self.dtype = ring, own, dtype
        self._of_own: list[tuple[Runs, KeyValue]] = []
        """Gradients of parts of the rank's own keys, complete after all steps."""
        self._arriving: KeyValue | None = None
        self._wait = ring.exchange([], [])

    def step(
        self, step: int, here: KeyValue | None, found: Sequence[tuple[Span, KeyValue]]
    ) -> None:
        """Add gradients that this rank found of the keys that are here to those of the
        ranks before. Send the sums of keys that go on after them, and the others back.
        """
        ring, source = self.ring, self.ring.source(step)
        self._wait()
        sent, received = [], []
        arrived, self._arriving = self._arriving, None
        if here is not None:
            total, runs = self._add(here, arrived, found), ring.here(step)
            if onward := ring.onward(step):
                sent.append((total.take(runs, onward), (ring.rank + 1) % ring.size))
            if back := without(runs, onward):
                part = total.take(runs, back)
                if step:
                    sent.append((part, source))
                else:
                    self._of_own.append((back, part))
        if coming := ring.here(step + 1):
            self._arriving = self.own.empty(count(coming), self.dtype)
            received.append((self._arriving, (ring.rank - 1) % ring.size))
        back = without(ring.carried(ring.rank, step), ring.carried(ring.rank, step + 1))
        if step and back:
            part = self.own.empty(count(back), self.dtype)
            self._of_own.append((back, part))
            received.append((part, (ring.rank + step) % ring.size))
        self._wait = ring.exchange(sent, received)

    def _add(
        self,
        here: KeyValue,
        arrived: KeyValue | None,
        found: Sequence[tuple[Span, KeyValue]],
    ) -> KeyValue:
        length = here.key.size(2)
        if arrived is None and [len(keys.here) for keys, _ in found] == [length]:
            return KeyValue.of(*(t.to(self.dtype) for t in found[0][1]))
        total = arrived or KeyValue(
            *(t.zero_() for t in here.empty(length, self.dtype))
        )
        for keys, gradients in found:
            for t, gradient in zip(total, gradients, strict=True):
                keys.of(t).add_(gradient)
        return total

    def wait(self) -> KeyValue:
        """Return the gradients of the rank's own keys and values."""
        self._wait()
        runs = self.ring.here(0)
        if [back for back, _ in self._of_own] == [runs]:
            return self._of_own[0][1]
        total = self.own.empty(count(runs), self.dtype)
        for back, part in self._of_own:
            total.put(runs, part, back)
        return total


class Merged:
    """The results of the same queries with several parts of the keys, merged.

    Outputs are added in float32. The log-sum-exps of rows are few, and in float64, so
    that the rest that float32 loses is kept.
    """

    def __init__(self, query: Tensor, value_dim: int):
        rows = query.shape[:3]
        self.dtype = sum_dtype(query.dtype)
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
        merged.mul_(old).addcmul_(new, out.to(self.dtype))
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
class RingVisit:
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
        visits: list[list[RingVisit]] = []
        tables: list[Tensor] = []
        has_rest = False
        with closing(ring.visits(KeyValue.of(key, value))) as steps:
            for step, here in steps:
                visits.append([])
                for queries, keys in ring.route.calls[step]:
                    assert here is not None
                    call = prepare(queries, keys, query, here.key, here.value)
                    template, given = split(resolve_tables(call))
                    tables += given[INPUTS + len(captured) :]
                    has_rest = template.lse_rest
                    out, lse, _ = template.run(given)
                    assert lse is not None
                    merged.add(queries, out, lse, has_rest)
                    visits[step].append(RingVisit(queries, keys, template))
        out, lse = merged.out.to(query.dtype), merged.lse(has_rest)
        ctx.ring, ctx.visits, ctx.has_rest = ring, visits, has_rest
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, *tables, out, lse)
        return out, lse.select(1, 0).clone() if has_rest else lse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        if torch.is_grad_enabled():
            raise GradientError(
                'context_parallel_attention(method="ring") has first derivatives only; '
                'method="all-gather" has second ones too'
            )
        return None, None, *RingBackward(ctx, *grads).run()


class RingBackward:
    """The gradients of the tensors of a `RingAttention`, given those of its results."""

    def __init__(self, ctx: Any, d_out: Tensor | None, d_lse: Tensor | None):
        self.ring, self.visits = ctx.ring, ctx.visits
        self.needs = ctx.needs_input_grad[2:]
        count = len(self.needs)
        saved = ctx.saved_tensors  # A checkpoint gives them once.
        self.tensors = saved[:count]
        *self.tables, self.out, self.lse = saved[count:]
        if d_lse is not None and ctx.has_rest:
            d_lse = torch.stack([d_lse, torch.zeros_like(d_lse)], 1)
        self.d_out, self.d_lse = d_out, d_lse
        self.dtype = sum_dtype(self.tensors[0].dtype)
        self.sums: list[Tensor | None] = [None] * count

    def run(self) -> list[Tensor | None]:
        own = KeyValue.of(*self.tensors[1:INPUTS])
        travels = self.needs[1] or self.needs[2]
        gradients = KeyGradients(self.ring, own, self.dtype)
        with closing(self.ring.visits(own)) as steps:
            for step, here in steps:
                visits = self.visits[step]
                found = [(v.keys, self.visit(v, here, travels)) for v in visits]
                if travels:
                    gradients.step(step, here, found)
                del found, here
        if travels:
            self.sums[1:INPUTS] = gradients.wait()
        return [
            None if not need else torch.zeros_like(t) if s is None else s.to(t.dtype)
            for s, t, need in zip(self.sums, self.tensors, self.needs, strict=True)
        ]

    def visit(self, visit: RingVisit, here: KeyValue, travels: bool) -> KeyValue:
        """Return the gradients of visiting keys, and add up those of other tensors."""
        queries, keys, template = visit.queries, visit.keys, visit.template
        query, _, _, *captured = self.tensors
        given = [queries.of(query), *map(keys.of, here)]
        given += self.ring.captured(captured, keys)
        given += [self.tables.pop(0) for _ in range(template.tables)]
        need_query, _, _, *need_captured = self.needs
        needs = (need_query, travels, travels, *need_captured)
        wanted = template.wanted(needs + (False,) * template.tables)
        along = (
            None if self.d_out is None else queries.of(self.d_out),
            None if self.d_lse is None else queries.of(self.d_lse, -1),
        )
        of_rows = queries.of(self.out), queries.of(self.lse, -1)
        found: Any = template.spread(
            derivatives.backward(template.bind(given), *of_rows, along, wanted), None
        )
        for i in (0, *range(INPUTS, len(self.tensors))):
            if found[i] is not None:
                self._add(i, queries if i == 0 else None, found[i])
        return KeyValue(found[1], found[2])

    def _add(self, i: int, queries: Span | None, gradient: Tensor) -> None:
        """Add the gradient of a tensor, or of some of the queries, to its sum."""
        total, tensor = self.sums[i], self.tensors[i]
        if total is None and gradient.shape == tensor.shape:
            self.sums[i] = gradient.to(self.dtype).contiguous()
            return
        if total is None:
            total = self.sums[i] = torch.zeros_like(tensor, dtype=self.dtype)
        part = total if queries is None else queries.of(total)
        part += gradient
