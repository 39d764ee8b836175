"""Calls of few queries on a CPU: rows of a program are the heads that share keys.

Decoding has one query for each head. Programs of as many rows as a panel would compute
most of them in vain, and those of a group would each read the same keys. So query heads
that share a key head are viewed as rows of one head, see `flex-fold-heads`, and a
program owns as many rows as there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from flexc.frontend.captured import CapturedMod
from flexc.passes.sizes.tile_sizes import FEW_ROWS
from flexc.runtime.inputs.arguments import Tables

if TYPE_CHECKING:
    from flexc.runtime.attention.call import Attention


HEAD = 1
"""A mask's argument that says of which head it is asked."""


def few_rows(call: Attention) -> tuple[int, int] | None:
    """Query heads of a group and queries, if they are to be the rows of a program.

    Where tables or a mask differ by head, heads are not folded: the keys that a program
    visits would be those of all its heads. Derivatives need rows as they are.
    """
    if call.backend != "cpp" or call.outputs.lse_rest or asks_for_rows(call):
        return None
    queries, group = call.query.size(2), call.query.size(1) // call.key.size(1)
    if queries > FEW_ROWS:
        return None
    if call.tables is not None and queries > call.tables.block_size[0]:
        return None
    if group * queries > FEW_ROWS or differs_by_head(call):
        group = 1
    return group, queries


def asks_for_rows(call: Attention) -> bool:
    """Whether options say how many rows a program has."""
    return call.tiles.sizes["block_m"] is not None


def differs_by_head(call: Attention) -> bool:
    """Whether heads may attend to different keys."""
    tables = () if call.tables is None else call.tables.tensors
    if any(t.size(1) > 1 and t.stride(1) for t in tables):
        return True
    has_none = call.signature.mods[1:] == (None,)
    return not has_none and reads_head(call.trace().mask)


def reads_head(mask: CapturedMod | None) -> bool:
    """Whether what a mask computes depends on the head."""
    if mask is None:
        return False
    args = [node for node in mask.graph.graph.nodes if node.op == "placeholder"]
    return bool(args[HEAD].users)


def fold(
    call: Attention, rows: tuple[int, int], results: Sequence[Tensor | None]
) -> tuple[Attention, list[Tensor | None]]:
    """The call whose rows are the heads of a group, and where its results go.

    These are views of `results`, or new where there is no such view.
    """
    group, queries = rows
    heads = call.key.size(1)
    tables = call.tables and fold_tables(call.tables, heads, group * queries)
    query, folded = call.query, list(results)
    if group > 1:
        query = folded_rows(query, heads)
        folded = [None if r is None else folded_rows(r, heads) for r in results]
    return replace(call, query=query, tables=tables, few_rows=rows), folded


def folded_rows(tensor: Tensor, heads: int) -> Tensor:
    """(B, G * heads, Sq, ...) as (B, heads, G * Sq, ...)."""
    if tensor.size(2) == 1:
        return tensor.squeeze(2).unflatten(1, (heads, -1))
    return tensor.unflatten(1, (heads, -1)).flatten(2, 3)


def fold_tables(tables: Tables, heads: int, rows: int) -> Tables:
    """Tables of few queries, whose only row of blocks is of as many rows."""
    tensors = tuple(t[:, :heads] for t in tables.tensors)
    return replace(tables, tensors=tensors, block_size=(rows, tables.block_size[1]))


def is_copy(tensor: Tensor, folded: Tensor) -> bool:
    """Whether what was to be a view of a tensor is not."""
    return tensor.data_ptr() != folded.data_ptr()


def hand_back(
    results: Sequence[Tensor | None], folded: Sequence[Tensor | None]
) -> None:
    """Copy what was computed beside the results."""
    for result, made in zip(results, folded, strict=True):
        if result is None or made is None:
            continue
        if is_copy(result, made):
            result.copy_(made.reshape(result.shape))
