"""A kernel of a derivative: its results, and the parts that large ones are made in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import BlockArgument, SSAValue

from flexc.dialects import flex
from flexc.dialects.flex import SumKind, diagonal_entries, diagonal_zero
from flexc.dialects.flex.pair_sums import element_of
from flexc.passes.scalar.reads.captured_read import IndexClass
from flexc.runtime.autograd.captured_gradients import (
    MAX_BYTES,
    Chunk,
    Sizes,
    chunks_for,
)
from flexc.runtime.interpreters.values import dtype_of
from flexc.runtime.kernels.kernel import Kernel
from flexc.runtime.process.beside import Beside

# Into how many parts the rows are taken that sums by column are made of.


IDLE = 0.15
"""The share of the threads' time that may be lost, as programs do not come out even."""

PER_THREAD = 3
"""Programs for each thread, at most, where there are parts: each has its own sums."""


def parts_for(heads: int, threads: int) -> int:
    """As few as leave no thread idle for long, of each of the heads that have sums.

    The sums of a part are as large as the gradients of key and value of a head.
    """
    least = -(-threads // max(heads, 1))
    most = max(least, PER_THREAD * threads // max(heads, 1))
    return min(
        range(least, most + 1),
        key=lambda parts: max(_idle(heads * parts, threads), IDLE),
    )


def _idle(programs: int, threads: int) -> float:
    """The share of the time in which threads wait for others at the end."""
    turns = -(-programs // threads)
    return 1 - programs / (turns * threads) if turns else 0.0


CHUNK_ROWS = 128
"""Chunks start at multiples of so many rows, of which tiles are divisors."""

KERNELS = (flex.PairSumsOp, flex.RowDotsOp, flex.WeighRowsOp)
"""Ops that become kernels."""

CLASSES = {
    SumKind.DIAGONAL: IndexClass.DIAGONAL,
    SumKind.PAIRS: IndexClass.PAIR,
}
"""What sums that may be larger than all else are of."""

Compile = Callable[[ModuleOp], Beside[Kernel]]
"""How kernels are compiled."""

Add = Callable[[int, Tensor, Chunk], None]
"""Takes a part of the result of some number: the sums of some pairs."""


@dataclass(frozen=True)
class Point:
    """The call that a program runs for."""

    sizes: Sizes
    deterministic: bool
    device: torch.device


@dataclass(frozen=True)
class Result:
    """What a kernel makes."""

    kind: SumKind
    dtype: torch.dtype
    dim: int
    """Its last static size."""


class Launch:
    """A kernel, and the outputs that it asks for."""

    def __init__(self, function: func.FuncOp, compile: Compile):
        self.op = next(o for o in reversed(function.body.ops) if isinstance(o, KERNELS))
        self._function = function
        self._compile = compile
        self._started: Beside[Kernel] | None = None

    def start(self) -> Beside[Kernel]:
        """Its kernel, as soon as it can be had."""
        if self._started is None:
            self._started = self._compile(ModuleOp([self._function.clone()]))
        return self._started

    @property
    def kernel(self) -> Kernel:
        return self.start().get()

    @property
    def visits_pairs(self) -> bool:
        """Whether it is more than a kernel of rows."""
        return isinstance(self.op, flex.PairSumsOp)

    @cached_property
    def results(self) -> list[Result]:
        """What it makes."""
        if isinstance(self.op, flex.PairSumsOp):
            kinds = [attr.sum_kind for attr in self.op.sums]
        else:
            is_matrix = len(flex.tensor_shape(self.op.result)) == 4
            kinds = [SumKind.MATRIX if is_matrix else SumKind.TOTAL]
        return [
            Result(kind, dtype_of(element_of(value)), flex.tensor_shape(value)[-1])
            for kind, value in zip(kinds, self.op.results, strict=True)
        ]

    @cached_property
    def starts(self) -> Sequence[int]:
        """Which arguments say where a part starts, if it is made in parts.

        The batch, the head and the row; or the row, of all heads.
        """
        if not isinstance(self.op, flex.PairSumsOp):
            return ()
        return [argument_number(v) for v in self.op.first]

    @cached_property
    def key(self) -> int | None:
        """Which argument says whose sums by column there are, if there are any."""
        if all(r.kind != SumKind.COLUMN_MATRIX for r in self.results):
            return None
        assert isinstance(self.op, flex.PairSumsOp)
        return argument_number(self.op.columns[0])

    def is_held(self, result: Result) -> bool:
        """Whether there is room for the whole of a result."""
        if result.kind == SumKind.DIAGONAL:
            return len(self.starts) < 3
        return result.kind != SumKind.PAIRS

    def run(self, args: Sequence[Any], point: Point, add: Add) -> list[Tensor | None]:
        """Launch it: its results, None for those of which `add` is given all parts."""
        chunks = self.chunks(point.sizes)
        sizes = self.grid_sizes(args, chunks[0])
        whole = [
            self.whole(r, args, point, sizes) if self.is_held(r) else None
            for r in self.results
        ]
        for chunk in chunks:
            self.run_chunk(args, point, chunk, whole, add)
        return [
            within(found, point.sizes)
            if found is not None and r.kind == SumKind.DIAGONAL
            else found
            for r, found in zip(self.results, whole, strict=True)
        ]

    def run_chunk(
        self,
        args: Sequence[Any],
        point: Point,
        chunk: Chunk,
        whole: Sequence[Tensor | None],
        add: Add,
    ) -> None:
        """Launch it for some batches, heads and rows."""
        given, sizes = list(args), self.grid_sizes(args, chunk)
        starts = [r.start for r in (chunk.batch, chunk.heads, chunk.rows)]
        for i, start in zip(reversed(self.starts), reversed(starts), strict=False):
            given[i] = start
        outputs: list[Tensor] = []
        for result, found in zip(self.results, whole, strict=True):
            if found is None:
                found = self.part(result, chunk, point)
            elif self.starts and result.kind in (SumKind.MATRIX, SumKind.TOTAL):
                found = found[:, :, chunk.rows.start : chunk.rows.stop]
            outputs.append(found)
        self.kernel.run(*sizes, [*given, *outputs])
        for i, result in enumerate(self.results):
            if whole[i] is None:
                part = outputs[i]
                if result.kind == SumKind.DIAGONAL:
                    part = within(part, point.sizes)
                add(i, part, chunk)

    def grid_sizes(self, args: Sequence[Any], chunk: Chunk) -> tuple[int, int, int]:
        """What the grid is of: batches, heads and rows; or parts, batches and heads."""
        if self.key is not None:
            key = args[self.key]
            batch, heads = key.shape[:2]
            return parts_for(batch * heads, torch.get_num_threads()), batch, heads
        if self.starts:
            return len(chunk.batch), len(chunk.heads), len(chunk.rows)
        batch, heads, rows = args[0].shape[:3]
        return batch, heads, rows

    def whole(
        self,
        result: Result,
        args: Sequence[Any],
        point: Point,
        sizes: tuple[int, int, int],
    ) -> Tensor:
        """Room for a result, given what the grid of a part is of."""
        if result.kind == SumKind.MATRIX:
            return like_rows(args[0], result.dim, result.dtype)
        heads = point.sizes.batch, point.sizes.heads
        # A kernel adds to sums by column, and to those along diagonals.
        make = torch.zeros
        if result.kind == SumKind.COLUMN_MATRIX:
            assert self.key is not None
            shape = (*sizes, args[self.key].size(2), result.dim)
            if sizes[0] == 1:  # That one part is the sum.
                options: Any = {"dtype": result.dtype, "device": point.device}
                return torch.zeros(shape[1:], **options)[None]
        elif result.kind == SumKind.DIAGONAL:
            shape = self.diagonals(*heads, sizes, point.sizes)
        else:
            shape, make = (*heads, args[0].size(2)), torch.empty
        return make(shape, dtype=result.dtype, device=point.device)

    def part(self, result: Result, chunk: Chunk, point: Point) -> Tensor:
        """Room for a part of a result."""
        counts = len(chunk.batch), len(chunk.heads), len(chunk.rows)
        if result.kind == SumKind.PAIRS:
            shape = (*counts, point.sizes.kv_len)
        else:
            shape = self.diagonals(*counts[:2], counts, point.sizes)
        return torch.zeros(shape, dtype=result.dtype, device=point.device)

    def diagonals(
        self, batch: int, heads: int, sizes: tuple[int, int, int], of: Sizes
    ) -> tuple[int, int, int, int]:
        """The shape of sums along diagonals: for each program of a head its own."""
        count = self.kernel.grid(*sizes)[0]
        return batch, heads, count, diagonal_entries(of.q_len, of.kv_len)

    def chunks(self, sizes: Sizes) -> list[Chunk]:
        """The parts that it is run for, each small enough to be held."""
        found = [Chunk.whole(sizes)]
        kinds = [r.kind for r in self.results]
        for kind, by in CLASSES.items():
            # Of a program that goes over rows each head has one sum for all.
            if not self.starts or (kind == SumKind.DIAGONAL and self.key is not None):
                continue
            size = sum(r.dtype.itemsize for r in self.results if r.kind == kind)
            if kind in kinds:
                chunks = chunks_for(
                    by,
                    sizes,
                    itemsize=size,
                    max_bytes=MAX_BYTES,
                    rows=CHUNK_ROWS,
                    rows_of_diagonals=self.rows_of_program(sizes),
                    whole_heads=len(self.starts) < 3,
                )
                found = max(found, chunks, key=len)
        return found

    def rows_of_program(self, sizes: Sizes) -> int:
        """How many rows of a head share an array of diagonals, at least."""
        return -(-sizes.q_len // self.kernel.grid(1, 1, sizes.q_len)[0])


def argument_number(value: SSAValue) -> int:
    """Which argument of its function a value is."""
    assert isinstance(value, BlockArgument)
    return value.index


def like_rows(rows: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """(B, H, S, dim), laid out in memory as the rows are: as gradients are."""
    order = sorted(range(3), key=lambda d: -rows.stride(d))
    return torch.empty_permuted(
        (*rows.shape[:3], dim), (*order, 3), dtype=dtype, device=rows.device
    )


def within(diagonals: Tensor, sizes: Sizes) -> Tensor:
    """Sums along diagonals without the entries that no pair has."""
    zero = diagonal_zero(sizes.kv_len)
    return diagonals[..., zero - sizes.kv_len + 1 : zero + sizes.q_len]
