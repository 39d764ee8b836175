"""`flex-differentiate`: the derivative of a function's attention in its place.

`@attention` becomes `@attention_backward`, of what `wrt` names, or `@attention_jvp`
along what `along` names; with both, the tangents of the gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import VerifyException

from flexc.errors import OptionError
from flexc.passes.flex.derivatives.build import Derivative, derivative_module


@dataclass(frozen=True)
class FlexDifferentiatePass(ModulePass):
    """Replace attention by a derivative of it."""

    name = "flex-differentiate"

    wrt: tuple[str, ...] = ("query", "key", "value")
    along: tuple[str, ...] = ()
    d_lse: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        wrt = tuple(n for n in self.wrt if n != "nothing")
        new = derivative_module(op, Derivative(wrt, self.along, self.d_lse))
        try:
            new.verify()
        except VerifyException as error:
            raise OptionError(f"{self.spec()} is no derivative: {error}") from error
        block = op.body.block
        for old in list(block.ops):
            old.detach()
            old.erase(safe_erase=False)
        for function in list(new.ops):
            function.detach()
            block.add_op(function)
