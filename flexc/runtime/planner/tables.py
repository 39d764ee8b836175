"""The tables that `flex_attention` plans for a mask that has no closed-form bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from flexc.frontend.captured import CapturedMods
from flexc.frontend.closures import ModSignature
from flexc.runtime.inputs.arguments import (
    Packed,
    Tables,
    given_columns,
    make_tables,
)
from flexc.runtime.inputs.listed_blocks import (
    classes_of,
    is_used,
    pairs_of,
)
from flexc.runtime.inputs.options import resolve_backend
from flexc.runtime.kernels.traces import trace_mods
from flexc.runtime.planner.classes import FULL, PARTIAL, Planning
from flexc.runtime.planner.compaction import listed, stacked, table_of
from flexc.runtime.planner.ordering import (
    Table,
    TablesLayout,
    order,
    ordered,
    start_order,
)
from flexc.runtime.planner.plans import Problem, find_plan

# Block tables as keys see them: the blocks of queries of each block of keys.
#
# What sums over queries, as the gradients of keys and values do, loops over these. They
# list the pairs of blocks that the tables for queries list, in the same classes.


KINDS = (PARTIAL, FULL)


def column_tables(tables: Tables, query: Tensor, key: Tensor) -> Tables:
    """A call's tables, with blocks of keys as rows and blocks of queries as columns.

    Batches and heads are the query's. A BlockMask's own are taken where it has them,
    else its tables are transposed.
    """
    q_block, kv_block = tables.block_size
    rows, columns = -(-query.size(2) // q_block), -(-key.size(2) // kv_block)
    given = () if tables.notes is None else tables.notes.columns
    found = given_columns(given, tables.tensors, columns)
    found = found or transposed(tables.tensors, rows, columns)
    return make_tables(found, (kv_block, q_block), query, key.size(2))


def transposed(tensors: Sequence[Tensor], rows: int, columns: int) -> list[Tensor]:
    """The tables of the first `rows` rows of blocks, as tables of their columns.

    What lies beyond the last column has no pair and is left out. A CPU's take memory
    for what is listed, a GPU's, which is not waited for, for all blocks.
    """
    pairs = [(c[:, :, :rows], i[:, :, :rows]) for c, i in pairs_of(tensors)]
    if tensors[0].device.type == "cpu":
        return [t for pair in pairs for t in turned(*pair, columns)]
    classes = classes_of(pairs, columns, KINDS).transpose(-1, -2).contiguous()
    return ordered(classes, "triton")[: len(tensors)]


def turned(counts: Tensor, indices: Tensor, columns: int) -> Table:
    """One pair of tables, transposed by sorting what it lists."""
    batches, heads = counts.shape[:2]
    used = is_used(counts, indices) & (indices >= 0) & (indices < columns)
    b, h, row, _ = where = used.nonzero(as_tuple=True)
    line = (b * heads + h) * columns + indices[where]
    line, order = torch.sort(line, stable=True)
    return table_of(line, row[order], torch.Size((batches, heads, columns)))


MOST_ORDERED = 1 << 16
"""Blocks that a CPU has tables for as wide as there are columns; made of more, tables
are as wide as the fullest row."""

MAX_CLASSES = 1 << 24
"""Classes that a CPU holds at once; tables are made from them rows by rows."""


def plan_tables(
    signature: ModSignature,
    query: Tensor,
    key: Tensor,
    block_size: tuple[int, int] = (128, 128),
    *,
    backend: str = "auto",
    refine: bool = False,
    mods: CapturedMods | None = None,
    both: bool = False,
    meanwhile: Callable[[], None] = lambda: None,
) -> Tables:
    """The partial and the full blocks of each block of rows of a call's mask.

    With `both` the `columns` of the tables list them for each block of keys. What is
    to be done `meanwhile` is done while kernels are compiled.

    The signature is that of `(score_mod, mask_mod)`, `mods` what it was traced to,
    if it was. Tables have one batch, or head, expanded to the query's, where the
    mask is the same for all. Rows beyond the last do not matter for what is full,
    columns do.
    """
    b, h, q_len = query.shape[:3]
    problem = Problem(b, h, q_len, key.size(2), *block_size)
    device = query.device
    backend = resolve_backend(backend, device)
    if mods is None:
        signature, mods = trace_mods(signature, torch.float32, device)
    return plan_problem(
        signature, mods, problem, device, backend, refine, both, meanwhile
    )


def plan_problem(
    signature: ModSignature,
    mods: CapturedMods,
    problem: Problem,
    device: torch.device,
    backend: str,
    refine: bool = False,
    both: bool = False,
    meanwhile: Callable[[], None] = lambda: None,
) -> Tables:
    """The tables of a problem, of a mask that was traced."""
    plan = find_plan(signature, mods, problem, device, backend)
    whole = (problem.rows, problem.kv_len // problem.kv_block)
    planning = Planning.start(plan, signature, problem, device, whole, refine)
    by_rows = not is_ordered(planning.problem, device)
    if not by_rows:
        start_order(backend, device)
    meanwhile()
    if by_rows:
        tables = [t for table in listed_by_rows(planning) for t in table]
        if both:
            tables += transposed(tables, problem.rows, problem.columns)
        return listing(tables, problem)
    classes = planning.classify(0, problem.rows)
    layout = TablesLayout(tuple(classes.shape), both)
    packed = layout.empty(device)
    order(classes, layout.views(packed), backend)
    return unpacked(packed, layout, problem)


def is_ordered(problem: Problem, device: torch.device) -> bool:
    """Whether tables are as wide as there are columns, and in one tensor."""
    blocks = problem.batches * problem.heads * problem.rows * problem.columns
    return device.type != "cpu" or blocks <= MOST_ORDERED


def unpacked(packed: Tensor, layout: TablesLayout, problem: Problem) -> Tables:
    """The tables that lie in one tensor."""
    unpack = partial(unpacked, layout=layout, problem=problem)
    made = listing(layout.views(packed), problem)
    return replace(made, packed=Packed(packed, unpack))


def listing(tables: Sequence[Tensor], problem: Problem) -> Tables:
    """Tables of rows, and of columns if there are eight, of the problem's heads."""
    lead = problem.batches, problem.heads
    block = problem.q_block, problem.kv_block
    wide = [t.expand(*lead, *t.shape[2:]) for t in tables]
    made = Tables(tuple(wide[:4]), block)
    exchanged = problem.kv_block, problem.q_block
    columns = Tables(tuple(wide[4:]), exchanged) if len(wide) == 8 else None
    return replace(made, columns=columns)


def listed_by_rows(planning: Planning) -> list[Table]:
    """Partial and full blocks, without the classes of all blocks at once."""
    problem = planning.problem
    per_row = problem.batches * problem.heads * problem.columns
    step = max(1, MAX_CLASSES // per_row)
    parts: tuple[list[Table], list[Table]] = ([], [])
    for first in range(0, problem.rows, step):
        count = min(step, problem.rows - first)
        classes = planning.classify(first, count)
        for part, table in zip(parts, listed(classes), strict=True):
            part.append(table)
    return [stacked(part) for part in parts]
