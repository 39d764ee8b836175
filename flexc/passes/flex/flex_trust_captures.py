"""`flex-trust-captures`: drop the guards of captured loads that are in range.

If an attention op states `captures_inside`, its captured loads need no range test, and
their indices need no wrapping of negative numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from flexc.dialects import flex
from flexc.passes.scalar.ranges.index_proofs import unwrapped


def trust(attention: flex.WithMods) -> None:
    """Replace an op's captured loads by loads without range tests."""
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
    """A pass that drops the guards of captured loads that are in range."""

    name = "flex-trust-captures"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for attention in list(op.walk()):
            if isinstance(attention, flex.WithMods) and attention.captures_inside:
                trust(attention)
