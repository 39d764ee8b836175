"""What is done to rows alone: a program owns some rows of one head.

An op over rows is a kernel, or part of the program that reads what it makes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import AnyFloat, TensorType
from xdsl.ir import Attribute, Region, SSAValue
from xdsl.utils.hints import isa

from flexc.dialects import flex, tile
from flexc.dialects.tile import ParamAttr, ParamKind, ReduceKind, TileType
from flexc.passes.blocksparse.programs.arguments import (
    OverRows,
    aligned,
    arguments_of,
    entry_block,
    is_matrix,
    matrices_of_makers,
)
from flexc.passes.blocksparse.programs.builder import rows_grid
from flexc.passes.blocksparse.programs.online_softmax import convert, extended
from flexc.passes.flex.derivatives.row_exponents import row_weight
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.sizes.tile_sizes import padded_head_dim
from flexc.passes.tile.map_builder import (
    FULL,
    ROW,
    Input,
    build_map,
    build_row_map,
)

BLOCK = 64
"""Rows of a program: memory is all that counts here."""


class RowsProgram:
    """Builds the kernel of one op over rows."""

    def __init__(
        self,
        op: OverRows | flex.CombineSplitsOp,
        name: str,
        target: str,
        rows: int = BLOCK,
    ):
        self.op = op
        self.name = name
        self.target = target
        self.rows = rows
        self.block = entry_block(op)
        self.args = dict(zip(arguments_of(op), self.block.args, strict=True))
        self.code = ScalarCode(self.block)
        axes = [self.code.insert(tile.ProgramIdOp(i)) for i in (2, 1, 0)]
        start = self.code.mul(axes[2], self.code.const(rows), "start")
        self.start = [*axes[:2], start]

    def rows_of(self, tensor: SSAValue) -> SSAValue:
        """The program's rows of a tensor, made or loaded."""
        if isinstance(tensor.owner, OverRows):
            return made_rows(self.code, tensor.owner, self.rows_of)
        return self.load(tensor)

    def load(
        self, tensor: SSAValue, start: Sequence[SSAValue] | None = None
    ) -> SSAValue:
        """The program's rows of a matrix, or its numbers of a vector.

        They begin at (b, h, row), unless a `start` is given.
        """
        assert isa(tensor.type, TensorType[Attribute])
        shape, checked = self.tile_of(tensor.type)
        type_ = TileType(tensor.type.element_type, shape)
        where = self.at(tensor, start or self.start)
        load = tile.LoadOp(self.args[tensor], where, checked, type_)
        return self.code.insert(load, tensor.name_hint)

    def at(self, tensor: SSAValue, start: Sequence[SSAValue]) -> list[SSAValue]:
        return [*start, *([self.code.const(0)] if is_matrix(tensor) else [])]

    def store(self, value: SSAValue, result: SSAValue) -> None:
        """Store the program's rows of a result, in its type."""
        code = self.code
        assert isa(result.type, TensorType[Attribute])
        value = convert(code, value, result.type.element_type)
        _, checked = self.tile_of(result.type)
        where = self.at(result, self.start)
        code.builder.insert(tile.StoreOp(value, self.args[result], where, checked))

    def finish(self, value: SSAValue) -> tile.KernelOp:
        """Store the one result, and the kernel that does."""
        (result,) = self.op.results
        self.store(value, result)
        matrices = [v for v in (*self.op.operands, result) if is_matrix(v)]
        return self.kernel([*matrices, *matrices_of_makers(self.op)], {})

    def kernel(
        self, matrices: Sequence[SSAValue], attributes: dict[str, Attribute]
    ) -> tile.KernelOp:
        """The kernel around what was built, with what is known of its matrices."""
        self.code.builder.insert(tile.ReturnOp())
        params = [ParamAttr(ParamKind.ARGUMENT, i) for i in range(len(self.block.args))]
        known, facts = self.op.properties, ("alignment", "max_length")
        attributes |= {name: known[name] for name in facts if name in known}
        attributes |= aligned(self.op, matrices)
        return tile.KernelOp(
            self.name, rows_grid(self.rows), params, Region(self.block), attributes
        )

    def tile_of(
        self, type_: TensorType[Attribute]
    ) -> tuple[tuple[int, ...], list[int]]:
        """The tile of a program's rows, and along what it may stick out."""
        if type_.get_num_dims() == 3:
            return (self.rows,), [0]
        dim = type_.get_shape()[3]
        padded = padded_head_dim(self.target, dim)
        return (self.rows, padded), [0] if padded == dim else [0, 1]


def rows_kernel(op: OverRows, name: str, target: str) -> tile.KernelOp:
    """The kernel of an op over rows, and of those that make what it reads."""
    program = RowsProgram(op, name, target)
    return program.finish(made_rows(program.code, op, program.rows_of))


Rows = Callable[[SSAValue], SSAValue]
"""The rows that a program has of a tensor."""


def made_rows(code: ScalarCode, op: OverRows, rows_of: Rows) -> SSAValue:
    """A program's rows of what an op over rows makes."""
    assert isa(op.result.type, TensorType[Attribute])
    if isinstance(op, flex.RowDotsOp):
        rows = dot_rows(code, op, rows_of)
    else:
        rows = weigh_rows(code, op, rows_of)
    return convert(code, rows, op.result.type.element_type)


def dot_rows(code: ScalarCode, op: flex.RowDotsOp, rows_of: Rows) -> SSAValue:
    """Dot products of rows."""
    assert isa(op.result.type, TensorType[AnyFloat])
    element = op.result.type.element_type
    total = None
    for lhs, rhs in zip(op.lhs, op.rhs, strict=True):
        found = product(code, rows_of(lhs), rows_of(rhs), element)
        total = found if total is None else combined(code, total, found)
    assert total is not None
    dots = code.insert(tile.ReduceOp(ReduceKind.SUM, total, 1), "dots")
    for minus in op.minus:
        dots = combined(code, dots, rows_of(minus))
    return dots


def product(
    code: ScalarCode, lhs: SSAValue, rhs: SSAValue, element: AnyFloat
) -> SSAValue:
    def body(code: ScalarCode, a: SSAValue, b: SSAValue) -> SSAValue:
        a, b = (extended(code, v, element) for v in (a, b))
        return code.insert(arith.MulfOp(a, b))

    shape = tile.shape_of(lhs.type)
    return build_map(code, shape, [(lhs, FULL), (rhs, FULL)], body, "product")


def combined(code: ScalarCode, a: SSAValue, b: SSAValue) -> SSAValue:
    """a + b of matrices, a - b of what is left of each row."""
    shape = tile.shape_of(a.type)
    kind = arith.AddfOp if len(shape) > 1 else arith.SubfOp

    def body(code: ScalarCode, x: SSAValue, y: SSAValue) -> SSAValue:
        return code.insert(kind(x, y))

    span = range(len(shape))
    return build_map(code, shape, [(a, span), (b, span)], body, "total")


def weigh_rows(code: ScalarCode, op: flex.WeighRowsOp, rows_of: Rows) -> SSAValue:
    """Rows times their weights."""
    rows = [rows_of(op.lse), rows_of(op.lse_rest)]
    weight = build_row_map(code, rows, row_weight, "weight")
    values = rows_of(op.values)
    shape = tile.shape_of(values.type)
    assert isinstance(weight.type, TileType)
    element = weight.type.element_type
    assert isinstance(element, AnyFloat)

    def body(code: ScalarCode, x: SSAValue, w: SSAValue) -> SSAValue:
        zero = code.const(0.0, element)
        weighted = code.insert(arith.MulfOp(extended(code, x, element), w))
        # Of a row without pairs, not even NaN counts.
        return code.select(code.cmpf("oeq", w, zero), zero, weighted)

    inputs: list[Input] = [(values, range(len(shape))), (weight, ROW)]
    return build_map(code, shape, inputs, body, "weighted")
