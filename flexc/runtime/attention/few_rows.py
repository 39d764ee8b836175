"""Calls of few queries: a program's rows are those of the heads that share keys.

Decoding has one query for each head. A program with a whole panel of rows would compute
most of them for nothing, and the programs of a group's heads would read the same keys.
So query heads that share a key head are viewed as rows of one head (see
`flex-fold-heads`), and a program owns exactly the rows that exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from torch import Tensor

from flexc.frontend.captured import CapturedMod
from flexc.passes.targets import target_named
from flexc.passes.targets.target import Target
from flexc.runtime.attention.call import Attention
from flexc.runtime.inputs.arguments import Tables
from flexc.runtime.inputs.tensor_facts import MOST_QUERIES
from flexc.runtime.kernels.schedules import SCHEDULES

HEAD = 1
"""The place of the head among a mask's arguments."""


def few_rows(call: Attention) -> tuple[int, int] | None:
    """Return the numbers of heads and queries that form a program's rows, or None.

    The heads are as many of a group as divide it and have room. Heads are not folded if
    tables or a mask differ by head, because a program would visit the keys of all its
    heads. Calls that need derivatives are not folded.
    """
    if call.computed_by.is_dense or call.outputs.lse_rest or asks_for_rows(call):
        return None
    queries, group = call.query.size(2), call.query.size(1) // call.key.size(1)
    most = target_of(call).few_rows
    if queries > min(most, MOST_QUERIES):
        return None
    mask = None if call.signature.mods[1:] == (None,) else call.trace().mask
    if mask is not None and mask.sequences:
        return None  # Rows of several sequences do not fold.
    if call.tables is not None and queries > call.tables.block_size[0]:
        return None
    room = 1 if differs_by_head(call) else most // queries
    return max(n for n in range(1, room + 1) if group % n == 0), queries


def target_of(call: Attention) -> Target:
    """Return the target of a call's kernel: that of the schedule asked for, if any."""
    backend, schedule = call.computed_by, call.choices.tiles.schedule
    if backend.for_gpu and schedule is not None:
        return target_named(SCHEDULES[schedule].target)
    return target_named(backend.targets[0])


def asks_for_rows(call: Attention) -> bool:
    """Return True if options set the number of rows of a program."""
    return call.choices.tiles.sizes["block_m"] is not None


def differs_by_head(call: Attention) -> bool:
    """Return True if heads may attend to different keys."""
    tables = () if call.tables is None else call.tables.tensors
    if any(t.size(1) > 1 and t.stride(1) for t in tables):
        return True
    has_none = call.signature.mods[1:] == (None,)
    return not has_none and reads_head(call.trace().mask)


def reads_head(mask: CapturedMod | None) -> bool:
    """Return True if a mask reads the head."""
    if mask is None:
        return False
    args = [node for node in mask.graph.graph.nodes if node.op == "placeholder"]
    return bool(args[HEAD].users)


def fold(
    call: Attention, rows: tuple[int, int], results: Sequence[Tensor | None]
) -> tuple[Attention, list[Tensor | None]]:
    """Return the folded call, whose rows are the heads of a group, and its results.

    The results are views of `results` where possible, else copies.
    """
    group, _ = rows
    heads = call.query.size(1) // group
    tables = call.tables and fold_tables(call.tables, heads, rows_of_blocks(call, rows))
    query, folded = call.query, list(results)
    if group > 1:
        query = folded_rows(query, heads)
        folded = [None if r is None else folded_rows(r, heads) for r in results]
    return replace(call, query=query, tables=tables, few_rows=rows), folded


def rows_of_blocks(call: Attention, rows: tuple[int, int]) -> int:
    """Return the rows of a block of a folded call's tables: those of a program."""
    return target_of(call).padded(prod(rows))


def folded_rows(tensor: Tensor, heads: int) -> Tensor:
    """Return (B, G * heads, Sq, ...) as (B, heads, G * Sq, ...), a view if possible."""
    batch, all_heads, queries, *rest = tensor.shape
    return tensor.reshape(batch, heads, all_heads // heads * queries, *rest)


def fold_tables(tables: Tables, heads: int, rows: int) -> Tables:
    """Return the tables of few queries, whose only row of blocks gets `rows` rows."""
    tensors = tuple(t[:, :heads] for t in tables.tensors)
    return replace(tables, tensors=tensors, block_size=(rows, tables.block_size[1]))


def is_copy(tensor: Tensor, folded: Tensor) -> bool:
    """Return True if `folded` is a copy of a tensor rather than a view."""
    return tensor.data_ptr() != folded.data_ptr()


def hand_back(
    results: Sequence[Tensor | None], folded: Sequence[Tensor | None]
) -> None:
    """Copy results from copies, where no view was possible."""
    for result, made in zip(results, folded, strict=True):
        if result is None or made is None:
            continue
        if is_copy(result, made):
            result.copy_(made.reshape(result.shape))
