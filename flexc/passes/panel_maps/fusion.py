"""Panel maps made of others, and of the reductions of what they yield."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IntegerType, f64, i1
from xdsl.ir import Block, Region, SSAValue

from flexc.dialects import flex, tile
from flexc.dialects.tile import element_of
from flexc.passes.map_builder import FULL


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
