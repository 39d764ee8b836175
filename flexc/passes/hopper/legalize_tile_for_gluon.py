"""`legalize-tile-for-gluon`: replace tensors and remaining tile accesses.

A tensor that asynchronous copies read or write becomes a descriptor argument. A
descriptor says where the tensor lies and which box one copy transfers. A tensor that is
also read through pointers gets a second argument. All other loads and stores become
gathers and scatters, as for Triton.

`tile-recompute-slots`: compute loop-invariant slots in each iteration anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, ModuleOp, bf16, f32, i32
from xdsl.ir import BlockArgument, Operation, SSAValue, Use
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import GreedyRewritePatternApplier, PatternRewriteWalker
from xdsl.rewriter import InsertPoint, Rewriter

from flexc.dialects import tile
from flexc.dialects.mod_region import parents
from flexc.dialects.tile import ParamAttr, ParamKind, schedule
from flexc.dialects.tile.schedule import ViewType
from flexc.dialects.tile.types import tile_of
from flexc.errors import ScheduleError
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.tile.legalize_tile_for_triton import (
    AddToScatter,
    LoadToGather,
    StoreToScatter,
)
from flexc.passes.tile.map_builder import FULL

Box = tuple[int, ...]

UNSCHEDULED = (
    tile.DiagonalsOp,
    tile.DotOp,
    tile.TransposeOp,
    schedule.PartsOp,
)
"""Ops that must not remain in a scheduled kernel."""


class DescriptorMaker:
    """A rewrite that adds descriptors of the tensors that a kernel's copies use."""

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
        """Return an argument that describes a tensor to copies of a box.

        The tensor's own argument becomes the descriptor if only copies, sizes and
        strides use the tensor. Otherwise append a new argument.
        """
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
    """Return True if a tensor is used only for its sizes, its strides and by copies."""
    others = (tile.DimOp, tile.StrideOp, schedule.CopyInOp, schedule.CopyOutOp)
    return param.kind.data == ParamKind.ARGUMENT and all(
        isinstance(use.operation, others) for use in arg.uses
    )


def copies_of(arg: SSAValue) -> dict[Box, list[Use]]:
    """Return a tensor's uses by copies, grouped by the shape of the copied tile."""
    copies: dict[Box, list[Use]] = {}
    for use in arg.uses:
        if isinstance(use.operation, schedule.CopyInOp | schedule.CopyOutOp):
            box = tile_of(use.operation.view.type).get_shape()
            copies.setdefault(box, []).append(use)
    return copies


def widen_floats(kernel: tile.KernelOp) -> None:
    """Replace conversions of bf16 elements of products' tiles by shifts."""
    for op in list(kernel.walk()):
        if isinstance(op, arith.ExtFOp) and is_wide_input(op):
            Rewriter.replace_op(op, tile.WidenOp(op.input))


def is_wide_input(op: arith.ExtFOp) -> bool:
    """Return True for the conversion of a map's bf16 matrix to f32."""
    parent, source = op.parent_op(), op.input
    return (
        (source.type, op.result.type) == (bf16, f32)
        and isinstance(parent, tile.MapOp)
        and isinstance(source, BlockArgument)
        and parent.span(source.index) == FULL
    )


def set_warps(kernel: tile.KernelOp) -> None:
    """Set the number of warps that the kernel starts with to that of its first role."""
    for op in kernel.walk():
        if isinstance(op, schedule.RoleOp):
            kernel.attributes["num_warps"] = IntegerAttr(op.warps.value.data, i32)
            kernel.attributes.pop("num_stages", None)
            return


@dataclass(frozen=True)
class LegalizeTileForGluonPass(ModulePass):
    """Turn copied tensors into descriptors, other accesses into pointer accesses."""

    name = "legalize-tile-for-gluon"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.ops:
            if isinstance(kernel, tile.KernelOp):
                legalize(kernel)
        patterns = GreedyRewritePatternApplier(
            [LoadToGather(), StoreToScatter(), AddToScatter()]
        )
        PatternRewriteWalker(patterns, apply_recursively=False).rewrite_module(op)


@dataclass(frozen=True)
class TileRecomputeSlotsPass(ModulePass):
    """Compute loop-invariant slots of products' operands in each iteration anew.

    LLVM would compute a descriptor for each step of a product before the loop, and keep
    all of them: 32 registers for an operand of head dim 256.
    """

    name = "tile-recompute-slots"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for product in [o for o in op.walk() if isinstance(o, schedule.IssueDotOp)]:
            for index in (0, 1):
                product.operands[index] = recomputed(product.operands[index], product)


def recomputed(view: SSAValue, user: Operation) -> SSAValue:
    """Return a view, computed again before its user if its slot is loop-invariant."""
    chain: list[Operation] = []
    value = view
    while isinstance(value.type, ViewType) and isinstance(value.owner, Operation):
        chain.append(value.owner)
        value = value.owner.operands[0]
    if not chain or not is_in_inner_loop(user, chain[-1]):
        return view
    code = ScalarCode(InsertPoint.before(user))
    for op in reversed(chain):
        clone = op.clone({op.operands[0]: value})
        if isinstance(clone, schedule.SlotOp):
            clone.operands[1] = code.insert(schedule.OpaqueOp(clone.index))
        value = code.insert(clone, op.results[0].name_hint)
    return value


def is_in_inner_loop(op: Operation, other: Operation) -> bool:
    """Return True if an op is in a loop that another op is not in."""
    return any(
        isinstance(parent, scf.ForOp) and not parent.is_ancestor(other)
        for parent in parents(op)
    )


def legalize(kernel: tile.KernelOp) -> None:
    """Make descriptors and set the number of warps.

    Raise `ScheduleError` if an op remains that needs a schedule.
    """
    has_roles = any(isinstance(op, schedule.RolesOp) for op in kernel.walk())
    for op in kernel.walk():
        if isinstance(op, UNSCHEDULED) and not has_roles:
            raise ScheduleError(
                "the kernel has no roles: these need inputs of 16 bits (--dtype "
                "bfloat16 for `flexc emit`), head dims up to 256 and rows in parts of "
                "64"
            )
        adds = isinstance(op, tile.AddToOp) and op.atomic is None
        if isinstance(op, UNSCHEDULED) or adds:
            raise ScheduleError(f"a schedule with roles cannot contain {op.name}")
    DescriptorMaker(kernel).run()
    widen_floats(kernel)
    set_warps(kernel)
