"""Tapes on the disk: what one process recorded, another replays at its first call.

A tape is what a call of some facts did to tensors, on a CPU allocations and launches.
On the disk it is named after a digest of these facts, of versions, and of what kernels
are compiled for, and it names shared objects of the cache: where one is gone, there is
no tape. So a first call neither traces mods nor lowers them, and imports nothing that
does.

No tape is stored of facts without a stable text (see `flexc.runtime.stable_text`), nor
one that holds constants, runs operations of torch or launches a GPU's kernels.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Hashable
from typing import Any

import torch

from flexc.errors import FlexcError
from flexc.runtime.cache import load, store
from flexc.runtime.cpp_compiler import find_command, processor
from flexc.runtime.cpp_library import CppFunction, Symbol, open_symbol
from flexc.runtime.recent import Recent
from flexc.runtime.stable_text import UnstableError, stable_text
from flexc.runtime.streams import CPU
from flexc.runtime.tape import Allocation, Launch, Place, Step, Tape
from flexc.runtime.versions import versions

log = logging.getLogger("flexc")

MOST_MISSES = 8
"""How many tapes of the same mods are looked for in vain: once these are compiled, a
call of other lengths takes no longer than to look for its tape and to load it."""

VARIABLES = ("FLEXC_MACHINE", "FLEXC_SANITIZE")
"""What the environment says of how kernels are compiled."""

NUMBERS = frozenset({int, float, bool, type(None)})

_missed: Recent[list[str]] = Recent()
"""For keys of mods, names of tapes that were not there."""


class StoredTape:
    """The place on the disk for the tape of calls of equal facts."""

    __slots__ = ("_facts", "_mods", "_name")

    def __init__(self, facts: Hashable, mods: Hashable) -> None:
        """`mods` is the part of the facts that is the mods' key."""
        self._facts = facts
        self._mods = mods
        self._name: str | None = None
        """The name of a tape that was looked for and is to be stored."""

    def load(self) -> Tape | None:
        """Return the tape, if it is there; it is looked for once."""
        facts, self._facts = self._facts, None
        missed = _missed.get(self._mods, list)
        if facts is None or len(missed) >= MOST_MISSES:
            return None
        try:
            name = name_of(facts)
            tape = read(load(name))
        except (UnstableError, FlexcError) as error:
            log.debug("a call has no tape on the disk: %s", error)
            return None
        if tape is None:
            missed.append(name)
            self._name = name
        return tape

    def store(self, tape: Tape) -> None:
        """Store a tape that was looked for in vain."""
        name, self._name = self._name, None
        text = None if name is None else written(tape)
        if name is None or text is None:
            return
        try:
            store(name, text.encode())
        except FlexcError as error:  # A cache that can only be read serves too.
            log.debug("a tape cannot be stored: %s", error)


def name_of(facts: Hashable) -> str:
    """Return the name of the entry for some facts.

    A compiler is told by its file: to ask for its version takes longer than the rest.
    """
    command = find_command()
    file = os.stat(command[0])
    variables = tuple(os.environ.get(name) for name in VARIABLES)
    built = (versions(), processor(), command, file.st_mtime_ns, file.st_size)
    text = stable_text((facts, built, variables))
    return f"tape-{hashlib.sha256(text.encode()).hexdigest()}.json"


def written(tape: Tape) -> str | None:
    """Return the text of a tape, None if it cannot be stored."""
    steps = [_written_step(step) for step in tape.steps]
    if tape.device != CPU or tape.constants or None in steps:
        return None
    return json.dumps({"count": tape.count, "steps": steps, "results": tape.results})


def _written_step(step: Step) -> Any:
    match step:
        case Allocation():
            dtype = str(step.dtype).removeprefix("torch.")
            facts = [step.slot, step.shape, step.strides, dtype, step.like]
            return [*facts, step.is_zero]
        case Launch(launcher=CppFunction() as function):
            if NUMBERS.issuperset(map(type, step.values)):
                return [function.symbol, step.values, [p[:3] for p in step.places]]
    return None


def read(text: bytes | None) -> Tape | None:
    """Return the tape of a text, None if it names an object that is not there."""
    if text is None:
        return None
    found = json.loads(text)
    functions: dict[Symbol, CppFunction] = {}
    steps: list[Step] = []
    for step in found["steps"]:
        if len(step) == 6:
            slot, shape, strides, dtype, like, is_zero = step
            facts = (tuple(shape), tuple(strides), getattr(torch, dtype), CPU)
            steps.append(Allocation(slot, *facts, like, is_zero))
            continue
        (file, name, types), values, places = step
        symbol = Symbol(file, name, tuple(types))
        if symbol not in functions:
            if load(file) is None:
                return None
            functions[symbol] = open_symbol(symbol)
        taken = tuple(Place(at, slot, offset, None) for at, slot, offset in places)
        steps.append(Launch(functions[symbol], values, taken, False))
    return Tape(CPU, found["count"], {}, steps, found["results"])
