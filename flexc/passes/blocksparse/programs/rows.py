"""Kernels of ops over rows: a program owns some rows of one head.

An op over rows has a kernel of its own, or the kernels that read its result absorb it.
`flex.combine_splits` combines the results of programs that split the keys of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce

from xdsl.dialects import scf
from xdsl.dialects.builtin import AnyFloat, TensorType, i32
from xdsl.ir import Attribute, Block, Region, SSAValue
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
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.targets.target import Target
from flexc.passes.tile.map_builder import (
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
        return [*start, *([self.code.const(0)] if flex.is_matrix(tensor) else [])]

    def store(self, value: SSAValue, result: SSAValue) -> None:
        """Store the program's rows of a result, in the type of the result."""
        code = self.code
        assert isa(result.type, TensorType[Attribute])
        value = convert(code, value, result.type.element_type)
        _, checked = self.tile_of(result.type)
        where = self.at(result, self.start)
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


ELEMENTS = 512
"""The elements of a tile of splits: small, so that few rows have many programs."""

MAX_ROWS = 16

AT_ONCE = 16
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
