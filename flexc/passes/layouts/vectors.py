"""Vectors that share a layout, and which."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from xdsl.ir import Region, SSAValue

from flexc.dialects import tile
from flexc.dialects.tile import AlongAttr, LayoutAttr, schedule, shape_of
from flexc.errors import ScheduleError
from flexc.passes.layouts.demands import (
    demand,
    is_made_anew,
    is_vector,
    layout_along,
    matrix_layout,
    relatives,
)


class VectorClasses:
    """Classes of a role's vectors; what made some of them decides for their class."""

    def __init__(self, region: Region):
        self.region = region
        self.parents: dict[SSAValue, SSAValue] = {}
        self.fixed: dict[SSAValue, LayoutAttr] = {}

    def layouts(self) -> dict[SSAValue, LayoutAttr]:
        """The layout of every vector, but for those that are made anew."""
        for op in self.region.walk():
            if isinstance(op, tile.ReduceOp):
                span = (1 - op.dim.value.data,)
                self.fixed[op.result] = layout_along(shape_of(op.input.type), span)
        for op in self.region.walk():
            for one, other in relatives(op):
                self.unite(one, other)
        vectors = list(self.vectors())
        self.vote(vectors)
        return {v: self.fixed[self.find(v)] for v in vectors}

    def find(self, value: SSAValue) -> SSAValue:
        while value in self.parents:
            value = self.parents[value]
        return value

    def unite(self, one: SSAValue, other: SSAValue) -> None:
        """Let two vectors share a layout, if nothing says that they differ."""
        if not is_free_vector(one) or not is_free_vector(other):
            return
        a, b = self.find(one), self.find(other)
        known = {self.fixed[x] for x in (a, b) if x in self.fixed}
        if a is b or len(known) > 1:
            return
        self.parents[b] = a
        if known:
            self.fixed[a] = known.pop()

    def vectors(self) -> Iterable[SSAValue]:
        for op in self.region.walk():
            blocks = (block for region in op.regions for block in region.blocks)
            args = (arg for block in blocks for arg in block.args)
            yield from (v for v in (*op.results, *args) if is_free_vector(v))

    def vote(self, vectors: Iterable[SSAValue]) -> None:
        """Decide for classes that only uses say something of, or nothing."""
        votes: dict[SSAValue, Counter[LayoutAttr]] = {}
        for value in vectors:
            counter = votes.setdefault(self.find(value), Counter())
            wanted = (demand(use, {}) for use in value.uses)
            counter.update(layout for layout in wanted if layout is not None)
        for root, counter in votes.items():
            if root not in self.fixed:
                most = counter.most_common(1)
                self.fixed[root] = most[0][0] if most else self.default(root)

    def default(self, value: SSAValue) -> LayoutAttr:
        """Of a vector that meets no matrix: as the rows of the first product."""
        for op in self.region.walk():
            if isinstance(op, schedule.IssueDotOp):
                assert isinstance(op.result.type, schedule.PendingType)
                rows, columns = op.result.type.tile.get_shape()
                if shape_of(value.type) == (rows,):
                    return AlongAttr(0, matrix_layout(columns))
        (size,) = shape_of(value.type)
        if size < 8:
            raise ScheduleError(f"nothing says how {value.type} lies in registers")
        return AlongAttr(1, matrix_layout(size))


def is_free_vector(value: SSAValue) -> bool:
    return is_vector(value) and not is_made_anew(value)
