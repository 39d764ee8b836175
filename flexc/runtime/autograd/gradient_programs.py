"""A derivative's host function, and the kernels that it launches.

The host function lists the launches, allocations and additions, in order. Results that
are too large to be held are computed in parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from xdsl.context import Context
from xdsl.dialects import arith, func
from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from flexc.dialects import flex
from flexc.dialects.flex import Coordinates, SumKind, diagonal_entries, diagonal_zero
from flexc.errors import ScheduleError
from flexc.passes import pipelines
from flexc.passes.flex.flex_expand_derivatives import FlexExpandDerivativesPass
from flexc.passes.flex.flex_infer_facts import FlexInferFactsPass
from flexc.passes.flex.flex_simplify_mods import FlexSimplifyModsPass
from flexc.passes.scalar.captured_reads import CapturedRead, read_of_index
from flexc.passes.targets.target import OnePass
from flexc.runtime.attention.run import like_rows
from flexc.runtime.autograd.captured_gradients import CapturedGradient, ReadScatter
from flexc.runtime.autograd.captured_places import Chunk, Sizes, chunks_for
from flexc.runtime.interpreters.values import dtype_of
from flexc.runtime.kernels.kernel import Kernel
from flexc.runtime.process.recent import Background

IDLE = 0.15
"""The share of the threads' time that may be lost to an uneven number of programs."""

PER_THREAD = 3
"""The largest number of programs per thread. Each program has sums of its own."""


def parts_for(heads: int, threads: int) -> int:
    """Return the fewest parts per head that leave threads idle for at most IDLE.

    If no number of parts does so, return the number with the least idle time.

    `heads` counts the heads that have sums. The sums of a part are as large as the
    gradients of key and value of a head.
    """
    least = -(-threads // max(heads, 1))
    most = max(least, PER_THREAD * threads // max(heads, 1))
    return min(
        range(least, most + 1),
        key=lambda parts: max(_idle(heads * parts, threads), IDLE),
    )


def _idle(programs: int, threads: int) -> float:
    """Return the share of the time that threads wait for others at the end."""
    turns = -(-programs // threads)
    return 1 - programs / (turns * threads) if turns else 0.0


CHUNK_ROWS = 128
"""Chunks start at multiples of this number of rows. It is a multiple of the rows of any
tile.
"""

KERNELS = (flex.PairSumsOp, flex.MapRowsOp)
"""Ops that become kernels."""

COORDINATES = {SumKind.DIAGONAL: Coordinates.DISTANCE, SumKind.PAIRS: Coordinates.PAIR}
"""Index classes of the sums that may be larger than all other results."""

Compile = Callable[[ModuleOp], Background[Kernel]]
"""A function that compiles a kernel in the background."""

Add = Callable[[int, Tensor, Chunk], None]
"""A function that takes the number of a result, the sums of a chunk, and the chunk."""


@dataclass(frozen=True)
class Point:
    """The call that a program runs for."""

    sizes: Sizes
    deterministic: bool
    query: Tensor
    key: Tensor

    @property
    def device(self) -> torch.device:
        return self.query.device


@dataclass(frozen=True)
class Result:
    """A result of a kernel."""

    kind: SumKind
    dtype: torch.dtype
    dim: int
    """The last static size of the result."""


class ProgramLaunch:
    """A kernel, and the outputs that it writes."""

    def __init__(self, function: func.FuncOp, compile: Compile):
        self.op = next(o for o in reversed(function.body.ops) if isinstance(o, KERNELS))
        self._function = function
        self._compile = compile
        self._started: Background[Kernel] | None = None

    def start(self) -> Background[Kernel]:
        """Start to compile the kernel, once, and return the background task."""
        if self._started is None:
            self._started = self._compile(ModuleOp([self._function.clone()]))
        return self._started

    @property
    def kernel(self) -> Kernel:
        return self.start().get()

    @property
    def visits_pairs(self) -> bool:
        """True if the kernel visits pairs, False if it only visits rows."""
        return isinstance(self.op, flex.PairSumsOp)

    @cached_property
    def results(self) -> list[Result]:
        """The results of the kernel."""
        if isinstance(self.op, flex.PairSumsOp):
            kinds = [attr.sum_kind for attr in self.op.sums]
        else:
            kinds = [
                SumKind.MATRIX if flex.is_matrix(result) else SumKind.TOTAL
                for result in self.op.results
            ]
        return [
            Result(
                kind, dtype_of(flex.element_type(value)), flex.tensor_shape(value)[-1]
            )
            for kind, value in zip(kinds, self.op.results, strict=True)
        ]

    @cached_property
    def starts(self) -> Sequence[int]:
        """The numbers of the arguments that hold the start of a part.

        These are the batch, the head and the row, or the row alone if a part has all
        heads. The list is empty if the kernel is not run in parts.
        """
        if not isinstance(self.op, flex.PairSumsOp):
            return ()
        return [argument_number(v) for v in self.op.tile_origin]

    @cached_property
    def key(self) -> int | None:
        """The number of the key's argument, if programs own keys and visit all rows.

        These programs add to sums by column, in parts.
        """
        if not isinstance(self.op, flex.PairSumsOp) or self.op.is_transposed:
            return None
        if all(r.kind != SumKind.COLUMN_MATRIX for r in self.results):
            return None
        return argument_number(self.op.columns[0])

    @property
    def per_query_head(self) -> bool:
        """True if rows are keys and programs of each query head add to sums."""
        op = self.op
        return isinstance(op, flex.PairSumsOp) and op.per_query_head is not None

    def is_held(self, result: Result) -> bool:
        """Return True if memory has room for the whole of a result."""
        if result.kind == SumKind.DIAGONAL:
            return len(self.starts) < 3
        return result.kind != SumKind.PAIRS

    def run(
        self, args: Sequence[Any], plus: Sequence[Tensor], point: Point, add: Add
    ) -> list[Tensor | None]:
        """Launch the kernel and return its results. The last ones are added to `plus`.

        A result that is computed in parts is None, and `add` receives all of its parts.
        """
        chunks = self.chunks(point.sizes)
        sizes = self.grid_sizes(args, chunks[0])
        whole = [
            self.whole(r, args, point, sizes) if self.is_held(r) else None
            for r in self.results[: len(self.results) - len(plus)]
        ]
        whole += plus
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
        """Launch the kernel for the batches, heads and rows of one chunk."""
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
        """Return the grid: (batches, heads, rows) or (parts, batches, heads)."""
        if self.key is not None:
            key = args[self.key]
            batch, heads = key.shape[:2]
            return parts_for(batch * heads, torch.get_num_threads()), batch, heads
        if self.starts:
            return len(chunk.batch), len(chunk.heads), len(chunk.rows)
        batch, heads, rows = args[0].shape[:3]
        if self.per_query_head:
            batch, heads = len(chunk.batch), len(chunk.heads)
        return batch, heads, rows

    def whole(
        self,
        result: Result,
        args: Sequence[Any],
        point: Point,
        sizes: tuple[int, int, int],
    ) -> Tensor:
        """Allocate a whole result. `sizes` are the sizes of the grid of a part."""
        adds = self.per_query_head and result.kind == SumKind.MATRIX
        if result.kind == SumKind.MATRIX and not adds:
            rows = self.layout(args, point)
            return like_rows(rows, result.dim, result.dtype)
        heads = point.sizes.batch, point.sizes.heads
        if adds:
            shape: tuple[int, ...] = (*args[0].shape[:3], result.dim)
        elif result.kind == SumKind.COLUMN_MATRIX:
            assert self.key is not None
            shape = (sizes[0], *args[self.key].shape[:3], result.dim)
            if sizes[0] == 1:  # The only part is the sum.
                options: Any = {"dtype": result.dtype, "device": point.device}
                return torch.zeros(shape[1:], **options)[None]
        elif result.kind == SumKind.DIAGONAL:
            shape = self.diagonals(*heads, sizes, point.sizes)
        else:
            return aligned_rows(heads, args[0].size(2), result.dtype, point.device)
        # A kernel adds to sums by column, along diagonals and of several query heads.
        return torch.zeros(shape, dtype=result.dtype, device=point.device)

    def layout(self, args: Sequence[Any], point: Point) -> Tensor:
        """Return the tensor whose memory layout the rows of matrices have."""
        if self.visits_pairs:
            return args[0]
        # Rows are mapped to rows of the same side.
        is_query = args[0].shape[:3] == point.query.shape[:3]
        return point.query if is_query else point.key

    def part(self, result: Result, chunk: Chunk, point: Point) -> Tensor:
        """Allocate a part of a result."""
        counts = len(chunk.batch), len(chunk.heads), len(chunk.rows)
        if result.kind == SumKind.PAIRS:
            shape = (*counts, point.sizes.kv_len)
        else:
            shape = self.diagonals(*counts[:2], counts, point.sizes)
        return torch.zeros(shape, dtype=result.dtype, device=point.device)

    def diagonals(
        self, batch: int, heads: int, sizes: tuple[int, int, int], of: Sizes
    ) -> tuple[int, int, int, int]:
        """Return the shape of sums along diagonals, with an array for each program."""
        count = self.kernel.grid(*sizes)[0]
        return batch, heads, count, diagonal_entries(of.q_len, of.kv_len)

    def chunks(self, sizes: Sizes) -> list[Chunk]:
        """Return the chunks that the kernel runs for, each small enough to be held."""
        found = [Chunk.whole(sizes)]
        kinds = [r.kind for r in self.results]
        for kind, by in COORDINATES.items():
            # With `key`, a program visits all rows of a head and has one array of
            # diagonals.
            if not self.starts or (kind == SumKind.DIAGONAL and self.key is not None):
                continue
            size = sum(r.dtype.itemsize for r in self.results if r.kind == kind)
            if kind in kinds:
                chunks = chunks_for(
                    by,
                    sizes,
                    itemsize=size,
                    rows=CHUNK_ROWS,
                    rows_of_diagonals=self.rows_of_program(sizes),
                    whole_heads=len(self.starts) < 3,
                )
                found = max(found, chunks, key=len)
        return found

    def rows_of_program(self, sizes: Sizes) -> int:
        """Return the least number of a head's rows that share an array of diagonals."""
        return -(-sizes.q_len // self.kernel.grid(1, 1, sizes.q_len)[0])


ROW_UNIT = 4
"""Rows of numbers begin at multiples of this many elements, of 16 bytes or more."""


def aligned_rows(
    heads: tuple[int, int], count: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Allocate a number for each row of each head, for copies of tiles to read."""
    padded = -(-count // ROW_UNIT) * ROW_UNIT
    rows = torch.empty((*heads, padded), dtype=dtype, device=device)
    return rows if padded == count else rows[..., :count]


def argument_number(value: SSAValue) -> int:
    """Return the number of the function argument that a value is."""
    assert isinstance(value, BlockArgument)
    return value.index


def within(diagonals: Tensor, sizes: Sizes) -> Tensor:
    """Return sums along diagonals without the entries that no pair has."""
    zero = diagonal_zero(sizes.kv_len)
    return diagonals[..., zero - sizes.kv_len + 1 : zero + sizes.q_len]


def expand(module: ModuleOp, one_pass: OnePass) -> None:
    """Expand a module's derivatives into kernels and a host function, in place."""
    passes = (
        *pipelines.to_simple_flex(),
        FlexInferFactsPass(),
        FlexExpandDerivativesPass(one_pass),
        FlexSimplifyModsPass(),
    )
    pipelines.run(passes, Context(), module)


class Program:
    """The host function of an expanded derivative, ready to run."""

    def __init__(self, module: ModuleOp, compile: Compile):
        *kernels, host = (o for o in module.ops if isinstance(o, func.FuncOp))
        self.host = host
        self.launches = {f.sym_name.data: ProgramLaunch(f, compile) for f in kernels}
        self.scatters: dict[Operation, ReadScatter] = {
            o: ReadScatter(_captured_read(o))
            for o in host.body.ops
            if isinstance(o, flex.ScatterSumsOp)
        }
        self.rounded: dict[Operation, torch.dtype] = {
            o: dtype_of(flex.element_type(o.result))
            for o in host.body.ops
            if isinstance(o, flex.SumPartsOp)
        }
        self.done = _done(host)
        self.is_refused = False
        """True if no schedule suits a kernel."""

    def start(self) -> None:
        """Start to compile all kernels, beginning with the slowest: those of pairs."""
        launches = self.launches.values()
        for launch in sorted(launches, key=lambda launch: not launch.visits_pairs):
            launch.start()

    def wait(self) -> None:
        """Wait for all kernels, and raise the error of a failed compilation.

        A kernel without a schedule refuses the program instead.
        """
        try:
            for launch in self.launches.values():
                launch.start().get()
        except ScheduleError:
            self.is_refused = True

    def run(self, args: Sequence[Any], point: Point) -> list[Tensor]:
        """Run the host function with these arguments and return its results."""
        run = Execution(self, point, dict(zip(self.host.args, args, strict=True)))
        for op in self.host.body.ops:
            for value in self.done.get(op, ()):
                del run.values[value]
            if isinstance(op, func.ReturnOp):
                return [_finished(run.values[v]) for v in op.operands]
            results = run.results(op)
            run.values.update(zip(op.results, results, strict=True))
        raise AssertionError("a function returns")


@dataclass
class Execution:
    """The state of one run of a program."""

    program: Program
    point: Point
    values: dict[SSAValue, Any]
    gradients: dict[SSAValue, CapturedGradient] = field(
        default_factory=dict[SSAValue, CapturedGradient]
    )
    """The gradients of captured tensors, to which sums are added."""

    def results(self, op: Operation) -> Sequence[Any]:
        """Execute an op and return its results."""
        values = self.values
        match op:
            case flex.LaunchOp():
                return self.launch(op)
            case flex.ScatterSumsOp():
                gradient = self.gradient(op)
                if (sums := values[op.sums]) is not None:
                    gradient.add(self.program.scatters[op], sums)
                return [gradient]
            case flex.CenterRowsOp():
                sums, total, rows = (values[v] for v in op.operands)
                centered = torch.addcmul(sums, total[..., None], rows, value=-1)
                return [centered.to(rows.dtype)]
            case flex.SumPartsOp():
                parts = values[op.parts]
                sums = parts[0] if parts.size(0) == 1 else parts.sum(0)
                return [sums.to(self.program.rounded[op])]
            case flex.ZerosLikeOp():
                return [torch.zeros_like(values[op.tensor])]
            case arith.ConstantOp():
                assert isinstance(op.value, IntegerAttr)
                return [op.value.value.data]
            case _:
                raise AssertionError(f"{op.name} in a derivative's function")

    def launch(self, op: flex.LaunchOp) -> Sequence[Tensor | None]:
        """Launch a kernel. Results computed in parts are added to gradients."""

        def add(number: int, sums: Tensor, chunk: Chunk) -> None:
            for use in op.outputs[number].uses:
                scatter = use.operation
                assert isinstance(scatter, flex.ScatterSumsOp)
                added = self.program.scatters[scatter]
                self.gradient(scatter).add(added, sums, chunk)

        launch = self.program.launches[op.callee.string_value()]
        inputs, plus = ([self.values[v] for v in vs] for vs in (op.inputs, op.plus))
        return launch.run(inputs, plus, self.point, add)

    def gradient(self, op: flex.ScatterSumsOp) -> CapturedGradient:
        """Return the gradient of the captured tensor that an op adds sums to."""
        if op.target not in self.gradients:
            self.gradients[op.target] = CapturedGradient(
                self.values[op.target],
                [self.values[v] for v in op.captures],
                self.point.sizes,
                dtype_of(flex.element_type(op.sums)),
                self.point.deterministic,
            )
        return self.gradients[op.target]


def _done(host: func.FuncOp) -> dict[Operation, list[SSAValue]]:
    """Map each op to the earlier values that neither it nor a later op uses.

    Such values may be as large as the query, so their memory is released early.
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


def _captured_read(op: flex.ScatterSumsOp) -> CapturedRead:
    """Return the captured read whose sums an op scatters."""
    number = list(op.captures).index(op.target)
    return read_of_index(op.index, number, op.coordinates)
