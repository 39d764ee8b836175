"""Expand scalar ops that a target may lack into ops that all targets have.

Every expansion is a function of values that returns a value; `EXPANSIONS` maps ops to
expansions. Error bounds in docstrings are for f32 and f64, in units in the last place
(ulp). They assume primitives that round correctly or nearly so; errors of a target's
own exp2, division and square root are additional. Results that are zero, infinite or
NaN, and signs, are those of C's libm.
"""

from __future__ import annotations

from collections.abc import Callable

from xdsl.ir import Operation

from flexc.passes.scalar.math_expansions import elementary, exact
from flexc.passes.scalar.math_expansions.values import Value

Expansion = Callable[..., Value]

EXPANSIONS: dict[type[Operation], Expansion] = {
    **exact.EXPANSIONS,
    **elementary.EXPANSIONS,
}
