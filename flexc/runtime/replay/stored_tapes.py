"""Tapes on the disk: what one process recorded, another replays at its first call.

A tape is what a call of some facts did to tensors: allocations and launches above all.
On the disk it is named after a digest of these facts, of versions, and of what kernels
are compiled for, and it names kernels of the cache: where one is gone, there is no
tape. A first call that has one neither traces nor lowers, nor imports what does.

No tape is stored of facts without a stable text (see `stable_text`), nor one that holds
large constants or runs operations other than ATen's.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Hashable
from copy import copy
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from flexc.errors import FlexcError
from flexc.runtime.kernels.cpp_compiler import find_command, processor
from flexc.runtime.process.cache import load, store
from flexc.runtime.process.recent import Recent
from flexc.runtime.process.versions import versions
from flexc.runtime.replay.stable_text import UnstableError, stable_text
from flexc.runtime.replay.stored_launches import (
    NUMBERS,
    LaunchReader,
    MissingError,
    written_launch,
)
from flexc.runtime.tapes.gpus import gpu_facts
from flexc.runtime.tapes.streams import CPU
from flexc.runtime.tapes.tape import (
    Allocation,
    Launch,
    Operation,
    Slot,
    Step,
    Tape,
)

log = logging.getLogger("flexc")

MOST_MISSES = 8
"""How many tapes of the same mods are looked for in vain: once these are compiled, a
call of other lengths takes no longer than to look for its tape and to load it."""

VARIABLES = ("FLEXC_MACHINE", "FLEXC_SANITIZE")
"""What the environment says of how kernels are compiled."""

MOST_ELEMENTS = 1 << 14
"""Elements of a constant that is stored."""

NAMED = frozenset({torch.dtype, torch.layout, torch.memory_format})
"""Types of values that are attributes of `torch`."""

_missed: Recent[list[str]] = Recent()
"""For keys of mods, names of tapes that were not there."""


class StoredTape:
    """The place on the disk for the tape of calls of equal facts."""

    __slots__ = ("_device", "_facts", "_is_missing", "_mods", "_name", "_rest")

    def __init__(
        self, facts: Hashable, device: torch.device, mods: Hashable = None
    ) -> None:
        """`mods` is the part of the facts that is the mods' key.

        None stands for those of a tape that was looked for.
        """
        self._device = device
        self._facts = facts
        self._mods = mods
        self._name: str | None = None
        """None until the tape is looked for, and of facts without a text."""
        self._is_missing = False
        self._rest: Any = None

    def load(self) -> tuple[Tape | None, dict[str, Any] | None]:
        """Return the tape, if it is there, and the rest; it is looked for once."""
        facts, self._facts = self._facts, None
        if facts is None:
            return None, None
        missed = [] if self._mods is None else _missed.get(self._mods, list)
        if len(missed) >= MOST_MISSES:
            return None, None
        try:
            self._name = name_of(facts, self._device)
        except (UnstableError, FlexcError) as error:
            log.debug("a call has no tape on the disk: %s", error)
            return None, None
        try:
            found = read(load(self._name), self._device)
        except Exception as error:  # Whatever it is, the call is made anew.
            log.debug("a tape on the disk cannot be read: %r", error)
            found = None, None
        if found[0] is None:
            missed.append(self._name)
            self._is_missing = True
        return found

    def store(self, tape: Tape) -> None:
        """Store a tape that was looked for in vain, and the rest."""
        is_missing, self._is_missing = self._is_missing, False
        if self._name is None or not is_missing:
            return
        try:
            store(self._name, written(tape, self._rest).encode())
        except (UnstableError, FlexcError) as error:
            # A cache that can only be read serves too.
            log.debug("a tape cannot be stored: %s", error)

    def beside(self, what: Hashable) -> StoredTape | None:
        """Return the place of another tape of the same calls, if this one has a name.

        `what` says which, for instance that of a derivative.
        """
        if self._name is None:
            return None
        return StoredTape((self._name, what), self._device)

    def with_rest(self, rest: Any) -> StoredTape:
        """Return this place with JSON that is stored and loaded beside the tape."""
        found = copy(self)
        found._rest = rest
        return found


def name_of(facts: Hashable, device: torch.device) -> str:
    """Return the name of the entry for some facts."""
    built = cpu_facts() if device == CPU else gpu_facts(device)
    text = stable_text((facts, versions(), built))
    return f"tape-{hashlib.sha256(text.encode()).hexdigest()}.json"


def cpu_facts() -> Hashable:
    """Return what kernels of a CPU are compiled for, and by what.

    A compiler is told by its file: to ask for its version takes longer than the rest.
    """
    command = find_command()
    file = os.stat(command[0])
    variables = tuple(os.environ.get(name) for name in VARIABLES)
    return processor(), command, file.st_mtime_ns, file.st_size, variables


def written(tape: Tape, rest: Any) -> str:
    """Return the text of a tape, and store a GPU's kernels that it names.

    Raises:
        UnstableError: if a step or a constant cannot be stored.
        FlexcError: if a kernel cannot be stored.
    """
    steps = [_written_step(step) for step in tape.steps]
    constants = [[n, *_written_tensor(t)] for n, t in tape.constants.items()]
    facts = {"count": tape.count, "constants": constants, "steps": steps}
    return json.dumps(facts | {"results": tape.results, "rest": rest})


def _written_tensor(tensor: Tensor) -> tuple[str, torch.Size, list[Any]]:
    if tensor.numel() > MOST_ELEMENTS or not tensor.is_contiguous():
        raise UnstableError(f"a constant of shape {tuple(tensor.shape)}")
    return _name_of(tensor.dtype), tensor.shape, tensor.flatten().tolist()


def _written_step(step: Step) -> list[Any]:
    match step:
        case Allocation():
            dtype = _name_of(step.dtype)
            facts = [step.slot, step.shape, step.strides, dtype, step.like]
            return ["allocate", *facts, step.is_zero]
        case Launch():
            return ["launch", *written_launch(step)]
        case Operation(function=OpOverload(namespace="aten") as function):
            args = _written_value(step.args)
            kwargs = {name: _written_value(v) for name, v in step.kwargs.items()}
            return ["call", str(function), args, kwargs, step.outputs, step.is_pure]
    raise UnstableError(repr(step))


def _written_value(value: Any) -> Any:
    """Return JSON for an argument of an operation."""
    kind = type(value)
    if kind in NUMBERS or kind is str:
        return value
    if kind is Slot:
        return {"slot": value.number}
    if kind in NAMED:
        return {"torch": _name_of(value)}
    if kind is torch.device:
        return {"device": str(value)}
    if isinstance(value, list | tuple):
        return [_written_value(v) for v in value]
    raise UnstableError(repr(value))


def _name_of(value: Any) -> str:
    """Return the name of a dtype, a layout or a memory format in `torch`."""
    return str(value).removeprefix("torch.")


def read(text: bytes | None, device: torch.device) -> tuple[Tape | None, Any]:
    """Return the tape of a text and the rest; no tape if a kernel is not there."""
    if text is None:
        return None, None
    found = json.loads(text)
    reader = LaunchReader(device)
    try:
        steps = [_read_step(step, reader) for step in found["steps"]]
    except MissingError:
        return None, None
    constants = {
        slot: torch.tensor(values, dtype=getattr(torch, dtype), device=device).view(
            shape
        )
        for slot, dtype, shape, values in found["constants"]
    }
    tape = Tape(device, found["count"], constants, steps, found["results"])
    return tape, found["rest"]


def _read_step(step: list[Any], launches: LaunchReader) -> Step:
    match step:
        case ["allocate", slot, shape, strides, dtype, like, is_zero]:
            kind = getattr(torch, dtype)
            facts = (tuple(shape), tuple(strides), kind, launches.device)
            return Allocation(slot, *facts, like, is_zero)
        case ["launch", *launch]:
            return launches.read(*launch)
    _, name, args, kwargs, outputs, is_pure = step
    space, packet, overload = name.split(".")
    assert space == "aten", "only ATen's operations are stored"
    function = getattr(getattr(torch.ops.aten, packet), overload)
    named = {name: _read_value(value) for name, value in kwargs.items()}
    return Operation(
        function, tuple(map(_read_value, args)), named, tuple(outputs), is_pure
    )


def _read_value(value: Any) -> Any:
    match value:
        case {"slot": number}:
            return Slot(number)
        case {"torch": name}:
            return getattr(torch, name)
        case {"device": name}:
            return torch.device(name)
        case list():
            return [_read_value(v) for v in value]
    return value
