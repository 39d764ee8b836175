"""Whether some integer between two has a remainder that conditions allow."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from flexc.passes.analysis.blocks.block_code import BlockCode
from flexc.passes.analysis.blocks.constraints import Residue
from flexc.passes.analysis.blocks.wide_integers import Ends, Wide


def has_residue(block: BlockCode, ends: Ends, residues: Sequence[Residue]) -> SSAValue:
    """Whether some x of a form's ends may satisfy residues of equal divisors.

    True where there is no telling. All integers between the ends are taken to be
    sums, as they are for factors of 1 and -1.
    """
    wide, first = block.wide, residues[0]
    if first.sign < 0:
        ends = wide.ends_negated(ends)
    ends = wide.ends_sum(ends, wide.point(block.uniform(first.shift)))
    divisor = _divisor(block, first)
    lo, hi = wide.const(0), wide.plus(divisor, -1)
    tests = [wide.cmp("sle", ends.lo, ends.hi)]
    for residue in residues:
        limit = block.uniform(residue.limit)
        if residue.kind == "ne":
            tests.append(_avoids(block, ends, divisor, limit))
        if residue.kind in ("ge", "eq"):
            lo = wide.max(lo, limit)
        if residue.kind in ("le", "eq"):
            hi = wide.min(hi, limit)
    tests.append(_reaches(block, ends, divisor, Ends(lo, hi)))
    found = block.all_of(tests)
    if divisor.range.lo > 0:
        return found
    return block.either(found, wide.cmp("sle", divisor, wide.const(0)))


def _divisor(block: BlockCode, residue: Residue) -> Wide:
    if isinstance(residue.divisor, int):
        return block.wide.const(residue.divisor)
    value = block.copy.value(residue.divisor)
    return block.wide.extended(value, block.facts.ranges[residue.divisor])


def _reaches(block: BlockCode, ends: Ends, divisor: Wide, allowed: Ends) -> SSAValue:
    """Whether some x between the ends has a remainder between two others."""
    wide = block.wide
    past = wide.modulo(wide.sub(ends.lo, allowed.lo), divisor)
    ahead = wide.cmp("sle", past, wide.sub(allowed.hi, allowed.lo))
    next_one = wide.add(ends.lo, wide.sub(divisor, past))
    smallest = wide.select(ahead, ends.lo, next_one)
    some = wide.cmp("sle", allowed.lo, allowed.hi)
    return block.both(some, wide.cmp("sle", smallest, ends.hi))


def _avoids(block: BlockCode, ends: Ends, divisor: Wide, limit: Wide) -> SSAValue:
    """Whether some x between the ends has another remainder than one."""
    wide = block.wide
    differs = wide.cmp("ne", wide.modulo(ends.lo, divisor), limit)
    several = wide.cmp("slt", ends.lo, ends.hi)
    one = wide.cmp("sgt", divisor, wide.const(1))
    return block.either(differs, block.both(several, one))
