"""The class of every block of a call: dead, partial or full.

Found as the call itself finds its blocks: by running the bounds of the segments
that its kernel has, by the planner, or from the tables of a BlockMask. The pairs
within blocks are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from xdsl.context import Context
from xdsl.ir import Region

from flexc.dialects import blocksparse
from flexc.errors import BlockMaskError
from flexc.passes import pipelines
from flexc.passes.flex.convert_flex_to_blocksparse import ConvertFlexToBlocksparsePass
from flexc.passes.scalar.dependence import Along
from flexc.runtime.explain.subject import Subject
from flexc.runtime.inputs.listed_blocks import classes_of, pairs_of
from flexc.runtime.interpreters import run_region
from flexc.runtime.planner.classes import DEAD, FULL, PARTIAL, UNKNOWN, Planning
from flexc.runtime.planner.plans import Problem, find_plan

__all__ = ["DEAD", "FULL", "PARTIAL", "Blocks", "Rows", "Run", "find_blocks"]

MAX_BLOCKS = 1 << 24
"""More are taken together, as larger blocks."""

MAX_AT_ONCE = 1 << 22

Kind = Literal["full", "partial"]


@dataclass(frozen=True)
class Run:
    """Neighbouring blocks of one kind: keys from `begin` up to, without, `end`."""

    begin: int
    end: int
    kind: Kind


@dataclass(frozen=True)
class Rows:
    """The keys that rows from `begin` up to, without, `end` visit."""

    begin: int
    end: int
    runs: tuple[Run, ...]


@dataclass(frozen=True, eq=False)
class Blocks:
    """Classes of blocks of `size` rows and columns."""

    classes: Tensor
    """int8, (B, H, rows, columns) on the CPU; batches or heads that are alike share
    their memory."""
    size: tuple[int, int]
    lengths: tuple[int, int]

    def rows(self, b: int = 0, h: int = 0) -> Iterator[Rows]:
        """What each block of rows of one batch and head visits."""
        (m, n), (q_len, kv_len) = self.size, self.lengths
        for row, line in enumerate(self.classes[b, h]):
            values, counts = torch.unique_consecutive(line, return_counts=True)
            runs: list[Run] = []
            at = 0
            for kind, count in zip(values.tolist(), counts.tolist(), strict=True):
                begin, at = at, at + count
                if kind != DEAD:
                    name: Kind = "full" if kind == FULL else "partial"
                    runs.append(Run(begin * n, min(at * n, kv_len), name))
            yield Rows(row * m, min((row + 1) * m, q_len), tuple(runs))


def find_blocks(subject: Subject, size: tuple[int, int] | None) -> Blocks:
    """The blocks of a call; of a size other than its own, if asked for."""
    tables = subject.way == "tables"
    if tables and size not in (None, subject.block):
        raise BlockMaskError(
            f"a BlockMask is explained in its own blocks of {subject.block}, got {size}"
        )
    chosen = size or subject.block
    if not tables:
        chosen = _coarse(subject, chosen)
    if tables:
        classes = by_tables(subject)
    elif subject.way == "planned":
        classes = by_planning(subject, chosen)
    elif subject.way == "every pair":
        rows, columns = (
            -(-n // m) for n, m in zip(subject.sizes[2:], chosen, strict=True)
        )
        classes = torch.full((1, 1, rows, columns), PARTIAL, dtype=torch.int8)
    else:
        classes = by_segments(subject, chosen)
    shape = (*subject.sizes[:2], *classes.shape[2:])
    return Blocks(classes.expand(shape), chosen, subject.sizes[2:])


def _coarse(subject: Subject, size: tuple[int, int]) -> tuple[int, int]:
    """The size, doubled until there are not too many blocks."""
    (m, n), (batch, heads), (q_len, kv_len) = size, lead_of(subject), subject.sizes[2:]
    while batch * heads * -(-q_len // m) * -(-kv_len // n) > MAX_BLOCKS:
        m, n = 2 * m, 2 * n
    return m, n


def lead_of(subject: Subject) -> tuple[int, int]:
    """How many batches and heads may have blocks of their own."""
    batch, heads = subject.sizes[:2]
    return (
        batch if Along.BATCH in subject.along else 1,
        heads if Along.HEAD in subject.along else 1,
    )


def by_segments(subject: Subject, size: tuple[int, int]) -> Tensor:
    """Run the bounds of the segments of a kernel with tiles of a size."""
    module = subject.module.clone()
    convert = ConvertFlexToBlocksparsePass("cpp", *size, trimmed=False)
    pipelines.run(pipelines.to_blocksparse(convert), Context(), module)
    segments = [o for o in module.walk() if isinstance(o, blocksparse.SegmentOp)]
    (q_len, kv_len), lead = subject.sizes[2:], lead_of(subject)
    rows, columns = -(-q_len // size[0]), -(-kv_len // size[1])
    classes = torch.zeros((*lead, rows, columns), dtype=torch.int8)
    step = max(1, MAX_AT_ONCE // (lead[0] * lead[1] * columns))
    for first in range(0, rows, step):
        part = classes[:, :, first : first + step]
        grid = _Grid(subject, size, lead, first, part.size(2), columns)
        for segment in segments:
            grid.visit(segment, part)
    return classes


@dataclass(frozen=True, eq=False)
class _Grid:
    """Some blocks of rows of all batches and heads."""

    subject: Subject
    size: tuple[int, int]
    lead: tuple[int, int]
    first: int
    count: int
    columns: int

    def visit(self, segment: blocksparse.SegmentOp, classes: Tensor) -> None:
        """Write the class of the blocks that a segment visits."""
        begin, end = self.run(segment.bounds)
        visits = int((end - begin).max().clamp(min=0))
        if not visits:
            return
        i = begin + arange(visits)
        (start,) = self.run(segment.block, i)
        column = torch.where(i < end, start // self.size[1], self.columns)
        kind = FULL if segment.is_full else PARTIAL
        wide = torch.nn.functional.pad(classes, (0, 1))
        wide.scatter_(-1, column.to(torch.int64), kind)
        classes.copy_(wide[..., :-1])

    def run(self, region: Region, *i: Tensor) -> list[Tensor]:
        _, _, q_len, kv_len = self.subject.sizes
        b = arange(self.lead[0])[:, None, None, None]
        h = arange(self.lead[1])[:, None, None]
        q_start = (self.first + arange(self.count))[:, None] * self.size[0]
        given = [b, h, q_start, *i, q_len, kv_len, *self.subject.on_host]
        shape = (*self.lead, self.count, i[0].size(-1) if i else 1)
        return [x.expand(shape) for x in run_region(region, given)]


def arange(n: int) -> Tensor:
    """0, 1, ... as positions are."""
    return torch.arange(n, dtype=torch.int32)


def by_planning(subject: Subject, size: tuple[int, int]) -> Tensor:
    """Run the planner, as `flex_attention` does."""
    call = subject.call
    problem = Problem(*subject.sizes, *size)
    device = call.query.device
    backend = "cpp" if device.type == "cpu" else "triton"
    plan = find_plan(call.signature, subject.compiled.mods, problem, device, backend)
    whole = (problem.rows, problem.kv_len // problem.kv_block)
    planning = Planning.start(plan, call.signature, problem, device, whole)
    classes = planning.classify(0, problem.rows).cpu()
    return classes.masked_fill_(classes == UNKNOWN, PARTIAL)


def by_tables(subject: Subject) -> Tensor:
    """The classes that a BlockMask's tables list."""
    tables = subject.call.tables
    assert tables is not None
    columns = -(-subject.sizes[3] // tables.block_size[1])
    pairs = [(c.cpu(), i.cpu()) for c, i in pairs_of(tables.tensors)]
    return classes_of(pairs, columns, (PARTIAL, FULL)).contiguous()
