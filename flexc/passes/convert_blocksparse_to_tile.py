"""`convert-blocksparse-to-tile`: ops over segments as the code of one program each.

`programs` has what a program of each op does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from flexc.dialects import blocksparse, flex, tile
from flexc.dialects.flex import SumKind
from flexc.errors import UnsupportedOpError
from flexc.passes.programs.arguments import is_part
from flexc.passes.programs.attention import AttentionProgram
from flexc.passes.programs.one_pass import OnePassProgram
from flexc.passes.programs.pair_sums import PairSumsProgram
from flexc.passes.programs.rows import rows_kernel
from flexc.passes.programs.splits import combine_kernel


def kernel_of(op: Operation, name: str, target: str) -> tile.KernelOp | None:
    """The kernel that an op becomes; None for an op that becomes none."""
    match op:
        case blocksparse.AttentionOp():
            return AttentionProgram(op, name, target).build()
        case blocksparse.PairSumsOp() if has_column_sums(op):
            if target != "cpp":
                raise UnsupportedOpError(
                    f"{target} has no {op.name} with sums by column: programs would "
                    "add to the same memory"
                )
            return OnePassProgram(op, name, target).build()
        case blocksparse.PairSumsOp():
            return PairSumsProgram(op, name, target).build()
        case flex.RowDotsOp() | flex.WeighRowsOp():
            return None if is_part(op) else rows_kernel(op, name, target)
        case flex.CombineSplitsOp():
            return combine_kernel(op, name, target)
        case _:
            return None


def has_column_sums(op: blocksparse.PairSumsOp) -> bool:
    return any(attr.sum_kind == SumKind.COLUMN_MATRIX for attr in op.sums)


@dataclass(frozen=True)
class ConvertBlocksparseToTilePass(ModulePass):
    """Write each op over segments in tile ops."""

    name = "convert-blocksparse-to-tile"

    target: Literal["triton", "gluon", "cpp"] = "triton"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in list(op.ops):
            if not isinstance(function, func.FuncOp):
                continue
            name, kernels = function.sym_name.data, 0
            for inner in function.walk():
                number = f"_{kernels}" if kernels else ""
                kernel = kernel_of(inner, name + number, self.target)
                if kernel is not None:
                    op.body.block.insert_op_before(kernel, function)
                    kernels += 1
            if kernels:
                function.detach()
                function.erase()
