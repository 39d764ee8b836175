"""`tile-panel-maps`: maps over rows of vectors, which combine rows on the way.

1. A `tile.map` of two dimensions becomes a `tile.panel_map`. Where all that look at its
   results look at the first rows only, as many as one count says, it computes no more;
   nor does a `tile.register_product`.
2. A map whose results only another reads, element by element, becomes a part of it.
3. A `tile.reduce` along the first dimension of what a map yields is an outcome of that
   map: rows are combined as they are computed. A tile that nobody else reads is then
   not kept.

Maps that compute with numbers of 64 bits, whose vectors have fewer lanes, and those
that do not stay apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerType, ModuleOp, f64, i1
from xdsl.ir import Block, Operation, Region, SSAValue, Use
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from flexc.dialects import flex, tile
from flexc.dialects.tile import element_of, shape_of
from flexc.passes.tidy import erase_dead
from flexc.passes.tile.map_builder import FULL

# How many rows of a tile anybody looks at.


class Rows(Enum):
    """No rows at all, or all of them."""

    NONE = "none"
    ALL = "all"


Demand = SSAValue | Rows
"""A count, in which case that many rows, the first."""


def join(a: Demand, b: Demand) -> Demand:
    """What two users look at. Two counts are compared as values only."""
    if a is Rows.NONE or a is b:
        return b
    return a if b is Rows.NONE else Rows.ALL


def is_known_before(count: SSAValue, op: Operation) -> bool:
    """Whether a count is defined where an op runs."""
    owner = count.owner
    if isinstance(owner, Block):
        return owner.find_ancestor_op_in_block(op) is not None
    block = owner.parent_block()
    assert block is not None
    inside = block.find_ancestor_op_in_block(op)
    return inside is not None and owner.is_before_in_block(inside)


@dataclass
class Demands:
    """Rows that users look at, of the tiles of two dimensions of a kernel.

    Products and maps pass on what their own users look at. Anything else, and all
    that a loop carries, is looked at as a whole.
    """

    known: dict[SSAValue, Demand] = field(default_factory=dict[SSAValue, Demand])

    def of(self, value: SSAValue) -> Demand:
        if value not in self.known:
            demand: Demand = Rows.NONE
            for use in value.uses:
                demand = join(demand, self.of_use(use))
            self.known[value] = demand
        return self.known[value]

    def of_use(self, use: Use) -> Demand:
        op, value = use.operation, use.operation.operands[use.index]
        if isinstance(op, tile.RegisterProductOp):
            return self.of_product(op, value)
        if isinstance(op, tile.ReduceOp) and op.dim.value.data == 0:
            return Rows.ALL if op.count is None else op.count
        if isinstance(op, tile.MapOp | tile.PanelMapOp):
            return self.of_map(op)
        if isinstance(op, tile.StoreStridedOp) and op.counted_dim == 0:
            return op.extents[0]
        if isinstance(op, tile.DiagonalsOp) and op.is_transposed:
            return Rows.ALL if op.count is None else op.count
        return Rows.ALL

    def of_product(self, op: tile.RegisterProductOp, value: SSAValue) -> Demand:
        demand: Demand = Rows.NONE
        if value is op.rhs:
            demand = Rows.ALL if op.inner is None else op.inner
        if value in (op.lhs, op.acc):
            rows = self.of(op.result) if op.rows is None else op.rows
            demand = join(demand, rows)
        return demand

    def of_map(self, op: tile.MapOp | tile.PanelMapOp) -> Demand:
        """Of an operand with rows; of others nobody asks."""
        if isinstance(op, tile.PanelMapOp):
            return Rows.ALL if op.count is None else op.count
        demand: Demand = Rows.NONE
        for result in op.results:
            demand = join(demand, self.of(result))
        return demand


def count_for(op: Operation, demands: Demands) -> SSAValue | None:
    """How many rows of an op's results are needed, None for all."""
    demand: Demand = Rows.NONE
    for result in op.results:
        assert len(shape_of(result.type)) > 1
        demand = join(demand, demands.of(result))
    if isinstance(demand, Rows) or not is_known_before(demand, op):
        return None
    return demand


# Panel maps made of others, and of the reductions of what they yield.


def sole_reader(op: tile.PanelMapOp) -> tile.PanelMapOp | None:
    """The map that alone reads what a map yields, element by element, if it may."""
    uses = [use for result in op.results for use in result.uses]
    readers = {use.operation for use in uses}
    if len(readers) != 1:
        return None
    (reader,) = readers
    if not isinstance(reader, tile.PanelMapOp) or reader.parent is not op.parent:
        return None
    is_alike = (
        reader.count is op.count
        and reader.shape == op.shape
        and is_wide(reader) == is_wide(op)
    )
    are_kept = all(op.outcome(i) is None for i in range(len(op.results)))
    first = len(reader.operands) - len(reader.inputs)
    are_full = all(
        use.index >= first and reader.span(use.index - first) == FULL for use in uses
    )
    return reader if is_alike and are_kept and are_full else None


def is_wide(op: tile.PanelMapOp) -> bool:
    """Whether a map computes vectors of 64-bit numbers."""
    varying: set[SSAValue] = {
        a for i, a in enumerate(op.body.block.args) if 1 in op.span(i)
    }
    for inner in op.body.block.ops:
        if not varying.isdisjoint(inner.operands):
            varying.update(inner.results)
    wide = IntegerType(64), f64
    return any(value.type in wide for value in varying)


def fuse_into(op: tile.PanelMapOp, reader: tile.PanelMapOp) -> tile.PanelMapOp:
    """The reader, which computes itself what it read; the op is gone."""
    places: dict[tuple[SSAValue, tuple[int, ...]], SSAValue] = {}
    block = Block()
    mapped: dict[SSAValue, SSAValue] = {}
    for source in (op, reader):
        for i, (value, arg) in enumerate(
            zip(source.inputs, source.body.block.args, strict=True)
        ):
            if value.owner is op:
                mapped[arg] = mapped[_yields(op)[op.results.index(value)]]
                continue
            place = value, source.span(i)
            if place not in places:
                new_arg = block.insert_arg(arg.type, len(block.args))
                new_arg.name_hint = arg.name_hint
                places[place] = new_arg
            mapped[arg] = places[place]
        for inner in source.body.block.ops:
            if source is reader or not isinstance(inner, flex.YieldOp):
                block.add_op(inner.clone(mapped))
    new = tile.PanelMapOp(
        reader.shape,
        reader.count,
        [value for value, _ in places],
        [span for _, span in places],
        [o.data for o in reader.outcomes],
        Region(block),
    )
    _replace(reader, new, new.results)
    op.detach()
    op.erase()
    return new


def reduces_of(op: tile.PanelMapOp) -> list[tile.ReduceOp]:
    """Reductions over the rows that a map computes."""
    users = [
        use.operation
        for i, result in enumerate(op.results)
        if op.outcome(i) is None
        for use in result.uses
    ]
    return [
        user
        for user in users
        if isinstance(user, tile.ReduceOp)
        and user.dim.value.data == 0
        and user.count is op.count
        and user.parent is op.parent
        and element_of(user.result.type) != i1
    ]


def combine_rows(op: tile.PanelMapOp, reduce: tile.ReduceOp) -> tile.PanelMapOp:
    """The map with a reduction as one more outcome; the reduction is gone."""
    index = op.results.index(reduce.input)
    indices = [*range(len(op.results)), index]
    outcomes = [*(o.data for o in op.outcomes), reduce.kind.data.value]
    new = with_outcomes(op, indices, outcomes, [*op.results, reduce.result])
    reduce.detach()
    reduce.erase()
    return new


def drop_unused(op: tile.PanelMapOp) -> None:
    """Leave out what nobody reads."""
    indices = [i for i, result in enumerate(op.results) if result.uses]
    if indices and len(indices) < len(op.results):
        outcomes = [op.outcomes.data[i].data for i in indices]
        with_outcomes(op, indices, outcomes, [op.results[i] for i in indices])


def with_outcomes(
    op: tile.PanelMapOp,
    indices: Sequence[int],
    outcomes: Sequence[str],
    results: Sequence[SSAValue],
) -> tile.PanelMapOp:
    """The map that yields such of its values, in the place of such results."""
    last, values = op.body.block.last_op, [_yields(op)[i] for i in indices]
    assert last is not None
    last.operands = values
    spans = [op.span(i) for i in range(len(op.inputs))]
    body = op.detach_region(op.body)
    new = tile.PanelMapOp(op.shape, op.count, op.inputs, spans, outcomes, body)
    _replace(op, new, new.results, results)
    return new


def _yields(op: tile.PanelMapOp) -> Sequence[SSAValue]:
    last = op.body.block.last_op
    assert isinstance(last, flex.YieldOp)
    return last.values


def _replace(
    op: tile.PanelMapOp,
    new: tile.PanelMapOp,
    new_results: Sequence[SSAValue],
    results: Sequence[SSAValue] | None = None,
) -> None:
    """Put a map where another was, and its results where others were."""
    block = op.parent
    assert block is not None
    block.insert_op_before(new, op)
    olds = op.results if results is None else results
    for old, result in zip(olds, new_results, strict=True):
        result.name_hint = old.name_hint
        old.replace_all_uses_with(result)
    block.erase_op(op)


def make_panel_map(op: tile.MapOp, count: SSAValue | None) -> None:
    """tile.map -> tile.panel_map."""
    rows, columns = op.shape
    spans = [op.span(i) for i in range(len(op.inputs))]
    outcomes = [tile.KEPT] * len(op.results)
    body = op.detach_region(op.body)
    new = tile.PanelMapOp((rows, columns), count, op.inputs, spans, outcomes, body)
    for old, result in zip(op.results, new.results, strict=True):
        result.name_hint = old.name_hint
    Rewriter.replace_op(op, new)


def count_rows(kernel: tile.KernelOp) -> None:
    """Maps of two dimensions as panel maps, of the rows that are needed."""
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
    """Let a product compute the first rows only."""
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
    """Maps with the maps that read them, then with what combines their rows."""
    for op in panel_maps(block):
        while op.parent is not None and (reader := sole_reader(op)) is not None:
            op = fuse_into(op, reader)
    for op in panel_maps(block):
        while found := reduces_of(op):
            op = combine_rows(op, found[0])
        drop_unused(op)


def panel_maps(block: Block) -> list[tile.PanelMapOp]:
    return [op for op in block.ops if isinstance(op, tile.PanelMapOp)]


@dataclass(frozen=True)
class TilePanelMapsPass(ModulePass):
    """Combine rows where they are computed, and compute no others."""

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
        erase_dead(op.body)
