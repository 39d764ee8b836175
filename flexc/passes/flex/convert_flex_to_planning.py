"""`convert-flex-to-planning`: kernels that find which blocks a mask needs.

Each `flex.attention` with a mask becomes `@summarize` (where the mask reads captured
tensors by row or by column), `@classify`, for a CPU `@sample`, and `@refine`; see
`planning`. The attention itself is dropped: what is planned does not depend on query,
key, value or score.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.passes import ModulePass

from flexc.dialects import flex, tile
from flexc.errors import OptionError
from flexc.passes.flex.planning.classes import build_classify, build_sample
from flexc.passes.flex.planning.refinement import build_refine
from flexc.passes.flex.planning.summaries import build_summarize
from flexc.passes.masks.blocks.block_classifier import build_classifier
from flexc.passes.scalar.proof import Proven

LONGEST = 2**31 - 2
"""Lengths are i32, and so is one more."""


Part = Literal["all", "first", "rest"]
"""Which kernels are wanted: those that any plan needs, or those that look at pairs."""


def planning_kernels(
    attention: flex.AttentionOp,
    target: Literal["triton", "gluon", "cpp"],
    part: Part = "all",
) -> list[tile.KernelOp]:
    """The kernels for the mask of an attention op."""
    mask, length = attention.mask_mod, attention.max_length
    longest = LONGEST if length is None else length.value.data
    samples = target != "cpp"
    kernels: list[tile.KernelOp] = []
    if part != "rest":
        proof = build_classifier(mask, longest, attention.indices_fit is not None)
        classifier = proof.value if isinstance(proof, Proven) else None
        if classifier is not None and classifier.summaries:
            kernels.append(build_summarize(mask, classifier.summaries))
        kernels.append(build_classify(mask, classifier, samples))
    if part != "first":
        kernels += [] if samples else [build_sample(mask)]
        kernels.append(build_refine(mask))
    if attention.index_width is not None:
        for kernel in kernels:
            kernel.attributes["index_width"] = attention.index_width
    return kernels


@dataclass(frozen=True)
class ConvertFlexToPlanningPass(ModulePass):
    """Replace attention by the kernels that plan its mask."""

    name = "convert-flex-to-planning"

    target: Literal["triton", "gluon", "cpp"] = "triton"
    part: Part = "all"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        functions: dict[func.FuncOp, None] = {}
        found = [o for o in op.walk() if isinstance(o, flex.AttentionOp)]
        for i, attention in enumerate(found):
            function = attention.parent_op()
            if not isinstance(function, func.FuncOp) or function.parent_op() is not op:
                raise OptionError(
                    "convert-flex-to-planning expects flex.attention in a func.func "
                    "of the module, got one elsewhere; move it there"
                )
            functions[function] = None
            kernels = planning_kernels(attention, self.target, self.part)
            for kernel in kernels if i else ():
                kernel.sym_name = StringAttr(f"{kernel.sym_name.data}_{i}")
            op.body.block.insert_ops_before(kernels, function)
        for function in functions:
            function.detach()
            function.erase()
