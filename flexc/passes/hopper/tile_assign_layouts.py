"""`tile-assign-layouts`: which thread of a role has which elements of its tiles.

A matrix lies as the result of a product with as many columns does, and a left operand
of a product as that product reads it from registers. A vector belongs to the rows or
the columns of a matrix: of that whose reduction made it, or else of that which most of
its uses ask for. Sequences and constants are made anew in each layout in which they
are used; other values are converted where they are used in another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue, Use
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from flexc.dialects import tile
from flexc.dialects.tile import (
    AlongAttr,
    LayoutAttr,
    OperandAttr,
    TileType,
    schedule,
    shape_of,
)
from flexc.errors import ScheduleError
from flexc.passes.hopper.layout_demands import (
    demand,
    is_made_anew,
    is_tile,
    is_vector,
    layout_along,
    matrix_layout,
    relatives,
)

# Writes the conversions that ops need between layouts.


class Placer:
    """Gives every op of a role its operands in the layouts that it wants."""

    def __init__(self, region: Region, layouts: dict[SSAValue, LayoutAttr]):
        self.region = region
        self.layouts = layouts
        self.made: dict[tuple[SSAValue, LayoutAttr, Block | None], SSAValue] = {}

    def run(self) -> None:
        for op in list(self.region.walk()):
            for i, value in enumerate(op.operands):
                wanted = demand(Use(op, i), self.layouts) if is_tile(value) else None
                if wanted is not None and self.layouts.get(value) != wanted:
                    op.operands[i] = self.value_in(value, wanted, op)
        for op in list(self.region.walk()):
            if isinstance(op, tile.IotaOp | tile.FullOp) and not op.result.uses:
                Rewriter.erase_op(op)
        self.set_types()

    def value_in(
        self, value: SSAValue, layout: LayoutAttr, user: Operation
    ) -> SSAValue:
        """A value in another layout.

        It is converted where it is used, so that nothing waits for it earlier, or, if
        that is within a loop or a branch, where it is made.
        """
        home = owner_block(value)
        block = home if is_made_anew(value) else user.parent
        at_home = is_made_anew(value) or block is not home
        key = (value, layout, None if at_home else block)
        if key not in self.made:
            point = after(value) if at_home else InsertPoint.before(user)
            self.made[key] = self.make(value, layout, point)
        return self.made[key]

    def make(self, value: SSAValue, layout: LayoutAttr, point: InsertPoint) -> SSAValue:
        if is_made_anew(value):
            assert isinstance(value.owner, Operation)
            op = value.owner.clone()
        else:
            op = tile.ConvertLayoutOp(value, layout)
        Rewriter.insert_op(op, point)
        (result,) = op.results
        result.name_hint = value.name_hint
        self.layouts[result] = layout
        return result

    def set_types(self) -> None:
        for value, layout in self.layouts.items():
            type_ = value.type
            if isinstance(type_, schedule.PendingType):
                new = schedule.PendingType(type_.tile.with_layout(layout))
            else:
                assert isinstance(type_, TileType)
                new = type_.with_layout(layout)
            if new != type_:
                Rewriter.replace_value_with_new_type(value, new)


def owner_block(value: SSAValue) -> Block | None:
    owner = value.owner
    return owner if isinstance(owner, Block) else owner.parent  # pyright: ignore


def after(value: SSAValue) -> InsertPoint:
    owner = value.owner
    if isinstance(owner, Block):
        return InsertPoint.at_start(owner)
    assert isinstance(owner, Operation)
    return InsertPoint.after(owner)


# Vectors that share a layout, and which.


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


def assign_layouts(region: Region) -> None:
    """Give all tiles of a role their layouts."""
    layouts = matrices(region)
    carry_operands(region, layouts)
    layouts.update(VectorClasses(region).layouts())
    Placer(region, layouts).run()


def matrices(region: Region) -> dict[SSAValue, LayoutAttr]:
    """The layouts of matrices, and of products in flight."""
    layouts: dict[SSAValue, LayoutAttr] = {}
    for op in region.walk():
        args = (a for each in op.regions for b in each.blocks for a in b.args)
        for value in (*op.results, *args):
            type_ = value.type
            if isinstance(type_, schedule.PendingType):
                type_ = type_.tile
            is_matrix = isinstance(type_, TileType) and len(type_.get_shape()) == 2
            if is_matrix and not is_made_anew(value):
                layouts[value] = matrix_layout(shape_of(type_)[1])
    return layouts


def carry_operands(region: Region, layouts: dict[SSAValue, LayoutAttr]) -> None:
    """Let loops carry as left operands what is used as nothing else."""
    for op in reversed(list(region.walk())):
        if not isinstance(op, scf.ForOp):
            continue
        for arg, result in zip(op.body.block.args[1:], op.results, strict=True):
            if arg not in layouts:
                continue
            wanted = {demand(use, layouts) for v in (arg, result) for use in v.uses}
            layout = wanted.pop() if len(wanted) == 1 else None
            if isinstance(layout, OperandAttr):
                layouts[arg] = layouts[result] = layout


@dataclass(frozen=True)
class TileAssignLayoutsPass(ModulePass):
    """Decide which thread has which elements."""

    name = "tile-assign-layouts"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for role in list(op.walk()):
            if isinstance(role, schedule.RoleOp):
                assign_layouts(role.body)
