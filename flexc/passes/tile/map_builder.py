"""Build `tile.map` ops from Python functions over scalars, and analyse them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    AnyFloat,
    ArrayAttr,
    DenseArrayBase,
    IndexType,
    IntegerType,
    f64,
    i32,
)
from xdsl.ir import Attribute, Block, Region, SSAValue

from flexc.dialects import tile
from flexc.dialects.tile import TileType, element_of, shape_of
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.scalar.variation import Variation

Input = tuple[SSAValue, Sequence[int]]
"""An operand and the dimensions of the result that it spans."""

ROW, COLUMN, FULL, UNIFORM = (0,), (1,), (0, 1), ()


def build_map(
    code: ScalarCode,
    shape: Sequence[int],
    inputs: Sequence[Input],
    body: Callable[..., SSAValue],
    name: str,
) -> SSAValue:
    """Append a map of one result; `body(code, *scalars)` writes its region.

    An empty shape gives a scalar. An input that is a tensor spans no dimension.
    """

    def bodies(code: ScalarCode, *args: SSAValue) -> list[SSAValue]:
        return [body(code, *args)]

    (result,) = build_maps(code, shape, inputs, bodies, [name])
    return result


def build_maps(
    code: ScalarCode,
    shape: Sequence[int],
    inputs: Sequence[Input],
    body: Callable[..., Sequence[SSAValue]],
    names: Sequence[str],
) -> list[SSAValue]:
    """Append a map of several results; `body` returns their values."""
    values = [value for value, _ in inputs]
    block = Block(arg_types=[element_of(v.type) for v in values])
    for arg, value in zip(block.args, values, strict=True):
        arg.name_hint = value.name_hint
    inner = ScalarCode(block)
    results = body(inner, *block.args)
    inner.yield_(*results)
    op = tile.MapOp(
        values,
        [span for _, span in inputs],
        [result_type(r.type, shape) for r in results],
        Region(block),
    )
    code.builder.insert(op)
    for result, name in zip(op.results, names, strict=True):
        result.name_hint = name
    return list(op.results)


def build_row_map(
    code: ScalarCode,
    inputs: Sequence[SSAValue],
    body: Callable[..., SSAValue],
    name: str,
) -> SSAValue:
    """Append a map over tiles of one dimension and scalars; return its result."""
    spans = [ROW if isinstance(v.type, TileType) else UNIFORM for v in inputs]
    shape = next(s for v in inputs if (s := shape_of(v.type)))
    return build_map(code, shape, list(zip(inputs, spans, strict=True)), body, name)


def operand_of(op: tile.MapOp, value: SSAValue, span: Sequence[int]) -> SSAValue:
    """Return the region's argument for a value; add the operand if it is missing."""
    for index, given in enumerate(op.inputs):
        if given is value and op.span(index) == tuple(span):
            return op.body.block.args[index]
    op.operands = [*op.operands, value]
    spans = [*op.spans.data, DenseArrayBase.from_list(i32, span)]
    op.spans = ArrayAttr(spans)
    arg = op.body.block.insert_arg(element_of(value.type), len(op.body.block.args))
    arg.name_hint = value.name_hint
    return arg


def result_type(element: Attribute, shape: Sequence[int]) -> Attribute:
    """Return the type of a map's result: a tile, or the element for an empty shape."""
    return TileType(element, shape) if shape else element


Span = frozenset[int]


def variance(op: tile.MapOp | tile.PanelMapOp) -> Variation[Span]:
    """Return the dimensions along which each value of a map's region varies."""
    args = op.body.block.args
    return Variation({arg: frozenset(op.span(arg.index)) for arg in args}, Span())


def is_wide(op: tile.MapOp | tile.PanelMapOp) -> bool:
    """Return True if a map computes vectors of 64-bit numbers along its last dim."""
    along, last, block = variance(op), len(op.shape) - 1, op.body.block
    values = (*block.args, *(r for inner in block.ops for r in inner.results))
    wide = IntegerType(64), f64, IndexType()
    return any(v.type in wide and last in along[v] for v in values)


def extended(code: ScalarCode, value: SSAValue, element: AnyFloat) -> SSAValue:
    """Extend a float to a type that holds all its values."""
    if value.type == element:
        return value
    return code.insert(arith.ExtFOp(value, element))


def extended_exactly(code: ScalarCode, value: SSAValue, element: Attribute) -> SSAValue:
    """Convert a number to a wider float, which holds it exactly."""
    assert isinstance(element, AnyFloat)
    if isinstance(value.type, IntegerType):
        return code.insert(arith.SIToFPOp(value, element))
    return extended(code, value, element)


def widened(code: ScalarCode, value: SSAValue, element: Attribute) -> SSAValue:
    """Convert the elements of a tile to a wider float."""

    def body(c: ScalarCode, x: SSAValue) -> SSAValue:
        return extended_exactly(c, x, element)

    shape = shape_of(value.type)
    inputs = [(value, range(len(shape)))]
    return build_map(code, shape, inputs, body, value.name_hint or "tile")


def convert(code: ScalarCode, value: SSAValue, element: Attribute) -> SSAValue:
    """Round a tile to a narrower element type."""
    assert isinstance(value.type, TileType)
    assert isinstance(element, AnyFloat)
    if value.type.element_type == element:
        return value

    def body(c: ScalarCode, x: SSAValue) -> SSAValue:
        return c.insert(arith.TruncFOp(x, element))

    name = f"{value.name_hint or 'tile'}_{element}"
    return build_map(code, value.type.get_shape(), [(value, FULL)], body, name)
