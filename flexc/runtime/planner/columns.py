"""Block tables as keys see them: the blocks of queries of each block of keys.

What sums over queries, as the gradients of keys and values do, loops over these. They
list the pairs of blocks that the tables for queries list, in the same classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flexc.runtime.arguments import Tables, given_columns, make_tables
from flexc.runtime.listed_blocks import classes_of, is_used, pairs_of
from flexc.runtime.planner.classes import FULL, PARTIAL
from flexc.runtime.planner.compaction import table_of
from flexc.runtime.planner.ordering import Table, ordered

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
