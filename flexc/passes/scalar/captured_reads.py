"""Classify the reads of captured tensors by the positions that their indices vary with.

The gradient of a captured tensor sums the adjoints of its reads over all pairs of
positions that read the same element. The kernel that computes the adjoints sums over
the positions that an index does not vary with. One number per head, row, column or
distance remains. A second step adds these numbers to the elements that the index names,
one *part* of the index after another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import AnyFloat, IntegerType
from xdsl.ir import BlockArgument, Operation, Region, SSAValue

from flexc.dialects import flex
from flexc.dialects.flex import Coordinates
from flexc.dialects.mod_region import yielded
from flexc.errors import GradientError
from flexc.passes.scalar.copier import location_of, needed, sliced
from flexc.passes.scalar.ranges.exact_ranges import chosen_sum, position_args
from flexc.passes.scalar.ranges.index_proofs import unwrapped
from flexc.passes.scalar.ranges.intervals import INDEX
from flexc.passes.scalar.ranges.value_ranges import width_of
from flexc.passes.scalar.readable import meant, spell
from flexc.passes.scalar.strides import WholeNumbers, strides_of_mod
from flexc.passes.scalar.variation import NOTHING, PAIR, Along, Dependences


@dataclass(frozen=True, eq=False)
class Line:
    """An index that is `step * position + offset`, or `offset` alone if step is 0.

    The position is the only one that the index varies with, or `q_idx - kv_idx` if the
    index varies with both rows and columns. The index may have wrapped around in its
    type, which is `width` bits wide.
    """

    step: int
    """1, -1 or 0."""
    wraps: bool
    """True if negative indices count from the end of the dimension."""
    width: int
    start: Region
    """Code that yields the index, before negative indices are counted from the end. Its
    arguments are b, h, q_idx, kv_idx and the captures. It reads no tensor elements,
    only sizes of tensors.
    """


@dataclass(frozen=True, eq=False)
class IndexPart:
    """Indices of a read that share no position with its other indices."""

    dims: tuple[int, ...]
    """The dimensions of the tensor that the indices address."""
    along: Along
    """The positions that at least one of the indices varies with."""
    indices: Region
    """Code that yields the indices, with the arguments of `Line.start`."""
    line: Line | None


@dataclass(frozen=True, eq=False)
class CapturedRead:
    """One read of a captured tensor."""

    capture: int
    """The position of the captured tensor among the captures."""
    coordinates: Coordinates
    parts: tuple[IndexPart, ...]
    why: str
    """For PAIR, the reason why no other coordinates were proved; else empty."""

    @property
    def injective(self) -> bool:
        """True if each index is `position + offset`, `-position + offset` or `offset`.

        The read's elements then form a slice of the tensor.
        """
        return all(part.line is not None for part in self.parts)

    @property
    def by_pair(self) -> bool:
        """True if a part that is no `Line` varies with both the row and the column.

        Each pair may then read an element of its own, and no slice or matrix product
        computes the sums. Only in this case may a GPU add the adjoints in any order.
        """
        parts = (part for part in self.parts if part.line is None)
        is_pair = self.coordinates is Coordinates.PAIR
        return is_pair and any(part.along & PAIR == PAIR for part in parts)


POSITIONS = (Along.BATCH, Along.HEAD, Along.ROW, Along.COLUMN)


class CaptureIndices:
    """The coordinates of the reads in a score mod's region.

    They are sound: they never omit a position that a read varies with. Sq and Skv are
    at most `max_length`. `fits` says that no arithmetic on positions overflows.
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
        self.strides = {
            along: strides_of_mod(region, [self.positions[along]], numbers)
            for along in POSITIONS
        }
        both = [self.positions[Along.ROW], self.positions[Along.COLUMN]]
        self.diagonal = strides_of_mod(region, both, numbers)

    def loads(self) -> list[flex.LoadCaptureOp]:
        """Return the reads of captured tensors, in order."""
        ops = self.region.block.ops
        return [op for op in ops if isinstance(op, flex.LoadCaptureOp)]

    def coordinates(self, indices: Sequence[SSAValue]) -> Coordinates | None:
        """Return the coordinates of a read at these indices.

        Return None if an index depends on the score: no sum can be taken before the
        score is known.
        """
        if any(self.dependences[i] & Along.SCORE for i in indices):
            return None
        along = self.along(indices) & PAIR
        if along != PAIR:
            return _COORDINATES[along]
        invariant = all(map(self.diagonal.is_invariant, indices))
        return Coordinates.DISTANCE if invariant else Coordinates.PAIR

    def read(self, load: flex.LoadCaptureOp) -> CapturedRead:
        """Return a description of a read.

        Raise GradientError if an index depends on the score.
        """
        by = self.coordinates(load.indices)
        if by is None:
            name = load.tensor.name_hint or "a captured tensor"
            raise GradientError(
                f"{name} is read at a place that depends on the score, so that its "
                "gradient cannot be computed: read it at a place that depends on "
                "positions alone, or detach() it",
                location_of(load),
            )
        return self.read_at(load.tensor, load.indices, by)

    def read_at(
        self, tensor: SSAValue, indices: Sequence[SSAValue], by: Coordinates
    ) -> CapturedRead:
        """Return a description of a read of known coordinates."""
        assert isinstance(tensor, BlockArgument)
        groups = self._groups(indices)
        return CapturedRead(
            tensor.index - self.first_capture,
            by,
            tuple(self._part(tensor, indices, dims) for dims in groups),
            self._why(indices) if by is Coordinates.PAIR else "",
        )

    def loads_of_pairs(self) -> list[flex.LoadCaptureOp]:
        """Return the reads that vary with rows and columns: those of each pair."""
        return [o for o in self.loads() if self.along(o.indices) & PAIR == PAIR]

    def are_computed_for_pairs(self) -> bool:
        """Return True if an index varies with rows and columns, and is no `Line`."""
        return any(
            self.along([index]) & PAIR == PAIR
            and self._step(unwrapped(index), self.along([index])) is None
            for load in self.loads()
            for index in load.indices
        )

    def along(self, values: Iterable[SSAValue]) -> Along:
        """Return the positions that at least one of these values varies with."""
        found = NOTHING
        for value in values:
            for position, strides in self.strides.items():
                if not strides.is_invariant(value):
                    found |= position
        return found

    def _groups(self, indices: Sequence[SSAValue]) -> list[tuple[int, ...]]:
        """Return groups of dimensions that share no position with other groups."""
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
    ) -> IndexPart:
        own = [indices[d] for d in dims]
        along, line = self.along(own), None
        if len(dims) == 1:
            line = self._line(own[0], along, tensor, dims[0])
        return IndexPart(dims, along, sliced(self.region, own), line)

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
        """Return the index's change when its position grows by one: 1, -1 or 0.

        Return None for other changes, and if the index does not vary with exactly the
        positions `along`.
        """
        if self.along([index]) != along:
            return None
        moving = [self.strides[p][index] for p in POSITIONS if p & along]
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
        """Return a message that names the first value that is not a function of q - kv.

        The search follows the ops that compute the indices. Return "" if all indices
        are such functions.
        """
        for index in indices:
            plain = unwrapped(index)
            value = index if self.diagonal.is_invariant(plain) else plain
            if self.diagonal.is_invariant(value):
                continue
            for op in needed(value):
                (result,) = op.results
                if self.diagonal[result] is None:
                    return _denied(result)
            return _denied(value)
        return ""


def read_of_index(index: Region, capture: int, by: Coordinates) -> CapturedRead:
    """Return a description of the read of a capture whose index a region computes.

    `index` is a region of b, h, q_idx, kv_idx and captures, as `sliced` returns it.
    `by` has the read's coordinates, which the caller found in the complete mod.
    """
    tensor = index.block.args[len(POSITIONS) + capture]
    return CaptureIndices(index).read_at(tensor, yielded(index.block), by)


_COORDINATES = {
    NOTHING: Coordinates.HEAD,
    Along.ROW: Coordinates.ROW,
    Along.COLUMN: Coordinates.COLUMN,
}


def _denied(value: SSAValue) -> str:
    return f"{spell(value)} is not known to be a function of q_idx - kv_idx"


def _counts_from_the_end(index: SSAValue, tensor: SSAValue, dim: int) -> bool:
    """Return True if an index is `x < 0 ? x + n : x`, n the size of its dimension."""
    found = chosen_sum(index)
    size = None if found is None else meant(found[2]).owner
    if not isinstance(size, flex.DimOp):
        return False
    return size.tensor is tensor and size.dim.value.data == dim


def _is_unknown_to_host(op: Operation) -> bool:
    """Return True if an op reads a captured tensor, or reads or computes a float."""
    if isinstance(op, flex.LoadCaptureOp):
        return True
    return any(isinstance(v.type, AnyFloat) for v in (*op.operands, *op.results))
