"""Torch's tables from the classes of blocks, by a kernel for each device."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import cache, partial

import torch
from torch import Tensor
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from flexc.codegen.cpp.target import emit_cpp
from flexc.codegen.kernel_spec import KernelSpec
from flexc.passes import pipelines
from flexc.passes.flex.planning.ordering import KINDS, build_order
from flexc.passes.sizes.vector_machine import MachineName
from flexc.passes.tile.tile_expand_captures import TileExpandCapturesPass
from flexc.runtime.kernels.cpp_compiler import host_machine
from flexc.runtime.kernels.kernel import Kernel
from flexc.runtime.process.beside import Beside
from flexc.runtime.process.cache import load, store
from flexc.runtime.process.versions import versions

Table = tuple[Tensor, Tensor]
"""How many blocks each row has, and which."""

ALIGNMENT = 4
"""Elements: each table starts at an address that is a multiple of 16."""

BLOCKS_OF_A_PROGRAM = 256
"""Blocks that take a CPU about as long as a program of other kernels of a plan."""

PROGRAMS_OF_A_THREAD = 1024
"""Some 0.3 ms of work: less is not worth another thread."""


def threads_for(programs: int) -> int:
    """How many threads a CPU should wake for short programs."""
    return max(1, programs // PROGRAMS_OF_A_THREAD)


def ordered(classes: Tensor, backend: str, both: bool = False) -> list[Tensor]:
    """For each row counts and indices of its partial and of its full blocks.

    Then for each column, if both are asked for. Live blocks come in ascending order,
    and then all the others, as in torch's tables.
    """
    layout = TablesLayout(tuple(classes.shape), both)
    tables = layout.views(layout.empty(classes.device))
    order(classes, tables, backend)
    return tables


def order(classes: Tensor, tables: Sequence[Tensor], backend: str) -> None:
    """Fill the tables of rows and, if there are eight, of columns."""
    if backend == "triton":
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
    """Where the tables for classes of a shape lie in one allocation."""

    def __init__(self, shape: tuple[int, ...], both: bool):
        b, h, rows, columns = shape
        lines = [(rows, columns), (columns, rows)] if both else [(rows, columns)]
        self.places: list[tuple[tuple[int, ...], tuple[int, ...], int]] = []
        """Shape, strides and offset of each."""
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
        """The memory of all tables."""
        return torch.empty(self.size, dtype=torch.int32, device=device)

    def views(self, buffer: Tensor) -> list[Tensor]:
        return [buffer.as_strided(*place) for place in self.places]


def start_order(backend: str, device: torch.device) -> None:
    """Start to compile the kernel that orders blocks, the same for all masks."""
    if backend == "cpp":
        order_kernel(host_machine())
    if backend == "triton":
        from flexc.runtime.kernels.ordering_triton import ORDER

        ORDER.start(device)


@cache
def order_kernel(machine: MachineName) -> Beside[Kernel]:
    """The CPU's kernel, as soon as it can be had; it is the same for all masks."""
    digest = hashlib.sha256(f"{machine} {versions()}".encode()).hexdigest()
    name = f"spec-{digest}.json"
    data = load(name)
    if data is not None:
        return Beside(partial(Kernel, KernelSpec.from_json(data.decode())))
    module = ModuleOp([build_order()])
    passes = (TileExpandCapturesPass(), *pipelines.TIDY, *pipelines.to_cpp(machine))
    pipelines.run(passes, Context(), module)
    module.verify()
    (spec,) = emit_cpp(module)
    store(name, spec.to_json().encode())
    return Beside(partial(Kernel, spec))
