"""Find the ranges of keys that a block of rows may attend to, with computed ends.

Each alternative of a mask's formula is projected onto the keys: the result is the range
of kv_idx that some row of the block allows. The same is done for the formula's
negation. A key outside of all ranges of the mask is dead for the whole block. A key
outside of all ranges of the negation is live for the whole block. The ends are terms at
the block's first and last row, so they are valid for blocks of any position and size.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from flexc.dialects.flex import KeyRangesAttr, RemainderAttr
from flexc.passes.masks.bounds.facts import MOST, Facts, magnitude
from flexc.passes.masks.bounds.key_bounds import Solver
from flexc.passes.masks.bounds.terms import (
    Atom,
    Condition,
    KeyBound,
    RowBound,
    Symbol,
    Term,
    Unsolved,
    direction,
    slope,
    symbols,
)
from flexc.passes.scalar import Proof, Proven, WhyNot
from flexc.passes.scalar.formula import Leaf, mask_formula

MAX_ALTERNATIVES = 16
MAX_MIDDLES = 2
"""The maximum number of ranges with two computed ends, which the kernel sorts."""


@dataclass(frozen=True)
class End:
    """A term, taken at the first or last row of those that satisfy the row bounds."""

    term: Term
    at_last: bool


@dataclass(frozen=True)
class KeyRange:
    """The keys from the greatest of `lows` to the least of `highs`, both included.

    Without lows, the range begins at the first key. Without highs, it ends at the last
    key. The range is empty in three cases: a condition is false, no row of the block is
    between the greatest of `row_lows` and the least of `row_highs`, or the first term
    of a pair in `crossed` exceeds the second term.
    """

    lows: tuple[End, ...] = ()
    highs: tuple[End, ...] = ()
    row_lows: tuple[Term, ...] = ()
    row_highs: tuple[Term, ...] = ()
    conditions: tuple[Leaf, ...] = ()
    crossed: tuple[tuple[End, End], ...] = ()

    @property
    def is_everything(self) -> bool:
        return self == KeyRange()

    def terms(self) -> Iterable[Term]:
        yield from (end.term for end in (*self.lows, *self.highs))
        yield from (*self.row_lows, *self.row_highs)

    def symbols(self) -> list[Symbol]:
        """Return the symbols of the range's terms, without duplicates."""
        return list(dict.fromkeys(s for term in self.terms() for s in symbols(term)))


@dataclass(frozen=True)
class KeyRanges:
    """The keys that may be live, and the keys that may be dead, for a block of rows.

    The ranges are valid for blocks of any size.
    """

    live: tuple[KeyRange, ...]
    dead: tuple[KeyRange, ...]
    remainders: tuple[RemainderAttr, ...] = ()
    """Periodic tests, which bound no keys: the mask alone decides them."""

    @property
    def never_full(self) -> bool:
        """True if the dead ranges are not bounded, so no block is proved full."""
        return any(r.is_everything for r in self.dead)


def key_ranges(facts: Facts) -> Proof[KeyRanges]:
    """Return the ranges of a mask, or the reason why its blocks have no closed form."""
    remainders: dict[RemainderAttr, None] = {}
    live = _ranges(facts, False, remainders)
    if isinstance(live, WhyNot):
        return live
    dead = _ranges(facts, True, remainders)
    if isinstance(dead, WhyNot):
        return dead
    return Proven(KeyRanges(live.value, dead.value, tuple(remainders)))


def _ranges(
    facts: Facts, negated: bool, remainders: dict[RemainderAttr, None]
) -> Proof[tuple[KeyRange, ...]]:
    """Return the ranges of a mask or of its negation; add to `remainders`."""
    found = Solver(facts).cases(mask_formula(facts.region, negated), MAX_ALTERNATIVES)
    if found is None:
        return WhyNot(f"the mask has more than {MAX_ALTERNATIVES} alternatives")
    ranges: dict[KeyRange, None] = {}
    for atoms in found:
        for atom in atoms:
            if isinstance(atom, Unsolved):
                if atom.remainder is None:
                    return without_range(atom.reason)
                remainders[atom.remainder] = None
        keys = project(atoms)
        if any(magnitude(facts, term) > MOST for term in keys.terms()):
            return WhyNot("a range of keys has ends that 64 bits may not hold")
        ranges[keys] = None
    if any(r.is_everything for r in ranges):
        return Proven((KeyRange(),))
    if sum(bool(r.lows and r.highs) for r in ranges) > MAX_MIDDLES:
        return WhyNot(f"a row has more than {MAX_MIDDLES} separate ranges of keys")
    return Proven(tuple(ranges))


Ranges = TypeVar("Ranges", KeyRanges, KeyRangesAttr)


def for_blocks(found: Proof[Ranges], block_m: int, block_n: int) -> Proof[Ranges]:
    """Return the ranges if every block has pairs that pass and fail each remainder."""
    if isinstance(found, Proven):
        for remainder in found.value.remainders:
            if not remainder.varies_in_blocks(block_m, block_n):
                return without_range(remainder.test.data)
    return found


def without_range(test: str) -> WhyNot:
    return WhyNot(f"no range of keys follows from {test}")


def project(atoms: Iterable[Atom]) -> KeyRange:
    """Return the range of the keys for which some row satisfies all atoms."""
    atoms = list(dict.fromkeys(atoms))
    keys = [a for a in atoms if isinstance(a, KeyBound)]
    rows = [a for a in atoms if isinstance(a, RowBound)]
    # The range must include the keys of the row that allows most.
    lows = [End(k.term, direction(k.term) < 0) for k in keys if not k.upper]
    highs = [End(k.term, direction(k.term) > 0) for k in keys if k.upper]
    return KeyRange(
        tuple(lows),
        tuple(highs),
        tuple(r.term for r in rows if not r.upper),
        tuple(r.term for r in rows if r.upper),
        tuple(a.leaf for a in atoms if isinstance(a, Condition)),
        tuple((a, b) for a in lows for b in highs if are_parallel(a.term, b.term)),
    )


def are_parallel(low: Term, high: Term) -> bool:
    """Return True if two bounds have the same nonzero slope.

    Their distance is then the same for all rows. If one row has no key between the
    bounds, no row has. The ends of the range do not show this, because they are values
    at different rows.
    """
    step = slope(low)
    return step is not None and step == slope(high) and step != 0
