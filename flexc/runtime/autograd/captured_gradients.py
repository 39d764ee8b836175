"""The gradient of a captured tensor, added up from the sums of its reads' adjoints.

Sums are added for each part of an index in turn. If a part is a line, its sums are
added to a slice of the gradient. The elements of other parts are added one by one, at
the places that `captured_places` finds. All additions have a fixed order (on a GPU, by
sorting the places), so equal calls give equal bits. Sums of reads out of range go to a
spare element after the last one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from flexc.passes.scalar.captured_reads import CapturedRead
from flexc.passes.scalar.variation import NOTHING, Along
from flexc.runtime.autograd.captured_places import AXES, Chunk, Places, Site, Sizes
from flexc.runtime.inputs.tensor_facts import sum_dtype

MAX_PLACES = 1 << 21
"""The number of places evaluated at a time. Some twenty numbers of 8 bytes are alive
for each place.
"""

WIDE_ROW = 256
"""The row length, in elements, from which on a CPU adds whole rows."""

Axis = Along | int
"""A dimension of an array: an `Along` for positions, or an int for the elements of the
part of that number.
"""

Run = tuple[int, int, int]
"""The first position of a run, the first element of its elements, and their count."""


@dataclass(frozen=True)
class Array:
    """A tensor, with the axis that each of its dimensions is along."""

    values: Tensor
    axes: list[Axis]

    def dim(self, axis: Axis) -> int:
        return self.axes.index(axis)

    def narrow(self, axis: Axis, start: int, count: int) -> Array:
        return Array(self.values.narrow(self.dim(axis), start, count), self.axes)

    def ordered(self, axes: Iterable[Axis]) -> Tensor:
        """Return the values with their dimensions in the order of `axes`."""
        return self.values.permute([self.dim(axis) for axis in axes])

    def merged(self, axes: Sequence[Axis], rest: Sequence[Axis]) -> Tensor:
        """Return the values with `axes` merged into one dimension, before `rest`."""
        values = self.ordered((*axes, *rest))
        return values.flatten(0, len(axes) - 1) if axes else values.unsqueeze(0)


@dataclass(frozen=True)
class IndexSlice:
    """A part of an index that is `step * position + offset` in one call."""

    step: int
    offset: int
    wraps: bool
    size: int

    def runs(self, positions: range) -> list[Run]:
        """Return runs of positions with adjacent elements, in the elements' order."""
        ends = (self.offset + self.step * at for at in (positions[0], positions[-1]))
        first = min(ends)
        ranges = [(0, self.size, 0)]
        if self.wraps:
            ranges.append((-self.size, 0, self.size))
        found: list[Run] = []
        for low, high, moved in ranges:
            start, stop = max(first, low), min(first + len(positions), high)
            if start < stop:
                found.append((start - first, start + moved, stop - start))
        return found


class Spread:
    """The elements that one read reads in one call, and the sums added to them.

    `target` has a dimension for each part of the index. Parts that are not slices are
    flattened and have a spare element. If all parts are slices, `target` is a view of
    `total`, the gradient itself.
    """

    def __init__(
        self, parts: Sequence[Places], site: Site, total: Tensor, deterministic: bool
    ):
        self.parts, self.site, self.total = parts, site, total
        self.deterministic = deterministic
        self.shapes = [[total.shape[d] for d in p.part.dims] for p in parts]
        self.slices: dict[int, IndexSlice] = {}
        for i, place in enumerate(parts):
            line, offset = place.part.line, place.offset(site)
            if line is not None and offset is not None:
                (size,) = self.shapes[i]
                self.slices[i] = IndexSlice(line.step, offset, line.wraps, size)
        self.flat = [i for i in range(len(parts)) if i not in self.slices]
        self.dims = [dim for p in parts for dim in p.part.dims]
        if self.flat:
            self.target = total.new_zeros([self.extent(i) for i in range(len(parts))])
        else:
            self.target = total.permute(self.dims)

    def extent(self, number: int) -> int:
        """Return the number of a part's elements, with the spare one if flattened."""
        return math.prod(self.shapes[number]) + (number not in self.slices)

    def finish(self) -> None:
        """Add the collected sums to the gradient."""
        if not self.flat:
            return
        found = self.target
        for number in self.flat:
            found = found.narrow(number, 0, self.extent(number) - 1)
        shape = [size for sizes in self.shapes for size in sizes]
        self.total.permute(self.dims).add_(found.reshape(shape))

    def add(self, values: Tensor, axes: Sequence[Along], chunk: Chunk) -> None:
        """Add the sums of a chunk, with about MAX_PLACES places alive at a time.

        `axes` are the dimensions of the sums. Further dimensions, after the second one,
        are summed over.
        """
        sums = self.reduced(values, axes)
        per_row = self.places_per_row(chunk)
        if not per_row:
            self.add_rows(sums, chunk)
            return
        count = max(MAX_PLACES // per_row, 1)
        for start in range(0, len(chunk.rows), count):
            rows = chunk.rows[start : start + count]
            part = sums.narrow(Along.ROW, start, len(rows))
            self.add_rows(part, Chunk(chunk.batch, chunk.heads, rows))

    def reduced(self, values: Tensor, axes: Sequence[Along]) -> Array:
        """Sum over all dimensions that the index does not vary with."""
        extra = [NOTHING] * (values.dim() - len(axes))
        axes = [*axes[:2], *extra, *axes[2:]]
        used = {axis for part in self.parts for axis in part.axes}
        rest = [dim for dim, axis in enumerate(axes) if axis not in used]
        if rest:
            values = values.sum(rest, dtype=self.total.dtype)
        return Array(values.to(self.total.dtype), [a for a in axes if a in used])

    def places_per_row(self, chunk: Chunk) -> int:
        """Return the number of places per row, of parts with a place for each pair."""
        counts = [
            self.parts[i].count(self.site.sizes, chunk) // len(chunk.rows)
            for i in self.flat
            if self.parts[i].is_of_pairs
        ]
        return max(counts, default=0)

    def add_rows(self, sums: Array, chunk: Chunk) -> None:
        """Add reduced sums. Flattened parts come first, in order of their growth."""
        flat = sorted(self.flat, key=lambda i: self.growth(i, chunk))
        for number in flat[:-1]:
            sums = self.gathered(sums, number, chunk)
        for number in self.slices:
            sums = self.along_elements(sums, number)
        for runs in product(*(self.runs(i, chunk) for i in self.slices)):
            source, target = sums, self.target
            for number, (start, at, count) in zip(self.slices, runs, strict=True):
                source = source.narrow(number, start, count)
                target = target.narrow(number, at, count)
            if flat:
                self.put(target, source, flat[-1], chunk)
            else:
                target.add_(source.ordered(range(len(self.parts))))

    def growth(self, number: int, chunk: Chunk) -> float:
        """Return the number of a part's elements for each of the part's positions."""
        count = self.parts[number].count(self.site.sizes, chunk)
        return self.extent(number) / max(count, 1)

    def gathered(self, sums: Array, number: int, chunk: Chunk) -> Array:
        """Return the sums with a part's elements in place of the part's positions."""
        rest = [axis for axis in sums.axes if axis not in self.parts[number].axes]
        shape = [sums.values.shape[sums.dim(axis)] for axis in rest]
        target = sums.values.new_zeros([self.extent(number), *shape])
        self.put_at(target, sums.merged(self.parts[number].axes, rest), number, chunk)
        return Array(target, [number, *rest])

    def along_elements(self, sums: Array, number: int) -> Array:
        """Return the sums in the order of a slice's elements."""
        axes, step = self.parts[number].axes, self.slices[number].step
        if not axes:
            return Array(sums.values.unsqueeze(0), [number, *sums.axes])
        dim = sums.dim(axes[0])
        values = sums.values.flip(dim) if step < 0 else sums.values
        return Array(values, [*sums.axes[:dim], number, *sums.axes[dim + 1 :]])

    def runs(self, number: int, chunk: Chunk) -> list[Run]:
        """Return the runs of a slice in a chunk."""
        positions = self.parts[number].positions(self.site.sizes, chunk)
        return self.slices[number].runs(positions[0] if positions else range(1))

    def put(self, target: Tensor, source: Array, number: int, chunk: Chunk) -> None:
        """Add sums to the target at the places of the last flattened part."""
        rest = [i for i in range(len(self.parts)) if i != number]
        merged = source.merged(self.parts[number].axes, rest)
        self.put_at(target.movedim(number, 0), merged, number, chunk)

    def put_at(self, target: Tensor, source: Tensor, number: int, chunk: Chunk) -> None:
        """Add each row of the source to the row of the target at the part's place."""
        part = self.parts[number]
        places = part.flat(self.site, self.shapes[number], chunk)
        if adds_in_turn(target):
            _add_in_turn(target, places, source)
        elif self.deterministic or not part.is_of_pairs:
            target.index_put_((places,), source, accumulate=True)
        else:
            target.index_add_(0, places, source)


def adds_in_turn(target: Tensor) -> bool:
    """Return True if the device adds elements in a fixed order, as a CPU does."""
    return target.device.type == "cpu"


def _add_in_turn(target: Tensor, places: Tensor, source: Tensor) -> None:
    """Add rows one after the other. `index_put_` on a CPU does not do that."""
    width = target[0].numel()
    if width >= WIDE_ROW or target.dim() == 1:
        target.index_add_(0, places, source)
        return
    inner = torch.arange(width, device=target.device)
    elements = (places[:, None] * width + inner).reshape(-1)
    if target.is_contiguous():
        target.view(-1).index_add_(0, elements, source.reshape(-1))
    else:
        found = target.new_zeros(target.numel())
        found.index_add_(0, elements, source.reshape(-1))
        target.add_(found.view(target.shape))


class ReadScatter:
    """The parts of one read's index, at which the sums of its adjoints are added.

    An instance serves all calls.
    """

    def __init__(self, read: CapturedRead):
        self.coordinates = read.coordinates
        axes = AXES[read.coordinates]
        self.parts = [
            Places(part, tuple(a for a in axes if a & part.along))
            for part in read.parts
        ]


class CapturedGradient:
    """The gradient of one captured tensor in one call.

    `captures` are the values of the mods' arguments, in order; `tensor` is one of them.
    Sums have the type `dtype`. Unless `deterministic` is set, a GPU may add sums with a
    place for each pair in any order.
    """

    def __init__(
        self,
        tensor: Tensor,
        captures: Sequence[Any],
        sizes: Sizes,
        dtype: torch.dtype = torch.float32,
        deterministic: bool = True,
    ):
        self.dtype, self.site = tensor.dtype, Site(sizes, captures, tensor.device)
        self.deterministic = deterministic
        wide = sum_dtype(dtype)
        self.total = torch.zeros(tensor.shape, dtype=wide, device=tensor.device)
        self.spreads: dict[ReadScatter, Spread] = {}

    @torch.no_grad()
    def add(
        self, scatter: ReadScatter, sums: Tensor, chunk: Chunk | None = None
    ) -> None:
        """Add the sums of a read's adjoints, of a chunk or of the whole call.

        `sums` has the dimensions `AXES`. Further dimensions after the heads are summed
        over: any number of them for class HEAD, one for class DIAGONAL.
        """
        if sums.numel() == 0:
            return
        if scatter not in self.spreads:
            self.spreads[scatter] = Spread(
                scatter.parts, self.site, self.total, self.deterministic
            )
        axes = list(AXES[scatter.coordinates])
        chunk = chunk or Chunk.whole(self.site.sizes)
        self.spreads[scatter].add(sums, axes, chunk)

    @torch.no_grad()
    def result(self) -> Tensor:
        """Return the gradient, of the tensor's shape and dtype."""
        for spread in self.spreads.values():
            spread.finish()
        self.spreads.clear()
        return self.total.to(self.dtype)
