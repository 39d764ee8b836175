"""Creation of torch's tables from classes of blocks, by a kernel for each device."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import cache, partial

import torch
from torch import Tensor
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from flexc.codegen.cpp.target import CppTarget
from flexc.passes import pipelines
from flexc.passes.flex.planning.ordering import KINDS, build_order
from flexc.passes.targets.target import MachineName
from flexc.passes.tile.captured_loads import TileExpandCapturesPass
from flexc.runtime.inputs.backends import BACKENDS
from flexc.runtime.kernels.cpp_compiler import host_machine
from flexc.runtime.kernels.kernel import Kernel, load_specs, store_specs, threads_for
from flexc.runtime.process.background import Background
from flexc.runtime.process.cache import versions

Table = tuple[Tensor, Tensor]
"""The number of blocks of each row, and the indices of these blocks."""

ALIGNMENT = 4
"""The alignment of each table in i32 elements, which is 16 bytes."""

BLOCKS_OF_A_PROGRAM = 256
"""The blocks that take a CPU about as long as one program of another plan kernel."""


def ordered(classes: Tensor, backend: str, both: bool = False) -> list[Tensor]:
    """Return, for each row, the counts and indices of partial and of full blocks.

    With `both`, return the same for each column after that. Each row lists its live
    blocks in ascending order and then all other blocks, as in torch's tables.
    """
    layout = TablesLayout(tuple(classes.shape), both)
    tables = layout.views(layout.empty(classes.device))
    order(classes, tables, backend)
    return tables


def order(classes: Tensor, tables: Sequence[Tensor], backend: str) -> None:
    """Fill the tables of rows and, if there are eight tables, of columns."""
    if BACKENDS[backend].for_gpu:
        from flexc.runtime.kernels.ordering_triton import launch_order

        launch_order(classes, tables)
        return
    both = len(tables) == 8
    directions = (classes, classes.transpose(-1, -2)) if both else (classes,)
    for i, lines in enumerate(directions):
        args = [lines.contiguous(), *tables[4 * i : 4 * i + 4]]
        threads = threads_for(classes.numel() // BLOCKS_OF_A_PROGRAM)
        b, h, n = lines.shape[:3]
        order_kernel(host_machine()).get().run(b, h, n, args, threads=threads)


class TablesLayout:
    """The layout of all tables for classes of a shape, in one allocation."""

    def __init__(self, shape: tuple[int, ...], both: bool):
        b, h, rows, columns = shape
        lines = [(rows, columns), (columns, rows)] if both else [(rows, columns)]
        self.places: list[tuple[tuple[int, ...], tuple[int, ...], int]] = []
        """The shape, strides and offset of each table."""
        self.size = 0
        for n, entries in lines:
            for _ in KINDS:
                self._add((b, h, n), (h * n, n, 1))
                self._add(
                    (b, h, n, entries), (h * n * entries, n * entries, entries, 1)
                )

    def _add(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self.places.append((shape, strides, self.size))
        self.size += -(-math.prod(shape) // ALIGNMENT) * ALIGNMENT

    def empty(self, device: torch.device) -> Tensor:
        """Return uninitialized memory for all tables."""
        return torch.empty(self.size, dtype=torch.int32, device=device)

    def views(self, buffer: Tensor) -> list[Tensor]:
        return [buffer.as_strided(*place) for place in self.places]


def start_order(backend: str, device: torch.device) -> None:
    """Start to compile the kernel that orders blocks, one kernel for all masks."""
    if BACKENDS[backend].for_cpu:
        order_kernel(host_machine())
    if BACKENDS[backend].for_gpu:
        from flexc.runtime.kernels.ordering_triton import ORDER

        ORDER.start(device)


@cache
def order_kernel(machine: MachineName) -> Background[Kernel]:
    """Load or lower the CPU's kernel, and start to compile the kernel.

    The kernel is the same for all masks.
    """
    digest = hashlib.sha256(f"{machine} {versions()}".encode()).hexdigest()
    name = f"kernel-{digest}.json"
    if (specs := load_specs(name)) is not None:
        return Background(partial(Kernel, specs[0]))
    module = ModuleOp([build_order()])
    passes = (TileExpandCapturesPass(), *pipelines.TIDY, *pipelines.to_cpp(machine))
    pipelines.run(passes, Context(), module)
    module.verify()
    (spec,) = CppTarget().print_kernels(module)
    store_specs(name, [spec])
    return Background(partial(Kernel, spec))
