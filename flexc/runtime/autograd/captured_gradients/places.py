"""Where a read of a captured tensor reads: its indices, evaluated by torch.

Each part of a read's index is evaluated at the positions that it varies with alone:
one number for each head, row, column or distance. Nothing here waits for a GPU: all
numbers are made where the tensors are.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp
from xdsl.interpreter import Interpreter
from xdsl.ir import Region

from flexc.dialects import flex
from flexc.passes.scalar.dependence import PAIR, Along
from flexc.passes.scalar.ranges.intervals import full
from flexc.passes.scalar.reads.capture_index import POSITIONS
from flexc.passes.scalar.reads.captured_read import Part
from flexc.runtime.autograd.captured_gradients.sums import Chunk, Sizes
from flexc.runtime.interpreters.on_device import ScalarsOnDevice
from flexc.runtime.interpreters.values import dtype_of, signless
from flexc.runtime.tapes.recorder import recorder
from flexc.runtime.tapes.streams import stream_of

MAX_KEPT = 16
"""Evaluations remembered of a part."""

MAX_KEPT_SIZE = 1 << 20
"""Indices of an evaluation that is remembered."""


@dataclass(frozen=True, eq=False)
class Site:
    """What the places of a call's reads depend on, besides their code."""

    sizes: Sizes
    captures: Sequence[Any]
    """Tensors and numbers, in the order of the region's arguments."""
    device: torch.device


class Places:
    """The places of one part of a read, remembered where only numbers say them.

    `axes` are what it varies with, of the dimensions that its read's sums have.
    """

    def __init__(self, part: Part, axes: tuple[Along, ...]):
        self.part, self.axes = part, axes
        self.kept: dict[Hashable, Any] = {}
        self.interpreters: dict[Hashable, Interpreter] = {}

    @property
    def is_of_pairs(self) -> bool:
        """Whether there is a place of its own for each pair."""
        return Along.ROW in self.axes and Along.COLUMN in self.axes

    @cached_property
    def reads(self) -> bool:
        """Whether the index itself is read from tensors."""
        ops = self.part.indices.block.ops
        return any(isinstance(op, flex.LoadCaptureOp) for op in ops)

    def positions(self, sizes: Sizes, chunk: Chunk) -> list[range]:
        """The positions of a chunk along the axes."""
        return [chunk.positions(axis, sizes) for axis in self.axes]

    def count(self, sizes: Sizes, chunk: Chunk) -> int:
        """The number of places that a chunk has."""
        return math.prod(map(len, self.positions(sizes, chunk)))

    def offset(self, site: Site) -> int | None:
        """The offset of an index that is a line and does not wrap around, else None."""
        line = self.part.line
        if line is None:
            return None
        key = ("offset", *self._numbers(line.start, site))
        if key not in self.kept:
            host = torch.device("cpu")
            (start,) = self._run(line.start, coordinates([], [], host), site, host)
            self._keep(key, int(start))
        offset: int = self.kept[key]
        whole = self.positions(site.sizes, Chunk.whole(site.sizes)) or [range(1)]
        ends = (offset + line.step * at for at in (whole[0][0], whole[0][-1]))
        return offset if all(end in full(line.width) for end in ends) else None

    def flat(self, site: Site, shape: Sequence[int], chunk: Chunk) -> Tensor:
        """Which element of the part's dimensions is read, numbered row by row.

        For all positions of a chunk along the axes, in order; the number of elements
        where it is out of range. `shape` are the sizes of the part's dimensions.
        """
        runs = self.positions(site.sizes, chunk)
        if self.reads:
            return self._flat(site, shape, runs)
        numbers = self._numbers(self.part.indices, site)
        stream = _stream_for_good(site.device)
        if stream is None:
            return self._flat(site, shape, runs)
        key = (stream, *runs, *shape, *numbers)
        found = self.kept.get(key)
        if found is None:
            found = self._flat(site, shape, runs)
            if found.numel() <= MAX_KEPT_SIZE:
                self._keep(key, found)
        elif (tape := recorder()) is not None:
            tape.hold(found)
        return found

    def _flat(self, site: Site, shape: Sequence[int], runs: Sequence[range]) -> Tensor:
        at = coordinates(self.axes, runs, site.device)
        indices = self._run(self.part.indices, at, site, site.device)
        flat = torch.zeros((), dtype=torch.int64, device=site.device)
        inside = torch.ones((), dtype=torch.bool, device=site.device)
        for index, size in zip(indices, shape, strict=True):
            wide = index.to(torch.int64)
            inside = inside & (wide >= 0) & (wide < size)
            flat = flat * size + wide
        flat = torch.where(inside, flat, math.prod(shape))
        return flat.expand([len(run) for run in runs]).reshape(-1)

    def _run(
        self, region: Region, at: dict[Along, Tensor], site: Site, device: torch.device
    ) -> tuple[Tensor, ...]:
        """What a region yields for positions that lie on a device."""
        stream = _stream_for_good(device)
        interpreter = self.interpreters.get(stream)
        if interpreter is None:
            interpreter = Interpreter(ModuleOp([]))
            interpreter.register_implementations(ScalarsOnDevice(device))
            if stream is not None:
                self.interpreters[stream] = interpreter
        args: list[Any] = [at[position] for position in POSITIONS]
        for arg, value in zip(
            region.block.args[len(args) :], site.captures, strict=True
        ):
            if isinstance(value, Tensor):
                args.append(signless(value))
            else:
                dtype = dtype_of(arg.type)
                args.append(torch.full((), value, dtype=dtype, device=device))
        return interpreter.run_ssacfg_region(region, tuple(args))

    def _numbers(self, region: Region, site: Site) -> list[Hashable]:
        """All numbers of a call that a region which reads no tensor may depend on."""
        args = region.block.args[len(POSITIONS) :]
        return [
            tuple(value.shape) if isinstance(value, Tensor) else value
            for arg, value in zip(args, site.captures, strict=True)
            if arg.uses
        ]

    def _keep(self, key: Hashable, value: Any) -> None:
        if len(self.kept) >= MAX_KEPT:
            self.kept.clear()
        self.kept[key] = value


def _stream_for_good(device: torch.device) -> Hashable | None:
    """Where tensors that are kept are made: another stream would not wait for them.

    None while a CUDA graph is captured: they would be there after a replay only.
    """
    if device.type != "cuda":
        return device
    if torch.cuda.is_current_stream_capturing():
        return None
    return device, stream_of(device)


def coordinates(
    axes: Sequence[Along], runs: Sequence[range], device: torch.device
) -> dict[Along, Tensor]:
    """b, h, q_idx and kv_idx of all positions along some axes, each of its own rank.

    Those that an index does not vary with are 0. A distance is between the first
    positions that have it.
    """
    at = {p: torch.zeros((), dtype=torch.int32, device=device) for p in POSITIONS}
    for i, (axis, run) in enumerate(zip(axes, runs, strict=True)):
        values = torch.arange(run.start, run.stop, dtype=torch.int32, device=device)
        values = values.view([-1 if i == j else 1 for j in range(len(axes))])
        if axis == PAIR:
            at[Along.ROW], at[Along.COLUMN] = values.clamp(0), (-values).clamp(0)
        else:
            at[axis] = values
    return at
