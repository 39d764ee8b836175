"""Simplify scalar code. There is one module per family of ops.

A rule takes an op and its site. It returns the value that replaces the op, or None. All
rules are exact: the new value has the bits of the replaced one, where all NaNs count as
equal. Tables map ops to rules, which are tried in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from xdsl.ir import Operation

from flexc.passes.scalar.canonicalization import (
    boolean_rules,
    constant_rules,
    float_rules,
    integer_rules,
)
from flexc.passes.scalar.canonicalization.site import Rule

TABLES: tuple[Mapping[type[Operation], tuple[Rule, ...]], ...] = (
    constant_rules.RULES,
    integer_rules.RULES,
    boolean_rules.RULES,
    float_rules.RULES,
)

RULES: dict[type[Operation], tuple[Rule, ...]] = {
    op: tuple(chain.from_iterable(table.get(op, ()) for table in TABLES))
    for op in dict.fromkeys(chain.from_iterable(TABLES))
}
