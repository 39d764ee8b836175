"""Interpreter of sums over pairs, which computes all pairs at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor
from xdsl.interpreter import (
    Interpreter,
    InterpreterFunctions,
    PythonValues,
    impl,
    register_impls,
)
from xdsl.utils.exceptions import InterpretationError

from flexc.dialects import flex
from flexc.dialects.flex import (
    PairSumsLike,
    SumAttr,
    SumKind,
    diagonal_entries,
    diagonal_zero,
)
from flexc.runtime.interpreters.attention import Pairs, live_pairs
from flexc.runtime.interpreters.values import dtype_of, sum_heads


@register_impls
class PairSumsFunctions(InterpreterFunctions):
    """The interpreter of sums over live pairs, and of ops on rows."""

    def __init__(self, compute_dtype: torch.dtype | None = None):
        self.compute_dtype = compute_dtype

    @impl(flex.PairSumsOp)
    def run_pair_sums(
        self, interpreter: Interpreter, op: flex.PairSumsOp, args: PythonValues
    ) -> PythonValues:
        problem = SumsProblem.of(op, args)
        live = live_pairs(interpreter, op, problem, op.is_transposed)
        return sum_pairs(interpreter, op, problem, live, self.compute_dtype)

    @impl(flex.MapRowsOp)
    def run_map_rows(
        self, interpreter: Interpreter, op: flex.MapRowsOp, args: PythonValues
    ) -> PythonValues:
        dtype = self.compute_dtype or dtype_of(op.computed_type(op.lhs, op.values))
        n, shape = len(op.lhs), args[0].shape[:3]
        wide = [a.to(dtype) if isinstance(a, Tensor) else a for a in args]
        given = [
            v[..., None] if flex.is_rows(of) and not flex.is_matrix(of) else v
            for v, of in zip(wide[2 * n :], op.values, strict=True)
        ]
        if n:
            pairs = zip(wide[:n], wide[n : 2 * n], strict=True)
            products = torch.stack([(a * b).sum(-1, keepdim=True) for a, b in pairs])
            given.insert(0, products.sum(0))
        found: list[Tensor] = []
        yielded = interpreter.run_ssacfg_region(op.code, tuple(given), "code")
        for result, value in zip(op.rows, yielded, strict=True):
            last = flex.tensor_shape(result)[3:] or [1]
            rows = torch.as_tensor(value).expand(*shape, *last)
            rows = rows if flex.is_matrix(result) else rows[..., 0]
            found.append(rows.to(dtype_of(flex.element_type(result))))
        return tuple(found)


@dataclass(frozen=True)
class SumsProblem(Pairs):
    """The operands of one op, by rows and by columns."""

    rows: Sequence[Tensor]
    columns: Sequence[Tensor]
    row_values: Sequence[Tensor]
    column_values: Sequence[Tensor]
    tile_origin: tuple[int, int, int]
    """The first batch, head and row of the results."""
    scale: Tensor
    captures: Sequence[Tensor]
    tables: Sequence[Tensor]
    transposed: bool

    @classmethod
    def of(cls, op: PairSumsLike, args: Sequence[Tensor]) -> SumsProblem:
        rest = iter(args)
        groups = (op.rows, op.columns, op.row_values, op.column_values, op.tile_origin)
        *given, first = (list(islice(rest, len(group))) for group in groups)
        b, h, row = [0] * (3 - len(first)) + [int(v) for v in first]
        problem = cls(
            *given,
            tile_origin=(b, h, row),
            scale=next(rest),
            captures=list(islice(rest, len(op.captures))),
            tables=list(rest),
            transposed=op.is_transposed,
        )
        problem.verify(op)
        return problem

    def verify(self, op: PairSumsLike) -> None:
        self.verify_lengths(op)
        heads = [m.shape[:2] for m in (self.rows[0], self.columns[0])]
        if op.paired_heads is not None and heads[0] != heads[1]:
            raise InterpretationError(
                "paired_heads expects as many heads on both sides"
            )
        for name in ("row_values", "column_values"):
            length = self.length(of_rows=name == "row_values")
            for values in getattr(self, name):
                if values.shape != (*self.shape[:2], length):
                    raise InterpretationError(
                        f"{name} expects one for each row of each head of the query, "
                        f"got shape {tuple(values.shape)}"
                    )

    @property
    def shape(self) -> tuple[int, int, int, int]:
        query, key = self.rows[0], self.columns[0]
        if self.transposed:
            query, key = key, query
        batch, heads, q_len, _ = query.shape
        return batch, heads, q_len, key.shape[2]

    @property
    def device(self) -> torch.device:
        return self.rows[0].device

    def length(self, of_rows: bool) -> int:
        return self.shape[2 if of_rows != self.transposed else 3]

    def along(self, values: Tensor, of_rows: bool) -> Tensor:
        """Reshape a value of each row, or of each column, to broadcast to all pairs."""
        is_query = of_rows != self.transposed
        return values[..., :, None] if is_query else values[..., None, :]

    def by_rows(self, pairs: Tensor) -> Tensor:
        """Return (B, Hq, rows, columns) of (B, Hq, Sq, Skv)."""
        return pairs.transpose(-1, -2) if self.transposed else pairs


def sum_pairs(
    interpreter: Interpreter,
    op: PairSumsLike,
    problem: SumsProblem,
    live: Tensor,
    compute_dtype: torch.dtype | None,
) -> tuple[Tensor, ...]:
    """Return the op's results, given the live pairs.

    Products and sums are computed in `compute_dtype`. The operands and results of
    `pairs` have the types of the region.
    """
    score_dtype = dtype_of(op.score_type)
    dtype = compute_dtype or score_dtype
    args = (
        *(d.to(score_dtype) for d in dots(op, problem, dtype)),
        problem.scale,
        *(problem.along(v, of_rows=True) for v in problem.row_values),
        *(problem.along(v, of_rows=False) for v in problem.column_values),
        *problem.indices,
        *problem.captures,
    )
    yielded = interpreter.run_ssacfg_region(op.pairs, args, "pairs")
    values = [
        torch.where(live, v.to(dtype), 0.0).expand(problem.shape) for v in yielded
    ]
    results: list[Tensor] = []
    for attr, result in zip(op.sums, op.sums_, strict=True):
        total = sum_of(attr, problem, values, flex.tensor_shape(result)[-1])
        if attr.scaled:
            total = total * problem.scale.to(dtype)
        b, h, row = problem.tile_origin
        if attr.sum_kind == SumKind.DIAGONAL:
            total = total[b:, h:]  # Only pairs from the first row on were summed.
        elif attr.sum_kind != SumKind.COLUMN_MATRIX:
            total = total[b:, h:, row:]
        results.append(total.to(dtype_of(flex.element_type(result))))
    return tuple(results)


def dots(op: PairSumsLike, problem: SumsProblem, dtype: torch.dtype) -> list[Tensor]:
    """Return the dot products that the region takes, for all pairs."""
    found: list[Tensor] = []
    for product in op.product_list():
        total = torch.zeros(problem.shape, dtype=dtype, device=problem.device)
        for row, column in product:
            query, key = problem.rows[row], problem.columns[column]
            if problem.transposed:
                query, key = key, query
            key = problem.for_query_heads(key).to(dtype)
            total = total + query.to(dtype) @ key.transpose(-1, -2)
        found.append(total)
    return found


def sum_of(
    attr: SumAttr, problem: SumsProblem, values: Sequence[Tensor], dim: int
) -> Tensor:
    """Return one result for all rows; `dim` is the number of columns of a matrix."""
    match attr.sum_kind:
        case SumKind.MATRIX:
            return matrix_sum(attr, problem, values, dim)
        case SumKind.COLUMN_MATRIX:
            return column_sum(attr, problem, values, dim)
        case SumKind.TOTAL:
            return problem.by_rows(added(attr, values)).sum(-1)
        case SumKind.DIAGONAL:
            return diagonal_sum(problem, added(attr, values))
        case SumKind.PAIRS:
            return problem.by_rows(added(attr, values))


def matrix_sum(
    attr: SumAttr, problem: SumsProblem, values: Sequence[Tensor], dim: int
) -> Tensor:
    """Return, for each row, the sum of value * matrix row.

    The sum includes all heads that share the row.
    """
    batch, heads, *_ = problem.shape
    rows = problem.length(of_rows=True)
    total = values[0].new_zeros((batch, heads, rows, dim))
    for number, column in attr.term_list():
        matrix = problem.for_query_heads(problem.columns[column]).to(total.dtype)
        total = total + problem.by_rows(values[number]) @ matrix
    if not problem.transposed:
        return total
    return sum_heads(total, problem.rows[0])


def column_sum(
    attr: SumAttr, problem: SumsProblem, values: Sequence[Tensor], dim: int
) -> Tensor:
    """Return, for each column, the sum of value * matrix row, in one part.

    The sum includes all heads that share the column.
    """
    batch, heads, *_ = problem.shape
    columns = problem.length(of_rows=False)
    total = values[0].new_zeros((batch, heads, columns, dim))
    for number, row in attr.term_list():
        matrix = problem.rows[row].to(total.dtype)
        if problem.transposed:
            matrix = problem.for_query_heads(matrix)
        weights = problem.by_rows(values[number]).transpose(-1, -2)
        total = total + weights @ matrix
    if problem.transposed:
        return total
    return sum_heads(total, problem.columns[0])[None]


def diagonal_sum(problem: SumsProblem, values: Tensor) -> Tensor:
    """Return, for each q_idx - kv_idx, the sum over the pairs with this difference."""
    *heads, q_len, kv_len = problem.shape
    q_idx, kv_idx = (i.to(torch.int64) for i in problem.indices[2:])
    entries = (q_idx - kv_idx + diagonal_zero(kv_len)).expand(problem.shape)
    # Rows before the first row are not summed.
    part = problem.by_rows(values)[:, :, problem.tile_origin[2] :].flatten(2)
    entries = problem.by_rows(entries)[:, :, problem.tile_origin[2] :].flatten(2)
    sums = values.new_zeros((*heads, diagonal_entries(q_len, kv_len)))
    return sums.scatter_add_(-1, entries, part)[:, :, None]


def added(attr: SumAttr, values: Sequence[Tensor]) -> Tensor:
    """Return the total of the values that a sum names; zeros if the sum names none."""
    total = torch.zeros_like(values[0])
    for (number,) in attr.term_list():
        total = total + values[number]
    return total
