"""One call of attention: what it is keyed on, its outputs, and running it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from flexc.errors import BlockMaskError
from flexc.frontend.captured import CapturedMods
from flexc.frontend.closures import ModSignature, read_mods
from flexc.frontend.import_graph import AttentionCall
from flexc.passes.flex.score_factor import SAFE_FACTORS
from flexc.passes.pipelines import F32Precision
from flexc.passes.sizes.hopper_sizes import rows_of_a_program
from flexc.runtime.attention.few_rows import (
    few_rows,
    fold,
    hand_back,
)
from flexc.runtime.attention.splits import Gpu, choose_splits
from flexc.runtime.inputs.arguments import Outputs, Tables
from flexc.runtime.inputs.listed_blocks import check_listed
from flexc.runtime.inputs.options import TileOptions
from flexc.runtime.inputs.tensor_facts import (
    MAX_NARROW_OFFSET,
    Placement,
    check_captures,
    check_strides,
    largest_offset,
    max_length,
)
from flexc.runtime.inputs.wrappers import check_captured, check_tensor
from flexc.runtime.kernels.build import (
    Build,
    machine_for,
    shared_memory,
)
from flexc.runtime.kernels.driver import Compiled
from flexc.runtime.kernels.proofs import Proofs
from flexc.runtime.kernels.traces import trace_mods
from flexc.runtime.planner.tables import column_tables, plan_tables
from flexc.runtime.tapes.gpus import (
    HOPPER,
    capability,
    multiprocessors,
)
from flexc.runtime.tapes.modes import unseen
from flexc.runtime.tapes.streams import is_capturing, stream_of

LENGTH_MULTIPLE = 128
"""torch's own block size: lengths that are multiples of it have whole blocks."""


@dataclass(frozen=True, eq=False)
class Attention:
    """A checked call, ready to run."""

    query: Tensor
    key: Tensor
    value: Tensor
    scale: float
    tables: Tables | None
    signature: ModSignature
    outputs: Outputs
    backend: str
    tiles: TileOptions
    asks_determinism: bool = False
    """Equal bits at every run were asked for, for this call or by its scope."""
    traced: CapturedMods | None = None
    """What the mods were traced to, if they were yet: they may be gone."""
    placement: Placement | None = None
    """How the tensors lie that query, key and value stand for, if they are not meant
    themselves."""
    few_rows: tuple[int, int] | None = None
    """Of how many heads and queries the rows of the query are, if it was folded."""
    moot: tuple[str, ...] = ()
    """Options of torch that were given and change nothing."""
    settled: bool = False
    """The tables are those that the kernels read, or there are none."""

    @property
    def deterministic(self) -> bool:
        """Whether derivatives must be the same bits at every run."""
        return self.asks_determinism or torch.are_deterministic_algorithms_enabled()

    @property
    def kernels(self) -> str:
        """The backend that computes, wherever the call is."""
        return self.backend

    @property
    def has_pairs(self) -> bool:
        """Whether there are rows, and keys to attend to."""
        return self.query.numel() > 0 and self.key.size(2) > 0

    @property
    def pairs(self) -> tuple[int, int, int, int]:
        """Batches, heads, queries and keys, as mods are told of them."""
        batches, heads, rows, _ = self.query.shape
        group, queries = self.few_rows or (1, rows)
        return batches, heads * group, queries, self.key.size(2)

    def run(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The output and, where asked for, log-sum-exp and largest scores."""
        with unseen():
            return self._run()

    def _run(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        results = self.allocate()
        if self.has_pairs:
            self.execute(results)
        else:
            for result, value in zip(results, (0.0, -math.inf, -math.inf), strict=True):
                if result is not None:
                    result.fill_(value)
        return results

    def execute(self, results: Sequence[Tensor | None]) -> None:
        rows = few_rows(self)
        if rows is None:
            return self.launch(results)
        call, folded = fold(self, rows, results)
        call.launch(folded)
        hand_back(results, folded)

    def start(self) -> None:
        """Start to compile what `run` will need, if the call is not folded."""
        if self.has_pairs and few_rows(self) is None:
            self.settle()._start_kernel()

    def _start_kernel(self) -> None:
        compiled = self.compiled()
        captures = compiled.attention.arguments(self.signature.captures)
        compiled.start(compiled.proofs(self.query, self.key, captures))

    def launch(self, results: Sequence[Tensor | None]) -> None:
        """Run the kernel of these rows."""
        call = self.settle()
        compiled = call.compiled()
        captures = compiled.attention.arguments(self.signature.captures)
        args = [self.query, self.key, self.value, self.scale, *captures]
        if call.tables is not None:
            args += call.tables.tensors
        wanted = [r for r in results if r is not None]
        if results[1] is not None and self.outputs.lse_rest:
            lse, rest = results[1].unbind(1)
            wanted = [results[0], lse, *wanted[2:], rest]
        if self.backend == "eager":
            run_eagerly(compiled, args, wanted)
            return
        proofs = compiled.proofs(self.query, self.key, captures)
        splits = call.splits(compiled, proofs)
        if splits > 1:
            self.execute_split(compiled, proofs, args, results, splits)
            return
        kernel = compiled.kernel(proofs)
        kernel(self.query, [*args, *wanted])

    def splits(self, compiled: Compiled, proofs: Proofs) -> int:
        """Into how many splits the keys of each row are divided; 1 if they are not.

        They are where that is asked for and gains something. Derivatives need more of
        lse than is left of it, and the largest score is not known of a split. How many
        blocks a band has is not known here, and they are few.
        """
        asked = self.outputs.max_scores or self.outputs.lse_rest
        if self.backend != "triton" or asked or not self.tiles.split_keys:
            return 1
        b, h, q_len, _ = self.query.shape
        count = multiprocessors(self.query.device)
        if b * h >= count or self.key.size(2) <= LENGTH_MULTIPLE:
            return 1
        rows = compiled.rows(proofs)
        if rows.banded and self.tables is None:
            return 1
        tile = rows.tile
        return choose_splits(
            b * h * -(-q_len // tile.block_m),
            Gpu(count, tile.residents),
            -(-self.most_keys() // tile.block_n),
            b * h * q_len * self.value.size(3) * self.score_dtype.itemsize,
        )

    def most_keys(self) -> int:
        """How many keys a row may see: those that its tables have room for."""
        kv_len = self.key.size(2)
        if self.tables is None:
            return kv_len
        blocks = sum(indices.size(-1) for indices in self.tables.tensors[1::2])
        return min(kv_len, blocks * self.tables.block_size[1])

    def execute_split(
        self,
        compiled: Compiled,
        proofs: Proofs,
        args: Sequence[Any],
        results: Sequence[Tensor | None],
        splits: int,
    ) -> None:
        """Run on splits of the keys, and combine what they give."""
        out, lse, _ = results
        assert out is not None
        b, h, q_len, value_dim = out.shape
        rows = (splits * b, h, q_len)

        def empty(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=self.score_dtype, device=out.device)

        parts = [empty(*rows, value_dim), empty(*rows), empty(*rows)]
        compiled.split.kernel(proofs).run(*rows, [*args, splits, *parts])
        lse = empty(b, h, q_len) if lse is None else lse
        compiled.combine.run(b, h, q_len, [*parts, splits, out, lse])

    def settle(self, both: bool = False) -> Attention:
        """This call with the blocks found that its mask leaves.

        Where bounds follow from the mask, tables made of it are of no use. Blocks are
        listed for keys too, if `both` are wanted.
        """
        tables = self.tables
        lacks_columns = both and tables is not None and tables.columns is None
        if self.settled and not lacks_columns:
            return self
        block = self.tables and self.tables.block_size if self.settled else self.block()
        return replace(
            self, tables=block and self._kept_tables(block, both), settled=True
        )

    def block(self) -> tuple[int, int] | None:
        """Rows and columns of the blocks that are listed for a call's kernels, if any.

        Blocks of flexc's own are found anew where finer ones suit a kernel. A mask that
        no longer captures what it did keeps to the blocks that were found back then.
        """
        given = self.tables and self.tables.block_size
        origin = self.tables and self.tables.origin
        if given is not None and origin is None:
            return given
        compiled = replace(self, tables=None).compiled()
        captures = compiled.attention.arguments(self.signature.captures)
        compiled.reads.check(self.pairs, captures)
        if self.backend == "eager":
            return given
        mask = compiled.mask(compiled.proofs(self.query, self.key, captures))
        if mask.has_bounds:
            return None
        sizes = (*self.query.shape[:3], self.key.size(2))
        if not (self.may_plan and mask.is_planned(sizes)):
            return given
        block = mask.block_for(*sizes[2:])
        if given is None or origin is None:
            return block
        is_finer = block[0] <= given[0] and block[1] <= given[1]
        return block if is_finer and origin.is_current() else given

    @property
    def may_plan(self) -> bool:
        """Whether blocks are planned for the rows that the call has."""
        if self.few_rows is None:
            return True
        return self.few_rows[0] == 1 and self.tables is None

    def _kept_tables(self, block: tuple[int, int], both: bool) -> Tables:
        """The tables for blocks of a size, kept with a BlockMask that they are of.

        A CUDA graph makes them at each replay: the kernels, and so the bits, are those
        of a call, and no tables are read that another stream makes or a later replay.
        """
        notes = self.tables and self.tables.notes
        if notes is None or is_capturing(self.query):
            return self._find_tables(block, both)
        query, stream = self.query, stream_of(self.query.device)
        kind = (block, query.shape[:3], self.key.size(2), self.few_rows)
        kind = (*kind, query.device, stream, self.backend)
        kept: Tables | None = notes.kept.get(kind)
        if kept is not None and (kept.columns is not None or not both):
            return kept
        found = self._find_tables(block, both)
        notes.keep(kind, found)
        return found

    def _find_tables(self, block: tuple[int, int], both: bool) -> Tables:
        """The tables for blocks of a size: those that were given, or planned ones."""
        query, key, tables = self.query, self.key, self.tables
        if tables is None or block != tables.block_size:
            found = self._plan(block, both)
        else:
            found = tables
            if not self.settled and tables.origin is None and tables.packed is None:
                # Others' tables may list anything.
                check_listed(tables.tensors, -(-key.size(2) // block[1]))
        if both and found.columns is None:
            columns = column_tables(found, query, key)
            found = replace(found, columns=columns, packed=None)
        return found.bare

    def _plan(self, block: tuple[int, int], both: bool) -> Tables:
        """The blocks that a mask without bounds leaves, from what it captures."""
        own = self.tables and self.tables.origin
        signature = read_mods(None, own.mask_mod) if own else self.signature
        return plan_tables(
            signature,
            self.query,
            self.key,
            block,
            backend=self.backend,
            refine=own is not None,
            mods=None if own else self.trace(),
            both=both,
            meanwhile=lambda: None if both else self._start_listed(block),
        )

    def _start_listed(self, block: tuple[int, int]) -> None:
        """Start to compile the kernel that reads tables of blocks that are planned.

        Whether keys are split is only known of tables that are there.
        """
        if self.backend != "eager" and not self.tiles.split_keys:
            nothing = torch.empty(0, dtype=torch.int32)
            tables = Tables((nothing,) * 4, block)
            replace(self, tables=tables, settled=True)._start_kernel()

    def compiled(self, mods: CapturedMods | None = None) -> Compiled:
        """What an earlier call compiled that this one may use, or something new.

        `mods` are the traced mods, where the caller has them.
        """
        mods = mods or self.trace()
        build = self.build()
        if build not in mods.compiled:
            mods.compiled[build] = Compiled(mods, build)
        return mods.compiled[build]

    def trace(self) -> CapturedMods:
        """What the mods are traced to."""
        call = self.with_traced()
        assert call.traced is not None
        return call.traced

    def check_memory(self) -> None:
        """Check that kernels can read the tensors of a call that is to run."""
        check_tensor("query", self.query)
        check_tensor("key", self.key)
        check_tensor("value", self.value)
        check_captured(self.signature.captures)
        if self.tables is not None:
            for table in self.tables.tensors:
                check_tensor("block_mask", table, BlockMaskError)

    def with_traced(self) -> Attention:
        """This call with its mods traced, and all tensors that these read."""
        if self.traced is not None:
            return self
        signature, mods = trace_mods(
            self.signature, self.score_dtype, self.query.device
        )
        return replace(self, signature=signature, traced=mods)

    @property
    def score_dtype(self) -> torch.dtype:
        double = self.query.dtype is torch.float64
        return torch.float64 if double else torch.float32

    def build(self) -> Build:
        query, key, value = self.query, self.key, self.value
        if self.backend == "triton":
            check_strides(query, key, value)
        placement = self.placement or Placement.of(query, key, value)
        call = AttentionCall(
            dtype=query.dtype,
            head_dim=query.size(3),
            value_dim=value.size(3),
            lse=self.outputs.lse,
            max_scores=self.outputs.max_scores,
            lse_rest=self.outputs.lse_rest,
            unit_strides=placement.unit_strides,
            sparse_block=None if self.tables is None else self.tables.block_size,
            full_tables=self.tables is not None and len(self.tables.tensors) == 4,
            kv_len_multiple=self.kv_len_multiple(),
            scale_positive=SAFE_FACTORS[0] < self.scale < SAFE_FACTORS[1],
            alignment=placement.alignment,
            index_width=32 if self.offsets_are_narrow() else 64,
            max_length=max_length(query.size(2), key.size(2)),
            has_keys=True,  # `run` sees to that.
            few_rows=self.few_rows,
        )
        return Build(
            call,
            self.backend,
            query.device.type,
            self.tiles,
            shared_memory(query.device),
            f32_precision(query),
            capability=capability(query.device) if self.backend == "triton" else None,
            machine=machine_for(self.backend),
            program_rows=self._program_rows(),
        )

    def _program_rows(self) -> int | None:
        """The most rows of a program; only Hopper's kernels ask."""
        device = self.query.device
        if self.backend != "triton" or capability(device) != HOPPER:
            return None
        batch, heads, rows, _ = self.query.shape
        return rows_of_a_program(batch * heads, rows, multiprocessors(device))

    def kv_len_multiple(self) -> int | None:
        """The class of lengths that a GPU kernel is for: whole blocks, or any.

        Tests at the edge cost a GPU some per cent in every block of a BlockMask; a
        CPU has one kernel for all lengths.
        """
        whole = self.key.size(2) % LENGTH_MULTIPLE == 0
        return LENGTH_MULTIPLE if whole and self.backend == "triton" else None

    def offsets_are_narrow(self) -> bool:
        """Whether 32 bits hold every offset into captured tensors and tables."""
        tensors = [c for c in self.signature.captures if isinstance(c, Tensor)]
        if self.tables is not None:
            tensors += self.tables.tensors
        return all(largest_offset(t) <= MAX_NARROW_OFFSET for t in tensors)

    def allocate(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Outputs, `out` laid out in memory as the query is."""
        query = self.query
        shape = (*query.shape[:3], self.value.size(3))
        order = sorted(range(3), key=lambda d: -query.stride(d))
        out = torch.empty_permuted(
            shape, (*order, 3), dtype=query.dtype, device=query.device
        )
        outputs = self.outputs
        batch, heads, q_len = shape[:3]
        pair = (batch, *(2,) * outputs.lse_rest, heads, q_len)
        rows = [
            torch.empty(row, dtype=self.score_dtype, device=query.device)
            if wanted
            else None
            for wanted, row in ((outputs.lse, pair), (outputs.max_scores, shape[:3]))
        ]
        return out, rows[0], rows[1]


def run_eagerly(
    compiled: Compiled, args: Sequence[Any], results: Sequence[Tensor]
) -> None:
    """Run the `flex` module itself, over all pairs at once."""
    from flexc.runtime.interpreters import run_module

    device = results[0].device.type
    has_autocast = torch.amp.is_autocast_available(device)
    with torch.autocast(device, enabled=False) if has_autocast else nullcontext():
        values = run_module(compiled.exact_module, args)
    for result, value in zip(results, values, strict=True):
        result.copy_(value)


def f32_precision(query: Tensor) -> F32Precision:
    """What torch's own setting for products of fp32 on a GPU asks for."""
    if query.device.type != "cuda" or query.dtype is not torch.float32:
        return "ieee"
    # `allow_tf32`, its older name, cannot be read once this one was set.
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"


def read_signature(
    score_mod: Callable[..., Any] | None,
    mask_mod: Callable[..., Any] | None,
    device: torch.device,
) -> ModSignature:
    """Walk a call's mods and check where what they capture lies."""
    signature = read_mods(score_mod, mask_mod)
    check_captures(signature.captures, device)
    return signature
