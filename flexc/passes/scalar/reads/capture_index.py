"""Classes the reads of captured tensors, by how their indices drift."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import AnyFloat, IntegerType
from xdsl.ir import BlockArgument, Operation, Region, SSAValue

from flexc.dialects import flex
from flexc.errors import GradientError
from flexc.passes.scalar.dependence import (
    NOTHING,
    PAIR,
    Along,
    Dependences,
)
from flexc.passes.scalar.ranges.capture_bounds import unwrapped
from flexc.passes.scalar.ranges.exact_ranges import position_args
from flexc.passes.scalar.ranges.value_ranges import width_of
from flexc.passes.scalar.readable import meant, spell
from flexc.passes.scalar.reads.captured_read import (
    CapturedRead,
    IndexClass,
    Line,
    Part,
)
from flexc.passes.scalar.reads.drifts import Drifts
from flexc.passes.scalar.reads.slices import (
    location_of,
    needed,
    sliced,
)
from flexc.passes.scalar.reads.whole_numbers import INDEX, WholeNumbers

POSITIONS = (Along.BATCH, Along.HEAD, Along.ROW, Along.COLUMN)


class CaptureIndices:
    """Classes the reads of a score mod's region.

    Sound: no read is said to vary along less than it does. `max_length` bounds Sq and
    Skv; `fits` says that no arithmetic on positions overflows.
    """

    def __init__(
        self, region: Region, max_length: int = INDEX.hi + 1, fits: bool = False
    ):
        self.region = region
        self.positions = dict(zip(POSITIONS, position_args(region), strict=True))
        has_score = not isinstance(region.block.args[0].type, IntegerType)
        self.first_capture = has_score + len(POSITIONS)
        self.dependences = Dependences(region, has_score)
        numbers = WholeNumbers(region, max_length, fits)
        self.drifts = {
            along: Drifts(region, [self.positions[along]], numbers)
            for along in POSITIONS
        }
        both = [self.positions[Along.ROW], self.positions[Along.COLUMN]]
        self.diagonal = Drifts(region, both, numbers)

    def loads(self) -> list[flex.LoadCaptureOp]:
        """The reads of captured tensors, in order."""
        ops = self.region.block.ops
        return [op for op in ops if isinstance(op, flex.LoadCaptureOp)]

    def classify(self, load: flex.LoadCaptureOp) -> IndexClass:
        """What the index of a read varies along."""
        return self.class_of(load.indices)

    def class_of(self, indices: Sequence[SSAValue]) -> IndexClass:
        """What any of some values varies along."""
        if any(self.dependences[i] & Along.SCORE for i in indices):
            return IndexClass.SCORE
        along = self.along(indices) & PAIR
        if along != PAIR:
            return _CLASSES[along]
        still = all(map(self.diagonal.is_still, indices))
        return IndexClass.DIAGONAL if still else IndexClass.PAIR

    def read(self, load: flex.LoadCaptureOp) -> CapturedRead:
        """All that is known of a read; GradientError if the score says where it is."""
        kind = self.classify(load)
        if kind is IndexClass.SCORE:
            name = load.tensor.name_hint or "a captured tensor"
            raise GradientError(
                f"{name} is read at a place that depends on the score, so that its "
                "gradient cannot be computed: read it at a place that depends on "
                "positions alone, or detach() it",
                location_of(load),
            )
        return self.read_at(load.tensor, load.indices, kind)

    def read_at(
        self, tensor: SSAValue, indices: Sequence[SSAValue], kind: IndexClass
    ) -> CapturedRead:
        """A read of a captured tensor whose adjoints are summed as a class says."""
        assert isinstance(tensor, BlockArgument)
        groups = self._groups(indices)
        return CapturedRead(
            tensor.index - self.first_capture,
            kind,
            tuple(self._part(tensor, indices, dims) for dims in groups),
            self._why(indices) if kind is IndexClass.PAIR else "",
        )

    def along(self, values: Iterable[SSAValue]) -> Along:
        """Positions that some of these values vary with."""
        found = NOTHING
        for value in values:
            for position, drifts in self.drifts.items():
                if not drifts.is_still(value):
                    found |= position
        return found

    def _groups(self, indices: Sequence[SSAValue]) -> list[tuple[int, ...]]:
        """Dimensions whose indices share a position, or are linked by others."""
        groups: list[tuple[Along, tuple[int, ...]]] = []
        for dim, index in enumerate(indices):
            along, dims = self.along([index]), (dim,)
            for group in [g for g in groups if g[0] & along]:
                groups.remove(group)
                along, dims = along | group[0], (*group[1], *dims)
            groups.append((along, dims))
        return [tuple(sorted(dims)) for _, dims in groups]

    def _part(
        self, tensor: SSAValue, indices: Sequence[SSAValue], dims: tuple[int, ...]
    ) -> Part:
        own = [indices[d] for d in dims]
        along, line = self.along(own), None
        if len(dims) == 1:
            line = self._line(own[0], along, tensor, dims[0])
        return Part(dims, along, sliced(self.region, own), line)

    def _line(
        self, index: SSAValue, along: Along, tensor: SSAValue, dim: int
    ) -> Line | None:
        plain = unwrapped(index)
        wraps = plain is not index
        if wraps and not _counts_from_the_end(index, tensor, dim):
            return None
        step = self._step(plain, along)
        if step is None or any(map(_is_unknown_to_host, needed(plain))):
            return None
        return Line(step, wraps, width_of(plain.type), sliced(self.region, [plain]))

    def _step(self, index: SSAValue, along: Along) -> int | None:
        """By how much an index grows with the only position that it varies along."""
        if self.along([index]) != along:
            return None
        moving = [self.drifts[p][index] for p in POSITIONS if p & along]
        match [d.step if d is not None else None for d in moving]:
            case []:
                return 0
            case [1 | -1 as step]:
                return step
            case [1 | -1 as row, column] if along == PAIR and column == -row:
                return row
            case _:
                return None

    def _why(self, indices: Sequence[SSAValue]) -> str:
        """The first value on the way to an index that is no function of q - kv."""
        for index in indices:
            plain = unwrapped(index)
            value = index if self.diagonal.is_still(plain) else plain
            if self.diagonal.is_still(value):
                continue
            for op in needed(value):
                (result,) = op.results
                if self.diagonal[result] is None:
                    return _denied(result)
            return _denied(value)
        return ""


def read_of_index(index: Region, capture: int, kind: IndexClass) -> CapturedRead:
    """The read that a region is the index of, of one of its captures.

    The region is of b, h, q_idx, kv_idx and captures, as `index_region` makes it, and
    `kind` what was found of the read where more was known.
    """
    last = index.block.last_op
    assert isinstance(last, flex.YieldOp)
    tensor = index.block.args[len(POSITIONS) + capture]
    return CaptureIndices(index).read_at(tensor, last.values, kind)


_CLASSES = {
    NOTHING: IndexClass.HEAD,
    Along.ROW: IndexClass.ROW,
    Along.COLUMN: IndexClass.COLUMN,
}


def _denied(value: SSAValue) -> str:
    return f"{spell(value)} is not known to be a function of q_idx - kv_idx"


def _counts_from_the_end(index: SSAValue, tensor: SSAValue, dim: int) -> bool:
    """Whether an index is x + n for negative x, n the size of its dimension."""
    chosen = index.owner
    if not isinstance(chosen, arith.SelectOp):
        return False
    total = chosen.lhs.owner
    if not isinstance(total, arith.AddiOp) or chosen.rhs not in total.operands:
        return False
    size = meant(total.rhs if total.lhs is chosen.rhs else total.lhs).owner
    if not isinstance(size, flex.DimOp):
        return False
    return size.tensor is tensor and size.dim.value.data == dim


def _is_unknown_to_host(op: Operation) -> bool:
    """Whether an op reads memory, or computes what a device may round otherwise."""
    if isinstance(op, flex.LoadCaptureOp):
        return True
    return any(isinstance(v.type, AnyFloat) for v in (*op.operands, *op.results))
