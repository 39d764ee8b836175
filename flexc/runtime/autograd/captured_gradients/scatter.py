"""The gradient of a captured tensor, added up from the sums of its reads' adjoints."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from flexc.passes.scalar.dependence import NOTHING, Along
from flexc.passes.scalar.reads.captured_read import CapturedRead
from flexc.runtime.autograd.captured_gradients.places import Places, Site
from flexc.runtime.autograd.captured_gradients.sums import (
    AXES,
    Chunk,
    Sizes,
)

# Sums of one read's adjoints, added to the elements that the read reads.
#
# Part by part of its index: a part that is a line is a slice of the gradient; the
# elements of others are added one by one where `places` says. All is added in one
# order, on a GPU by sorting places, so that equal calls give equal bits. Out of range
# nothing was read: what would be added there goes to a spare element after the last.


MAX_PLACES = 1 << 21
"""Places evaluated at a time: some twenty numbers of 8 bytes each are alive then."""

WIDE_ROW = 256
"""Elements from which on a CPU adds rows rather than elements."""

Axis = Along | int
"""A dimension of an array: along positions, or elements of the part of that number."""

Run = tuple[int, int, int]
"""Where a run of positions starts, where their elements start, and how many."""


@dataclass(frozen=True)
class Array:
    """A tensor, and what its dimensions are."""

    values: Tensor
    axes: list[Axis]

    def dim(self, axis: Axis) -> int:
        return self.axes.index(axis)

    def narrow(self, axis: Axis, start: int, count: int) -> Array:
        return Array(self.values.narrow(self.dim(axis), start, count), self.axes)

    def ordered(self, axes: Iterable[Axis]) -> Tensor:
        """The values with their dimensions in another order."""
        return self.values.permute([self.dim(axis) for axis in axes])

    def merged(self, axes: Sequence[Axis], rest: Sequence[Axis]) -> Tensor:
        """The values with some dimensions made one, before the rest in some order."""
        values = self.ordered((*axes, *rest))
        return values.flatten(0, len(axes) - 1) if axes else values.unsqueeze(0)


@dataclass(frozen=True)
class Slice:
    """A part of an index that is `step * position + offset` in one call."""

    step: int
    offset: int
    wraps: bool
    size: int

    def runs(self, positions: range) -> list[Run]:
        """Runs of positions whose elements lie side by side, in elements' order."""
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
    """The elements that one read reads in one call, and what is added to them.

    `target` has a dimension for each part of the index. Parts that are no slices are
    flattened, with a spare element; without any, it is `total`, the gradient itself.
    """

    def __init__(
        self, parts: Sequence[Places], site: Site, total: Tensor, deterministic: bool
    ):
        self.parts, self.site, self.total = parts, site, total
        self.deterministic = deterministic
        self.shapes = [[total.shape[d] for d in p.part.dims] for p in parts]
        self.slices: dict[int, Slice] = {}
        for i, place in enumerate(parts):
            line, offset = place.part.line, place.offset(site)
            if line is not None and offset is not None:
                (size,) = self.shapes[i]
                self.slices[i] = Slice(line.step, offset, line.wraps, size)
        self.flat = [i for i in range(len(parts)) if i not in self.slices]
        self.dims = [dim for p in parts for dim in p.part.dims]
        if self.flat:
            self.target = total.new_zeros([self.extent(i) for i in range(len(parts))])
        else:
            self.target = total.permute(self.dims)

    def extent(self, number: int) -> int:
        """Elements of a part, with the spare one of a flattened part."""
        return math.prod(self.shapes[number]) + (number not in self.slices)

    def finish(self) -> None:
        """Add what was collected to the gradient."""
        if not self.flat:
            return
        found = self.target
        for number in self.flat:
            found = found.narrow(number, 0, self.extent(number) - 1)
        shape = [size for sizes in self.shapes for size in sizes]
        self.total.permute(self.dims).add_(found.reshape(shape))

    def add(self, values: Tensor, axes: Sequence[Along], chunk: Chunk) -> None:
        """Add sums of a chunk, as many rows at a time as places may be evaluated.

        `axes` are the dimensions of the sums; others, after the second, are summed.
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
        """The sums over all that the index does not vary with."""
        extra = [NOTHING] * (values.dim() - len(axes))
        axes = [*axes[:2], *extra, *axes[2:]]
        used = {axis for part in self.parts for axis in part.axes}
        rest = [dim for dim, axis in enumerate(axes) if axis not in used]
        if rest:
            values = values.sum(rest, dtype=self.total.dtype)
        return Array(values.to(self.total.dtype), [a for a in axes if a in used])

    def places_per_row(self, chunk: Chunk) -> int:
        """Places of a row, of parts that have one of their own for each pair."""
        counts = [
            self.parts[i].count(self.site.sizes, chunk) // len(chunk.rows)
            for i in self.flat
            if self.parts[i].is_of_pairs
        ]
        return max(counts, default=0)

    def add_rows(self, sums: Array, chunk: Chunk) -> None:
        """Add reduced sums: flattened parts first, those that shrink most before."""
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
        """Elements of a part for each position that it varies along."""
        count = self.parts[number].count(self.site.sizes, chunk)
        return self.extent(number) / max(count, 1)

    def gathered(self, sums: Array, number: int, chunk: Chunk) -> Array:
        """Sums with the elements of a part in the place of the positions."""
        rest = [axis for axis in sums.axes if axis not in self.parts[number].axes]
        shape = [sums.values.shape[sums.dim(axis)] for axis in rest]
        target = sums.values.new_zeros([self.extent(number), *shape])
        self.put_at(target, sums.merged(self.parts[number].axes, rest), number, chunk)
        return Array(target, [number, *rest])

    def along_elements(self, sums: Array, number: int) -> Array:
        """Sums in the order of a slice's elements."""
        axes, step = self.parts[number].axes, self.slices[number].step
        if not axes:
            return Array(sums.values.unsqueeze(0), [number, *sums.axes])
        dim = sums.dim(axes[0])
        values = sums.values.flip(dim) if step < 0 else sums.values
        return Array(values, [*sums.axes[:dim], number, *sums.axes[dim + 1 :]])

    def runs(self, number: int, chunk: Chunk) -> list[Run]:
        """The runs of a slice in a chunk."""
        positions = self.parts[number].positions(self.site.sizes, chunk)
        return self.slices[number].runs(positions[0] if positions else range(1))

    def put(self, target: Tensor, source: Array, number: int, chunk: Chunk) -> None:
        """Add sums to the target by the last part that is left."""
        rest = [i for i in range(len(self.parts)) if i != number]
        merged = source.merged(self.parts[number].axes, rest)
        self.put_at(target.movedim(number, 0), merged, number, chunk)

    def put_at(self, target: Tensor, source: Tensor, number: int, chunk: Chunk) -> None:
        """Add each row of the source to the row of the target that a part says."""
        part = self.parts[number]
        places = part.flat(self.site, self.shapes[number], chunk)
        if adds_in_turn(target):
            _add_in_turn(target, places, source)
        elif self.deterministic or not part.is_of_pairs:
            target.index_put_((places,), source, accumulate=True)
        else:
            target.index_add_(0, places, source)


def adds_in_turn(target: Tensor) -> bool:
    """Whether elements are added one after the other: not by a GPU's threads."""
    return target.device.type == "cpu"


def _add_in_turn(target: Tensor, places: Tensor, source: Tensor) -> None:
    """Add rows one after the other, as `index_put_` on a CPU does not."""
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


class Scatter:
    """Where the sums of one read's adjoints are added. Serves all calls."""

    def __init__(self, read: CapturedRead):
        self.index_class = read.index_class
        axes = AXES[read.index_class]
        self.parts = [
            Places(part, tuple(a for a in axes if a & part.along))
            for part in read.parts
        ]


class CapturedGradient:
    """The gradient of one captured tensor in one call.

    `captures` are the values of the mods' arguments, in order, of which `tensor` is
    one; sums come in `dtype`. Without `deterministic`, a GPU may add in any order what
    has a place of its own for each pair.
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
        wide = torch.promote_types(dtype, torch.float32)
        self.total = torch.zeros(tensor.shape, dtype=wide, device=tensor.device)
        self.spreads: dict[Scatter, Spread] = {}

    @torch.no_grad()
    def add(self, scatter: Scatter, sums: Tensor, chunk: Chunk | None = None) -> None:
        """Add the sums of a read's adjoints, of a chunk or of the whole call.

        Of shape `sums_shape`, with dimensions after the heads that are still to be
        summed: any of class HEAD, one of class DIAGONAL.
        """
        if sums.numel() == 0:
            return
        if scatter not in self.spreads:
            self.spreads[scatter] = Spread(
                scatter.parts, self.site, self.total, self.deterministic
            )
        axes = list(AXES[scatter.index_class])
        chunk = chunk or Chunk.whole(self.site.sizes)
        self.spreads[scatter].add(sums, axes, chunk)

    @torch.no_grad()
    def result(self) -> Tensor:
        """The gradient, of the tensor's shape and dtype."""
        for spread in self.spreads.values():
            spread.finish()
        self.spreads.clear()
        return self.total.to(self.dtype)
