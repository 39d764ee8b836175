"""Kernels of ops over rows: a program owns some rows of one head.

An op over rows has a kernel of its own, or the kernels that read its result absorb it.
`flex.combine_splits` combines the results of programs that split the keys of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce

from xdsl.dialects.builtin import AnyFloat, TensorType
from xdsl.ir import Attribute, SSAValue
from xdsl.utils.hints import isa

from flexc.dialects import flex, tile
from flexc.dialects.mod_region import arguments_of
from flexc.dialects.tile import ReduceKind, TileType
from flexc.passes.blocksparse.programs.kernel_builder import (
    KernelBuilder,
    absorbed_matrices,
    aligned,
    grid_of,
    rows_grid,
)
from flexc.passes.scalar.copier import Copier
from flexc.passes.scalar.scalar_code import ScalarCode, counted_loop
from flexc.passes.targets.target import Target
from flexc.passes.tile.map_builder import (
    COLUMN,
    FULL,
    ROW,
    UNIFORM,
    Input,
    build_map,
    build_row_map,
    convert,
)

BLOCK = 64
"""The rows of a program: memory bandwidth limits these kernels."""


class RowKernelBuilder(KernelBuilder):
    """A builder of the kernel of one op over rows."""

    def __init__(
        self,
        op: flex.MapRowsOp | flex.CombineSplitsOp,
        name: str,
        target: Target,
        rows: int = BLOCK,
    ):
        super().__init__(op, name, target)
        self.op = op
        self.rows = rows
        axes = [self.code.insert(tile.ProgramIdOp(i)) for i in (2, 1, 0)]
        start = self.code.mul(axes[2], self.code.const(rows), "start")
        self.start = [*axes[:2], start]

    def rows_of(self, tensor: SSAValue) -> SSAValue:
        """Return the program's rows of a tensor, computed or loaded."""
        assert isa(tensor.type, TensorType[Attribute])
        if isinstance(tensor.owner, flex.MapRowsOp):
            shape, _ = self.tile_of(tensor.type)
            return map_rows(self.code, tensor, shape, self.rows_of, self.args)
        return self.load(tensor)

    def load(self, tensor: SSAValue) -> SSAValue:
        """Load the program's rows of a matrix, or its numbers of a vector."""
        assert isa(tensor.type, TensorType[Attribute])
        shape, checked = self.tile_of(tensor.type)
        type_ = TileType(tensor.type.element_type, shape)
        where = self.at(tensor)
        load = tile.LoadOp(self.args[tensor], where, checked, type_)
        return self.code.insert(load, tensor.name_hint)

    def at(self, tensor: SSAValue) -> list[SSAValue]:
        return [*self.start, *([self.code.const(0)] if flex.is_matrix(tensor) else [])]

    def store(self, value: SSAValue, result: SSAValue) -> None:
        """Store the program's rows of a result, in the type of the result."""
        code = self.code
        assert isa(result.type, TensorType[Attribute])
        value = convert(code, value, result.type.element_type)
        _, checked = self.tile_of(result.type)
        where = self.at(result)
        code.builder.insert(tile.StoreOp(value, self.args[result], where, checked))

    def kernel(
        self, matrices: Sequence[SSAValue], attributes: dict[str, Attribute]
    ) -> tile.KernelOp:
        """Return the kernel around the code that was built, with the op's facts."""
        known, facts = self.op.properties, ("alignment", "max_length")
        attributes |= {name: known[name] for name in facts if name in known}
        attributes |= aligned(self.op, matrices)
        return self.kernel_op(rows_grid(self.rows), attributes)

    def tile_of(
        self, type_: TensorType[Attribute]
    ) -> tuple[tuple[int, ...], list[int]]:
        """Return the shape of a tile of rows, and the dimensions to check."""
        if type_.get_num_dims() == 3:
            return (self.rows,), [0]
        dim = type_.get_shape()[3]
        padded = self.target.padded(dim)
        return (self.rows, padded), [0] if padded == dim else [0, 1]


def rows_kernel(op: flex.MapRowsOp, name: str, target: Target) -> tile.KernelOp:
    """Return the kernel of an op over rows and of the ops that it absorbs."""
    program = RowKernelBuilder(op, name, target)
    for result in op.results:
        program.store(program.rows_of(result), result)
    matrices = [v for v in (*op.operands, *op.results) if flex.is_matrix(v)]
    return program.kernel([*matrices, *absorbed_matrices(op)], {})


Rows = Callable[[SSAValue], SSAValue]
"""A function that returns the program's rows of a tensor."""


def map_rows(
    code: ScalarCode,
    result: SSAValue,
    shape: Sequence[int],
    rows_of: Rows,
    args: Mapping[SSAValue, SSAValue],
) -> SSAValue:
    """Write a program's rows of a result of `flex.map_rows`, of this shape.

    `args` are the kernel's arguments for scalars.
    """
    op = result.owner
    assert isinstance(op, flex.MapRowsOp)
    assert isa(result.type, TensorType[AnyFloat])
    element, value = result.type.element_type, op.yielded(result)
    computed = op.computed_type(op.lhs, op.values)
    read = arguments_of([value])
    given: dict[SSAValue, Input] = {}
    if op.dot() in read:
        given[op.code.block.args[0]] = dot_rows(code, op, computed, rows_of), ROW
    for tensor, arg in op.arguments():
        if arg in read and not flex.is_rows(tensor):
            given[arg] = args[tensor], UNIFORM
        elif arg in read:
            given[arg] = rows_of(tensor), FULL if flex.is_matrix(tensor) else ROW

    def body(code: ScalarCode, *own: SSAValue) -> SSAValue:
        wide = (code.float_cast(v, computed) for v in own)
        copier = Copier(code, dict(zip(given, wide, strict=True)))
        return code.float_cast(copier.value(value), element)

    if not given:
        return code.insert(tile.FullOp(body(code), TileType(element, shape)))
    return build_map(code, shape, list(given.values()), body, result.name_hint or "row")


def dot_rows(
    code: ScalarCode, op: flex.MapRowsOp, element: AnyFloat, rows_of: Rows
) -> SSAValue:
    """Write the sums of dot products of rows."""
    tiles = [rows_of(v) for v in (*op.lhs, *op.rhs)]
    inputs: list[Input] = [(t, FULL) for t in tiles]

    def body(code: ScalarCode, *own: SSAValue) -> SSAValue:
        wide = [code.float_cast(v, element) for v in own]
        pairs = zip(wide[: len(op.lhs)], wide[len(op.lhs) :], strict=True)
        return reduce(code.addf, [code.mulf(a, b) for a, b in pairs])

    products = build_map(code, tile.shape_of(tiles[0].type), inputs, body, "product")
    return code.insert(tile.ReduceOp(ReduceKind.SUM, products, 1), "dots")


LEAST_SPLITS = 16
"""The least splits of a tile: they are loaded before any is used."""


class CombineKernelBuilder(RowKernelBuilder):
    """A builder of the kernel of `flex.combine_splits`: a softmax over splits.

    A program owns one row, whose splits are the rows of its tiles.
    """

    op: flex.CombineSplitsOp

    def __init__(self, op: flex.CombineSplitsOp, name: str, target: Target):
        super().__init__(op, name, target, rows=1)
        assert isa(op.log_sum.type, TensorType[AnyFloat])
        self.type = op.log_sum.type.element_type
        assert isa(op.out.type, TensorType[Attribute])
        (_, self.columns), self.checked = self.tile_of(op.out.type)
        self.splits = max(LEAST_SPLITS, target.elements_of_splits // self.columns)

    def build(self) -> tile.KernelOp:
        code = self.code
        count = code.insert(tile.DimOp(self.args[self.op.outs], 3), "splits")
        m_i, zero = (code.const(x, self.type) for x in (-math.inf, 0.0))
        row = TileType(self.type, [1, self.columns])
        one = TileType(self.type, [1])
        fulls = (m_i, one), (zero, one), (zero, row)
        state = [code.insert(tile.FullOp(*full)) for full in fulls]
        groups = code.ceildiv(count, self.splits, "groups")

        def step(group: SSAValue, state: Sequence[SSAValue]) -> list[SSAValue]:
            return self.step(count, group, *state)

        names = ["group", "m_i", "l_i", "acc"]
        return self.results(*counted_loop(self, groups, state, step, names))

    def step(
        self,
        count: SSAValue,
        group: SSAValue,
        m_i: SSAValue,
        l_i: SSAValue,
        acc: SSAValue,
    ) -> list[SSAValue]:
        """Write the update of the state by a group of splits."""
        code, op = self.code, self.op
        first = code.mul(group, code.const(self.splits), "first")
        shift = self.numbers(op.row_shift, first, count)
        log_sum = self.numbers(op.log_sum, first, count)
        outs = self.splits_of(op.outs, first)
        largest = code.insert(tile.ReduceOp(ReduceKind.MAX, shift, 1), "largest")
        m = build_row_map(code, [m_i, largest], ScalarCode.maxnumf, "m")
        alpha = build_row_map(code, [m_i, m], _rescale, "alpha")
        inputs: list[Input] = [(shift, FULL), (log_sum, FULL), (m, ROW)]
        weights = build_map(code, (1, self.splits), inputs, _weight, "w")
        total = code.insert(tile.ReduceOp(ReduceKind.SUM, weights, 1), "total")
        l_i = build_row_map(code, [l_i, alpha, total], ScalarCode.fma, "l")
        # The sum over one row is this row, as a vector along the splits.
        weights = code.insert(tile.ReduceOp(ReduceKind.SUM, weights, 0), "w")
        inputs = [(outs, FULL), (weights, ROW)]
        shape = self.splits, self.columns
        products = build_map(code, shape, inputs, _weighted, "products")
        sums = code.insert(tile.ReduceOp(ReduceKind.SUM, products, 0), "sums")
        inputs = [(acc, FULL), (alpha, ROW), (sums, COLUMN)]
        acc = build_map(code, (1, self.columns), inputs, ScalarCode.fma, "acc")
        return [m, l_i, acc]

    def splits_of(self, tensor: SSAValue, first: SSAValue) -> SSAValue:
        """Load a group of splits of the program's row: vectors, or a row of numbers."""
        where, checked = [*self.start, first], [1]
        shape = 1, self.splits
        if tensor == self.op.outs:
            where.append(self.code.const(0))
            shape = self.splits, self.columns
            checked = self.checked
        type_ = TileType(self.type, shape)
        load = tile.LoadOp(self.args[tensor], where, checked, type_)
        return self.code.insert(load, tensor.name_hint)

    def numbers(self, tensor: SSAValue, first: SSAValue, count: SSAValue) -> SSAValue:
        """Load a number of each split, -inf for those beyond the last."""
        found = self.splits_of(tensor, first)
        split = self.code.insert(tile.IotaOp(first, self.splits), "split")
        inputs: list[Input] = [(found, FULL), (split, COLUMN), (count, UNIFORM)]
        name = tensor.name_hint or "numbers"
        return build_map(self.code, (1, self.splits), inputs, _if_exists, name)

    def results(self, m: SSAValue, total: SSAValue, acc: SSAValue) -> tile.KernelOp:
        """Normalise and store; return the kernel."""
        code, op = self.code, self.op
        inverse = build_row_map(code, [total], safe_inverse, "inverse")
        inputs: list[Input] = [(acc, FULL), (inverse, ROW)]
        out = build_map(code, (1, self.columns), inputs, ScalarCode.mulf, "o")
        lse = build_row_map(code, [m, total], _lse, "lse")
        for value, result in ((out, op.out), (lse, op.lse)):
            self.store(value, result)
        return self.kernel([op.outs, op.out], grid_of(op, *[op.out] * 3))


def _if_exists(
    code: ScalarCode, number: SSAValue, split: SSAValue, count: SSAValue
) -> SSAValue:
    exists = code.cmp("slt", split, count)
    return code.select(exists, number, code.const(-math.inf, number.type))


def _finite(code: ScalarCode, m: SSAValue) -> SSAValue:
    """Write a maximum, or 0 if it is infinite, so that no exponent becomes NaN."""
    size = code.absf(m)
    is_finite = code.cmpf("olt", size, code.const(math.inf, m.type))
    return code.select(is_finite, m, code.const(0.0, m.type))


def _rescale(code: ScalarCode, m_i: SSAValue, m: SSAValue) -> SSAValue:
    """Write exp(m_i - m)."""
    return code.exp(code.subf(m_i, _finite(code, m)))


def _weight(
    code: ScalarCode, shift: SSAValue, log_sum: SSAValue, m: SSAValue
) -> SSAValue:
    """Write exp(shift - m + log_sum).

    The difference comes first: added to a large shift, the logarithm would be lost.
    """
    difference = code.subf(shift, _finite(code, m))
    return code.exp(code.addf(difference, log_sum))


def _weighted(code: ScalarCode, value: SSAValue, weight: SSAValue) -> SSAValue:
    """Write a value times its weight.

    A split without live pairs counts for nothing, even if its values are NaN.
    """
    zero = code.const(0.0, value.type)
    is_none = code.cmpf("oeq", weight, zero)
    return code.select(is_none, zero, code.mulf(value, weight))


def _lse(code: ScalarCode, m: SSAValue, total: SSAValue) -> SSAValue:
    return code.addf(m, code.log(total))


def safe_inverse(code: ScalarCode, l_i: SSAValue) -> SSAValue:
    """Write 1 / l_i, or 1 for a row without live pairs, whose sum is 0."""
    one = code.const(1.0, l_i.type)
    is_empty = code.cmpf("oeq", l_i, code.const(0.0, l_i.type))
    divisor = code.select(is_empty, one, l_i)
    return code.divf(code.const(1.0, l_i.type), divisor)
