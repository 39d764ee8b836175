"""Creation of torch's tables from classes of blocks, by one kernel for all masks."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from flexc.codegen.kernel_spec import KernelSpec
from flexc.passes import pipelines
from flexc.passes.flex.planning.tables import build_order
from flexc.passes.targets.target import LoweringOptions
from flexc.runtime.inputs.listed_blocks import TablesLayout
from flexc.runtime.kernels.build import NO_CALL, Build, build_of
from flexc.runtime.kernels.driver import compile_kernel, kernel_key
from flexc.runtime.kernels.kernel import Kernel, load_specs, store_specs, threads_for
from flexc.runtime.kernels.targets import TARGETS
from flexc.runtime.process.background import Background
from flexc.runtime.process.recent import Recent

BLOCKS_OF_A_PROGRAM = 256
"""The blocks that take a CPU about as long as one program of another plan kernel."""


def ordered(classes: Tensor, backend: str, both: bool = False) -> list[Tensor]:
    """Return, for each row, the counts and indices of partial and of full blocks.

    With `both`, return the same for each column after that. Each row lists its live
    blocks in ascending order and then all other blocks, as in torch's tables.
    """
    memory, layout = order(classes, backend, both)
    return layout.views(memory)


def order(classes: Tensor, backend: str, both: bool) -> tuple[Tensor, TablesLayout]:
    """Return the memory of the tables of `ordered`, and their layout in it."""
    layout = TablesLayout(tuple(classes.shape), both)
    memory = layout.empty(classes.device)
    kernel = order_kernel(build_of(NO_CALL, classes.device, backend)).get()
    threads = threads_for(classes.numel() // BLOCKS_OF_A_PROGRAM)
    b, h = classes.shape[:2]
    kernel.run(b, h, layout.programs, [classes, memory], threads=threads)
    return memory, layout


def start_order(device: torch.device, backend: str) -> None:
    """Start to compile the kernel."""
    order_kernel(build_of(NO_CALL, device, backend))


_kernels: Recent[Background[Kernel]] = Recent()


def order_kernel(build: Build) -> Background[Kernel]:
    """Return the kernel, which is lowered and started to compile at first use."""
    return _kernels.get(build, lambda: begun(build))


def begun(build: Build) -> Background[Kernel]:
    return Background(partial(compile_kernel, order_spec(build), build))


def order_spec(build: Build) -> KernelSpec:
    """Return the printed kernel, from the disk or lowered now."""
    module = ModuleOp([build_order()])
    name = f"plan-order-{kernel_key(module, build)}.json"
    specs = load_specs(name)
    if specs is None:
        target = TARGETS[build.target].codegen
        options = LoweringOptions(machine=build.machine)
        passes = pipelines.to_planned_tile() + target.passes(options)
        pipelines.run(passes, Context(), module)
        module.verify()
        specs = target.print_kernels(module)
        store_specs(name, specs)
    return specs[0]
