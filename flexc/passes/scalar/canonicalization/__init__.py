"""Simplifications of scalar code, by the family of ops that they look at.

A rule takes an op and its site and returns the value that takes the op's place,
or None. All rules are exact: whatever bits the op had, the new value has, NaNs
counting as equal. They are tables from ops to rules, tried in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from xdsl.ir import Operation

from flexc.passes.scalar.canonicalization import (
    boolean_rules,
    cast_rules,
    comparison_rules,
    constant_rules,
    division_rules,
    float_rules,
    integer_rules,
    negation_rules,
)
from flexc.passes.scalar.canonicalization.site import Rule

TABLES: tuple[Mapping[type[Operation], tuple[Rule, ...]], ...] = (
    constant_rules.RULES,
    integer_rules.RULES,
    division_rules.RULES,
    boolean_rules.RULES,
    comparison_rules.RULES,
    cast_rules.RULES,
    float_rules.RULES,
    negation_rules.RULES,
)

RULES: dict[type[Operation], tuple[Rule, ...]] = {
    op: tuple(chain.from_iterable(table.get(op, ()) for table in TABLES))
    for op in dict.fromkeys(chain.from_iterable(TABLES))
}
