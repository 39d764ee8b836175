"""Tapes for caches that grow: calls of few queries share one for many numbers of keys.

Each new token makes a call whose number of keys no call had before. A mask may capture
its position, or a tensor with an element for each key. The steps of such a call follow
from a few decisions: the compiled kernel, its proofs and its splits. Where these are
those of an earlier call, the tape of that call serves, since it reads the number of
keys, captured integers, and the sizes and strides of captured tensors at each replay.

What finds a tape is imported with the first call: a process whose tapes are on the disk
needs none of the modules that trace and lower calls.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from flexc.runtime.autograd.template import INPUTS, without_tensors
from flexc.runtime.inputs.tensor_facts import MOST_QUERIES
from flexc.runtime.process.recent import Recent
from flexc.runtime.replay.equal_facts import facts_without_sizes
from flexc.runtime.tapes.tape import Number, Tape

if TYPE_CHECKING:
    from flexc.runtime.attention.call import Attention
    from flexc.runtime.kernels.driver import CompiledMods, Proved

KEYS = 1, 2
"""The places of key and value among the tensors of a call."""

MOST_CALLS, MOST_TAPES = 256, 64
"""The most `GrowingCalls` that are remembered, and the most tapes of each."""


class GrowingCalls:
    """Calls of one trace that differ in the number of keys, in captured integers, and
    in the sizes of captured tensors.
    """

    def __init__(self, call: Attention):
        """Take a call as its kernel sees it."""
        assert call.traced is not None
        self.traced = call.traced
        gone: Any = None
        # The mods may hold other objects of the caller, and the query much memory.
        self._signature = without_tensors(call.signature)
        query = call.query.new_empty(()).expand(call.query.shape)
        self._blank = replace(call, query=query, key=gone, value=gone)
        self._compiled: dict[Hashable, CompiledMods] = {}
        self._tapes: dict[Hashable, Tape] = {}

    def add(self, tensors: Sequence[Any], compiled: CompiledMods, tape: Tape) -> None:
        """Let a tape serve calls whose decisions are those for these tensors."""
        if len(self._tapes) >= MOST_TAPES:
            self._compiled.clear()
            self._tapes.clear()
        call = self._bind(tensors)
        facts = call.key_facts()
        self._compiled[facts] = compiled
        self._tapes[decisions(call, facts, call.proved_in(compiled))] = tape

    def tape(self, tensors: Sequence[Any]) -> Tape | None:
        """Return the tape with the decisions for these tensors, None without one.

        What may differ from an earlier call is checked as for a call without a tape.
        """
        if not self.traced.guards.hold(tensors[INPUTS:]):
            return None
        call = self._bind(tensors)
        if not call.has_pairs or call.key.size(2) != call.value.size(2):
            return None
        facts = call.key_facts()
        compiled = self._compiled.get(facts)
        if compiled is None:
            return None
        captures = compiled.attention.arguments(call.signature.captures)
        compiled.reads.check(call.pairs, captures)
        proved = compiled.proved(call.sizes, captures)
        if call.plans_blocks(proved.mask):
            return None
        return self._tapes.get(decisions(call, facts, proved))

    def _bind(self, tensors: Sequence[Any]) -> Attention:
        """Return the call with a key, a value and captures."""
        _, key, value, *captures = tensors
        signature = replace(self._signature, captures=tuple(captures))
        return replace(self._blank, key=key, value=value, signature=signature)


def decisions(call: Attention, facts: Hashable, proved: Proved) -> Hashable:
    """Return what the steps of a call depend on, apart from what replays read."""
    from flexc.runtime.attention.run import count_splits

    return facts, proved.proofs, count_splits(call, proved)


def are_same(given: Sequence[Any], seen: Sequence[Any]) -> bool:
    """Return True if the tensors are the same objects, neither cast nor expanded."""
    pairs = zip(given, seen, strict=False)
    tensors = (a is b for a, b in pairs if isinstance(b, Tensor))
    return len(given) == len(seen) and all(tensors)


_known: Recent[GrowingCalls] = Recent(MOST_CALLS)


def kind_of(tensors: Sequence[Any], exact: Any) -> Hashable:
    """Return the key and facts of a call without numbers of keys, sizes of captured
    tensors and captured integers.

    Return None for a call of many queries, or of operands without four dimensions.
    """
    key, facts = exact
    operands = tensors[:INPUTS]
    if any(t.dim() != 4 for t in operands) or operands[0].size(2) > MOST_QUERIES:
        return None
    growing = growing_places(tensors)
    return key, facts_without_sizes(tensors, facts, growing, KEYS)


def growing_places(tensors: Sequence[Any]) -> list[int]:
    """Return the places of key, value and captured tensors, whose sizes may grow."""
    captures = enumerate(tensors[INPUTS:], INPUTS)
    return [*KEYS, *(place for place, c in captures if isinstance(c, Tensor))]


def marked(call: Attention) -> Attention:
    """Return a call whose captured integers are read at each replay of its tape."""
    captures = tuple(
        Number.of(c, INPUTS + i) if type(c) is int else c
        for i, c in enumerate(call.signature.captures)
    )
    return replace(call, signature=replace(call.signature, captures=captures))


def find(kind: Hashable, tensors: Sequence[Any]) -> Tape | None:
    """Return the tape of an earlier call that serves these tensors, else None."""
    tape: Tape | None = None

    def serves(calls: GrowingCalls) -> bool:
        nonlocal tape
        tape = calls.tape(tensors)
        return tape is not None

    _known.find(kind, serves)
    return tape


def remember(
    kind: Hashable, tensors: Sequence[Any], call: Attention, tape: Tape
) -> None:
    """Let the tape of a marked call serve later calls of its kind, if it can."""
    from flexc.runtime.attention.few_rows import few_rows, fold

    _, key, value, *captures = tensors
    rows = few_rows(call)
    same = call.key is key and call.value is value
    same &= are_same(call.signature.captures, captures)
    if not tape.grows or rows is None or not same:
        return
    call, _ = fold(call, rows, ())
    compiled = call.compiled()
    # Numbers that Python computes from captured ones are written into the tape.
    if any(i.number is not None for i in compiled.attention.inputs):
        return
    planned = call.plans_blocks(call.proved_in(compiled).mask)
    if call.tables is None and not planned:
        calls = _known.find(kind, lambda calls: calls.traced is call.traced)
        calls = calls or _known.add(kind, GrowingCalls(call))
        calls.add(tensors, compiled, tape)


def clear() -> None:
    """Forget all calls."""
    _known.clear()
