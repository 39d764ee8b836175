"""Tapes for caches that grow: calls of few queries share one for many numbers of keys.

Each new token makes a call whose number of keys no call had before. The steps of such
a call follow from a few decisions: the compiled kernel, its proofs and its splits.
Where these are those of an earlier call, the tape of that call serves, since it reads
the number of keys and their strides at each replay.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from flexc.runtime.autograd.template import without_tensors
from flexc.runtime.process.recent import Recent
from flexc.runtime.replay.equal_facts import without_rows
from flexc.runtime.tapes.tape import Tape

if TYPE_CHECKING:
    from flexc.runtime.attention.call import Attention, KeyFacts
    from flexc.runtime.kernels.driver import Compiled

KEY, VALUE = PLACES = 1, 2
"""The places of key and value among the tensors of a call."""

MOST_KINDS, MOST_TAPES = 256, 64
"""The most kinds of calls that are remembered, and tapes of a kind."""


class GrowingCalls:
    """Calls that differ in the number of keys, and the tapes that serve them."""

    def __init__(self, call: Attention):
        """Take a call as its kernel sees it."""
        gone: Any = None
        query = torch.empty_strided(
            call.query.shape,
            call.query.stride(),
            dtype=call.query.dtype,
            device=call.query.device,
        )
        signature = without_tensors(call.signature)
        self._blank = replace(
            call, query=query, key=gone, value=gone, signature=signature
        )
        self._compiled: dict[KeyFacts, Compiled] = {}
        self._tapes: dict[Hashable, Tape] = {}

    def add(self, key: Tensor, value: Tensor, compiled: Compiled, tape: Tape) -> None:
        """Let a tape serve calls whose decisions are those for this key and value."""
        if len(self._tapes) >= MOST_TAPES:
            self._compiled.clear()
            self._tapes.clear()
        call = replace(self._blank, key=key, value=value)
        facts = call.key_facts()
        if call.compiled() is compiled:
            self._compiled[facts] = compiled
            self._tapes[self._decisions(call, facts, compiled)] = tape

    def tape(self, key: Tensor, value: Tensor) -> Tape | None:
        """Return the tape with the decisions for a key and a value, else None."""
        call = replace(self._blank, key=key, value=value)
        facts = call.key_facts()
        compiled = self._compiled.get(facts)
        if compiled is None:
            return None
        return self._tapes.get(self._decisions(call, facts, compiled))

    def _decisions(
        self, call: Attention, facts: KeyFacts, compiled: Compiled
    ) -> Hashable:
        """Return what the steps of a call depend on, apart from sizes and strides."""
        from flexc.runtime.attention.run import count_splits

        captures = compiled.attention.arguments(call.signature.captures)
        proofs = compiled.proofs(call.query, call.key, captures)
        return facts, proofs, count_splits(call, compiled, proofs)


_known: Recent[GrowingCalls] = Recent(MOST_KINDS)


def kind_of(tensors: Sequence[Any], exact: Any) -> Hashable:
    """Return the key and facts of a call without its number of keys.

    Return None if calls with other numbers of keys may need other steps for a reason
    besides their decisions: if keys are in other tensors too, or a mod reads tensors.
    """
    key, facts = exact
    others = [t for t in tensors[VALUE + 1 :] if isinstance(t, Tensor)]
    if others or any(t.dim() != 4 for t in tensors[: VALUE + 1]):
        return None
    return key, without_rows(facts, PLACES)


def find(kind: Hashable, tensors: Sequence[Any]) -> Tape | None:
    """Return the tape of an earlier call that serves these tensors, else None."""
    calls = _known.find(kind)
    return calls and calls.tape(tensors[KEY], tensors[VALUE])


def remember(
    kind: Hashable, tensors: Sequence[Any], call: Attention, tape: Tape
) -> None:
    """Let the tape of a call serve later calls of its kind, if it can."""
    from flexc.runtime.attention.few_rows import few_rows, fold

    _, key, value, *_ = tensors
    rows = few_rows(call)
    if not tape.grows or rows is None or call.key is not key or call.value is not value:
        return
    call, _ = fold(call, rows, ())
    compiled = call.compiled()
    if has_tables(call, compiled):
        return
    calls = _known.get(kind, lambda: GrowingCalls(call))
    calls.add(key, value, compiled, tape)


def has_tables(call: Attention, compiled: Compiled) -> bool:
    """Return True if calls of this kind may read tables, with some number of keys."""
    if call.tables is not None:
        return True
    if call.signature.mods == (None, None):
        return False
    captures = compiled.attention.arguments(call.signature.captures)
    mask = compiled.mask(compiled.proofs(call.query, call.key, captures))
    return not mask.has_bounds


def clear() -> None:
    """Forget all calls."""
    _known.clear()
