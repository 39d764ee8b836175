"""The GPU's kernel that turns classes of blocks into torch's tables."""

# pyright: basic
# Triton, which has no stubs, types the arguments.

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

LINES, ENTRIES = {True: 4, False: 32}, {True: 512, False: 64}
"""The tile of a program, for rows of blocks and for columns: neighbours in memory
are along its second dimension and its first."""


@triton.jit
def _kinds(classes, lines, entries, last_line, last_entry, pitch, BY_ROW: tl.constexpr):
    """1 where a block is partial, or may be, and 1 where it is full."""
    if BY_ROW:
        offsets = lines[:, None].to(tl.int64) * pitch + entries[None, :]
    else:
        offsets = entries[None, :].to(tl.int64) * pitch + lines[:, None]
    inside = (lines < last_line)[:, None] & (entries < last_entry)[None, :]
    kind = tl.load(classes + offsets, mask=inside, other=0)
    return ((kind == 1) | (kind == 3)).to(tl.int32), (kind == 2).to(tl.int32), inside


@triton.jit
def _place(indices, entries, kind, seen, total, inside, rows):
    """Write each index to its place; how many live ones were seen by then."""
    before = seen[:, None] + tl.cumsum(kind, 1) - kind
    dead = total[:, None] + entries[None, :] - before
    place = tl.where(kind != 0, before, dead)
    value = tl.broadcast_to(entries[None, :], place.shape)
    tl.store(indices + rows[:, None] + place, value, mask=inside)
    return seen + tl.sum(kind, 1)


@triton.jit(
    do_not_specialize=["size_lines", "size_entries", "pitch", "head", "all_lines"]
)
def order(
    classes,
    counts,
    indices,
    size_lines,
    size_entries,
    pitch,
    head,
    all_lines,
    LINES: tl.constexpr,
    ENTRIES: tl.constexpr,
    BY_ROW: tl.constexpr,
):
    """One tile of lines: count the live blocks, then put every index in place."""
    which = tl.program_id(1).to(tl.int64)
    line = tl.program_id(0) * LINES + tl.arange(0, LINES)
    entry = tl.arange(0, ENTRIES)
    classes += which * head
    partial = tl.zeros([LINES], tl.int32)
    full = tl.zeros([LINES], tl.int32)
    for first in range(0, size_entries, ENTRIES):
        p, f, _ = _kinds(
            classes, line, first + entry, size_lines, size_entries, pitch, BY_ROW
        )
        partial += tl.sum(p, 1)
        full += tl.sum(f, 1)
    where = which * size_lines + line
    tl.store(counts + where, partial, mask=line < size_lines)
    tl.store(counts + all_lines + where, full, mask=line < size_lines)
    rows = where * size_entries
    full_indices = indices + tl.cast(all_lines, tl.int64) * size_entries
    partial_seen = tl.zeros([LINES], tl.int32)
    full_seen = tl.zeros([LINES], tl.int32)
    for first in range(0, size_entries, ENTRIES):
        n = first + entry
        p, f, inside = _kinds(classes, line, n, size_lines, size_entries, pitch, BY_ROW)
        partial_seen = _place(indices, n, p, partial_seen, partial, inside, rows)
        full_seen = _place(full_indices, n, f, full_seen, full, inside, rows)


def launch_order(classes: Tensor, counts: Tensor, indices: Tensor) -> None:
    """Fill (2, batches, heads, lines) counts and indices, partial blocks first."""
    batches, heads, lines, entries = classes.shape
    by_row = classes.stride(3) == 1
    pitch = classes.stride(2 if by_row else 3)
    grid = (triton.cdiv(lines, LINES[by_row]), batches * heads)
    meta: Any = {"LINES": LINES[by_row], "ENTRIES": ENTRIES[by_row], "BY_ROW": by_row}
    on_device: Any = nullcontext()
    if classes.is_cuda and classes.device.index != torch.cuda.current_device():
        on_device = torch.cuda.device(classes.device)
    with on_device:
        order[grid](
            classes,
            counts,
            indices,
            lines,
            entries,
            pitch,
            classes.stride(1),
            batches * heads * lines,
            **meta,
        )
