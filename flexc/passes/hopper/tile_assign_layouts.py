"""`tile-assign-layouts`: give each tile of a role the layout that its users need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp, bf16, f16, i32
from xdsl.ir import Block, Operation, Region, SSAValue, Use
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.disjoint_set import DisjointSet

from flexc.dialects import tile
from flexc.dialects.tile import (
    AlongAttr,
    LayoutAttr,
    OperandAttr,
    ProductAttr,
    TileType,
    element_of,
    schedule,
    shape_of,
)
from flexc.errors import ScheduleError
from flexc.passes.tile.tile_values import after, defined_values, defining_block, is_tile

Layouts = Mapping[SSAValue, LayoutAttr]


def is_vector(value: SSAValue) -> bool:
    return len(shape_of(value.type)) == 1


def is_made_anew(value: SSAValue) -> bool:
    """Return True if a value is recomputed in every layout in which it is used."""
    return isinstance(value.owner, tile.IotaOp | tile.FullOp)


def layout_along(shape: tuple[int, ...], span: tuple[int, ...]) -> LayoutAttr:
    """Return the layout of a tile that spans some dimensions of a matrix."""
    matrix = ProductAttr(shape[1])
    return matrix if len(span) == 2 else AlongAttr(span[0], matrix)


def carried_into(use: Use) -> SSAValue | None:
    """Return the loop argument or branch result that an operand becomes."""
    op = use.operation
    if isinstance(op, scf.ForOp):
        return op.body.block.args[use.index - 2] if use.index > 2 else None
    if not isinstance(op, scf.YieldOp):
        return None
    parent = op.parent_op()
    if isinstance(parent, scf.ForOp):
        return parent.body.block.args[1 + use.index]
    if not isinstance(parent, scf.IfOp):
        raise ScheduleError("a tile is carried by what is no loop or branch")
    return parent.results[use.index]


def demand(use: Use, layouts: Layouts) -> LayoutAttr | None:
    """Return the layout that a use needs of its operand, or None if any layout will do.

    `layouts` has the known layouts of other values.
    """
    op = use.operation
    if (target := carried_into(use)) is not None:
        return layouts.get(target)
    if isinstance(op, tile.MapOp):
        if len(op.shape) == 1:
            return layouts.get(op.results[0])
        return layout_along(op.shape, op.span(use.index)) if op.shape else None
    if isinstance(op, tile.ReduceOp):
        return ProductAttr(shape_of(op.input.type)[1])
    if isinstance(op, tile.KeepColumnsOp):
        return layout_along(shape_of(op.input.type), (0,) if use.index else (0, 1))
    if isinstance(op, schedule.IssueDotOp):
        return _demand_of_product(op, use.index)
    if isinstance(op, PointerAccesses):
        return layouts.get(anchor(op))
    return None


def _demand_of_product(op: schedule.IssueDotOp, index: int) -> LayoutAttr:
    assert isinstance(op.result.type, schedule.PendingType)
    product = ProductAttr(op.result.type.tile.get_shape()[1])
    return OperandAttr(product) if index == 0 else product


PointerAccesses = tile.GatherOp | tile.ScatterOp | tile.ScatterAddOp


def anchor(op: PointerAccesses) -> SSAValue:
    """Return the value whose layout assigns memory accesses to threads."""
    if isinstance(op, tile.GatherOp):
        return op.result
    return op.offsets if is_made_anew(op.value) else op.value


def relatives(op: Operation) -> Iterator[tuple[SSAValue, SSAValue]]:
    """Yield pairs of vectors that should have the same layout."""
    if isinstance(op, tile.MapOp) and len(op.shape) == 1:
        for value in (*op.inputs, *op.results):
            yield op.results[0], value
    elif isinstance(op, PointerAccesses):
        for value in (*op.operands, *op.results):
            yield anchor(op), value
    elif isinstance(op, scf.ForOp):
        yield from zip(op.body.block.args[1:], op.results, strict=True)
    for i, value in enumerate(op.operands):
        target = carried_into(Use(op, i))
        if target is not None:
            yield target, value


class LayoutConverter:
    """A rewrite of a role that gives every op its operands in the layouts it needs."""

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
        """Return a value in another layout.

        The conversion is placed before the use, so that no earlier op waits for the
        value. If the use is in a nested region, the conversion is placed after the
        value's definition.
        """
        home = defining_block(value)
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


class VectorClasses:
    """Classes of a role's vectors that share a layout."""

    def __init__(self, region: Region):
        self.region = region
        self.sets = DisjointSet(list(self.vectors()))
        self.fixed: dict[SSAValue, LayoutAttr] = {}

    def layouts(self) -> dict[SSAValue, LayoutAttr]:
        """Return the layout of every vector that is not recomputed."""
        for op in self.region.walk():
            if isinstance(op, tile.ReduceOp):
                span = (1 - op.dim.value.data,)
                self.fixed[op.result] = layout_along(shape_of(op.input.type), span)
        for op in self.region.walk():
            for one, other in relatives(op):
                self.unite(one, other)
        vectors = list(self.vectors())
        self.vote(vectors)
        return {v: self.fixed[self.sets.find(v)] for v in vectors}

    def unite(self, one: SSAValue, other: SSAValue) -> None:
        """Merge the classes of two vectors unless their layouts are known to differ."""
        if not is_free_vector(one) or not is_free_vector(other):
            return
        a, b = self.sets.find(one), self.sets.find(other)
        known = {self.fixed[x] for x in (a, b) if x in self.fixed}
        if a is b or len(known) > 1:
            return
        self.sets.union_left(a, b)
        if known:
            self.fixed[a] = known.pop()

    def vectors(self) -> Iterable[SSAValue]:
        for op in self.region.walk():
            yield from (v for v in defined_values(op) if is_free_vector(v))

    def vote(self, vectors: Iterable[SSAValue]) -> None:
        """Fix the layouts of classes without a reduction to what most uses need."""
        votes: dict[SSAValue, Counter[LayoutAttr]] = {}
        for value in vectors:
            counter = votes.setdefault(self.sets.find(value), Counter())
            wanted = (demand(use, {}) for use in value.uses)
            counter.update(layout for layout in wanted if layout is not None)
        for root, counter in votes.items():
            if root not in self.fixed:
                most = counter.most_common(1)
                self.fixed[root] = most[0][0] if most else self.default(root)

    def default(self, value: SSAValue) -> LayoutAttr:
        """Return the layout of a vector that no matrix constrains.

        The vector is laid out as the rows of the first product with that many rows.
        """
        for op in self.region.walk():
            if isinstance(op, schedule.IssueDotOp):
                assert isinstance(op.result.type, schedule.PendingType)
                rows, columns = op.result.type.tile.get_shape()
                if shape_of(value.type) == (rows,):
                    return AlongAttr(0, ProductAttr(columns))
        (size,) = shape_of(value.type)
        if size < 8:
            raise ScheduleError(f"nothing says how {value.type} lies in registers")
        return AlongAttr(1, ProductAttr(size))


def is_free_vector(value: SSAValue) -> bool:
    return is_vector(value) and not is_made_anew(value)


def assign_layouts(region: Region) -> None:
    """Give all tiles of a role their layouts."""
    layouts = matrices(region)
    carry_operands(region, layouts)
    layouts.update(VectorClasses(region).layouts())
    LayoutConverter(region, layouts).run()


def matrices(region: Region) -> dict[SSAValue, LayoutAttr]:
    """Return the layouts of matrices and of products in flight."""
    layouts: dict[SSAValue, LayoutAttr] = {}
    for op in region.walk():
        for value in defined_values(op):
            type_ = value.type
            if isinstance(type_, schedule.PendingType):
                type_ = type_.tile
            is_matrix = isinstance(type_, TileType) and len(type_.get_shape()) == 2
            if is_matrix and not is_made_anew(value):
                layouts[value] = ProductAttr(shape_of(type_)[1])
    return layouts


def carry_operands(region: Region, layouts: dict[SSAValue, LayoutAttr]) -> None:
    """Give carried matrices the layout of an lhs if all their uses need that layout."""
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


def pack_carried(loop: scf.ForOp) -> None:
    """Pack operands of products that one loop hands to another in pairs.

    LLVM has a register for each element of 16 bits that two loops carry, and packs them
    in pairs in each iteration.
    """
    body = loop.body.block
    assert body.last_op is not None
    for i, (init, result) in enumerate(zip(loop.iter_args, loop.results, strict=True)):
        type_ = init.type
        if not isinstance(type_, TileType) or element_of(type_) not in (bf16, f16):
            continue
        readers = (use.operation for use in result.uses)
        is_handed = isinstance(init.owner, tile.UnpackPairsOp) or any(
            isinstance(reader, scf.ForOp) for reader in readers
        )
        if is_handed and isinstance(type_.get_layout(), OperandAttr):
            pack_operand(loop, 3 + i)
            pack_operand(body.last_op, i)
            for value in (body.args[1 + i], result):
                unpack(value, type_)


def pack_operand(op: Operation, number: int) -> None:
    """Give an op an operand in pairs."""
    value = op.operands[number]
    if isinstance(value.owner, tile.UnpackPairsOp):
        op.operands[number] = value.owner.input
        return
    packed = tile.PackPairsOp(value)
    packed.result.name_hint = "pairs"
    Rewriter.insert_op(packed, InsertPoint.before(op))
    op.operands[number] = packed.result


def unpack(value: SSAValue, type_: TileType) -> None:
    """Make a value pairs, which its uses see unpacked."""
    pairs = TileType(i32, [type_.get_shape()[0], type_.get_shape()[1] // 2])
    value = Rewriter.replace_value_with_new_type(value, pairs)
    unpacked = tile.UnpackPairsOp(value, type_)
    unpacked.result.name_hint, value.name_hint = value.name_hint, "pairs"
    value.replace_all_uses_with(unpacked.result)
    unpacked.operands[0] = value
    Rewriter.insert_op(unpacked, after(value))


@dataclass(frozen=True)
class TileAssignLayoutsPass(ModulePass):
    """Decide which thread holds which elements of each tile."""

    name = "tile-assign-layouts"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for role in list(op.walk()):
            if isinstance(role, schedule.RoleOp):
                assign_layouts(role.body)
                for loop in list(role.walk()):
                    if isinstance(loop, scf.ForOp):
                        pack_carried(loop)
