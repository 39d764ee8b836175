"""Kernels of ops over rows: a program owns some rows of one head.

An op over rows has a kernel of its own, or the kernels that read its result absorb it.
`flex.combine_splits` combines the results of programs that split the keys of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import AnyFloat, TensorType, i32
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.utils.hints import isa

from flexc.dialects import flex, tile
from flexc.dialects.tile import ReduceKind, TileType
from flexc.dialects.tile.types import is_tensor
from flexc.passes.blocksparse.programs.kernel_builder import (
    KernelBuilder,
    RowOp,
    absorbed_matrices,
    aligned,
    grid_of,
    is_matrix,
    rows_grid,
)
from flexc.passes.flex.score_factor import LOG2_E
from flexc.passes.scalar.scalar_code import ScalarCode, inline_region
from flexc.passes.targets.target import Target
from flexc.passes.tile.map_builder import (
    FULL,
    ROW,
    UNIFORM,
    Input,
    build_map,
    build_row_map,
    convert,
    extended,
)

BLOCK = 64
"""The rows of a program: memory bandwidth limits these kernels."""


class RowKernelBuilder(KernelBuilder):
    """A builder of the kernel of one op over rows."""

    def __init__(
        self,
        op: RowOp | flex.CombineSplitsOp,
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
        if isinstance(tensor.owner, RowOp):
            return rows_of_result(self.code, tensor.owner, self.rows_of)
        if not isinstance(tensor.type, TensorType):
            return self.args[tensor]
        return self.load(tensor)

    def load(
        self, tensor: SSAValue, start: Sequence[SSAValue] | None = None
    ) -> SSAValue:
        """Load the program's rows of a matrix, or its numbers of a vector.

        The rows begin at `start`, or at the program's (b, h, row) if `start` is None.
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
        """Store the program's rows of a result, in the type of the result."""
        code = self.code
        assert isa(result.type, TensorType[Attribute])
        value = convert(code, value, result.type.element_type)
        _, checked = self.tile_of(result.type)
        where = self.at(result, self.start)
        code.builder.insert(tile.StoreOp(value, self.args[result], where, checked))

    def finish(self, value: SSAValue) -> tile.KernelOp:
        """Store the only result, and return the kernel."""
        (result,) = self.op.results
        self.store(value, result)
        tensors = (v for v in (*self.op.operands, result) if is_tensor(v.type))
        matrices = [v for v in tensors if is_matrix(v)]
        return self.kernel([*matrices, *absorbed_matrices(self.op)], {})

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


def rows_kernel(op: RowOp, name: str, target: Target) -> tile.KernelOp:
    """Return the kernel of an op over rows and of the ops that it absorbs."""
    program = RowKernelBuilder(op, name, target)
    return program.finish(rows_of_result(program.code, op, program.rows_of))


Rows = Callable[[SSAValue], SSAValue]
"""A function that returns the program's rows of a tensor."""


def rows_of_result(code: ScalarCode, op: RowOp, rows_of: Rows) -> SSAValue:
    """Write a program's rows of the result of an op over rows."""
    assert isa(op.result.type, TensorType[Attribute])
    if isinstance(op, flex.RowDotsOp):
        rows = dot_rows(code, op, rows_of)
    elif isinstance(op, flex.MapRowsOp):
        rows = map_rows(code, op, rows_of)
    elif isinstance(op, flex.ScaleRowsOp):
        rows = scale_rows(code, op, rows_of)
    else:
        rows = weigh_rows(code, op, rows_of)
    return convert(code, rows, op.result.type.element_type)


def dot_rows(code: ScalarCode, op: flex.RowDotsOp, rows_of: Rows) -> SSAValue:
    """Write the sums of dot products of rows, less `minus`."""
    assert isa(op.result.type, TensorType[AnyFloat])
    element = op.result.type.element_type
    total = None
    for lhs, rhs in zip(op.lhs, op.rhs, strict=True):
        found = product(code, rows_of(lhs), rows_of(rhs), element)
        total = found if total is None else combined(code, total, found)
    assert total is not None
    dots = code.insert(tile.ReduceOp(ReduceKind.SUM, total, 1), "dots")
    return dots if op.minus is None else combined(code, dots, rows_of(op.minus))


def product(
    code: ScalarCode, lhs: SSAValue, rhs: SSAValue, element: AnyFloat
) -> SSAValue:
    def body(code: ScalarCode, a: SSAValue, b: SSAValue) -> SSAValue:
        a, b = (extended(code, v, element) for v in (a, b))
        return code.mulf(a, b)

    shape = tile.shape_of(lhs.type)
    return build_map(code, shape, [(lhs, FULL), (rhs, FULL)], body, "product")


def combined(code: ScalarCode, a: SSAValue, b: SSAValue) -> SSAValue:
    """Write a + b for matrices, and a - b for vectors."""
    shape = tile.shape_of(a.type)
    kind = arith.AddfOp if len(shape) > 1 else arith.SubfOp

    def body(code: ScalarCode, x: SSAValue, y: SSAValue) -> SSAValue:
        return code.insert(kind(x, y))

    span = range(len(shape))
    return build_map(code, shape, [(a, span), (b, span)], body, "total")


def scale_rows(code: ScalarCode, op: flex.ScaleRowsOp, rows_of: Rows) -> SSAValue:
    """Write rows times a scale."""

    def body(code: ScalarCode, x: SSAValue, scale: SSAValue) -> SSAValue:
        return code.insert(arith.MulfOp(x, scale))

    rows = rows_of(op.rows)
    inputs: list[Input] = [(rows, FULL), (rows_of(op.scale), UNIFORM)]
    return build_map(code, tile.shape_of(rows.type), inputs, body, "scaled")


def map_rows(code: ScalarCode, op: flex.MapRowsOp, rows_of: Rows) -> SSAValue:
    """Write the code of each row."""

    def body(code: ScalarCode, row: SSAValue) -> SSAValue:
        (value,) = inline_region(op.code, [row], code)
        return value

    name = op.result.name_hint or "row"
    return build_row_map(code, [rows_of(op.rows)], body, name)


def weigh_rows(code: ScalarCode, op: flex.WeighRowsOp, rows_of: Rows) -> SSAValue:
    """Write rows times their weights."""
    rows = [rows_of(op.lse), rows_of(op.lse_rest)]
    weight = build_row_map(code, rows, row_weight, "weight")
    values = rows_of(op.values)
    shape = tile.shape_of(values.type)
    assert isinstance(weight.type, TileType)
    element = weight.type.element_type
    assert isinstance(element, AnyFloat)

    def body(code: ScalarCode, x: SSAValue, w: SSAValue) -> SSAValue:
        zero = code.const(0.0, element)
        weighted = code.mulf(extended(code, x, element), w)
        # A row without live pairs counts for nothing, even if its values are NaN.
        return code.select(code.cmpf("oeq", w, zero), zero, weighted)

    inputs: list[Input] = [(values, range(len(shape))), (weight, ROW)]
    return build_map(code, shape, inputs, body, "weighted")


ELEMENTS = 1024
"""The elements of a tile of splits: small, so that few rows have many programs."""

MAX_ROWS = 16

AT_ONCE = 8
"""The number of splits that are loaded before any is used, to overlap latencies."""


class CombineKernelBuilder(RowKernelBuilder):
    """A builder of the kernel of `flex.combine_splits`: a softmax over splits."""

    op: flex.CombineSplitsOp

    def __init__(self, op: flex.CombineSplitsOp, name: str, target: Target):
        padded = target.padded(flex.tensor_shape(op.out)[3])
        rows = max(1, min(MAX_ROWS, ELEMENTS // padded))
        super().__init__(op, name, target, rows)
        self.shape = (rows, padded)
        assert isa(op.log_sum.type, TensorType[AnyFloat])
        self.type = op.log_sum.type.element_type

    def build(self) -> tile.KernelOp:
        code, count = self.code, self.args[self.op.splits]
        zero, one = code.const(0.0, self.type), code.const(1)
        m_i = tile.FullOp(code.const(-math.inf, self.type), self.tile(1))
        l_i, acc = (tile.FullOp(zero, self.tile(rank)) for rank in (1, 2))
        state = [code.insert(op) for op in (m_i, l_i, acc)]
        body = Block(arg_types=[i32, *(v.type for v in state)])
        for arg, hint in zip(body.args, ("i", "m_i", "l_i", "acc"), strict=True):
            arg.name_hint = hint
        i, *before = body.args
        self.code = ScalarCode(body)
        after = self.step(self.some_splits(i, count), before)
        self.code.builder.insert(scf.YieldOp(*after))
        self.code = code
        groups = code.ceildiv(count, AT_ONCE, "groups")
        loop = scf.ForOp(code.const(0), groups, one, state, Region(body))
        code.builder.insert(loop)
        return self.results(*loop.results)

    def tile(self, rank: int) -> TileType:
        return TileType(self.type, self.shape[:rank])

    def some_splits(self, i: SSAValue, count: SSAValue) -> list[list[SSAValue]]:
        """Load row_shift, log_sum and out of `AT_ONCE` splits.

        log_sum is -inf for splits beyond the last.
        """
        code, op = self.code, self.op
        b, *where = self.start
        first = code.mul(i, code.const(AT_ONCE))
        last = code.sub(count, code.const(1))
        batch = code.mul(b, count)
        found: list[list[SSAValue]] = []
        for offset in range(AT_ONCE):
            split = code.add(first, code.const(offset), "split")
            exists = code.cmp("slt", split, count)
            at = code.add(batch, code.min(split, last))
            start = [at, *where]
            values = (op.row_shift, op.log_sum, op.outs)
            shift, log_sum, out = (self.load(v, start) for v in values)
            log_sum = build_row_map(code, [log_sum, exists], _if_exists, "log_sum")
            found.append([shift, log_sum, out])
        return found

    def step(
        self, splits: Sequence[Sequence[SSAValue]], state: Sequence[SSAValue]
    ) -> list[SSAValue]:
        """Write the update of the state by some splits."""
        code = self.code
        m_i, l_i, acc = state
        m = build_row_map(code, [m_i, *(s[0] for s in splits)], _maximum, "m")
        alpha = build_row_map(code, [m_i, m], _rescale, "alpha")
        weights = [
            build_row_map(code, [shift, log_sum, m], _weight, "w")
            for shift, log_sum, _ in splits
        ]
        total = build_row_map(code, [l_i, alpha, *weights], _total, "l")
        inputs: list[Input] = [(acc, FULL), (alpha, ROW)]
        for (*_, out), weight in zip(splits, weights, strict=True):
            inputs += [(out, FULL), (weight, ROW)]
        acc = build_map(code, self.shape, inputs, _weighted, "acc_next")
        return [m, total, acc]

    def results(self, m: SSAValue, total: SSAValue, acc: SSAValue) -> tile.KernelOp:
        """Normalise and store; return the kernel."""
        code, op = self.code, self.op
        inverse = build_row_map(code, [total], safe_inverse, "inverse")
        inputs: list[Input] = [(acc, FULL), (inverse, ROW)]
        out = build_map(code, self.shape, inputs, ScalarCode.mulf, "o")
        lse = build_row_map(code, [m, total], _lse, "lse")
        for value, result in ((out, op.out), (lse, op.lse)):
            self.store(value, result)
        return self.kernel([op.outs, op.out], grid_of(op.out, op))


def _if_exists(code: ScalarCode, log_sum: SSAValue, exists: SSAValue) -> SSAValue:
    return code.select(exists, log_sum, code.const(-math.inf, log_sum.type))


def _maximum(code: ScalarCode, *values: SSAValue) -> SSAValue:
    return reduce(code.maxnumf, values)


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


def _total(
    code: ScalarCode, l_i: SSAValue, alpha: SSAValue, *weights: SSAValue
) -> SSAValue:
    return reduce(code.addf, weights, code.mulf(l_i, alpha))


def _weighted(
    code: ScalarCode, acc: SSAValue, alpha: SSAValue, *rest: SSAValue
) -> SSAValue:
    """Write acc * alpha plus the sum of each value times its weight."""
    total = code.mulf(acc, alpha)
    for value, weight in zip(rest[::2], rest[1::2], strict=True):
        zero = code.const(0.0, value.type)
        # A split without live pairs counts for nothing, even if its values are NaN.
        is_none = code.cmpf("oeq", weight, zero)
        product = code.select(is_none, zero, code.mulf(value, weight))
        total = code.addf(total, product)
    return total


def _lse(code: ScalarCode, m: SSAValue, total: SSAValue) -> SSAValue:
    return code.addf(m, code.log(total))


def safe_inverse(code: ScalarCode, l_i: SSAValue) -> SSAValue:
    """Write 1 / l_i, or 1 for a row without live pairs, whose sum is 0."""
    one = code.const(1.0, l_i.type)
    is_empty = code.cmpf("oeq", l_i, code.const(0.0, l_i.type))
    divisor = code.select(is_empty, one, l_i)
    return code.divf(code.const(1.0, l_i.type), divisor)


def row_weight(code: ScalarCode, lse: SSAValue, rest: SSAValue) -> SSAValue:
    """Write exp(-rest), or 0 for a row without live pairs."""
    factor = code.const(-LOG2_E, lse.type)
    exponent = code.mulf(rest, factor)
    weight = code.exp2(exponent)
    is_empty = code.cmpf("oeq", lse, code.const(-math.inf, lse.type))
    return code.select(is_empty, code.const(0.0, lse.type), weight)
