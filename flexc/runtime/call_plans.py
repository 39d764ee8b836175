"""Plans of calls: work that is done once for all calls of equal facts.

The facts of a call are the mods' key, captured numbers, and the shapes, strides, dtypes
and alignment of its tensors. They determine the checks, blocks, allocations and
launches, so they are the key of a plan. If no gradient is recorded, the plan is a tape.
If one is recorded, the plan is a template whose Functions have tapes of their own.

Without a plan, the Python code of a call takes longer than many a kernel. If a tape is
on the disk, the modules that trace and lower calls are not even imported.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from flexc.runtime.autograd.derivatives import check_gradient
from flexc.runtime.autograd.functions import (
    resolve_tables,
    run_attention,
    run_plain,
    run_template,
)
from flexc.runtime.autograd.template import (
    INPUTS,
    ReadFacts,
    Repeats,
    Template,
    blank_tables,
    facts_of_captures,
    join_tables,
    split,
)
from flexc.runtime.growing import (
    are_same,
    find,
    growing_places,
    kind_of,
    marked,
    remember,
)
from flexc.runtime.inputs.arguments import Results, Tables
from flexc.runtime.inputs.notes import MAX_KEPT, Capture, Notes
from flexc.runtime.inputs.options import is_interpreting
from flexc.runtime.inputs.wrappers import PLAIN, is_transformed
from flexc.runtime.replay.equal_facts import FactsCache
from flexc.runtime.replay.repeats import KNOWN, TapedWork
from flexc.runtime.replay.stored_tapes import StoredTape
from flexc.runtime.tapes.gpus import is_capturing, stream_of
from flexc.runtime.tapes.recorder import without_dispatch_modes
from flexc.runtime.tapes.tape import Tape

if TYPE_CHECKING:
    from flexc.runtime.attention.call import Attention

Operands = tuple[Tensor, Tensor, Tensor]


class Prepare(Protocol):
    """A function that checks a call of query, key and value, ready to run."""

    def __call__(self, operands: Operands) -> Attention: ...

    def frozen(self) -> Prepare | None:
        """Return a copy that may outlive the call and holds none of its tensors.

        The copy prepares the same call as the original does now. Return None if the
        mods cannot be copied.
        """
        ...


TABLES = "tables"
"""The name of the tape that plans blocks."""


class UnrecordedCall:
    """Calls of equal facts that record no gradient."""

    __slots__ = ("_kind", "_repeated")

    def __init__(
        self,
        stored: StoredTape | None = None,
        is_known: bool = False,
        kind: Hashable = None,
        growing: Sequence[int] = (),
    ) -> None:
        """Make a plan. `stored` is the place on the disk where its tape may be.

        The first call is recorded if the calls will likely repeat (`is_known`). Its
        tape may serve later calls of a `kind` that is not None, with other sizes of the
        tensors in the places `growing`.
        """
        self._kind = kind
        self._repeated = TapedWork(is_known, stored, growing)

    @classmethod
    def replayed(cls, tape: Tape) -> UnrecordedCall:
        """Return the plan of calls that a tape serves."""
        found = cls()
        found._repeated.tape = tape
        return found

    def __call__(
        self, tensors: Sequence[Any], tables: Tables | None, prepare: Prepare
    ) -> Results:
        if (tape := self._repeated.tape) is not None:
            replayed: Any = tape(tensors)
            return replayed
        kind = self._kind

        def run() -> tuple[Results, bool]:
            call = prepared(prepare, tensors, tables)
            call = call if kind is None else marked(call)
            calls.append(call)
            return run_attention(call), may_repeat(call)

        calls: list[Attention] = []
        found: Any = self._repeated(tensors, tensors[0].device, run)
        tape = self._repeated.tape
        if calls and tape is not None and kind is not None:
            remember(kind, tensors, calls[0], tape)
        return found


class RecordedCall:
    """Calls of equal facts whose gradients are recorded."""

    __slots__ = ("_is_known", "_stored", "_tables", "_template")

    def __init__(
        self, stored: StoredTape | None = None, is_known: bool = False
    ) -> None:
        """Make a plan. `stored` is the place of the forward's tape on the disk.

        The first call makes the template if the calls will likely repeat (`is_known`).
        """
        self._is_known = is_known
        self._stored = stored
        self._template: Template | None = None
        self._tables: TapedWork | None = None
        """The tape that plans blocks. None if no blocks are planned."""

    def __call__(
        self, tensors: Sequence[Any], tables: Tables | None, prepare: Prepare
    ) -> Results:
        template = self._template or self._load(tensors, prepare)
        if template is None:
            return self._first(tensors, tables, prepare)
        given = [t for t in tensors if isinstance(t, Tensor)]
        if self._tables is not None:
            given += self._tables(
                tensors,
                tensors[0].device,
                lambda: (packed(prepared(prepare, tensors, None)), True),
            )
        return run_plain(template, given)

    def _first(
        self, tensors: Sequence[Any], tables: Tables | None, prepare: Prepare
    ) -> Results:
        """Run a call without a template. It makes the template if calls are known.

        The first call's own derivatives repeat if its graph is retained.
        """
        call = prepared(prepare, tensors, tables)
        check_gradient(call.trace())
        call = resolve_tables(call)
        template, given = split(call)
        here = [t for t in tensors if isinstance(t, Tensor)]
        plans = template.is_packed and tables is None
        same = given[: len(here)] if plans else given
        if may_repeat(call) and are_same(same, here):
            stored = None
            if self._is_known and self._stored is not None:
                rest = StoredFacts.of(template, plans)
                stored = self._stored.with_rest(rest._asdict())
            repeats = Repeats(call.query.device, stored, is_known=self._is_known)
            template = replace(template, repeats=repeats)
            if self._is_known:
                self._share(template, plans, is_known=True)
        self._is_known = True
        return run_template(template, given)

    def _load(self, tensors: Sequence[Any], prepare: Prepare) -> Template | None:
        """Return a template whose forward has a tape on the disk, else None."""
        stored = self._stored
        if stored is None:
            return None
        tape, found = stored.load()
        if tape is None or found is None or (frozen := prepare.frozen()) is None:
            return None
        rest = StoredFacts(**found)
        again = partial(prepared_again, frozen, torch.get_default_dtype())
        repeats = Repeats(tensors[0].device, stored, again)
        repeats.forward.tape = tape
        template = rest.template(tensors[INPUTS:], repeats)
        self._share(template, rest.plans, is_known=False)
        return template

    def _share(self, template: Template, plans: bool, is_known: bool) -> None:
        """Use a template for later calls, with a tape that plans blocks if needed."""
        if plans:
            stored = self._stored and self._stored.companion(TABLES)
            self._tables = TapedWork(is_known, stored)
        self._template = template


class StoredFacts(NamedTuple):
    """Facts of a template that are stored with the tape of its forward."""

    captures: list[int]
    batch: bool
    """True if a mod reads b. Together with `captures`, it says what the mods read."""
    wants_lse: bool
    lse_rest: bool
    plans: bool
    """True if blocks are planned at each call."""

    @classmethod
    def of(cls, template: Template, plans: bool) -> StoredFacts:
        reads = template.reads
        captures = sorted(reads.captures)
        return cls(captures, reads.batch, template.wants_lse, template.lse_rest, plans)

    def template(self, captures: Sequence[Any], repeats: Repeats) -> Template:
        """Return the template of calls with such captures."""
        return Template(
            *facts_of_captures(captures),
            tables=int(self.plans),
            is_packed=self.plans,
            reads=ReadFacts(frozenset(self.captures), self.batch),
            wants_lse=self.wants_lse,
            lse_rest=self.lse_rest,
            blank=None,
            repeats=repeats,
        )


def prepared(
    prepare: Prepare, tensors: Sequence[Any], tables: Tables | None
) -> Attention:
    """Return the call of these tensors, the last of which are those of `tables`."""
    query, key, value, *_ = tensors
    call = prepare((query, key, value)).with_traced()
    if tables is None:
        return call
    given = tensors[len(tensors) - len(tables.all_tensors) :]
    tables = join_tables(blank_tables(tables), given)
    return replace(call, tables=tables, resolved=True)


def prepared_again(
    prepare: Prepare,
    dtype: torch.dtype,
    template: Template,
    tensors: Sequence[Tensor],
) -> Attention:
    """Return the call of a template from the disk, without tensors.

    The call is prepared as it was at first: without autocast, because no tensor was
    cast, and with the same default dtype.
    """
    query, key, value, *_ = tensors
    with (
        without_dispatch_modes(),
        torch.no_grad(),
        _without_autocast(),
        _default_dtype(dtype),
    ):
        call = prepare((query, key, value))
        signature = replace(call.signature, captures=template.captured(tensors))
        call = replace(call, signature=signature).with_traced()
        found, given = split(resolve_tables(call))
    assert found.blank is not None
    if template.is_packed and not is_transformed():
        # Autograd saved tables of this layout.
        assert given[-1].shape == tensors[-1].shape, "blocks were planned otherwise"
    return found.blank


@contextmanager
def _without_autocast() -> Iterator[None]:
    with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        yield


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Set torch's default dtype within a `with` block."""
    before = torch.get_default_dtype()
    if before == dtype:
        yield
        return
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def packed(call: Attention) -> tuple[Tensor]:
    """Return the one tensor of the tables that are planned for a call."""
    tables = resolve_tables(call).tables
    assert tables is not None
    assert tables.packed is not None
    return (tables.packed.tensor,)


def may_repeat(call: Attention) -> bool:
    """Return True if calls with equal facts are equal."""
    return call.signature.cacheable and not call.trace().reads_state


def is_recorded(tensors: Sequence[Any]) -> bool:
    """Return True if autograd records a gradient of one of the tensors."""
    return torch.is_grad_enabled() and any(
        isinstance(t, Tensor) and t.requires_grad for t in tensors
    )


def plan_of(
    tensors: Sequence[Any], stored: StoredTape | None = None, is_known: bool = False
) -> UnrecordedCall | RecordedCall:
    """Return a new plan for calls of such tensors."""
    kind = RecordedCall if is_recorded(tensors) else UnrecordedCall
    return kind(stored, is_known)


class MaskedCall:
    """Calls of equal facts with a BlockMask: the tables that they read, and a plan."""

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: CallBlocks | None = None
        """The blocks, replaced as a whole because other threads may read them."""

    def __call__(
        self,
        key: Hashable,
        tensors: tuple[Any, ...],
        captures: Sequence[Any],
        prepare: Prepare,
    ) -> Results:
        blocks = self._blocks
        if blocks is None or not blocks.are_of(captures):
            query, key_, value, *_ = tensors
            call = prepare((query, key_, value))
            blocks = self._blocks = blocks_of(key, tensors, captures, call)
        return blocks.plan(tensors + blocks.tensors, blocks.tables, prepare)


class CallBlocks(NamedTuple):
    """The tables that a call with a BlockMask reads, and the plan of such calls."""

    plan: UnrecordedCall | RecordedCall
    tables: Tables | None
    tensors: tuple[Tensor, ...]
    """The tensors of the tables."""
    noted: tuple[tuple[int, Capture], ...]
    """Captures of the mask, by their places, for which the blocks are valid."""

    def are_of(self, captures: Sequence[Any]) -> bool:
        return all(capture.still_is(captures[place]) for place, capture in self.noted)


def blocks_of(
    key: Hashable, tensors: tuple[Any, ...], captures: Sequence[Any], call: Attention
) -> CallBlocks:
    """Find the tables of a call, and the plan of all calls with such tables."""
    plan = plan_of(tensors)
    with without_dispatch_modes(), torch.no_grad():
        call = call.with_traced()
        tables = call.resolve_tables(both=isinstance(plan, RecordedCall)).tables
    held = () if tables is None else tables.all_tensors
    is_own = call.tables is not None and call.tables.origin is not None
    mask = call.trace().mask
    read = {i.slot for i in mask.inputs} if mask and tables and is_own else set()
    noted = tuple((i, Capture.of(c)) for i, c in enumerate(captures) if i in read)
    found = KNOWN.find(key, tensors + held, call.query.device, lambda *_: plan)
    return CallBlocks(plan if found is None else found, tables, held, noted)


CALLS = "calls"
"""The key, in a BlockMask's notes, of the plans of calls with it."""


def attend(
    operands: Operands,
    mods: Hashable,
    captures: tuple[Any, ...],
    rest: Hashable,
    prepare: Prepare,
    block_mask: BlockMask | None = None,
    tables: Tables | None = None,
) -> Results:
    """Return the results of a call of (query, key, value).

    `mods` is the key of the mods, None if they must be traced at every call. `rest`
    holds all other values that the call depends on. `prepare` is only used for a call
    without a tape. `tables`, given instead of a BlockMask, were checked and are read
    unchanged.
    """
    if mods is None:
        return run_attention(prepare(operands))
    tensors, device = operands + captures, operands[0].device
    key: Hashable = (mods, rest, torch.is_grad_enabled())
    if block_mask is None:
        make: Any = stored_plan
        if tables is not None:  # Tapes of such calls are not stored on the disk.
            tensors += tables.all_tensors
            make = unstored_plan
        plan = KNOWN.find(key, tensors, device, make)
        if plan is None:
            return run_attention(prepare(operands))
        return plan(tensors, tables, prepare)
    if is_capturing(operands[0]):
        return run_attention(prepare(operands))  # The graph would outlive the notes.
    shape = (block_mask.BLOCK_SIZE, block_mask.seq_lengths, stream_of(device))
    key = (key, shape)
    notes = Notes.of(block_mask)
    calls = notes.kept.get(CALLS)
    if calls is None:
        calls = notes.keep(CALLS, FactsCache(MAX_KEPT))
    masked = calls.find(key, tensors, device, masked_call)
    if masked is None:
        return run_attention(prepare(operands))
    return masked(key, tensors, captures, prepare)


def unstored_plan(
    tensors: Sequence[Any], facts: Any, is_known: bool
) -> UnrecordedCall | RecordedCall:
    """Return a new plan for calls of such tensors, whose tape is not on the disk."""
    return plan_of(tensors, None, is_known)


def stored_plan(
    tensors: Sequence[Any], facts: Any, is_known: bool
) -> UnrecordedCall | RecordedCall:
    """Return a new plan for calls of such tensors. Its tape may be on the disk.

    The facts begin with the key that `attend` makes, which begins with the mods' key.
    """
    # Facts of which the last ones repeated are often those of a cache that grows.
    kind = kind_of(tensors, facts) if is_known and not is_recorded(tensors) else None
    tape = None if kind is None else find(kind, tensors)
    if tape is not None:
        return UnrecordedCall.replayed(tape)
    query, stored = tensors[0], None
    # Under HIP, Triton compiles kernels at launch, and its interpreter runs them there.
    # Neither has a kernel that a stored tape could name.
    is_compiled = not (query.is_cuda and (torch.version.hip or is_interpreting()))
    # A graph must not capture the launches that loading a tape causes.
    if is_compiled and not is_capturing(query):
        ((mods, *_), _), _ = facts
        stored = StoredTape(facts, query.device, mods)
    if kind is None:
        return plan_of(tensors, stored, is_known)
    return UnrecordedCall(stored, is_known, kind, growing_places(tensors))


def masked_call(tensors: Sequence[Any], facts: Hashable, is_known: bool) -> MaskedCall:
    """Return a new plan for calls of such tensors with a BlockMask."""
    return MaskedCall()


def is_plain(query: Any, block_mask: Any = None, mask_mod: Any = None) -> bool:
    """Return True if a call with this query, BlockMask and mask may have a plan."""
    if type(query) not in PLAIN or not (query.is_cpu or query.is_cuda):
        return False
    return block_mask is None or (type(block_mask) is BlockMask and mask_mod is None)
