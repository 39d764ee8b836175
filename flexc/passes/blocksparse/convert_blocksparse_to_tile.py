"""`convert-blocksparse-to-tile`: lower each op over segments to one kernel.

The builders of the kernels are in `programs`.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from flexc.dialects import blocksparse, flex, tile
from flexc.dialects.flex import SumKind
from flexc.errors import UnsupportedOpError
from flexc.passes.blocksparse.programs.attention import AttentionKernelBuilder
from flexc.passes.blocksparse.programs.factored_sums import FactoredSumsKernelBuilder
from flexc.passes.blocksparse.programs.kernel_builder import is_absorbed
from flexc.passes.blocksparse.programs.pair_sums import (
    OnePassKernelBuilder,
    PairSumsKernelBuilder,
)
from flexc.passes.blocksparse.programs.rows import CombineKernelBuilder, rows_kernel
from flexc.passes.targets import target_named
from flexc.passes.targets.target import Target


def kernel_of(op: Operation, name: str, target: Target) -> tile.KernelOp | None:
    """Return the kernel of an op; None for an op that has no kernel of its own.

    Raises:
        UnsupportedOpError: the target cannot compute the op's sums by column.
    """
    match op:
        case blocksparse.AttentionOp():
            return AttentionKernelBuilder(op, name, target).build()
        case blocksparse.PairSumsOp() if has_column_sums(op):
            if target.one_pass != ("keys" if op.is_transposed else "queries"):
                raise UnsupportedOpError(
                    f"{target.name} has no {op.name} with sums by column of such rows: "
                    "programs would add to the same memory"
                )
            if op.is_transposed:
                return FactoredSumsKernelBuilder(op, name, target).build()
            return OnePassKernelBuilder(op, name, target).build()
        case blocksparse.PairSumsOp() if target.one_loop:
            return FactoredSumsKernelBuilder(op, name, target).build()
        case blocksparse.PairSumsOp():
            return PairSumsKernelBuilder(op, name, target).build()
        case flex.MapRowsOp():
            return None if is_absorbed(op) else rows_kernel(op, name, target)
        case flex.CombineSplitsOp():
            return CombineKernelBuilder(op, name, target).build()
        case _:
            return None


def has_column_sums(op: blocksparse.PairSumsOp) -> bool:
    return any(attr.sum_kind == SumKind.COLUMN_MATRIX for attr in op.sums)


@dataclass(frozen=True)
class ConvertBlocksparseToTilePass(ModulePass):
    """A pass that lowers each op over segments to a kernel in tile ops."""

    name = "convert-blocksparse-to-tile"

    target: str = "triton"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_named(self.target)
        for function in list(op.ops):
            if not isinstance(function, func.FuncOp):
                continue
            name, kernels = function.sym_name.data, 0
            for inner in function.walk():
                number = f"_{kernels}" if kernels else ""
                kernel = kernel_of(inner, name + number, target)
                if kernel is not None:
                    op.body.block.insert_op_before(kernel, function)
                    kernels += 1
            if kernels:
                function.detach()
                function.erase()
