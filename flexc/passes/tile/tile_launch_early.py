"""`tile-launch-early`: let kernels be launched before the one before them has ended.

A kernel waits for the kernels launched before it, whose results it may read, before its
first access to memory. What comes earlier, the launch itself included, then overlaps
with their end, which short kernels, such as those of few queries, gain from.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from flexc.dialects import tile


@dataclass(frozen=True)
class TileLaunchEarlyPass(ModulePass):
    """Let each kernel wait for earlier kernels itself, as its first op."""

    name = "tile-launch-early"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.ops:
            if isinstance(kernel, tile.KernelOp):
                start = InsertPoint.at_start(kernel.body.block)
                Rewriter.insert_op(tile.AwaitKernelsOp(), start)
