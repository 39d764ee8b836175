"""A derivative's host function: what it launches, allocates and adds up, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from xdsl.context import Context
from xdsl.dialects import arith, func
from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.ir import Operation, SSAValue

from flexc.dialects import flex
from flexc.dialects.flex import DIAGONAL_UNIT, SumAttr, SumKind
from flexc.dialects.flex.pair_sums import element_of
from flexc.passes import pipelines
from flexc.passes.analysis.reads.capture_index import read_of_index
from flexc.passes.analysis.reads.captured_read import CapturedRead, IndexClass
from flexc.passes.flex_expand_derivatives import FlexExpandDerivativesPass
from flexc.passes.flex_infer_facts import FlexInferFactsPass
from flexc.passes.flex_simplify_mods import FlexSimplifyModsPass
from flexc.runtime.captured_gradients import (
    CapturedGradient,
    Chunk,
    Scatter,
    Sizes,
    chunks_for,
)
from flexc.runtime.gradients.parts import parts_for
from flexc.runtime.interpreters.values import dtype_of
from flexc.runtime.kernel import Kernel

CHUNK_ROWS = 128
"""Chunks start at multiples of so many rows, of which tiles are divisors."""

Values = dict[SSAValue, Any]


def expand(module: ModuleOp, one_pass: bool) -> None:
    """Take a module's derivatives apart, in place."""
    passes = (
        *pipelines.to_simple_flex(),
        FlexInferFactsPass(),
        FlexExpandDerivativesPass(one_pass),
        FlexSimplifyModsPass(),
    )
    pipelines.run(passes, Context(), module)


@dataclass(frozen=True)
class Point:
    """The call that a program runs for."""

    sizes: Sizes
    deterministic: bool
    device: torch.device


KERNELS = (flex.PairSumsOp, flex.RowDotsOp, flex.WeighRowsOp)
"""Ops that become kernels."""


class Launch:
    """A kernel, and the outputs that it asks for."""

    def __init__(self, function: func.FuncOp, compile: Callable[[ModuleOp], Kernel]):
        self.op = next(o for o in function.body.ops if isinstance(o, KERNELS))
        self._function = function
        self._compile = compile

    @cached_property
    def kernel(self) -> Kernel:
        return self._compile(ModuleOp([self._function.clone()]))

    @property
    def in_chunks(self) -> bool:
        """Whether what it makes is larger than all else, and made part by part."""
        return isinstance(self.op, flex.PairSumsOp) and bool(self.op.first)

    @cached_property
    def results(self) -> list[tuple[SumKind, torch.dtype, int]]:
        """The kind, type and last static size of what it makes."""
        if isinstance(self.op, flex.PairSumsOp):
            kinds = [attr.sum_kind for attr in self.op.sums]
        else:
            is_matrix = len(flex.tensor_shape(self.op.result)) == 4
            kinds = [SumKind.MATRIX if is_matrix else SumKind.TOTAL]
        found: list[tuple[SumKind, torch.dtype, int]] = []
        for kind, result in zip(kinds, self.op.results, strict=True):
            dim = flex.tensor_shape(result)[-1]
            found.append((kind, dtype_of(element_of(result)), dim))
        return found

    @cached_property
    def key(self) -> int | None:
        """Which argument says whose sums by column there are, if there are any."""
        if all(kind != SumKind.COLUMN_MATRIX for kind, *_ in self.results):
            return None
        assert isinstance(self.op, flex.PairSumsOp)
        return len(self.op.rows)

    def run(self, args: Sequence[Any], point: Point) -> list[Tensor]:
        """Launch it for whole tensors."""
        rows = args[0].shape[:3]
        columns = () if self.key is None else in_parts(args[self.key])
        shapes = {
            SumKind.COLUMN_MATRIX: columns,
            SumKind.TOTAL: (point.sizes.batch, point.sizes.heads, rows[2]),
        }
        outputs: list[Tensor] = []
        for kind, dtype, dim in self.results:
            if kind == SumKind.MATRIX:
                outputs.append(like_rows(args[0], dim, dtype))
                continue
            shape = shapes[kind] if kind == SumKind.TOTAL else (*shapes[kind], dim)
            # A kernel adds to sums by column.
            make = torch.zeros if kind == SumKind.COLUMN_MATRIX else torch.empty
            outputs.append(make(shape, dtype=dtype, device=point.device))
        b, h, n = (columns or rows)[:3]
        self.kernel.run(b, h, n, [*args, *outputs])
        return outputs

    def run_chunk(self, args: Sequence[Any], point: Point, chunk: Chunk) -> Tensor:
        """Launch it for some batches, heads and rows; their sums."""
        assert isinstance(self.op, flex.PairSumsOp)
        groups = (self.op.rows, self.op.columns, self.op.row_values)
        at = sum(len(g) for g in groups) + len(self.op.column_values)
        first = [r.start for r in (chunk.batch, chunk.heads, chunk.rows)]
        given = [*args[:at], *first, *args[at + len(first) :]]
        counts = len(chunk.batch), len(chunk.heads), len(chunk.rows)
        (attr,) = self.op.sums
        shape = self.chunk_shape(attr, counts, point.sizes)
        dtype = dtype_of(element_of(self.op.sums_[0]))
        sums = torch.zeros(shape, dtype=dtype, device=point.device)
        self.kernel.run(*counts, [*given, sums])
        if attr.sum_kind == SumKind.DIAGONAL:
            zero = _padded(point.sizes.kv_len)
            return sums[..., zero - point.sizes.kv_len + 1 : zero + point.sizes.q_len]
        return sums

    def chunk_shape(
        self, attr: SumAttr, counts: tuple[int, int, int], sizes: Sizes
    ) -> tuple[int, ...]:
        if attr.sum_kind == SumKind.PAIRS:
            return (*counts, sizes.kv_len)
        blocks = self.kernel.grid(*counts)[0]
        return (*counts[:2], blocks, _padded(sizes.q_len) + _padded(sizes.kv_len))

    def chunks(self, kind: IndexClass, sizes: Sizes) -> list[Chunk]:
        """The parts that it is run for, each small enough to be held."""
        rows = -(-sizes.q_len // self.kernel.grid(1, 1, sizes.q_len)[0])
        return chunks_for(
            kind,
            sizes,
            itemsize=dtype_of(element_of(self.op.results[0])).itemsize,
            rows=CHUNK_ROWS,
            rows_of_diagonals=rows,
        )


def like_rows(rows: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """(B, H, S, dim), laid out in memory as the rows are: as gradients are."""
    order = sorted(range(3), key=lambda d: -rows.stride(d))
    return torch.empty_permuted(
        (*rows.shape[:3], dim), (*order, 3), dtype=dtype, device=rows.device
    )


def in_parts(key: Tensor) -> tuple[int, ...]:
    """(N, B, H, Skv) of sums by column, of N parts for the threads that there are."""
    batch, heads, length = key.shape[:3]
    return parts_for(batch * heads, torch.get_num_threads()), batch, heads, length


def _padded(length: int) -> int:
    return -(-length // DIAGONAL_UNIT) * DIAGONAL_UNIT


@dataclass(frozen=True)
class Pending:
    """A launch whose sums are made when they are added up."""

    launch: Launch
    args: Sequence[Any]


class Program:
    """The host function of an expanded derivative, ready to run."""

    def __init__(self, module: ModuleOp, compile: Callable[[ModuleOp], Kernel]):
        *kernels, host = (o for o in module.ops if isinstance(o, func.FuncOp))
        self.host = host
        self.launches = {f.sym_name.data: Launch(f, compile) for f in kernels}
        self.scatters: dict[Operation, Scatter] = {
            o: Scatter(_captured_read(o))
            for o in host.body.ops
            if isinstance(o, flex.ScatterSumsOp)
        }
        self.rounded: dict[Operation, torch.dtype] = {
            o: dtype_of(element_of(o.result))
            for o in host.body.ops
            if isinstance(o, flex.SumPartsOp)
        }
        self.done = _done(host)

    def compile(self) -> None:
        """Compile all kernels, side by side: a C++ compiler is a process of its own."""
        if not self.launches:  # All gradients are 0.
            return
        with ThreadPoolExecutor(len(self.launches)) as pool:
            for _ in pool.map(lambda launch: launch.kernel, self.launches.values()):
                pass

    def run(self, args: Sequence[Any], point: Point) -> list[Tensor]:
        """What the function returns for its arguments."""
        values: Values = dict(zip(self.host.args, args, strict=True))
        for op in self.host.body.ops:
            for value in self.done.get(op, ()):
                del values[value]
            match op:
                case flex.LaunchOp():
                    self.launch(op, values, point)
                case flex.ScatterSumsOp():
                    values[op.result] = self.scatter(op, values, point)
                case flex.CenterRowsOp():
                    given = (values[v] for v in op.operands)
                    values[op.result] = center_rows(*given)
                case flex.SumPartsOp():
                    values[op.result] = sum_parts(values[op.parts], self.rounded[op])
                case flex.ZerosLikeOp():
                    values[op.result] = torch.zeros_like(values[op.tensor])
                case arith.ConstantOp():
                    assert isinstance(op.value, IntegerAttr)
                    values[op.result] = op.value.value.data
                case func.ReturnOp():
                    return [_finished(values[v]) for v in op.operands]
                case _:
                    raise AssertionError(f"{op.name} in a derivative's function")
        raise AssertionError("a function returns")

    def launch(self, op: flex.LaunchOp, values: Values, point: Point) -> None:
        launch = self.launches[op.callee.string_value()]
        args = [values[v] for v in op.inputs]
        if launch.in_chunks:
            (result,) = op.outputs
            values[result] = Pending(launch, args)
            return
        outputs = launch.run(args, point)
        values.update(zip(op.outputs, outputs, strict=True))

    def scatter(
        self, op: flex.ScatterSumsOp, values: Values, point: Point
    ) -> CapturedGradient:
        """The gradient of a captured tensor, with these sums added."""
        sums, target = values[op.sums], values[op.target]
        if op.plus:
            gradient = values[op.plus[0]]
        else:
            gradient = CapturedGradient(
                target,
                [values[v] for v in op.captures],
                point.sizes,
                dtype_of(element_of(op.sums)),
                point.deterministic,
            )
        scatter = self.scatters[op]
        if not isinstance(sums, Pending):
            gradient.add(scatter, sums)
            return gradient
        for chunk in sums.launch.chunks(scatter.index_class, point.sizes):
            part = sums.launch.run_chunk(sums.args, point, chunk)
            gradient.add(scatter, part, chunk)
        return gradient


def _done(host: func.FuncOp) -> dict[Operation, list[SSAValue]]:
    """For each op, values made before it that nothing uses from there on.

    They may be as large as the query: their memory goes to what comes next.
    """
    found: dict[Operation, list[SSAValue]] = {}
    for op in host.body.ops:
        for value in op.results:
            users = {use.operation for use in value.uses}
            last = next((o for o in reversed(list(host.body.ops)) if o in users), op)
            if last.next_op is not None:
                found.setdefault(last.next_op, []).append(value)
    return found


def _finished(value: Any) -> Tensor:
    return value.result() if isinstance(value, CapturedGradient) else value


def center_rows(sums: Tensor, total: Tensor, values: Tensor) -> Tensor:
    """sums - total * values, in the type of the values."""
    return torch.addcmul(sums, total[..., None], values, value=-1).to(values.dtype)


def sum_parts(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum over the first dimension, in the given type."""
    total = parts[0] if parts.size(0) == 1 else parts.sum(0)
    return total.to(dtype)


def _captured_read(op: flex.ScatterSumsOp) -> CapturedRead:
    """What is known of the read that a scatter stands for."""
    number = list(op.captures).index(op.target)
    return read_of_index(op.index, number, IndexClass(op.by.data))
