"""Run one call of attention: allocate its results and launch its kernels.

A call with few rows has few programs: decoding has one for each key head. So the keys
of each row may be split. Then each program reads a part of the keys, and a second
kernel combines the results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flexc.passes.flex.convert_flex_to_blocksparse import has_band
from flexc.runtime.attention.call import LENGTH_MULTIPLE, Attention
from flexc.runtime.attention.few_rows import few_rows, fold, hand_back
from flexc.runtime.inputs.arguments import Outputs, Results
from flexc.runtime.inputs.tensor_facts import sum_dtype
from flexc.runtime.kernels.driver import CompiledMods, Proved
from flexc.runtime.kernels.proofs import Proofs
from flexc.runtime.tapes.gpus import multiprocessors
from flexc.runtime.tapes.recorder import without_dispatch_modes

MIN_BLOCKS = 4
"""The least number of blocks of keys in a split."""

START = 6
"""The cost of a program besides its blocks, in blocks. A program starts, waits for its
first keys, and its output is written and read again in twice the bits.
"""

COMBINE = 10
"""The cost of the second kernel, in blocks, including its launch on the host."""

AT_ONCE = 16
"""The number of splits whose outputs cost as much as a block, written and read."""

MAX_BYTES = 1 << 27
"""The limit on the bytes of the outputs of splits."""


CPU_PROGRAMS = 64
"""The programs of a batch that splits may make on a CPU: enough for its threads.

The number of threads does not count, so that results have the same bits with any.
"""

CPU_KEYS = 1024
"""The least number of keys of a split on a CPU."""


@dataclass(frozen=True)
class Gpu:
    """The facts of a GPU on which the number of splits depends."""

    multiprocessors: int
    residents: int = 1
    """The number of programs that share a multiprocessor."""

    @property
    def places(self) -> int:
        """The number of programs that run at a time."""
        return self.multiprocessors * self.residents


def choose_splits(tiles: int, gpu: Gpu, blocks: int, bytes_each: int) -> int:
    """Return the number of splits for the lowest cost, 1 for no split.

    `tiles` is the number of programs without splits, each of which visits at most
    `blocks` blocks of keys. The outputs of a split take `bytes_each` bytes. Calls with
    a program for each multiprocessor are not split.
    """
    if tiles >= gpu.multiprocessors:
        return 1
    most = min(blocks // MIN_BLOCKS, MAX_BYTES // bytes_each, gpu.places)
    choices = range(1, most + 1)
    return min(choices, key=lambda n: cost(tiles, gpu, blocks, n), default=1)


def cost(tiles: int, gpu: Gpu, blocks: int, splits: int) -> int:
    """Return the estimated time of a call, in blocks of keys.

    Programs run in rounds. The last round may leave places idle.
    """
    rounds = -(-tiles * splits // gpu.places)
    time = rounds * (START + -(-blocks // splits))
    if splits > 1:
        time += COMBINE + -(-splits // AT_ONCE)
    return time


def run(call: Attention) -> Results:
    """Return the output, and log-sum-exp and largest scores if asked for."""
    with without_dispatch_modes():
        results = allocate(call.query, call.value, call.outputs)
        if call.has_pairs:
            execute(call, results)
        else:
            for result, value in zip(results, (0.0, -math.inf, -math.inf), strict=True):
                if result is not None:
                    result.fill_(value)
        return results


def start(call: Attention) -> None:
    """Start to compile the kernel of `run`, if the call is not folded."""
    if call.has_pairs and few_rows(call) is None:
        call.resolve_tables().start_kernel()


def like_rows(rows: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """Allocate a tensor (B, H, S, dim) with the memory layout of `rows`."""
    order = sorted(range(3), key=lambda d: -rows.stride(d))
    return torch.empty_permuted(
        (*rows.shape[:3], dim), (*order, 3), dtype=dtype, device=rows.device
    )


def allocate(query: Tensor, value: Tensor, outputs: Outputs) -> Results:
    """Return uninitialised results. `out` has the memory layout of the query."""
    out = like_rows(query, value.size(3), query.dtype)
    batch, heads, q_len = shape = query.shape[:3]
    dtype = sum_dtype(query.dtype)
    pair = (batch, *(2,) * outputs.lse_rest, heads, q_len)
    lse, max_scores = (
        torch.empty(rows, dtype=dtype, device=query.device) if wanted else None
        for wanted, rows in ((outputs.lse, pair), (outputs.max_scores, shape))
    )
    return out, lse, max_scores


def execute(call: Attention, results: Results) -> None:
    """Compute the results of a call that has pairs."""
    rows = few_rows(call)
    if rows is None:
        _launch(call, results)
        return
    call, folded = fold(call, rows, results)
    _launch(call, folded)
    hand_back(results, folded)


def _launch(call: Attention, results: Sequence[Tensor | None]) -> None:
    """Run the kernel of a call whose rows may be folded."""
    call = call.resolve_tables()
    compiled = call.compiled()
    captures = compiled.attention.arguments(call.signature.captures)
    args = _inputs(call, captures)
    wanted = [r for r in results if r is not None]
    if results[1] is not None and call.outputs.lse_rest:
        lse, rest = results[1].unbind(1)
        wanted = [results[0], lse, *wanted[2:], rest]
    if call.computed_by.is_dense:
        _run_eagerly(compiled, args, wanted)
        return
    proved = compiled.proved(call.sizes, captures)
    splits = count_splits(call, proved)
    if splits > 1:
        _launch_split(compiled, proved.proofs, args, results, splits)
        return
    proved.kernel(call.query, [*args, *wanted])


def _inputs(call: Attention, captures: Sequence[Any]) -> list[Any]:
    """Return the arguments of a call's `flex` module."""
    args = [*call.operands, call.scale, *captures]
    if call.tables is not None:
        args += call.tables.tensors
    if call.pages is not None:
        args.append(call.pages.table)
    return [*args, *call.scales.given]


def check_all_pairs(call: Attention) -> None:
    """Evaluate the mods for all pairs; raise an error for a bad read or number."""
    if not call.has_pairs:
        return
    with without_dispatch_modes(), torch.no_grad():
        call = call.resolve_tables()
        compiled = call.compiled()
        captures = compiled.attention.arguments(call.signature.captures)
        compiled.reads.check_all(_inputs(call, captures))


def count_splits(call: Attention, proved: Proved) -> int:
    """Return the number of splits of each row's keys, 1 for none.

    Keys are split if that saves time, and rows are few or the options ask for splits.
    The number for few rows is that of one batch, so that a sequence has the bits that
    it has alone. Calls for derivatives or largest scores are never split, because
    splits do not compute the rest of lse or the largest scores. Masks with bands of
    keys are not split either: they visit few blocks, and the number is not known here.
    """
    asked = call.outputs.max_scores or call.outputs.lse_rest
    if asked or not call.may_split:
        return 1
    b, h, q_len, _ = call.query.shape
    if call.few_rows is not None:
        b = 1
    if call.computed_by.for_cpu:
        most = min(CPU_PROGRAMS // h, _most_keys(call) // CPU_KEYS)
        return 1 if most < 2 or has_band(proved.simple) else most
    count = multiprocessors(call.query.device)
    if b * h >= count or call.key.size(2) <= LENGTH_MULTIPLE:
        return 1
    rows = proved.rows
    if rows.banded and call.tables is None:
        return 1
    tile = rows.tile
    return choose_splits(
        b * h * -(-q_len // tile.block_m),
        Gpu(count, tile.residents),
        -(-_most_keys(call) // tile.block_n),
        b * h * q_len * call.value.size(3) * call.score_dtype.itemsize,
    )


def _most_keys(call: Attention) -> int:
    """Return the largest number of keys of a row that its tables have room for."""
    kv_len = call.key.size(2)
    if call.tables is None:
        return kv_len
    blocks = sum(indices.size(-1) for indices in call.tables.tensors[1::2])
    return min(kv_len, blocks * call.tables.block_size[1])


def _launch_split(
    compiled: CompiledMods,
    proofs: Proofs,
    args: Sequence[Any],
    results: Sequence[Tensor | None],
    splits: int,
) -> None:
    """Run the kernel on splits of the keys, and combine the results."""
    out, lse, _ = results
    assert out is not None
    b, h, q_len, value_dim = out.shape
    rows = (splits * b, h, q_len)
    dtype = sum_dtype(out.dtype)
    options: Any = {"dtype": dtype, "device": out.device}
    parts = [torch.empty(s, **options) for s in ((*rows, value_dim), rows, rows)]
    compiled.split.under(proofs).kernel.run(*rows, [*args, splits, *parts])
    lse = torch.empty((b, h, q_len), **options) if lse is None else lse
    # Splits are a dimension of their own, behind the rows.
    parts = [p.unflatten(0, (b, splits)).movedim(1, 3) for p in parts]
    compiled.combine.run(b, h, q_len, [*parts, out, lse])


def _run_eagerly(
    compiled: CompiledMods, args: Sequence[Any], results: Sequence[Any]
) -> None:
    """Interpret the `flex` module, over all pairs at once."""
    from flexc.runtime.interpreters import run_module

    device = results[0].device.type
    has_autocast = torch.amp.is_autocast_available(device)
    with torch.autocast(device, enabled=False) if has_autocast else nullcontext():
        values = run_module(compiled.exact_module, args)
    for result, value in zip(results, values, strict=True):
        result.copy_(value)
