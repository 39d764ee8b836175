"""How the scalar ops that a target may lack are made of those that all have.

Every expansion is a function of values that returns a value; `EXPANSIONS` says
which op it stands for. Bounds in docstrings are for f32 and f64, in units in the
last place (ulp), given primitives that round correctly or nearly so; what a
target's own exp2, division and square root lose comes on top. Values that are
not finite, zeros and signs are as in C's libm.
"""

from __future__ import annotations

from collections.abc import Callable

from xdsl.ir import Operation

from flexc.passes.scalar.math_expansions import (
    exponentials,
    hyperbolics,
    integers,
    powers,
    remainders,
    rounding,
    trigonometry,
)
from flexc.passes.scalar.math_expansions.values import Value

Expansion = Callable[..., Value]

EXPANSIONS: dict[type[Operation], Expansion] = {
    **integers.EXPANSIONS,
    **rounding.EXPANSIONS,
    **remainders.EXPANSIONS,
    **exponentials.EXPANSIONS,
    **hyperbolics.EXPANSIONS,
    **trigonometry.EXPANSIONS,
    **powers.EXPANSIONS,
}
