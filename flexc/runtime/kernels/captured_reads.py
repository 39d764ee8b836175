"""Detection of captured reads that are out of range at pairs that the mask keeps.

torch raises IndexError if a mod reads outside of a tensor. A kernel reads 0 there. So
flexc checks reads before it runs the kernel. The check evaluates each index that is
computed from positions, sizes and captured integers, at some pairs that include the
ends of all ranges. The check evaluates the mask at the same pairs. If an index is out
of range at a pair that the mask keeps, the check raises an error. The check concludes
only what it evaluates, so a call whose reads are all in range never raises.
`flexc.debug(check_reads=True)` evaluates everything, for all pairs.

The guards of kernels handle the remaining cases: indices that are loaded or computed in
floats, masks that read tensors, and operands that `torch.where` does not select.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, reduce
from typing import Any

import torch
from torch import Tensor
from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, ModuleOp, i1
from xdsl.interpreter import Interpreter
from xdsl.ir import BlockArgument, Operation, Region, SSAValue

from flexc.dialects import flex
from flexc.dialects.mod_region import is_scalar, yielded
from flexc.errors import CapturedIndexError, NotANumberError
from flexc.passes.flex.flex_widen_indices import FlexWidenIndicesPass
from flexc.passes.scalar.captured_reads import CaptureIndices
from flexc.passes.scalar.copier import location_of
from flexc.passes.scalar.ranges.exact_ranges import Known, position_args, rounded
from flexc.passes.scalar.ranges.index_proofs import captures_inside
from flexc.passes.scalar.ranges.intervals import Interval
from flexc.passes.scalar.readable import meant, spell
from flexc.passes.targets.target import next_power_of_2
from flexc.runtime.interpreters.attention import DenseProblem, listed
from flexc.runtime.interpreters.scalar import ScalarFunctions
from flexc.runtime.interpreters.values import as_value, dense_array, dtype_of
from flexc.runtime.kernels.proofs import Given, attention_of, known_of
from flexc.runtime.tapes.recorder import unrecorded

MAX_KNOWN = 4096
"""The most outcomes of a check that a module remembers."""

MAX_PAIRS = 1 << 22
"""The most pairs that are evaluated at a time."""

NAMES = ("b", "h", "q_idx", "kv_idx")

HOST = torch.device("cpu")


class CapturedReads:
    """The checks of captured reads of a module with one attention op.

    The instance holds a copy of the module, so later changes to the module have no
    effect.
    """

    def __init__(self, module: ModuleOp):
        self.module = module.clone()
        remembered = lru_cache(MAX_KNOWN)
        self.are_inside = remembered(self._are_inside)
        self.find_error = remembered(self._find_error)

    @cached_property
    def attention(self) -> flex.AttentionOp:
        """The attention op, with indices that do not overflow."""
        module = self.module.clone()
        FlexWidenIndicesPass().apply(Context(), module)
        return attention_of(module)

    @cached_property
    def any(self) -> bool:
        """True if the module has a captured read."""
        return any(isinstance(o, flex.LoadCaptureOp) for o in self.module.walk())

    def check(self, sizes: Sequence[int], captures: Sequence[Any]) -> None:
        """Raise CapturedIndexError if a read of the call is out of range.

        `sizes` are (batch, heads, q_len, kv_len); `captures` are the capture arguments.
        """
        if not self.any:
            return
        known = known_of(captures)
        # Reads in range at larger sizes are also in range here. Sizes are rounded up,
        # since decoding has new lengths at each step. A proof takes less time than
        # finding an error.
        exact, larger = tuple(sizes), tuple(map(next_power_of_2, sizes))
        if self.are_inside(larger, tuple(map(rounded, known))):
            return
        if self.are_inside(exact, known):
            return
        if self.find_error(larger, known) is None:
            return
        error = self.find_error(exact, known)
        if error is not None:
            raise CapturedIndexError(error.what, error.location)

    def _are_inside(self, sizes: Sequence[int], known: Sequence[Known]) -> bool:
        """Return True if all reads of a call are proved to be in range."""
        op, positions = self.attention, [Interval(0, n - 1) for n in sizes]
        mods = (op.mask_mod, op.score_mod)
        return all(captures_inside(mod, positions, known) for mod in mods)

    def _find_error(
        self, sizes: Sequence[int], known: Sequence[Given]
    ) -> CapturedIndexError | None:
        """Evaluate the reads of a call; return the first error, or None."""
        with unrecorded(), torch.device("cpu"):
            at = pairs_of(sizes)
            mask = Evaluation(self.attention.mask_mod, at, known)
            score = Evaluation(self.attention.score_mod, at, known)
            every = torch.ones((), dtype=torch.bool)
            live = mask.values.get(mask.yielded)
            for evaluation, counts in ((mask, every), (score, live)):
                if counts is not None:
                    for read in evaluation.outside(counts):
                        return read.error()
        return None

    def have_one_index(self, block: tuple[int, int], captures: Sequence[Any]) -> bool:
        """Return True if each read of the mask by pair has one index in a block.

        A block whose reads have several indices cannot be classified. Only the corners
        of one block are compared, which is exact for quotients of positions. For other
        indices a wrong answer costs speed.
        """
        mask = self.attention.mask_mod
        loads = CaptureIndices(mask).loads_of_pairs()
        if not loads:
            return True
        rows, columns = (torch.tensor([n, 2 * n - 1], dtype=torch.int32) for n in block)
        zero = torch.zeros((1, 1, 1), dtype=torch.int32)
        at = [zero, zero, *torch.cartesian_prod(rows, columns).unbind(1)]
        with unrecorded(), torch.device("cpu"):
            values = Evaluation(mask, at, known_of(captures)).values
        found = [values.get(i) for load in loads for i in load.indices]
        return all(i is not None and (i == i.flatten()[0]).all() for i in found)

    def check_all(self, args: Sequence[Any]) -> None:
        """Evaluate the mods for all pairs of a call, given the kernel's inputs.

        Raises:
            CapturedIndexError: if a read that a live score needs is out of range.
            NotANumberError: if a live score is made NaN or infinite.
        """
        op = self.attention
        inputs = [v for v in op.operands if isinstance(v, BlockArgument)]
        problem = DenseProblem.of(op, [as_value(args[v.index], v.type) for v in inputs])
        partial, full = _visited_pairs(op, problem)
        key = problem.for_query_heads(problem.key).float().mT
        step = max(MAX_PAIRS // max(math.prod(problem.shape) // problem.shape[2], 1), 1)
        for start in range(0, problem.shape[2], step):
            rows = slice(start, start + step)
            at = [_rows_of(i, rows) for i in problem.indices]
            mask = FullEvaluation(op.mask_mod, at, (*at, *problem.captures))
            visited = _rows_of(partial, rows)
            _raise_first(mask.outside(visited))
            live = mask.values[mask.yielded] & visited | _rows_of(full, rows)
            scores = problem.query[:, :, rows].float() @ key * problem.scale
            scores = scores.to(dtype_of(op.score_type))
            given = (scores, *at, *problem.captures)
            score = FullEvaluation(op.score_mod, at, given)
            _raise_first(score.outside(live))
            score.check_numbers(live & ~_is_bad(scores))


def _visited_pairs(
    op: flex.AttentionOp, problem: DenseProblem
) -> tuple[Tensor, Tensor]:
    """Return the pairs whose mask is evaluated, and those that are live without it."""
    never = torch.zeros((1, 1, 1, 1), dtype=torch.bool, device=problem.device)
    if op.sparse_block is None:
        return ~never, never
    size = dense_array(op.sparse_block)
    partial, full = problem.tables[:2], problem.tables[2:]
    return (
        listed(problem, partial, size, False),
        listed(problem, full, size, False) if full else never,
    )


def _rows_of(pairs: Tensor, rows: slice) -> Tensor:
    return pairs if pairs.shape[2] == 1 else pairs[:, :, rows]


def _raise_first(found: Iterator[Outside]) -> None:
    for read in found:
        raise read.error()


def _is_bad(score: Tensor) -> Tensor:
    """Return where a number makes a row of the output NaN."""
    return score.isnan() | (score == math.inf)


@dataclass(frozen=True)
class Outside:
    """A read that is out of range at one pair."""

    load: flex.LoadCaptureOp
    axis: int
    index: int
    size: int
    at: Sequence[int]

    def error(self) -> CapturedIndexError:
        index = meant(self.load.indices[self.axis])
        where = ", ".join(f"{n} {at}" for n, at in zip(NAMES, self.at, strict=True))
        tensor = self.load.tensor.name_hint or "a captured tensor"
        return CapturedIndexError(
            f"{tensor} has {self.size} elements along dimension {self.axis}, but "
            f"{spell(index)} is {self.index} at {where}; make the tensor larger, clamp "
            "the index, or hide such pairs by the mask",
            location_of(self.load),
        )


@cache
def scalar_interpreter(device: torch.device = HOST) -> Interpreter:
    interpreter = Interpreter(ModuleOp([]))
    interpreter.register_implementations(ScalarFunctions(device))
    return interpreter


class Evaluation:
    """The integer values of a mod's region at some pairs, as far as they are known.

    Values have the dimensions (batches, heads, pairs).
    """

    def __init__(self, region: Region, at: Sequence[Tensor], known: Sequence[Given]):
        self.region = region
        self.wrong: dict[SSAValue, Tensor] = {}
        self.at = list(at)
        args = region.block.args[len(region.block.args) - len(known) :]
        self.shapes: dict[SSAValue, tuple[int, ...]] = {}
        self.values: dict[SSAValue, Tensor] = dict(
            zip(position_args(region), self.at, strict=True)
        )
        for arg, what in zip(args, known, strict=True):
            if isinstance(what, tuple):
                self.shapes[arg] = what
            elif isinstance(what, int) and isinstance(arg.type, IntegerType):
                self.values[arg] = torch.tensor(what).to(dtype_of(arg.type))
        self._evaluate()

    @property
    def yielded(self) -> SSAValue:
        return yielded(self.region.block)[0]

    def _evaluate(self) -> None:
        interpreter = scalar_interpreter()
        for op in self.region.block.ops:
            if isinstance(op, flex.DimOp):
                size = torch.tensor(self.shapes[op.tensor][op.dim.value.data])
                self.values[op.result] = size.to(dtype_of(op.result.type))
            elif self._is_known(op):
                args = tuple(self.values[v] for v in op.operands)
                self.values[op.results[0]] = interpreter.run_op(op, args)[0]

    def _is_known(self, op: Operation) -> bool:
        if isinstance(op, flex.LoadCaptureOp | flex.YieldOp):
            return False
        is_integer = all(isinstance(r.type, IntegerType) for r in op.results)
        return is_integer and all(v in self.values for v in op.operands)

    def outside(self, counts: Tensor) -> Iterator[Outside]:
        """Yield reads that are out of range at pairs where their result is needed.

        `counts` is true at the pairs where the yielded value is needed.
        """
        for op, need in self.needs(counts):
            if isinstance(op, flex.LoadCaptureOp):
                yield from self.reads(op, need)

    def needs(self, counts: Tensor) -> Iterator[tuple[Operation, Tensor]]:
        """Yield ops, last first, each with the pairs where its result is needed."""
        needed: dict[SSAValue, Tensor] = {self.yielded: counts}
        for op in reversed(self.region.block.ops):
            if isinstance(op, flex.YieldOp) or op.results[0] not in needed:
                continue
            need = needed[op.results[0]]
            for value, where in self.operands(op, need):
                needed[value] = needed[value] | where if value in needed else where
            yield op, need

    def operands(
        self, op: Operation, need: Tensor
    ) -> Iterator[tuple[SSAValue, Tensor]]:
        """Yield the operands of an op, each with the pairs that certainly need the
        operand.

        `need` is true at the pairs where the result of the op is needed. An operand is
        left out if its need is unknown.
        """
        match op:
            case arith.SelectOp():
                chosen = self.values.get(op.cond)
                yield op.cond, need
                if chosen is not None:
                    yield op.lhs, need & chosen
                    yield op.rhs, need & ~chosen
            case arith.AndIOp() | arith.OrIOp() if op.result.type == i1:
                for value, other in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
                    decided = self.values.get(other)
                    if decided is not None:
                        undecided = decided ^ isinstance(op, arith.OrIOp)
                        yield value, need & (undecided | self.is_wrong(other))
            case _:
                for value in op.operands:
                    if is_scalar(value.type):
                        yield value, need

    def is_wrong(self, value: SSAValue) -> Tensor:
        """Return where a value follows from a read that is out of range."""
        return self.wrong.get(value, torch.zeros((), dtype=torch.bool))

    def reads(self, op: flex.LoadCaptureOp, need: Tensor) -> Iterator[Outside]:
        for axis, index, outside in self.ends(op):
            if (outside & need).any():
                yield self.example(op, axis, index, outside & need)

    def ends(self, op: flex.LoadCaptureOp) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield the known indices by axis, and where they are out of range."""
        for axis, size in enumerate(self.shapes[op.tensor]):
            index = self.values.get(op.indices[axis])
            if index is not None:
                yield axis, index, (index < 0) | (index >= size)

    def example(
        self, op: flex.LoadCaptureOp, axis: int, index: Tensor, outside: Tensor
    ) -> Outside:
        """Return the last of the pairs whose index is the farthest out of range."""
        size, index = self.shapes[op.tensor][axis], index.long()
        distance = torch.maximum(index - size, -1 - index)
        outside, distance, *places = torch.broadcast_tensors(
            outside, distance, index, *self.at
        )
        far = distance.where(outside, -1).flatten()
        last = far.numel() - 1 - int(far.flip(0).argmax())
        found, *at = (int(p.flatten()[last]) for p in places)
        return Outside(op, axis, found, size, at)


class FullEvaluation(Evaluation):
    """All values of a mod's region at the given pairs."""

    def __init__(self, region: Region, at: Sequence[Tensor], args: Sequence[Tensor]):
        self.region, self.at = region, list(at)
        self.wrong = {}
        self.values = dict(zip(region.block.args, args, strict=True))
        self.shapes = {
            arg: tuple(value.shape)
            for arg, value in self.values.items()
            if not is_scalar(arg.type)
        }
        interpreter = scalar_interpreter(at[0].device)
        for op in region.block.ops:
            if not isinstance(op, flex.YieldOp):
                operands = tuple(self.values[v] for v in op.operands)
                self.values[op.results[0]] = interpreter.run_op(op, operands)[0]
                self._note_wrong(op)

    def _note_wrong(self, op: Operation) -> None:
        """Note where the result of an op follows from a read that is out of range.

        `operands` then lets such a flag of `and` or `or` decide nothing: a read of the
        other flag must be in range too.
        """
        found = [w for v in op.operands if (w := self.wrong.get(v)) is not None]
        if isinstance(op, flex.LoadCaptureOp):
            found += [outside for *_, outside in self.ends(op) if outside.any()]
        elif found:
            everywhere = torch.ones((), dtype=torch.bool, device=self.at[0].device)
            needs = self.operands(op, everywhere)
            found = [need & self.is_wrong(v) for v, need in needs if v in self.wrong]
        if found:
            self.wrong[op.results[0]] = reduce(torch.logical_or, found)

    def check_numbers(self, counts: Tensor) -> None:
        """Raise NotANumberError for the first op that makes NaN or +inf of numbers.

        `counts` is true at the pairs whose yielded score is needed.
        """
        counts = counts & _is_bad(self.values[self.yielded])
        if not counts.any():
            return
        for op, need in reversed(list(self.needs(counts))):
            result = self.values[op.results[0]]
            if not result.is_floating_point():
                continue
            floats = [self.values[v] for v in op.operands if is_scalar(v.type)]
            made = need & _is_bad(result)
            for value in (v for v in floats if v.is_floating_point()):
                made = made & ~_is_bad(value)
            if made.any():
                raise self.not_a_number(op, made)

    def not_a_number(self, op: Operation, made: Tensor) -> NotANumberError:
        result = self.values[op.results[0]]
        places = torch.broadcast_tensors(made, result, *self.at)
        first = tuple(places[0].nonzero()[0])
        found, *at = (p[first].item() for p in places[1:])
        where = ", ".join(f"{n} {i}" for n, i in zip(NAMES, at, strict=True))
        return NotANumberError(
            f"{spell(op.results[0])} is {found} at {where}, which makes the output's "
            "row NaN; clamp what it is computed from, or hide such pairs by the mask",
            location_of(op),
        )


def pairs_of(sizes: Sequence[int]) -> list[Tensor]:
    """Return b, h, q_idx and kv_idx of sample pairs.

    The pairs combine the positions of `ends_of` for rows and columns, and include pairs
    close to the diagonal.
    """
    batches, heads, rows, columns = (ends_of(n) for n in sizes)
    grid = torch.cartesian_prod(rows, columns)
    near = (
        torch.stack([rows, (rows + i).clamp(0, sizes[3] - 1)], 1) for i in (-1, 0, 1)
    )
    q_idx, kv_idx = torch.cat([*near, grid]).unbind(1)
    return [batches[:, None, None], heads[:, None], q_idx, kv_idx]


def ends_of(size: int) -> Tensor:
    """Return the positions whose distance from either end is 0 or a power of two."""
    steps = {0, *(1 << i for i in range(size.bit_length()))}
    first = {s for s in steps if s < size}
    found = sorted(first | {size - 1 - s for s in first})
    return torch.tensor(found, dtype=torch.int32, device=HOST)
