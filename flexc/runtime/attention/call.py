"""One call of attention: its arguments, its blocks, and the key of its kernel."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from flexc.errors import BlockMaskError
from flexc.frontend.captured import CapturedMods
from flexc.frontend.closures import ModSignature, read_mods
from flexc.frontend.import_graph import AttentionCall, Stored
from flexc.passes.flex.score_factor import SAFE_FACTORS
from flexc.passes.targets import cpp, gluon
from flexc.passes.targets.target import Block, F32Precision
from flexc.runtime.inputs.arguments import NO_SCALES, Outputs, Pages, Scales, Tables
from flexc.runtime.inputs.listed_blocks import check_listed
from flexc.runtime.inputs.options import BACKENDS, NO_CHOICES, Backend, Choices
from flexc.runtime.inputs.tensor_facts import (
    MAX_NARROW_OFFSET,
    Placement,
    check_captures,
    check_strides,
    largest_offset,
    max_length,
    sum_dtype,
)
from flexc.runtime.inputs.wrappers import check_captured, check_tensor
from flexc.runtime.kernels.build import Build, machine_for, shared_memory
from flexc.runtime.kernels.driver import CompiledMods, Proved, trace_mods
from flexc.runtime.kernels.proofs import MaskReading
from flexc.runtime.planner.plans import PlanningProblem
from flexc.runtime.planner.tables import column_tables, plan_problem
from flexc.runtime.tapes.gpus import (
    HOPPER,
    capability,
    is_capturing,
    multiprocessors,
    stream_of,
)

LENGTH_MULTIPLE = 128
"""torch's own block size. Lengths that are multiples of it have whole blocks."""


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
    """The name of the backend that runs the call, as chosen for its device."""
    choices: Choices = NO_CHOICES
    """The choices of the user, in the call and in its scope."""
    traced: CapturedMods | None = None
    """The traced mods, if they were traced. The mods themselves may be gone."""
    placement: Placement | None = None
    """The layout of the real query, key and value, if this call has stand-ins."""
    few_rows: tuple[int, int] | None = None
    """The numbers of heads and queries that make up the rows of a folded query."""
    pages: Pages | None = None
    """The pages in which keys and values lie. The key and the value then only have the
    shapes of sequences.
    """
    scales: Scales = NO_SCALES
    resolved: bool = False
    """True if the tables are those that kernels read, or no tables are needed."""

    @property
    def deterministic(self) -> bool:
        """True if derivatives must have the same bits at every run."""
        return (
            self.choices.deterministic or torch.are_deterministic_algorithms_enabled()
        )

    @property
    def computed_by(self) -> Backend:
        """Return the backend that computes, wherever the call is."""
        return BACKENDS[self.backend]

    @property
    def operands(self) -> tuple[Tensor, Tensor, Tensor]:
        """The query, and the tensors in whose memory keys and values lie."""
        pages = self.pages or self
        return self.query, pages.key, pages.value

    @property
    def is_narrow(self) -> bool:
        """True if keys or values have another dtype than queries."""
        return any(t.dtype != self.query.dtype for t in (self.key, self.value))

    @property
    def has_pairs(self) -> bool:
        """True if there are rows and keys."""
        return self.query.numel() > 0 and self.key.size(2) > 0

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """The sizes (B, H, q_len, kv_len)."""
        batches, heads, rows, _ = self.query.shape
        return batches, heads, rows, self.key.size(2)

    @property
    def pairs(self) -> tuple[int, int, int, int]:
        """The numbers of batches, heads, queries and keys that mods index."""
        batches, heads, rows, columns = self.sizes
        group, queries = self.few_rows or (1, rows)
        return batches, heads * group, queries, columns

    def start_kernel(self) -> None:
        """Start to compile the call's kernel."""
        self.proved_in(self.compiled()).start()

    def resolve_tables(self, both: bool = False) -> Attention:
        """Return this call with the tables that its kernels read.

        If bounds follow from the mask, there are no tables. With `both`, blocks are
        also listed for each block of keys.
        """
        tables = self.tables
        lacks_columns = both and tables is not None and not tables.serve_derivatives
        if self.resolved and not lacks_columns:
            return self
        block = tables and tables.block_size if self.resolved else self.block()
        return replace(
            self, tables=block and self._kept_tables(block, both), resolved=True
        )

    def for_derivatives(self) -> Attention:
        """Return this call with the tables that kernels of its derivatives read."""
        call = self.resolve_tables(both=True)
        derived = call.tables and call.tables.derivative
        return call if derived is None else replace(call, tables=derived)

    def block(self) -> Block | None:
        """Return the size of the blocks that kernels read from tables, or None.

        Blocks that flexc made are planned again if finer blocks suit the kernel. If the
        mask's captures have changed since, the blocks found earlier are kept.
        """
        given = self.tables and self.tables.block_size
        origin = self.tables and self.tables.origin
        if given is not None and origin is None:
            return given
        if self.signature.mods == (None, None):
            return None
        compiled, captures = self._compiled_without_tables()
        compiled.reads.check(self.pairs, captures)
        if self.computed_by.is_dense:
            return given
        mask = compiled.proved(self.sizes, captures).mask
        if mask.has_bounds:
            return None
        if not self.plans_blocks(mask):
            return given
        block = mask.block_for(*self.sizes[2:])
        if given is None or origin is None:
            return block
        is_finer = block[0] <= given[0] and block[1] <= given[1]
        return block if is_finer and origin.is_current() else given

    def plans_blocks(self, mask: MaskReading) -> bool:
        """Return True if blocks of the mask are planned for the call."""
        return self.may_plan and mask.is_planned(self.sizes)

    def derivative_block(self, block: Block) -> Block | None:
        """Return the size of the blocks that are planned for derivatives.

        Return None if they are those of attention, the given ones.
        """
        compiled, captures = self._compiled_without_tables()
        mask = compiled.proved(self.sizes, captures).mask
        found = mask.derivative_block(block)
        if found is None or not compiled.reads.have_one_index(found, captures):
            return None
        return found

    def _compiled_without_tables(self) -> tuple[CompiledMods, list[Any]]:
        """Return the compiled call that reads no tables, and the captures it reads."""
        compiled = replace(self, tables=None).compiled()
        return compiled, compiled.attention.arguments(self.signature.captures)

    @property
    def may_split(self) -> bool:
        """True if programs may share the keys of a row: for few rows, or if asked."""
        asked = self.choices.tiles.split_keys
        is_few, backend = self.few_rows is not None, self.computed_by
        wanted = is_few if asked is None else asked
        return wanted and (backend.for_gpu or (is_few and backend.for_cpu))

    @property
    def may_plan(self) -> bool:
        """True if blocks may be planned for the rows of the call."""
        if self.few_rows is None:
            return True
        return self.few_rows[0] == 1 and self.tables is None

    def _kept_tables(self, block: Block, both: bool) -> Tables:
        """Return the tables for blocks of a size, kept in the notes of a BlockMask.

        While a CUDA graph is captured, the tables are made anew in the graph. So the
        kernels and the bits equal those of a call, and no replay reads tables that
        another stream or a later replay makes.
        """
        notes = self.tables and self.tables.notes
        if notes is None or is_capturing(self.query):
            return self._find_tables(block, both)
        query, stream = self.query, stream_of(self.query.device)
        shape = query.shape, self.key.size(2), self.value.size(3), self.few_rows
        place = query.dtype, query.device, stream, self.backend
        kind = block, shape, place
        kept: Tables | None = notes.kept.get(kind)
        if kept is not None and (kept.serve_derivatives or not both):
            return kept
        found = self._find_tables(block, both)
        notes.keep(kind, found)
        return found

    def _find_tables(self, block: Block, both: bool) -> Tables:
        """Return the tables for blocks of a size: the given ones, or planned ones."""
        query, key, tables = self.query, self.key, self.tables
        if tables is None or block != tables.block_size:
            found = self._plan(block, both)
        else:
            found = tables
            if not self.resolved and tables.origin is None and tables.packed is None:
                # Tables that flexc did not make may list any numbers.
                check_listed(tables.tensors, -(-key.size(2) // block[1]))
        if both and not found.serve_derivatives:
            columns = column_tables(found, query, key)
            found = replace(found, columns=columns, packed=None)
        return found.bare

    def _plan(self, block: Block, both: bool) -> Tables:
        """Plan the blocks of a mask without bounds, from its captures."""
        own = self.tables and self.tables.origin
        device = self.query.device
        if own is None:
            signature, mods = self.signature, self.trace()
        else:
            alone = read_mods(None, own.mask_mod)
            signature, mods = trace_mods(alone, torch.float32, device)
        derived = self.derivative_block(block) if both else None
        return plan_problem(
            signature,
            mods,
            PlanningProblem(*self.sizes, *block, derived),
            device,
            self.backend,
            both,
            refine=own is not None,
            meanwhile=lambda: None if both else self._start_listed(block),
        )

    def _start_listed(self, block: Block) -> None:
        """Start to compile the kernel for tables that are being planned.

        With split keys, the kernel depends on the tables, so it must wait for them.
        """
        if not self.computed_by.is_dense and not self.may_split:
            nothing = torch.empty(0, dtype=torch.int32, device="cpu")
            tables = Tables((nothing,) * 4, block)
            replace(self, tables=tables, resolved=True).start_kernel()

    def compiled(self) -> CompiledMods:
        """Return the compiled call for this call's build, cached with the trace."""
        mods, build = self.trace(), self.build()
        found = mods.compiled.get(build)
        if found is None:
            found = mods.compiled[build] = CompiledMods(mods, build)
        return found

    def proved_in(self, compiled: CompiledMods) -> Proved:
        """Return what `compiled` has for calls with the proofs of this call."""
        captures = compiled.attention.arguments(self.signature.captures)
        return compiled.proved(self.sizes, captures)

    def trace(self) -> CapturedMods:
        """Return the traced mods."""
        call = self.with_traced()
        assert call.traced is not None
        return call.traced

    def check_memory(self) -> None:
        """Check that kernels can read the tensors of the call."""
        check_tensor("query", self.query)
        check_tensor("key", self.key)
        check_tensor("value", self.value)
        check_captured(self.signature.captures)
        if self.pages is not None:
            for name, tensor in self.pages._asdict().items():
                check_tensor(f"pages' {name}", tensor)
        if self.tables is not None:
            for table in self.tables.tensors:
                check_tensor("block_mask", table, BlockMaskError)

    def with_traced(self) -> Attention:
        """Return this call with its mods traced and all tensors that they read."""
        if self.traced is not None:
            return self
        signature, mods = trace_mods(
            self.signature, self.score_dtype, self.query.device
        )
        return replace(self, signature=signature, traced=mods)

    @property
    def score_dtype(self) -> torch.dtype:
        return sum_dtype(self.query.dtype)

    def key_facts(self) -> Hashable:
        """Return the facts by which builds of calls of one kind may differ.

        They follow from the number of keys and the layout of keys, captured tensors and
        tables.
        """
        _, key, value = self.operands
        longest = max_length(self.query.size(2), self.key.size(2))
        placement, narrow = Placement.of(key, key, value), self.offsets_are_narrow()
        return placement, self.kv_len_multiple(), longest, narrow

    def build(self) -> Build:
        query, key, value = self.query, self.key, self.value
        operands = self.operands
        if self.computed_by.for_gpu:
            check_strides(*operands)
        placement = self.placement or Placement.of(*operands)
        call = AttentionCall(
            dtype=query.dtype,
            head_dim=query.size(3),
            value_dim=value.size(3),
            lse=self.outputs.lse,
            max_scores=self.outputs.max_scores,
            lse_rest=self.outputs.lse_rest,
            unit_strides=placement.unit_strides,
            values_in_keys=placement.values_in_keys and self.computed_by.for_gpu,
            sparse_block=None if self.tables is None else self.tables.block_size,
            full_tables=self.tables is not None and len(self.tables.tensors) == 4,
            kv_len_multiple=self.kv_len_multiple(),
            scale_positive=SAFE_FACTORS[0] < self.scale < SAFE_FACTORS[1],
            alignment=placement.alignment,
            index_width=32 if self.offsets_are_narrow() else 64,
            max_length=max_length(query.size(2), key.size(2)),
            has_pairs=True,  # Other calls run no kernel.
            few_rows=self.few_rows,
            page_size=None if self.pages is None else self.pages.size,
            stored=self.stored(),
        )
        return Build(
            call,
            self.backend,
            query.device.type,
            self.choices.tiles,
            shared_memory(query.device),
            f32_precision(query, self.choices.tiles.f32_precision),
            capability=capability(query.device) if self.computed_by.for_gpu else None,
            machine=machine_for(self.backend),
            program_rows=self._program_rows(),
        )

    def stored(self) -> Stored:
        """Return how memory holds keys and values."""
        own = self.query.dtype
        key, value = (
            None if t == own else t for t in (self.key.dtype, self.value.dtype)
        )
        ranks = (None if s is None else s.dim() for s in self.scales)
        return Stored(key, value, *ranks)

    def _program_rows(self) -> int | None:
        """Return the most rows of a program, None if the call sets no limit."""
        device, few = self.query.device, self.few_rows is not None
        batch, heads, rows, _ = self.query.shape
        if self.computed_by.for_cpu:
            return None if few else cpp.rows_of_a_program(rows)
        if not self.computed_by.for_gpu or capability(device) != HOPPER:
            return None
        return gluon.rows_of_a_program(batch * heads, rows, multiprocessors(device))

    def kv_len_multiple(self) -> int | None:
        """Return a number that divides the number of keys, or None for any length.

        A GPU has a kernel without tests at the edge for lengths of whole blocks. A CPU
        has one kernel for all lengths.
        """
        whole = self.key.size(2) % LENGTH_MULTIPLE == 0
        return LENGTH_MULTIPLE if whole and self.computed_by.for_gpu else None

    def offsets_are_narrow(self) -> bool:
        """Return True if 32 bits hold every offset into captured tensors and tables."""
        tensors = [c for c in self.signature.captures if isinstance(c, Tensor)]
        if self.tables is not None:
            tensors += self.tables.tensors
        if self.pages is not None:
            tensors.append(self.pages.table)
        tensors += self.scales.given
        return all(largest_offset(t) <= MAX_NARROW_OFFSET for t in tensors)


def f32_precision(query: Tensor, asked: F32Precision | None) -> F32Precision:
    """Return the precision of fp32 products that the call or torch asks for.

    By default a GPU adds three products of tf32, as in torch's SDPA. AMD's GPUs compute
    what these approximate.
    """
    if query.device.type != "cuda" or query.dtype is not torch.float32:
        return "ieee"
    # Reading `allow_tf32`, its older name, fails once this setting was used.
    chosen = asked or torch.backends.cuda.matmul.fp32_precision
    if chosen in ("ieee", "tf32"):
        return chosen
    return "ieee" if torch.version.hip else "tf32x3"


def read_signature(
    score_mod: Callable[..., Any] | None,
    mask_mod: Callable[..., Any] | None,
    device: torch.device,
) -> ModSignature:
    """Read a call's mods, and check the devices of their captures."""
    signature = read_mods(score_mod, mask_mod)
    check_captures(signature.captures, device)
    return signature
