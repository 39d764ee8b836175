"""A GPU's launches for one kind of call, recorded once and replayed.

What a kernel is told follows from sizes, but for addresses and captured numbers: so
the first call of a kind is recorded on tensors without memory, and each call then
makes its mask anew with as little Python as can be. Nothing of a result is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from flexc.frontend.captured import CapturedMods
from flexc.frontend.closures import ModSignature
from flexc.frontend.import_graph import AttentionModule
from flexc.runtime.kernel import Kernel
from flexc.runtime.planner.classes import Planning, expanded, whole_blocks
from flexc.runtime.planner.ordering import TablesLayout
from flexc.runtime.planner.ordering_triton import (
    load_order,
    order_grid,
    order_values,
)
from flexc.runtime.planner.plans import Problem, find_plan
from flexc.runtime.tensor_facts import check_captures
from flexc.runtime.triton_loader import (
    DirectLaunch,
    current_stream,
    is_watched,
    load_direct,
    on_device,
)

MAX_RECORDINGS = 1024

ALIGNMENT = 128
"""Bytes between the scratch tensors of a recording."""

META = torch.device("meta")

_recordings: dict[Any, Recording] = {}


@dataclass(frozen=True, eq=False)
class Step:
    """One launch: its values, of which those in slots are a call's own."""

    launch: DirectLaunch
    grid: tuple[int, ...]
    values: tuple[Any, ...]
    slots: tuple[tuple[int, int], ...]
    """Places among the values, and which of a call's operands belongs there."""


@dataclass(frozen=True, eq=False)
class Recording:
    """All launches of a call.

    A call's operands are its captures, the tensors in its scratch memory and its
    tables.
    """

    device: torch.device
    problem: Problem
    attention: AttentionModule
    scratch: tuple[int, ...]
    """Offsets of tensors in the scratch memory."""
    scratch_size: int
    layout: TablesLayout
    steps: tuple[Step, ...]

    def replay(self, captures: Sequence[Any]) -> list[Tensor]:
        """The eight tables of a mask with such captures."""
        device, layout = self.device, self.layout
        memory = torch.empty(self.scratch_size, dtype=torch.int8, device=device)
        tables = torch.empty(layout.size, dtype=torch.int32, device=device)
        captures = self.attention.arguments(captures)
        operands = [c.data_ptr() if isinstance(c, Tensor) else c for c in captures]
        base = memory.data_ptr()
        operands += [base + offset for offset in self.scratch]
        base = tables.data_ptr()
        operands += [base + offset for offset in layout.offsets]
        stream, watched = current_stream(device), is_watched()
        with on_device(device):
            for step in self.steps:
                values = list(step.values)
                for place, operand in step.slots:
                    values[place] = operands[operand]
                step.launch(step.grid, stream, values, watched)
        return expanded(layout.views(tables), self.problem)


def replayed_tables(
    signature: ModSignature,
    mods: CapturedMods,
    problem: Problem,
    device: torch.device,
    refine: bool,
) -> list[Tensor]:
    """The eight tables, by launches that were recorded before or are now."""
    captures = signature.captures
    check_captures(captures, device)
    if not signature.cacheable:
        return record(signature, mods, problem, device, refine).replay(captures)
    key = (mods, problem, device, refine, *map(_kind, captures))
    recording = _recordings.get(key)
    if recording is None:
        recording = record(signature, mods, problem, device, refine)
        if len(_recordings) >= MAX_RECORDINGS:
            _recordings.clear()
        _recordings[key] = recording
    return recording.replay(captures)


def _kind(capture: Any) -> Any:
    """Of a capture all but its address."""
    if isinstance(capture, Tensor):
        return capture.shape, capture.stride()
    return capture.hex() if type(capture) is float else capture


@dataclass(frozen=True, eq=False)
class Recorder(Planning):
    """Planning on tensors without memory, which notes what would be run."""

    launches: list[tuple[Kernel, tuple[int, ...], list[Any]]] = field(
        default_factory=list
    )

    def run(self, name: str, programs: int, args: Sequence[Any]) -> None:
        b, h = self.problem.batches, self.problem.heads
        kernel = self.kernels[name]
        self.launches.append((kernel, kernel.grid(b, h, programs), list(args)))


def record(
    signature: ModSignature,
    mods: CapturedMods,
    problem: Problem,
    device: torch.device,
    refine: bool,
) -> Recording:
    """Lower and compile what a call needs, side by side where it can be."""
    with ThreadPoolExecutor(4) as pool:
        # Compiled while the mask is lowered.
        order = pool.submit(load_order, device)
        plan = find_plan(signature, mods, problem, device, "triton")
        recorder = Recorder.start(plan, signature, problem, META, whole_blocks(problem))
        assert isinstance(recorder, Recorder)
        classes = recorder.classify(0, problem.rows, refine)
        layout = TablesLayout(tuple(classes.shape), both=True)
        tables = layout.views(torch.empty(layout.size, dtype=torch.int32, device=META))
        ready: list[tuple[Future[DirectLaunch], tuple[int, ...], list[Any]]] = []
        for kernel, grid, args in recorder.launches:
            values = kernel.values(args)
            launch = pool.submit(load_direct, kernel.spec, values, device)
            ready.append((launch, grid, values))
        values = order_values(classes, tables)
        ready.append((order, order_grid(classes.shape, both=True), values))
        scratch = scratch_of(recorder)
        operands = [*recorder.captures, *scratch, *tables]
        steps = tuple(
            step_of(launch.result(), grid, values, operands)
            for launch, grid, values in ready
        )
    offsets = [0, *accumulate(-(-t.nbytes // ALIGNMENT) * ALIGNMENT for t in scratch)]
    return Recording(
        device,
        problem,
        plan.attention,
        tuple(offsets[:-1]),
        offsets[-1],
        layout,
        steps,
    )


def scratch_of(recorder: Recorder) -> list[Tensor]:
    """The tensors that the planning made for itself."""
    captures = len(recorder.captures)
    found = {
        id(arg): arg
        for _, _, args in recorder.launches
        for arg in args[captures:]
        if isinstance(arg, Tensor)
    }
    return list(found.values())


def step_of(
    launch: DirectLaunch,
    grid: tuple[int, ...],
    values: Sequence[Any],
    operands: Sequence[Any],
) -> Step:
    """A launch whose tensors are found among the operands of a call."""
    slots = tuple(
        (place, next(i for i, operand in enumerate(operands) if operand is value))
        for place, value in enumerate(values)
        if isinstance(value, Tensor)
    )
    kept = tuple(None if isinstance(v, Tensor) else v for v in values)
    return Step(launch, grid, kept, slots)
