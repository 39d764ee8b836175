"""Passes that keep the units of a core busy.

`tile-overlap-products`: compute a product of the next iteration beside a map.

1. The map reads one product of the matrix unit, and computes one function, such as
   exp2: product and map then take about the same time. The map keeps no tile. The
   product depends on nothing but the loop's index.
2. The loop carries the product: an iteration maps the product that the one before
   computed, and computes the next one. The first product is computed before the loop,
   if it has iterations. In the last iteration the next product has no rows.
3. The product is `beside` the map: its instructions lie between the map's rows.

Two results of the product must fit in a first-level cache.

`tile-split-functions`: let a map compute one long function, such as tanh or exp2.

1. The operations of a function depend on each other, so a core computes several
   elements at the same time. Two functions in a row, such as those of a soft cap and of
   its weight, take twice as many operations, so that few elements fit into a core's
   scheduler. A map with two functions becomes two maps; the first one yields the first
   function.
2. The result can take the place of a tile in a cache: the first map reads one element
   by element that the second one does not read.
3. The second map repeats cheap operations of the first one, and functions of rows or of
   columns alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import math as math_dialect
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp, TensorType, UnitAttr
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.transforms.dead_code_elimination import region_dce

from flexc.dialects import flex, tile
from flexc.dialects.mod_region import yielded
from flexc.dialects.tile import shape_of
from flexc.passes.scalar.copier import sources_of
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.tile.map_builder import FULL, variance
from flexc.passes.tile.tile_split_maps import carry, slice_of

CACHE_BYTES = 48 << 10
"""The first-level cache of cores with a matrix unit."""


def early_ops(product: SSAValue, results: int) -> list[Operation] | None:
    """Return what computes a product of a matrix unit, the product last.

    Return None if no earlier iteration may compute it: what precedes the product has to
    be scalars and near rows that depend on nothing but the loop's index, and this
    number of `results` has to fit in a cache.
    """
    op = product.owner
    loop = op.parent_op()
    if not isinstance(op, tile.RegisterProductOp) or not isinstance(loop, scf.ForOp):
        return None
    rows, columns = shape_of(op.result.type)
    block = op.register_tile
    is_whole = rows >= block.rows.data and columns % (16 * block.vectors.data) == 0
    if (
        not block.is_of_unit
        or not is_whole
        or results * 4 * rows * columns > CACHE_BYTES
    ):
        return None
    if op.base is None or op.acc is not None or op.inner is not None:
        return None
    ops = slice_of(op, loop)
    before = [o for o in (ops or [op])[:-1] if not isinstance(o, tile.NearRowsOp)]
    types = (v.type for other in before for v in other.results)
    is_large = any(isinstance(t, tile.TileType | TensorType) for t in types)
    return None if is_large else ops


SHORT = (
    math_dialect.FmaOp,
    math_dialect.AbsFOp,
    math_dialect.AbsIOp,
    math_dialect.FloorOp,
    math_dialect.CeilOp,
    math_dialect.CopySignOp,
)
"""Ops of `math` that are one or two instructions. Other roundings take longer."""


def is_function(op: Operation) -> bool:
    """Return True if an op is many instructions that depend on each other."""
    return op.dialect_name() == "math" and not isinstance(op, SHORT)


def computes_one_function(op: tile.PanelMapOp) -> bool:
    """Return True if a map computes one function of each element."""
    return sum(map(is_function, op.body.block.ops)) == 1


def ops_beside(op: tile.PanelMapOp) -> list[Operation] | None:
    """Return what computes the product that a map reads, if it may be beside the map.

    The map reads no other product, and both count the same rows.
    """
    products = {v for v in op.inputs if isinstance(v.owner, tile.RegisterProductOp)}
    if len(products) != 1 or not computes_one_function(op):
        return None
    if any(outcome.data == tile.KEPT for outcome in op.outcomes):
        return None  # Three tiles of scores leave no room in a first-level cache.
    (value,) = products
    product = value.owner
    assert isinstance(product, tile.RegisterProductOp)
    is_read_whole = product.rows is op.count and product.parent is op.parent
    return early_ops(value, 2) if is_read_whole else None


def overlap(loop: scf.ForOp, reader: tile.PanelMapOp, ops: list[Operation]) -> None:
    """Let the loop carry a product, and compute the next one beside its reader."""
    name = ops[-1].results[0].name_hint or "product"
    loop = carry(loop, ops, reader)
    old = yielded(loop.body.block)[-1].owner
    assert isinstance(old, tile.RegisterProductOp)
    assert old.base is not None
    near = old.lhs.owner if isinstance(old.lhs.owner, tile.NearRowsOp) else None
    code = ScalarCode(InsertPoint.before(near or old))
    follows = code.cmp("slt", code.add(loop.body.block.args[0], loop.step), loop.ub)
    count = old.rows or code.const(shape_of(old.result.type)[0])
    rows = code.select(follows, count, code.const(0), "rows")
    if near is not None:  # The last iteration reads no rows, and must not copy any.
        near.operands[near.operands.index(near.count)] = rows
    sizes = old.result.type, old.register_tile
    new = tile.RegisterProductOp(
        old.lhs, old.rhs, None, *sizes, old.base, old.strides, rows
    )
    new.beside = UnitAttr()
    new.result.name_hint = f"{name}_next"
    Rewriter.replace_op(old, new)


@dataclass(frozen=True)
class TileOverlapProductsPass(ModulePass):
    """Compute products of the next iteration beside maps."""

    name = "tile-overlap-products"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for loop in [o for o in op.walk() if isinstance(o, scf.ForOp)]:
            for reader in loop.body.block.ops:
                if isinstance(reader, tile.PanelMapOp) and (ops := ops_beside(reader)):
                    overlap(loop, reader, ops)
                    break
        region_dce(op.body)


@dataclass(frozen=True)
class FirstFunction:
    """The first function, in order, of a map that computes more than one."""

    op: tile.PanelMapOp
    value: SSAValue
    """The function's result."""
    before: set[SSAValue]
    """The values on which it depends, and itself."""
    after: set[SSAValue]
    """The values on which the other yields depend, up to `value`."""

    @classmethod
    def of(cls, op: tile.PanelMapOp) -> FirstFunction | None:
        """Return the first function, None if the map cannot be split after it."""
        along = variance(op)
        functions = [
            inner.results[0]
            for inner in op.body.block.ops
            if is_function(inner) and along[inner.results[0]] == frozenset(FULL)
        ]
        if len(functions) < 2:
            return None
        value = functions[0]
        before = sources_of([value])
        rest = [v for v in yielded(op.body.block) if v not in before]
        after = sources_of(rest, known=value)
        tiles = {arg for arg in op.body.block.args if along[arg] == frozenset(FULL)}
        has_place = any(arg.type == value.type for arg in tiles & before)
        if not has_place or tiles & before & after:
            return None
        if value not in after or not set(functions[1:]) & after:
            return None
        kept = zip(yielded(op.body.block), op.outcomes, strict=True)
        if any(v is value and outcome.data == tile.KEPT for v, outcome in kept):
            return None  # It has a tile of its own.
        return cls(op, value, before, after)

    def split(self) -> tile.PanelMapOp:
        """Replace the map by two. Return the second one."""
        op, values = self.op, yielded(self.op.body.block)
        outcomes = [o.data for o in op.outcomes]
        early = [i for i, v in enumerate(values) if v in self.before]
        late = [i for i in range(len(values)) if i not in early]
        first = part_of(
            op,
            self.before,
            [self.value, *(values[i] for i in early)],
            [tile.KEPT, *(outcomes[i] for i in early)],
        )
        found, *others = first.results
        found.name_hint = self.value.name_hint
        second = part_of(
            op,
            self.after - {self.value},
            [values[i] for i in late],
            [outcomes[i] for i in late],
            (self.value, found),
        )
        for places, results in ((early, others), (late, second.results)):
            for i, result in zip(places, results, strict=True):
                result.name_hint = op.results[i].name_hint
                op.results[i].replace_all_uses_with(result)
        Rewriter.erase_op(op)
        return second


def part_of(
    op: tile.PanelMapOp,
    kept: set[SSAValue],
    values: Sequence[SSAValue],
    outcomes: Sequence[str],
    given: tuple[SSAValue, SSAValue] | None = None,
) -> tile.PanelMapOp:
    """Insert a map before `op` that computes the `kept` values of its region.

    It yields `values`. `given` is a value of the region, and the tile that holds it.
    """
    inputs: list[tuple[SSAValue, SSAValue, Sequence[int]]] = [
        (arg, op.inputs[arg.index], op.span(arg.index))
        for arg in op.body.block.args
        if arg in kept
    ]
    if given is not None:
        inputs.append((*given, FULL))
    block = Block(arg_types=[old.type for old, _, _ in inputs])
    mapped: dict[SSAValue, SSAValue] = {}
    for arg, (old, _, _) in zip(block.args, inputs, strict=True):
        arg.name_hint, mapped[old] = old.name_hint, arg
    for inner in op.body.block.ops:
        if not isinstance(inner, flex.YieldOp) and inner.results[0] in kept:
            block.add_op(inner.clone(mapped))
    block.add_op(flex.YieldOp(*(mapped[v] for v in values)))
    new = tile.PanelMapOp(
        op.shape,
        op.count,
        [value for _, value, _ in inputs],
        [span for _, _, span in inputs],
        outcomes,
        Region(block),
    )
    Rewriter.insert_op(new, InsertPoint.before(op))
    return new


@dataclass(frozen=True)
class TileSplitFunctionsPass(ModulePass):
    """Split maps that compute several long functions."""

    name = "tile-split-functions"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        pending = [o for o in op.walk() if isinstance(o, tile.PanelMapOp)]
        while pending:
            if (found := FirstFunction.of(pending.pop())) is not None:
                pending.append(found.split())
