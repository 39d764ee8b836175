"""What is proved of one call before its kernel is chosen.

A proof depends on lengths and captured numbers, a kernel does not: it is keyed
on what was proved. So the same code has at most one kernel for each outcome.

Proofs are tried for all calls of about a size first: a decoding loop has new lengths
at every step, and few of these need a proof of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import Region

from flexc.dialects import flex
from flexc.passes.analysis.ranges.capture_bounds import captures_inside
from flexc.passes.analysis.ranges.exact_ranges import Known
from flexc.passes.analysis.ranges.index_width import indices_fit
from flexc.passes.analysis.ranges.intervals import Interval
from flexc.passes.flex_widen_indices import would_widen

MAX_KNOWN = 4096
"""Outcomes remembered."""


@dataclass(frozen=True)
class Proofs:
    """What was proved of a call: facts of `flex.attention`, by their names."""

    captures_inside: bool = False
    indices_fit: bool = False

    def stated_in(self, module: ModuleOp) -> ModuleOp:
        """The module, or a copy whose attention op says what was proved."""
        proved = [name for name, holds in asdict(self).items() if holds]
        if proved:
            module = module.clone()
            attention_of(module).properties |= dict.fromkeys(proved, UnitAttr())
        return module


@dataclass(frozen=True)
class Proof:
    """How a fact is proved, and for which modules it is worth a kernel."""

    holds: Callable[[Region, Sequence[Interval], Sequence[Known]], bool]
    helps: Callable[[flex.AttentionOp, str], bool]


def _has_guards_that_cost(op: flex.AttentionOp, backend: str) -> bool:
    """Guards cost a GPU a quarter of its speed, a CPU next to nothing."""
    loads = (o for o in op.walk() if isinstance(o, flex.LoadCaptureOp))
    return backend == "triton" and any(loads)


def _has_wide_indices(op: flex.AttentionOp, backend: str) -> bool:
    return would_widen(op)


PROOFS = {
    "captures_inside": Proof(captures_inside, _has_guards_that_cost),
    "indices_fit": Proof(indices_fit, _has_wide_indices),
}


class Prover:
    """Proves, and remembers, what helps a module's kernels."""

    def __init__(self, module: ModuleOp, backend: str):
        self.attention = attention_of(module)
        self.proofs = {
            name: proof
            for name, proof in PROOFS.items()
            if proof.helps(self.attention, backend)
        }
        self.most = Proofs(**dict.fromkeys(self.proofs, True))
        self.known: dict[Any, Proofs] = {}

    def __call__(self, query: Tensor, key: Tensor, captures: Sequence[Any]) -> Proofs:
        """For a call's query and key, and its capture arguments in order."""
        return self.of_sizes((*query.shape[:3], key.size(2)), captures)

    def of_sizes(self, sizes: Sequence[int], captures: Sequence[Any]) -> Proofs:
        """For (batch, heads, q_len, kv_len) and capture arguments in order."""
        if not self.proofs:
            return Proofs()
        facts = [_describe(c) for c in captures]
        proofs = self.remembered(map(_at_most, sizes), map(_about, facts))
        return proofs if proofs == self.most else self.remembered(sizes, facts)

    def remembered(self, sizes: Iterable[int], facts: Iterable[Known]) -> Proofs:
        """The outcome for calls of at most these sizes, with such captures."""
        sizes, facts = what = (tuple(sizes), tuple(facts))
        if what not in self.known:
            if len(self.known) >= MAX_KNOWN:
                self.known.clear()
            self.known[what] = self.prove(sizes, facts)
        return self.known[what]

    def prove(self, sizes: Sequence[int], facts: Sequence[Known]) -> Proofs:
        """Run the proofs for at most (batch, heads, q_len, kv_len) and captures."""
        positions = [Interval(0, n - 1) for n in sizes]
        regions = (self.attention.score_mod, self.attention.mask_mod)
        outcomes = {
            name: all(proof.holds(region, positions, facts) for region in regions)
            for name, proof in self.proofs.items()
        }
        return Proofs(**outcomes)


def attention_of(module: ModuleOp) -> flex.AttentionOp:
    """The attention op of a `flex` module."""
    return next(op for op in module.walk() if isinstance(op, flex.AttentionOp))


def _at_most(size: int) -> int:
    """The next power of two."""
    return 1 << max(size - 1, 0).bit_length()


def _about(fact: Known) -> Known:
    """The integers of as many bits; a tensor's shape, which loads depend on, itself."""
    if not isinstance(fact, int):
        return fact
    most = (1 << abs(fact).bit_length()) - 1
    least = (most + 1) // 2
    return Interval(least, most) if fact >= 0 else Interval(-most, -least)


def _describe(capture: Any) -> Known:
    if isinstance(capture, Tensor):
        return tuple(capture.shape)
    return capture if isinstance(capture, int) else None
