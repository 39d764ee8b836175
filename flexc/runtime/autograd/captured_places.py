"""Reads of captured tensors: the shapes of their sums, and the elements they read.

A kernel sums the adjoints of a read over all dimensions that its index does not vary
with. The read's `Coordinates` names the dimensions that remain. For a call of 8 x 16
heads and 8192 positions, in fp32:

| class    | shape                    | bytes   |
| -------- | ------------------------ | ------- |
| HEAD     | (B, Hq)                  | 512     |
| ROW      | (B, Hq, Sq)              | 4 MiB   |
| COLUMN   | (B, Hq, Skv)             | 4 MiB   |
| DIAGONAL | (B, Hq, Sq + Skv - 1)    | 8 MiB   |
| PAIR     | (B, Hq, Sq, Skv)         | 32 GiB  |

Entry d + Skv - 1 of DIAGONAL is the sum over pairs with q_idx - kv_idx = d. Large
arrays are computed in chunks.

torch evaluates each part of an index only at the positions that the part varies with:
one number for each head, row, column or distance. All numbers are computed on the
tensors' device, so nothing synchronizes with a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import torch
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp
from xdsl.interpreter import Interpreter
from xdsl.ir import Region

from flexc.dialects import flex
from flexc.dialects.flex import Coordinates
from flexc.passes.scalar.captured_reads import POSITIONS, IndexPart
from flexc.passes.scalar.ranges.intervals import full
from flexc.passes.scalar.variation import PAIR, Along
from flexc.runtime.interpreters.scalar import ScalarFunctions
from flexc.runtime.interpreters.values import dtype_of, signless
from flexc.runtime.tapes.gpus import stream_of
from flexc.runtime.tapes.recorder import recorder, unrecorded

MAX_BYTES = 1 << 28
"""The limit on the bytes of one array, which fits a GPU's smallest partition."""

AXES: dict[Coordinates, tuple[Along, ...]] = {
    Coordinates.HEAD: (Along.BATCH, Along.HEAD),
    Coordinates.ROW: (Along.BATCH, Along.HEAD, Along.ROW),
    Coordinates.COLUMN: (Along.BATCH, Along.HEAD, Along.COLUMN),
    Coordinates.DISTANCE: (Along.BATCH, Along.HEAD, PAIR),
    Coordinates.PAIR: (Along.BATCH, Along.HEAD, Along.ROW, Along.COLUMN),
}
"""The axes of the dimensions of sums. PAIR is the axis of the diagonals."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a call. `heads` counts the query's heads."""

    batch: int
    heads: int
    q_len: int
    kv_len: int


@dataclass(frozen=True)
class Chunk:
    """The pairs of some batches, heads and rows, with all columns."""

    batch: range
    heads: range
    rows: range

    @classmethod
    def whole(cls, sizes: Sizes) -> Chunk:
        return cls(range(sizes.batch), range(sizes.heads), range(sizes.q_len))

    def positions(self, axis: Along, sizes: Sizes) -> range:
        """Return the positions along an axis, or the distances for PAIR."""
        match axis:
            case Along.BATCH:
                return self.batch
            case Along.HEAD:
                return self.heads
            case Along.ROW:
                return self.rows
            case Along.COLUMN:
                return range(sizes.kv_len)
            case _:
                return range(1 - sizes.kv_len, sizes.q_len)


def chunks_for(
    kind: Coordinates,
    sizes: Sizes,
    *,
    itemsize: int = 4,
    max_bytes: int = MAX_BYTES,
    rows: int = 128,
    rows_of_diagonals: int | None = None,
    whole_heads: bool = False,
) -> list[Chunk]:
    """Return chunks of about equal size whose sums take at most `max_bytes`.

    The chunks cover each pair once, in order. A chunk holds whole batches if one fits,
    else whole heads, else runs of rows. The length of a run is a multiple of `rows`,
    and at least `rows` even if that exceeds the limit. With `whole_heads`, only rows
    are split. `rows_of_diagonals` rows of a head share an array of diagonals, and the
    kernel leaves these arrays to be added up. Without `rows_of_diagonals`, all rows of
    a head share one.
    """
    whole = Chunk.whole(sizes)
    per_head = _bytes_of_rows(kind, sizes, itemsize, rows_of_diagonals, sizes.q_len)
    per_batch = per_head * sizes.heads
    if per_batch * sizes.batch <= max_bytes:
        return [whole]
    if whole_heads:
        per_run = _bytes_of_rows(kind, sizes, itemsize, rows_of_diagonals, rows)
        most = max_bytes // (per_run * sizes.heads * sizes.batch)
        runs = _runs(whole.rows, rows * max(most, 1), rows)
        return [Chunk(whole.batch, whole.heads, run) for run in runs]
    batches = _runs(whole.batch, max_bytes // max(per_batch, 1))
    heads, runs = [whole.heads], [whole.rows]
    if per_batch > max_bytes:
        heads = _runs(whole.heads, max_bytes // max(per_head, 1))
    if per_head > max_bytes:
        per_run = _bytes_of_rows(kind, sizes, itemsize, rows_of_diagonals, rows)
        runs = _runs(whole.rows, rows * max(max_bytes // per_run, 1), rows)
    return [Chunk(b, h, r) for b, h, r in product(batches, heads, runs)]


def _bytes_of_rows(
    by: Coordinates, sizes: Sizes, itemsize: int, rows_of_diagonals: int | None, n: int
) -> int:
    """Return the bytes of the sums of n rows of a head."""
    if by is Coordinates.DISTANCE:
        arrays = -(-n // rows_of_diagonals) if rows_of_diagonals else 1
        return arrays * (sizes.q_len + sizes.kv_len - 1) * itemsize
    if by is Coordinates.PAIR:
        return n * sizes.kv_len * itemsize
    rows = {Coordinates.ROW: n, Coordinates.COLUMN: sizes.kv_len}.get(by, 1)
    return rows * itemsize


def _runs(whole: range, most: int, multiple: int = 1) -> list[range]:
    """Split a range into the fewest equal runs of at most `most` elements.

    The length of a run is rounded up to a multiple of `multiple`.
    """
    count = -(-len(whole) // max(most, 1))
    if count <= 1:
        return [whole]
    length = -(-len(whole) // count)
    length = -(-length // multiple) * multiple
    return [whole[start : start + length] for start in range(0, len(whole), length)]


MAX_KEPT = 16
"""The number of evaluations of a part that are cached."""

MAX_KEPT_SIZE = 1 << 20
"""The largest number of indices of a cached evaluation."""


@dataclass(frozen=True, eq=False)
class Site:
    """The values of a call that the places of its reads depend on."""

    sizes: Sizes
    captures: Sequence[Any]
    """Tensors and numbers, in the order of the region's arguments."""
    device: torch.device


class Places:
    """The places of one part of a read, cached if they depend on numbers alone.

    `axes` are the dimensions of the read's sums that the part varies with.
    """

    def __init__(self, part: IndexPart, axes: tuple[Along, ...]):
        self.part, self.axes = part, axes
        self.kept: dict[Hashable, Any] = {}
        self.interpreters: dict[Hashable, Interpreter] = {}

    @property
    def is_of_pairs(self) -> bool:
        """True if each pair has a place of its own."""
        return Along.ROW in self.axes and Along.COLUMN in self.axes

    @cached_property
    def reads(self) -> bool:
        """True if the index itself is read from tensors."""
        ops = self.part.indices.block.ops
        return any(isinstance(op, flex.LoadCaptureOp) for op in ops)

    def positions(self, sizes: Sizes, chunk: Chunk) -> list[range]:
        """Return the positions of a chunk along the axes."""
        return [chunk.positions(axis, sizes) for axis in self.axes]

    def count(self, sizes: Sizes, chunk: Chunk) -> int:
        """Return the number of places in a chunk."""
        return math.prod(map(len, self.positions(sizes, chunk)))

    def offset(self, site: Site) -> int | None:
        """Return the offset of an index, None if it is no line or wraps around."""
        line = self.part.line
        if line is None:
            return None
        key = ("offset", *self._numbers(line.start, site))
        if key not in self.kept:
            host = torch.device("cpu")
            with unrecorded():
                at = coordinates([], [], host)
                (start,) = self._run(line.start, at, site, host)
                self._keep(key, int(start))
        offset: int = self.kept[key]
        whole = self.positions(site.sizes, Chunk.whole(site.sizes)) or [range(1)]
        ends = (offset + line.step * at for at in (whole[0][0], whole[0][-1]))
        return offset if all(end in full(line.width) for end in ends) else None

    def flat(self, site: Site, shape: Sequence[int], chunk: Chunk) -> Tensor:
        """Return the element of the part that each position reads, numbered row by row.

        The result has one entry for each position of the chunk along the axes, in
        order. An index out of range gives the number of elements. `shape` holds the
        sizes of the part's dimensions.
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
            if math.prod(map(len, runs)) > MAX_KEPT_SIZE:
                return self._flat(site, shape, runs)
            with unrecorded():
                found = self._flat(site, shape, runs)
            self._keep(key, found)
        if (tape := recorder()) is not None:
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
        """Return the values that a region yields for positions on a device."""
        stream = _stream_for_good(device)
        interpreter = self.interpreters.get(stream)
        if interpreter is None:
            interpreter = Interpreter(ModuleOp([]))
            interpreter.register_implementations(ScalarFunctions(device))
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
        """Return all numbers that a region without tensor reads may depend on."""
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
    """Return the stream on which cached tensors are made; other streams would not wait.

    Return None while a CUDA graph is captured: the tensors would only exist after a
    replay.
    """
    if device.type != "cuda":
        return device
    if torch.cuda.is_current_stream_capturing():
        return None
    return device, stream_of(device)


def coordinates(
    axes: Sequence[Along], runs: Sequence[range], device: torch.device
) -> dict[Along, Tensor]:
    """Return b, h, q_idx and kv_idx of all positions along some axes.

    Each of the four has its own rank. Indices that do not vary are 0. A distance is
    represented by the first pair of positions that has that distance.
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
