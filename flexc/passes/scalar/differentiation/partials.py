"""The table of local derivatives, which both modes read.

A rule says which values an op is seen as a function of, its operands in most cases,
and for each of them what writes the partial derivative. Derivatives are those that
torch defines, at ties, bounds and kinks too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from xdsl.ir import Operation, SSAValue

from flexc.errors import GradientError
from flexc.passes.scalar.differentiation import (
    arithmetic,
    functions,
    powers,
)
from flexc.passes.scalar.differentiation.local import Input
from flexc.passes.scalar.reads.slices import location_of

Rule = Callable[[Operation], Sequence[Input]]

PARTIALS: dict[type[Operation], Rule] = {
    **arithmetic.RULES,
    **functions.RULES,
    **powers.RULES,
}


def partials_of(op: Operation) -> Sequence[Input]:
    """What an op with a float result is a function of, and its partial derivatives.

    Values that it does not depend on, or only in steps, are left out.
    """
    rule = PARTIALS.get(type(op))
    if rule is None:
        raise GradientError(
            f"{op.name} has no derivative here: detach what it is computed from, as in "
            "`x.detach()`, or spell it with other functions",
            location_of(op),
        )
    return rule(op)


def has_partials(op: Operation, values: Collection[SSAValue]) -> bool:
    """Whether the derivative of an op by some of these values is not plain zero."""
    if not any(v in values for v in op.operands):
        return False
    return type(op) not in arithmetic.CONSTANT and type(op) not in functions.CONSTANT
