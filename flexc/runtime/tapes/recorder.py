"""The recorder of tapes: a dispatch mode that records operations and launches.

`Recorder.tape` returns None if the call reads data on the host, if it uses a tensor
that is neither given, nor made during the call, nor held as a constant, or if a launch
cannot be prepared.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from flexc.runtime.tapes.tape import (
    Allocation,
    Launch,
    Number,
    Operation,
    Prepared,
    Reading,
    Relocation,
    Slot,
    Step,
    Tape,
    needed_steps,
)

MOST_SCRATCH = 1 << 20
"""The largest temporary, in bytes, that shares an allocation. The memory of larger ones
is freed for later allocations.
"""

UNIT = 256
"""The alignment of allocations, in bytes, which kernels rely on."""


def with_scratch(
    steps: Sequence[Step], results: Iterable[int], new_slot: int
) -> Sequence[Step]:
    """Return steps in which small temporaries are parts of one tensor.

    The tensor has the slot `new_slot`.
    """
    whole = set(results)  # Results and operations refer to these as whole tensors.
    for step in steps:
        if not isinstance(step, Launch):
            whole |= step.uses
    parts: dict[int, int] = {}
    size, device = 0, None
    for step in steps:
        if isinstance(step, Allocation) and step.slot not in whole and is_small(step):
            parts[step.slot] = size
            size += -(-step.size // UNIT) * UNIT
            device = step.device
    if device is None or len(parts) < 2:
        return steps
    scratch = Allocation(new_slot, (size,), (1,), torch.uint8, device, None, False)
    found: list[Step] = [scratch]
    for step in steps:
        if isinstance(step, Launch):
            relocations = [_moved(r, new_slot, parts) for r in step.relocations]
            found.append(replace(step, relocations=tuple(relocations)))
        elif not (isinstance(step, Allocation) and step.slot in parts):
            found.append(step)
    return found


def is_small(step: Allocation) -> bool:
    """Return True if an allocation may become a part of a larger one."""
    return not step.is_zero and step.size <= MOST_SCRATCH


def _moved(relocation: Relocation, whole: int, parts: dict[int, int]) -> Relocation:
    """Return a relocation within the shared tensor if its slot became a part of it."""
    if relocation.slot not in parts:
        return relocation
    offset = relocation.offset + parts[relocation.slot]
    return relocation._replace(slot=whole, offset=offset)


log = logging.getLogger("flexc")

Origin = tuple[Tensor, str, int, int]
"""The tensor of which an argument is a size or a stride, "dim" or "stride", the
dimension, and the unit of a stride.
"""

EMPTY = frozenset(
    {
        "aten::empty.memory_format",
        "aten::empty_like",
        "aten::empty_permuted",
        "aten::empty_strided",
        "aten::new_empty",
        "aten::new_empty_strided",
    }
)
ZEROS = frozenset({"aten::new_zeros", "aten::zeros", "aten::zeros_like"})
ALIASES = frozenset({"aten::alias", "aten::detach"})
"""Operations that return the same tensor, for the purposes of a tape."""

HOST_READS = frozenset(
    {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
)
MASKS = frozenset({torch.bool, torch.uint8})
"""Types of indices that select elements by a mask."""


class Recorder(TorchDispatchMode):
    """A mode that records the operations and launches of a call on given tensors."""

    def __init__(self, tensors: Sequence[Any], growing: Sequence[int] = ()):
        """Record a call on tensors.

        The tape reads the sizes and strides of the tensors in the slots `growing` at
        each replay.
        """
        super().__init__()
        self._growing = growing
        self._grows = bool(growing)
        """True if launches alone read the growing tensors, and take sizes as values."""
        self._steps: list[Step] = []
        self._tensors: list[Any] = []
        """The tensor of each slot, kept alive so that its id stays unique."""
        self._aliases: list[Tensor] = []
        """Tensors that share the slot of another tensor, kept alive."""
        self._slots: dict[int, int] = {}
        self._origin: list[tuple[int, int]] = []
        """For each slot, the slot that it views, and its offset in bytes."""
        self._constants: list[Tensor] = []
        self._foreign: set[int] = set()
        """Slots of tensors that are neither given, nor made, nor constants."""
        self._fault = ""
        self._count = self._given = len(tensors)
        for slot, tensor in enumerate(tensors):
            self._origin.append((slot, 0))
            self._tensors.append(tensor)
            if isinstance(tensor, Tensor):
                self._slots.setdefault(id(tensor), slot)

    def __enter__(self) -> Recorder:
        super().__enter__()
        _current.recorder = self
        return self

    def __exit__(self, *error: Any) -> None:
        _current.recorder = None
        super().__exit__(*error)

    def refuse(self, why: str) -> None:
        """Note that the call has no tape, with the reason."""
        self._fault = self._fault or why

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        if _reads_on_host(func, args):
            self.refuse(f"{func} reads data on the host")
        elif not self._fault:
            self._note(func, args, kwargs, found)
        return found

    def _note(self, func: Any, args: Any, kwargs: Any, found: Any) -> None:
        if func.name() in ALIASES:
            self._alias(found, self._slot_of(args[0]))
            return
        if func.name() in EMPTY or func.name() in ZEROS:
            slot = self._new(found)
            facts = tuple(found.shape), found.stride(), found.dtype, found.device
            is_zero = func.name() in ZEROS
            self._steps.append(Allocation(slot, *facts, self._like(found), is_zero))
            return
        results: Sequence[Any]
        results = found if isinstance(found, tuple | list) else (found,)
        if not _tensors_in(results):
            return  # The result is a fact of tensors, such as a dtype.
        sources = _tensors_in((*args, *kwargs.values()))
        given = tuple(self._referred(arg) for arg in args)
        named = {name: self._referred(arg) for name, arg in kwargs.items()}
        count = self._count
        outputs = tuple(self._output(result, sources) for result in results)
        is_pure = not func._schema.is_mutable
        if is_pure and self._count == count:
            return  # The results are known tensors or whole views of them.
        self._steps.append(Operation(func, given, named, outputs, is_pure))

    def _like(self, made: Tensor) -> int | None:
        """Return the slot of a given tensor of which `torch.empty_like` makes `made`.

        Return None if there is no such tensor.
        """
        facts = (made.shape, made.stride(), made.dtype, made.device)
        for slot, tensor in enumerate(self._tensors[: self._given]):
            if isinstance(tensor, Tensor) and facts == (
                tensor.shape,
                tensor.stride(),
                tensor.dtype,
                tensor.device,
            ):
                is_dense = torch.empty_like(tensor, device="meta").stride() == facts[1]
                return slot if is_dense and not made.requires_grad else None
        return None

    def _output(self, result: Any, sources: Sequence[Tensor]) -> int | None:
        if not isinstance(result, Tensor):
            return None
        if id(result) in self._slots:
            return self._slots[id(result)]
        for source in sources:
            if source.untyped_storage()._cdata == result.untyped_storage()._cdata:
                base, offset = self._origin[self._slot_of(source)]
                offset += result.data_ptr() - source.data_ptr()
                if not offset and _is_whole(result, self._tensors[base]):
                    return self._alias(result, base)
                return self._new(result, base, offset)
        return self._new(result)

    def _alias(self, tensor: Tensor, slot: int) -> None:
        """Give a tensor the slot of one with the same memory, shape and strides."""
        self._slots[id(tensor)] = slot
        self._aliases.append(tensor)

    def _new(self, tensor: Tensor, base: int | None = None, offset: int = 0) -> int:
        slot = self._count
        self._count += 1
        self._slots[id(tensor)] = slot
        self._tensors.append(tensor)
        self._origin.append((slot if base is None else base, offset))
        return slot

    def _slot_of(self, tensor: Tensor) -> int:
        """Return a tensor's slot. An unknown tensor gets a new one.

        That slot is noted as foreign unless the tensor is a constant.
        """
        slot = self._slots.get(id(tensor))
        if slot is None:
            slot = self._new(tensor)
            if not any(held is tensor for held in self._constants):
                self._foreign.add(slot)
        return slot

    def hold(self, tensor: Tensor) -> None:
        """Treat a tensor that is neither given nor made as a constant of the tape."""
        self._constants.append(tensor)

    def _referred(self, arg: Any) -> Any:
        if isinstance(arg, Tensor):
            return Slot(self._slot_of(arg))
        if isinstance(arg, list | tuple):
            return type(arg)(self._referred(a) for a in arg)
        if type(arg) is Number:  # The tape would hold this one.
            self._grows = False
            return int(arg)
        return arg

    def launch(
        self,
        prepared: Prepared | None,
        args: Sequence[Any],
        origins: Callable[[], Sequence[Origin | None]] = tuple,
    ) -> None:
        """Record a launch. If it cannot be prepared, the call has no tape.

        `origins` returns which arguments are sizes and strides of tensors.
        """
        if prepared is None:
            self.refuse("a launch cannot be prepared")
            return
        relocations: list[Relocation] = []
        for position, number, make in prepared.addresses:
            base, offset = self._origin[self._slot_of(args[number])]
            relocations.append(Relocation(position, base, offset, make))
            # Tensor maps hold sizes, and other values follow them.
            self._grows &= make is None and position == number
            is_itself = args[number] is self._tensors[base]
            self._grows &= is_itself or base not in self._growing
        self._steps.append(
            Launch(
                prepared.launcher,
                [int(v) if type(v) is Number else v for v in prepared.values],
                tuple(relocations),
                prepared.on_stream,
                tuple(self._readings(args, origins())) if self._grows else (),
            )
        )

    def _readings(
        self, args: Sequence[Any], origins: Sequence[Origin | None]
    ) -> Iterator[Reading]:
        """Yield the arguments that differ for other sizes of the growing tensors."""
        for position, (arg, origin) in enumerate(zip(args, origins, strict=True)):
            if type(arg) is Number:
                yield Reading(position, arg.slot, "number")
            if origin is None:
                continue
            tensor, kind, dim, unit = origin
            slot = self._slots.get(id(tensor), -1)
            if slot in self._growing:
                yield Reading(position, slot, kind, dim, unit)

    def tape(self, results: Sequence[Any], device: torch.device) -> Tape | None:
        """Return the tape of the recorded steps for these results, None if refused."""
        given = [None if r is None else self._slot_of(r) for r in results]
        if self._fault:
            return _refused(self._fault)
        wanted = {slot for slot in given if slot is not None}
        kept, needed = needed_steps(self._steps, wanted)
        if needed & self._foreign:
            return _refused("it reads a tensor that is neither given nor made")
        steps = with_scratch([step for step, _ in kept], wanted, self._count)
        slots = self._slots
        held = {slots[id(t)]: t for t in self._constants if id(t) in slots}
        others = (step.uses for step in steps if not isinstance(step, Launch))
        grows = self._grows and not wanted.union(*others) & set(self._growing)
        if not grows:
            steps = [
                replace(step, readings=()) if isinstance(step, Launch) else step
                for step in steps
            ]
        return Tape(device, self._given, held, steps, given, grows)


def _reads_on_host(func: Any, args: Sequence[Any]) -> bool:
    """Return True if the data of tensors determines a result's shape or a number."""
    if not HOST_READS & set(func.tags):
        return False
    if func is torch.ops.aten.index.Tensor:  # Indices are fine, masks are not.
        return any(t is not None and t.dtype in MASKS for t in args[1])
    return True


def _refused(why: str) -> None:
    """Log why this call, and calls with equal facts, cannot be replayed."""
    log.debug("a call cannot be replayed: %s", why)


def _is_whole(view: Tensor, base: Tensor) -> bool:
    """Return True if a view at its base's first element equals the base."""
    return (
        view.shape == base.shape
        and view.stride() == base.stride()
        and view.dtype == base.dtype
        and view.is_conj() == base.is_conj()
        and view.is_neg() == base.is_neg()
    )


class _Current(threading.local):
    recorder: Recorder | None = None


_current = _Current()


def recorder() -> Recorder | None:
    """Return the recorder of this thread, if it has one."""
    return _current.recorder


def _tensors_in(args: Any) -> list[Tensor]:
    if isinstance(args, Tensor):
        return [args]
    if isinstance(args, list | tuple):
        return [tensor for arg in args for tensor in _tensors_in(arg)]
    return []


_NOTHING = nullcontext()


def is_watched() -> bool:
    """Return True if a dispatch mode is active."""
    return torch._C._len_torch_dispatch_stack() > 0


@contextmanager
def unrecorded() -> Iterator[None]:
    """Do work whose results are remembered, without this thread's recorder.

    Later calls find these results, so a tape of this call must not repeat the work.
    """
    before = _current.recorder
    if before is None:
        yield
        return
    _current.recorder = None
    try:
        with _disable_current_modes():
            yield
    finally:
        _current.recorder = before


def without_dispatch_modes() -> AbstractContextManager[Any]:
    """Return a context without dispatch modes, unless a recorder is active."""
    is_seen = is_watched() and recorder() is None
    return _disable_current_modes() if is_seen else _NOTHING
