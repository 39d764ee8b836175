"""`legalize-tile-for-gluon`: what is left of tiles of tensors, once it is scheduled.

Tensors that asynchronous copies read and write become descriptors: arguments that say
where the tensor lies and what is copied at once. A tensor that is read by pointers as
well is given twice. Other loads and stores are spelled as for Triton.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, ModuleOp, i32
from xdsl.ir import BlockArgument, SSAValue, Use
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import GreedyRewritePatternApplier, PatternRewriteWalker

from flexc.dialects import tile
from flexc.dialects.tile import ParamAttr, ParamKind, schedule
from flexc.dialects.tile.schedule.types import tile_of
from flexc.errors import ScheduleError
from flexc.passes.tile.legalize_tile_for_triton import LoadToGather, StoreToScatter

Box = tuple[int, ...]

UNSCHEDULED = (
    tile.AddToOp,
    tile.DiagonalsOp,
    tile.DotOp,
    tile.TransposeOp,
    schedule.PartsOp,
)
"""Ops that a schedule leaves nothing of."""


class DescriptorMaker:
    """Gives a kernel descriptors of the tensors that its copies read and write."""

    def __init__(self, kernel: tile.KernelOp):
        self.kernel = kernel
        self.block = kernel.body.block

    def run(self) -> None:
        for arg in list(self.block.args):
            for box, uses in copies_of(arg).items():
                descriptor = self.descriptor(arg, box)
                if descriptor is not arg:
                    for use in uses:
                        use.operation.operands[use.index] = descriptor

    def descriptor(self, arg: BlockArgument, box: Box) -> SSAValue:
        """An argument that describes a tensor: the tensor's own if that is free."""
        params = list(self.kernel.params.data)
        param = ParamAttr(ParamKind.DESCRIPTOR, params[arg.index].source.data, box=box)
        if is_free(arg, params[arg.index]):
            params[arg.index] = param
            descriptor: SSAValue = arg
        else:
            descriptor = self.block.insert_arg(arg.type, len(self.block.args))
            descriptor.name_hint = f"{arg.name_hint or 'tensor'}_tiles"
            params.append(param)
        self.kernel.params = ArrayAttr(params)
        return descriptor


def is_free(arg: BlockArgument, param: ParamAttr) -> bool:
    """Whether a tensor itself is no more needed: sizes are arguments of their own."""
    others = (tile.DimOp, tile.StrideOp, schedule.CopyInOp, schedule.CopyOutOp)
    return param.kind.data == ParamKind.ARGUMENT and all(
        isinstance(use.operation, others) for use in arg.uses
    )


def copies_of(arg: SSAValue) -> dict[Box, list[Use]]:
    """The copies of a tensor's tiles, by what each copies."""
    copies: dict[Box, list[Use]] = {}
    for use in arg.uses:
        if isinstance(use.operation, schedule.CopyInOp | schedule.CopyOutOp):
            box = tile_of(use.operation.view.type).get_shape()
            copies.setdefault(box, []).append(use)
    return copies


def set_warps(kernel: tile.KernelOp) -> None:
    """The kernel starts with the warps of the first role's first copy."""
    for op in kernel.walk():
        if isinstance(op, schedule.RoleOp):
            kernel.attributes["num_warps"] = IntegerAttr(op.warps.value.data, i32)
            kernel.attributes.pop("num_stages", None)
            return


@dataclass(frozen=True)
class LegalizeTileForGluonPass(ModulePass):
    """Descriptors for copies, pointers for other loads and stores."""

    name = "legalize-tile-for-gluon"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.ops:
            if isinstance(kernel, tile.KernelOp):
                legalize(kernel)
        patterns = GreedyRewritePatternApplier([LoadToGather(), StoreToScatter()])
        PatternRewriteWalker(patterns, apply_recursively=False).rewrite_module(op)


def legalize(kernel: tile.KernelOp) -> None:
    """Refuse what was given no schedule; then spell what is left."""
    has_roles = any(isinstance(op, schedule.RolesOp) for op in kernel.walk())
    for op in kernel.walk():
        if isinstance(op, UNSCHEDULED) and not has_roles:
            raise ScheduleError(
                "the kernel has no roles: these need inputs of 16 bits (--dtype "
                "bfloat16 for `flexc emit`), head dims up to 256 and rows in parts of "
                f"64; without them {op.name} has no place"
            )
        if isinstance(op, UNSCHEDULED):
            raise ScheduleError(f"a schedule has no place for {op.name}")
    DescriptorMaker(kernel).run()
    set_warps(kernel)
