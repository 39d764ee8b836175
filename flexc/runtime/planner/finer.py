"""Finer blocks for a BlockMask of flexc's own, planned once for the kernel's tile."""

from __future__ import annotations

from torch import Tensor

from flexc.frontend.closures import read_mods
from flexc.runtime.arguments import Tables
from flexc.runtime.planner.tables import plan_tables
from flexc.runtime.streams import is_capturing, stream_of


def finer_tables(
    tables: Tables,
    query: Tensor,
    key: Tensor,
    block: tuple[int, int],
    backend: str,
    both: bool = False,
) -> Tables:
    """The tables of a mask in blocks of a size, where that is finer than theirs.

    They are planned at the first call, for keys too if `both` are asked for, and
    remembered with the BlockMask. A mask that no longer captures what it did keeps
    to the blocks that were found back then.

    A CUDA graph plans them at each replay: the kernels, and so the bits, are those of
    a call, and no tables are read that another stream makes or a later replay.
    """
    origin = tables.origin
    given = tables.block_size
    if origin is None or block == given or block[0] > given[0] or block[1] > given[1]:
        return tables
    if not origin.is_current():
        return tables

    def plan() -> Tables:
        signature = read_mods(None, origin.mask_mod)
        return plan_tables(
            signature, query, key, block, backend=backend, refine=True, both=both
        )

    if is_capturing(query):
        return plan()
    stream = stream_of(query.device)
    kind = (block, query.shape[:3], key.size(2), query.device, stream, backend)
    planned = origin.planned.get(kind)
    if planned is None or (both and planned.columns is None):
        planned = origin.planned[kind] = plan()
    return planned
