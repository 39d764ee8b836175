"""The tables that `flex_attention` plans for a mask that has no closed-form bounds.

Tables list the blocks of keys of each block of queries. The `columns` of tables list
the same pairs of blocks, in the same classes, for each block of keys. Kernels that sum
over queries, as for the gradients of keys and values, loop over `columns`. torch's
tables are made from classes of blocks by one kernel for all masks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp

from flexc.frontend.captured import CapturedMods
from flexc.frontend.closures import ModSignature
from flexc.passes.flex.planning.kernel_builder import DEAD, FULL, PARTIAL
from flexc.passes.flex.planning.tables import build_order
from flexc.runtime.inputs.arguments import (
    Packed,
    Tables,
    given_columns,
    make_tables,
)
from flexc.runtime.inputs.listed_blocks import (
    Table,
    TablesLayout,
    classes_of,
    is_used,
    pairs_of,
)
from flexc.runtime.kernels.build import NO_CALL, Build, build_of
from flexc.runtime.kernels.kernel import threads_for
from flexc.runtime.planner.plans import (
    PlanKernels,
    Planning,
    PlanningProblem,
    find_plan,
    is_ordered,
    layouts_of,
)
from flexc.runtime.process.recent import Recent

BLOCKS_OF_A_PROGRAM = 256
"""The blocks that take a CPU about as long as one program of another plan kernel."""

_kernels: Recent[PlanKernels] = Recent()


def listed(classes: Tensor) -> tuple[Table, Table]:
    """Return the tables of partial (or unknown) and of full blocks.

    Each row lists its blocks in ascending order.
    """
    lines = classes.flatten(0, -2)
    rows, columns = (lines != DEAD).nonzero(as_tuple=True)
    is_full = lines[rows, columns] == FULL
    lead = classes.shape[:-1]
    kinds = ((rows[kind], columns[kind]) for kind in (~is_full, is_full))
    partial, full = (table_of(*found, lead) for found in kinds)
    return partial, full


def table_of(rows: Tensor, columns: Tensor, lead: torch.Size) -> Table:
    """Return the table of blocks that are sorted by row.

    `rows` number the rows of all batches and heads. `lead` is the shape of the counts.
    """
    counts = torch.bincount(rows, minlength=lead.numel())
    width = max(1, int(counts.max()))
    starts = counts.cumsum(0) - counts
    place = torch.arange(rows.numel(), device=rows.device) - starts[rows]
    shape = lead.numel(), width
    indices = torch.zeros(shape, dtype=torch.int32, device=rows.device)
    indices[rows, place] = columns.to(torch.int32)
    return counts.to(torch.int32).view(lead), indices.view(*lead, width)


def stacked(tables: list[Table]) -> Table:
    """Concatenate tables of consecutive rows."""
    width = max(indices.size(-1) for _, indices in tables)
    padded = [
        torch.nn.functional.pad(indices, (0, width - indices.size(-1)))
        for _, indices in tables
    ]
    return torch.cat([counts for counts, _ in tables], -1), torch.cat(padded, -2)


KINDS = (PARTIAL, FULL)


def column_tables(tables: Tables, query: Tensor, key: Tensor) -> Tables:
    """Return a call's tables with blocks of keys as rows, blocks of queries as columns.

    Batches and heads are the query's. Use the BlockMask's own tables of columns if the
    BlockMask has such tables, else transpose the tables.
    """
    q_block, kv_block = tables.block_size
    rows, columns = -(-query.size(2) // q_block), -(-key.size(2) // kv_block)
    given = () if tables.notes is None else tables.notes.columns
    found = given_columns(given, tables.tensors, columns)
    found = found or transposed(tables.tensors, rows, columns)
    return make_tables(found, (kv_block, q_block), query, key.size(2))


def transposed(tensors: Sequence[Tensor], rows: int, columns: int) -> list[Tensor]:
    """Transpose tables: list, for each of `columns` columns, its blocks of rows.

    Only the first `rows` rows are used. Blocks beyond the last column have no pairs and
    are left out. On a CPU, memory grows with the listed blocks. On a GPU, memory grows
    with all blocks, since counting listed blocks would wait for the device.
    """
    pairs = [(c[:, :, :rows], i[:, :, :rows]) for c, i in pairs_of(tensors)]
    if tensors[0].device.type == "cpu":
        return [t for pair in pairs for t in transposed_pair(*pair, columns)]
    classes = classes_of(pairs, columns, KINDS).transpose(-1, -2).contiguous()
    return ordered(classes, "triton")[: len(tensors)]


def transposed_pair(counts: Tensor, indices: Tensor, columns: int) -> Table:
    """Transpose one pair of tables by sorting the listed blocks."""
    batches, heads = counts.shape[:2]
    used = is_used(counts, indices) & (indices >= 0) & (indices < columns)
    b, h, row, _ = where = used.nonzero(as_tuple=True)
    line = (b * heads + h) * columns + indices[where]
    line, order = torch.sort(line, stable=True)
    return table_of(line, row[order], torch.Size((batches, heads, columns)))


MAX_CLASSES = 1 << 24
"""The most classes that a CPU holds at once; more rows are processed in steps."""


def plan_problem(
    signature: ModSignature,
    mods: CapturedMods,
    problem: PlanningProblem,
    device: torch.device,
    backend: str,
    both: bool,
    refine: bool = False,
    meanwhile: Callable[[], None] = lambda: None,
) -> Tables:
    """Return the partial and the full blocks of each block of rows of a traced mask.

    With `both`, blocks are also listed for each block of keys: in the `columns` of the
    tables, or of those for derivatives if these have blocks of their own. `meanwhile`
    is called while kernels are compiled.

    If the mask is the same for all batches, or heads, tables have one batch, or head,
    expanded to the problem's. A block that extends past the last row may be full; a
    block that extends past the last column may not.
    """
    plan = find_plan(signature, mods, problem, device, backend)

    def planning_of(problem: PlanningProblem) -> Planning:
        whole = (problem.rows, problem.kv_len // problem.kv_block)
        return Planning.of(plan, signature, problem, device, whole, refine)

    planning = planning_of(problem)
    if not is_ordered(planning.problem, device):
        planning.start_classes()
        meanwhile()
        tables = [t for table in listed_by_rows(planning) for t in table]
        if both:
            tables += transposed(tables, problem.rows, problem.columns)
        return listing(tables, problem)
    layouts = layouts_of(planning.problem, both)
    parts = [(planning, layouts[0])]
    if len(layouts) > 1 and (derived := problem.of_derivatives):
        parts.append((planning_of(derived), layouts[1]))
    for part, layout in parts:
        start_kernels(part, layout, backend)
    meanwhile()
    memory = layouts[-1].empty(device)
    for part, layout in parts:
        fill(part, layout, memory[layout.start : layout.end], backend)
    return unpacked(memory, layouts, problem)


def start_kernels(planning: Planning, layout: TablesLayout, backend: str) -> None:
    """Start to compile the kernels of `fill`."""
    if planning.refine:
        planning.start_classes()
        start_order(planning.device, backend)
    else:
        planning.start_tables(layout)


def fill(
    planning: Planning, layout: TablesLayout, memory: Tensor, backend: str
) -> None:
    """Fill tables with the live blocks of each line in ascending order."""
    if planning.refine:
        order(planning.classify(0, planning.problem.rows), layout, memory, backend)
    else:
        planning.list_blocks(layout, memory)


def unpacked(
    packed: Tensor, layouts: Sequence[TablesLayout], problem: PlanningProblem
) -> Tables:
    """Return the tables that lie in one tensor."""
    unpack = partial(unpacked, layouts=layouts, problem=problem)
    made = listing(layouts[0].views(packed), problem)
    derived = problem.of_derivatives if len(layouts) > 1 else None
    return replace(
        made,
        derivative=derived and listing(layouts[1].views(packed), derived),
        packed=Packed(packed, unpack),
    )


def listing(tables: Sequence[Tensor], problem: PlanningProblem) -> Tables:
    """Return Tables for rows, and for columns if there are eight, of the problem's
    heads.
    """
    lead = problem.batches, problem.heads
    block = problem.q_block, problem.kv_block
    wide = [t.expand(*lead, *t.shape[2:]) for t in tables]
    made = Tables(tuple(wide[:4]), block)
    exchanged = problem.kv_block, problem.q_block
    columns = Tables(tuple(wide[4:]), exchanged) if len(wide) == 8 else None
    return replace(made, columns=columns)


def listed_by_rows(planning: Planning) -> list[Table]:
    """Return partial and full blocks, with the classes of a few rows at a time."""
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


def ordered(classes: Tensor, backend: str, both: bool = False) -> list[Tensor]:
    """Return, for each row, the counts and indices of partial and of full blocks.

    With `both`, return the same for each column after that. Each row lists its live
    blocks in ascending order and then all other blocks, as in torch's tables.
    """
    layout = TablesLayout(tuple(classes.shape), both)
    memory = layout.empty(classes.device)
    order(classes, layout, memory, backend)
    return layout.views(memory)


def order(classes: Tensor, layout: TablesLayout, memory: Tensor, backend: str) -> None:
    """Fill the tables of `ordered`, in memory that starts with them."""
    kernel = order_kernels(build_of(NO_CALL, classes.device, backend))["order"]
    threads = threads_for(classes.numel() // BLOCKS_OF_A_PROGRAM)
    b, h = classes.shape[:2]
    kernel.run(b, h, layout.programs, [classes, memory], threads=threads)


def start_order(device: torch.device, backend: str) -> None:
    """Start to compile the kernel."""
    order_kernels(build_of(NO_CALL, device, backend)).start("order")


def order_kernels(build: Build) -> PlanKernels:
    """Return the kernels of the module that has only the kernel `order`."""
    return _kernels.get(build, lambda: PlanKernels(ModuleOp([build_order()]), build))
