"""`convert-flex-to-planning`: replace attention by kernels that classify blocks.

Each `flex.attention` with a mask becomes `@summarize` (if the mask reads captured
tensors by row or by column), `@list_rows`, `@list_blocks`, `@classify`, `@sample` (on a
CPU) and `@refine`; see `planning`. The pass erases the attention op: a plan does not
depend on query, key, value or score.
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
from flexc.passes.flex.planning.classes import (
    build_classify,
    build_refine,
    build_sample,
)
from flexc.passes.flex.planning.summarize import build_summarize
from flexc.passes.flex.planning.tables import build_list_blocks, build_list_rows
from flexc.passes.masks.blocks.block_classifier import build_classifier
from flexc.passes.scalar import Proven
from flexc.passes.scalar.ranges.intervals import INDEX
from flexc.passes.targets import target_named

PlanPart = Literal["all", "rows", "tables", "classes", "pairs"]
"""The kernels to build.

"rows" is the kernel that lists blocks by itself, "tables" the kernels that do so from
summaries, "classes" the kernel that stores the classes of blocks, "pairs" the kernels
that evaluate pairs of unknown blocks.
"""


def planning_kernels(
    attention: flex.AttentionOp,
    target: str,
    part: PlanPart = "all",
) -> list[tile.KernelOp]:
    """Return the planning kernels for the mask of an attention op."""
    mask, length = attention.mask_mod, attention.max_length
    longest = INDEX.hi if length is None else length.value.data
    in_place = not target_named(target).samples_blocks
    kernels: list[tile.KernelOp] = []
    if part != "pairs":
        proof = build_classifier(mask, longest, attention.indices_fit is not None)
        classifier = proof.value if isinstance(proof, Proven) else None
        if part in ("all", "rows"):
            kernels.append(build_list_rows(mask, classifier))
        if part in ("all", "tables"):
            if classifier is not None and classifier.summaries:
                kernels.append(build_summarize(mask, classifier.summaries))
            kernels.append(build_list_blocks(mask, classifier))
        if part in ("all", "classes"):
            kernels.append(build_classify(mask, classifier, in_place))
    if part in ("all", "pairs"):
        kernels += [] if in_place else [build_sample(mask)]
        kernels.append(build_refine(mask))
    if attention.index_width is not None:
        for kernel in kernels:
            kernel.attributes["index_width"] = attention.index_width
    return kernels


@dataclass(frozen=True)
class ConvertFlexToPlanningPass(ModulePass):
    """A pass that replaces attention by the kernels that plan its mask."""

    name = "convert-flex-to-planning"

    target: str = "triton"
    part: PlanPart = "all"

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
