"""Torch's tables from the classes of blocks, by a kernel for each device."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from flexc.codegen.cpp.target import emit_cpp
from flexc.passes import pipelines
from flexc.passes.planning.ordering import build_order
from flexc.passes.tile_expand_captures import TileExpandCapturesPass
from flexc.runtime.kernel import Kernel

Table = tuple[Tensor, Tensor]
"""How many blocks each row has, and which."""


BLOCKS_OF_A_PROGRAM = 256
"""Blocks that take a CPU about as long as a program of other kernels of a plan."""

PROGRAMS_OF_A_THREAD = 1024
"""Some 0.3 ms of work: less is not worth another thread."""


def threads_for(programs: int) -> int:
    """How many threads a CPU should wake for short programs."""
    return max(1, programs // PROGRAMS_OF_A_THREAD)


def ordered(classes: Tensor, backend: str) -> tuple[Table, Table]:
    """For each row the partial and the full blocks, in torch's order.

    A row's live columns come in ascending order, and then all the others.
    """
    lead, lines, entries = classes.shape[:2], classes.size(2), classes.size(3)
    counts = classes.new_empty((2, *lead, lines), dtype=torch.int32)
    indices = classes.new_empty((2, *lead, lines, entries), dtype=torch.int32)
    if backend == "triton":
        from flexc.runtime.planner.ordering_triton import launch_order

        launch_order(classes, counts, indices)
    else:
        args = [classes.contiguous(), counts[0], indices[0], counts[1], indices[1]]
        threads = threads_for(classes.numel() // BLOCKS_OF_A_PROGRAM)
        order_kernel().run(lead[0], lead[1], lines, args, threads=threads)
    return (counts[0], indices[0]), (counts[1], indices[1])


@cache
def order_kernel() -> Kernel:
    """The CPU's kernel; it is the same for all masks."""
    module = ModuleOp([build_order()])
    passes = (TileExpandCapturesPass(), *pipelines.TIDY, *pipelines.to_cpp())
    pipelines.run(passes, Context(), module)
    module.verify()
    return Kernel(emit_cpp(module)[0])
