"""`tile-panel-maps`: fuse maps with each other and with reductions over their rows.

1. A `tile.map` of two dimensions becomes a `tile.panel_map`. If all users of its
   results read only the first rows, as many as one count says, the map computes only
   those rows. A `tile.register_product` is limited in the same way.
2. A map that reads another map's results element by element is fused with that map: in
   its place, if all else that is read is known there, or where the reader is, if
   nothing else reads the results.
3. A `tile.reduce` along the first dimension of a map's result becomes an outcome of the
   map: the map combines rows as it computes them. A tile without other users is not
   kept. So does a `tile.pack` of a result, and a later reduction of a tile that the map
   reads element by element.

Maps that compute with 64-bit numbers are not fused with maps that do not: a vector of
64-bit numbers has fewer lanes.

`tile-assign-loops` chooses the loops in which a map computes its values. A map prints
as a loop over vectors of columns and a loop over rows. A value of its region is
computed where all its operands are known, once for all elements that share it. The
attribute `tile.loops` has an entry for each argument of the region and then for each
op: `none`, `rows`, `columns` or `elements`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeGuard, TypeVar

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr, bf16, f32, i1
from xdsl.ir import Block, Operation, Region, SSAValue, Use
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.transforms.dead_code_elimination import region_dce

from flexc.dialects import flex, tile
from flexc.dialects.mod_region import yielded
from flexc.dialects.tile import LOOPS, Loop, element_of, shape_of
from flexc.passes.tile.map_builder import FULL, Span, is_wide, variance


class FixedDemand(Enum):
    """No rows, or all rows."""

    NONE = "none"
    ALL = "all"


Demand = SSAValue | FixedDemand
"""The rows that a user needs: none, all, or the first rows up to a count."""


def join(a: Demand, b: Demand) -> Demand:
    """Return the rows that two users need together.

    Counts are compared as SSA values.
    """
    if a is FixedDemand.NONE or a is b:
        return b
    return a if b is FixedDemand.NONE else FixedDemand.ALL


def is_known_before(count: SSAValue, op: Operation) -> bool:
    """Return True if a count is defined before an op runs."""
    owner = count.owner
    if isinstance(owner, Block):
        return owner.find_ancestor_op_in_block(op) is not None
    block = owner.parent_block()
    assert block is not None
    inside = block.find_ancestor_op_in_block(op)
    return inside is not None and owner.is_before_in_block(inside)


@dataclass
class Demands:
    """The rows that users need of the two-dimensional tiles of a kernel.

    Products and maps need the rows that their own users need. All other ops, and loops
    for the tiles that they carry, need all rows.
    """

    known: dict[SSAValue, Demand] = field(default_factory=dict[SSAValue, Demand])

    def of(self, value: SSAValue) -> Demand:
        if value not in self.known:
            demand: Demand = FixedDemand.NONE
            for use in value.uses:
                demand = join(demand, self.of_use(use))
            self.known[value] = demand
        return self.known[value]

    def of_use(self, use: Use) -> Demand:
        op, value = use.operation, use.operation.operands[use.index]
        if isinstance(op, tile.RegisterProductOp):
            return self.of_product(op, value)
        if isinstance(op, tile.AddRegisterProductOp):
            count = op.inner if value is op.rhs else op.rows
            return FixedDemand.ALL if count is None else count
        if isinstance(op, tile.PackOp) or (
            isinstance(op, tile.ReduceOp) and op.dim.value.data == 0
        ):
            return FixedDemand.ALL if op.count is None else op.count
        if isinstance(op, tile.MapOp | tile.PanelMapOp):
            return self.of_map(op)
        if isinstance(op, tile.StoreStridedOp) and op.counted_dim == 0:
            return op.extents[0]
        if isinstance(op, tile.DiagonalsOp) and op.is_transposed:
            return FixedDemand.ALL if op.count is None else op.count
        return FixedDemand.ALL

    def of_product(self, op: tile.RegisterProductOp, value: SSAValue) -> Demand:
        demand: Demand = FixedDemand.NONE
        if value is op.rhs:
            demand = FixedDemand.ALL if op.inner is None else op.inner
        if value in (op.lhs, op.acc):
            rows = self.of(op.result) if op.rows is None else op.rows
            demand = join(demand, rows)
        return demand

    def of_map(self, op: tile.MapOp | tile.PanelMapOp) -> Demand:
        """Return the rows that a map needs of an operand with rows."""
        if isinstance(op, tile.PanelMapOp):
            return FixedDemand.ALL if op.count is None else op.count
        demand: Demand = FixedDemand.NONE
        for result in op.results:
            demand = join(demand, self.of(result))
        return demand


def count_for(op: Operation, demands: Demands) -> SSAValue | None:
    """Return the number of rows of an op's results that are needed, or None for all."""
    demand: Demand = FixedDemand.NONE
    for result in op.results:
        assert len(shape_of(result.type)) > 1
        demand = join(demand, demands.of(result))
    if isinstance(demand, FixedDemand) or not is_known_before(demand, op):
        return None
    return demand


def is_reader(op: tile.PanelMapOp, reader: Operation) -> bool:
    """Return True if a map reads an op's results as the op computes them.

    It must read them element by element, with equal shape, count and width.
    """
    if not isinstance(reader, tile.PanelMapOp) or reader.parent is not op.parent:
        return False
    is_alike = (
        reader.count is op.count
        and reader.shape == op.shape
        and is_wide(reader) == is_wide(op)
    )
    spans = [
        reader.span(i) for i, value in enumerate(reader.inputs) if value.owner is op
    ]
    return is_alike and all(span == FULL for span in spans)


def next_reader(op: tile.PanelMapOp) -> tuple[tile.PanelMapOp, Operation] | None:
    """Return a map to fuse with the op that it reads, and which one's place to take."""
    users = {use.operation: None for result in op.results for use in result.uses}
    for reader in users:
        if not isinstance(reader, tile.PanelMapOp) or not is_reader(op, reader):
            continue
        others = [value for value in reader.inputs if value.owner is not op]
        if all(is_known_before(value, op) for value in others):
            return reader, op
        if len(users) == 1:
            return reader, reader
    return None


def fuse_with(
    op: tile.PanelMapOp, reader: tile.PanelMapOp, place: Operation
) -> tile.PanelMapOp:
    """Return one map with the results of both, before `place`; erase both."""
    inputs, body = joined(op, reader)
    both = op, reader
    new = tile.PanelMapOp(
        op.shape,
        op.count,
        [value for value, _ in inputs],
        [span for _, span in inputs],
        [o.data for source in both for o in source.outcomes],
        body,
    )
    Rewriter.insert_op(new, InsertPoint.before(place))
    _replace((reader, op), new, [*op.results, *reader.results])
    return drop_unused(new)


AnyMap = TypeVar("AnyMap", tile.MapOp, tile.PanelMapOp)


def joined(
    op: AnyMap, reader: AnyMap
) -> tuple[list[tuple[SSAValue, tuple[int, ...]]], Region]:
    """Return the inputs and the region of a map with the results of both.

    Ops move out of the regions of both.
    """
    places: dict[tuple[SSAValue, tuple[int, ...]], SSAValue] = {}
    block = Block()
    values: list[SSAValue] = []
    for source in (op, reader):
        for i, (value, arg) in enumerate(
            zip(source.inputs, source.body.block.args, strict=True)
        ):
            if value.owner is op:
                arg.replace_all_uses_with(values[op.results.index(value)])
                continue
            where = value, source.span(i)
            if where not in places:
                new_arg = block.insert_arg(arg.type, len(block.args))
                new_arg.name_hint = arg.name_hint
                places[where] = new_arg
            arg.replace_all_uses_with(places[where])
        for inner in list(source.body.block.ops):
            if isinstance(inner, flex.YieldOp):
                values += inner.operands
            else:
                inner.detach()
                block.add_op(inner)
    block.add_op(flex.YieldOp(*values))
    return list(places), Region(block)


def may_combine(user: Operation, op: tile.PanelMapOp) -> TypeGuard[tile.ReduceOp]:
    """Return True if a user is a later reduction of rows, which a map may compute."""
    return (
        isinstance(user, tile.ReduceOp)
        and user.dim.value.data == 0
        and user.count is op.count
        and user.parent is op.parent
        and element_of(user.result.type) != i1
        and op.is_before_in_block(user)
    )


def may_pack(user: Operation, op: tile.PanelMapOp) -> TypeGuard[tile.PackOp]:
    """Return True if a user is a packing of floats, which a map may do."""
    return (
        isinstance(user, tile.PackOp)
        and element_of(user.input.type) == f32
        and user.count is op.count
        and user.parent is op.parent
        and element_of(user.result.type) == bf16
        and not is_wide(op)
    )


def next_outcome(op: tile.PanelMapOp) -> tuple[Operation, SSAValue, str] | None:
    """Return a user of a map's results or inputs that may become one more outcome, the
    value of the map's region that it reads, and the name of the outcome.

    Reductions of results come first, then those of tiles that the map reads anyway.
    """
    results = zip(op.results, yielded(op.body.block), op.outcomes, strict=True)
    kept = [(given, v) for given, v, o in results if o.data == tile.KEPT]
    inputs = enumerate(zip(op.inputs, op.body.block.args, strict=True))
    read = [pair for i, pair in inputs if op.span(i) == FULL]
    for given, value in (*kept, *read):
        for use in given.uses:
            user = use.operation
            if may_combine(user, op):
                return user, value, user.kind.data.value
    for given, value in kept:
        for use in given.uses:
            if may_pack(use.operation, op):
                return use.operation, value, tile.PACKED
    return None


def add_outcome(
    op: tile.PanelMapOp, user: Operation, value: SSAValue, outcome: str
) -> tile.PanelMapOp:
    """Return the map with the result of a user as one more outcome; erase the user."""
    values = [*yielded(op.body.block), value]
    outcomes = [*(o.data for o in op.outcomes), outcome]
    new = with_outcomes(op, values, outcomes, [*op.results, *user.results])
    Rewriter.erase_op(user)
    return new


def drop_unused(op: tile.PanelMapOp) -> tile.PanelMapOp:
    """Return the map without the results that have no uses, if any has uses."""
    indices = [i for i, result in enumerate(op.results) if result.uses]
    if not indices or len(indices) == len(op.results):
        return op
    outcomes = [op.outcomes.data[i].data for i in indices]
    values = [yielded(op.body.block)[i] for i in indices]
    return with_outcomes(op, values, outcomes, [op.results[i] for i in indices])


def with_outcomes(
    op: tile.PanelMapOp,
    values: Sequence[SSAValue],
    outcomes: Sequence[str],
    results: Sequence[SSAValue],
) -> tile.PanelMapOp:
    """Replace a map by one that yields these values with these outcomes.

    The new results replace `results`. Return the new map.
    """
    last = op.body.block.last_op
    assert last is not None
    last.operands = values
    spans = [op.span(i) for i in range(len(op.inputs))]
    body = op.detach_region(op.body)
    new = tile.PanelMapOp(op.shape, op.count, op.inputs, spans, outcomes, body)
    Rewriter.insert_op(new, InsertPoint.before(op))
    _replace([op], new, results)
    return new


def _replace(
    ops: Iterable[tile.PanelMapOp], new: tile.PanelMapOp, results: Sequence[SSAValue]
) -> None:
    """Replace some results by those of a new map; erase the ops that it replaces."""
    for old, result in zip(results, new.results, strict=True):
        result.name_hint = old.name_hint
        old.replace_all_uses_with(result)
    for op in ops:
        Rewriter.erase_op(op)


def make_panel_map(op: tile.MapOp, count: SSAValue | None) -> None:
    """Rewrite tile.map to tile.panel_map."""
    rows, columns = op.shape
    spans = [op.span(i) for i in range(len(op.inputs))]
    outcomes = [tile.KEPT] * len(op.results)
    body = op.detach_region(op.body)
    new = tile.PanelMapOp((rows, columns), count, op.inputs, spans, outcomes, body)
    for old, result in zip(op.results, new.results, strict=True):
        result.name_hint = old.name_hint
    Rewriter.replace_op(op, new)


def count_rows(kernel: tile.KernelOp) -> None:
    """Turn maps into panel maps; limit panel maps and products to needed rows."""
    demands = Demands()
    maps = [o for o in kernel.walk() if isinstance(o, tile.MapOp) and len(o.shape) > 1]
    products = [o for o in kernel.walk() if isinstance(o, tile.RegisterProductOp)]
    counts = [count_for(op, demands) for op in maps]
    rows = [count_for(op, demands) for op in products]
    for op, count in zip(maps, counts, strict=True):
        make_panel_map(op, count)
    for op, count in zip(products, rows, strict=True):
        if op.rows is None and count is not None:
            limit_rows(op, count)


def limit_rows(op: tile.RegisterProductOp, rows: SSAValue) -> None:
    """Let a product compute only the first `rows` rows."""
    new = tile.RegisterProductOp(
        op.lhs,
        op.rhs,
        op.acc,
        op.result.type,
        op.register_tile,
        op.base,
        op.strides,
        rows,
        op.inner,
        op.next,
    )
    new.result.name_hint = op.result.name_hint
    Rewriter.replace_op(op, new)


def fuse(block: Block) -> None:
    """Fuse maps with the maps that read them, then with reductions over their rows."""
    for op in panel_maps(block):
        while op.parent is not None and (found := next_reader(op)) is not None:
            op = fuse_with(op, *found)
    for op in panel_maps(block):
        while added := next_outcome(op):
            op = add_outcome(op, *added)
        drop_unused(op)


def panel_maps(block: Block) -> list[tile.PanelMapOp]:
    return [op for op in block.ops if isinstance(op, tile.PanelMapOp)]


@dataclass(frozen=True)
class TilePanelMapsPass(ModulePass):
    """Fuse maps with each other and with reductions, and compute only needed rows."""

    name = "tile-panel-maps"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.ops:
            if not isinstance(kernel, tile.KernelOp):
                continue
            count_rows(kernel)
            for inner in list(kernel.walk()):
                for region in inner.regions:
                    if not isinstance(inner, tile.PanelMapOp | tile.MapOp):
                        for block in region.blocks:
                            fuse(block)
        region_dce(op.body)


_CONSTANT_PREDICATES = (0, 15)
"""The predicates of `arith.cmpf` that are false, or true, for all operands."""


def is_constant(op: Operation) -> bool:
    """Return True if a comparison gives the same result for all operands."""
    is_cmpf = isinstance(op, arith.CmpfOp)
    return is_cmpf and op.predicate.value.data in _CONSTANT_PREDICATES


def loops_of(op: tile.MapOp | tile.PanelMapOp) -> list[Loop]:
    """Return the loops of the region's arguments and of its ops, in order."""
    along, last, block = variance(op), len(op.shape) - 1, op.body.block

    def loop(dims: Span) -> Loop:
        if last in dims:
            return Loop.ELEMENTS if 0 in dims else Loop.COLUMNS
        return Loop.ROWS if dims else Loop.NONE

    values: list[SSAValue] = list(block.args)
    for inner in block.ops:
        if not isinstance(inner, flex.YieldOp):
            (result,) = inner.results
            values.append(result)
            if is_constant(inner):
                along[result] = Span()
    return [loop(along[value]) for value in values]


@dataclass(frozen=True)
class TileAssignLoopsPass(ModulePass):
    """State the loops in which maps of tiles compute their values."""

    name = "tile-assign-loops"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for inner in op.walk():
            if isinstance(inner, tile.MapOp | tile.PanelMapOp) and inner.shape:
                loops = [StringAttr(loop) for loop in loops_of(inner)]
                inner.attributes[LOOPS] = ArrayAttr(loops)
