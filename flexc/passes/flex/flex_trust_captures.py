"""`flex-trust-captures`: use that captured loads are known to be in range.

Where an attention op says `captures_inside`, its loads need no test, and their
indices no wrapping of negative numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from flexc.dialects import flex
from flexc.passes.scalar.ranges.capture_bounds import unwrapped


def trust(attention: flex.WithMods) -> None:
    """Take the tests out of an op's captured loads."""
    for op in list(attention.walk()):
        if not isinstance(op, flex.LoadCaptureOp) or op.inside is not None:
            continue
        indices = [unwrapped(index) for index in op.indices]
        load = flex.LoadCaptureOp(op.tensor, indices, inside=True)
        load.location = op.location
        load.result.name_hint = op.result.name_hint
        Rewriter.replace_op(op, [load], [load.result])


@dataclass(frozen=True)
class FlexTrustCapturesPass(ModulePass):
    """Drop the guards of captured loads that are known to be in range."""

    name = "flex-trust-captures"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for attention in list(op.walk()):
            if isinstance(attention, flex.WithMods) and attention.captures_inside:
                trust(attention)
