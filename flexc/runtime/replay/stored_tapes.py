"""Tapes on the disk, which another process replays at its first call.

A tape holds the steps of a call of some facts, above all allocations and launches. Its
name on the disk is a digest of the facts, of versions, and of the target that kernels
are compiled for. A tape names kernels of the cache; if a kernel is gone, the tape is
not used. A first call with a tape neither traces nor lowers, and does not import that
code.

Tapes are not stored for facts without a stable text (see `stable_text`), nor if they
hold large constants or run operations other than ATen's.
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
from flexc.runtime.kernels.cpp_compiler import find_command, processor, tile_refusal
from flexc.runtime.kernels.cpp_loader import CppFunction, LibrarySymbol, open_symbol
from flexc.runtime.kernels.kernel import load_spec, store_spec
from flexc.runtime.kernels.targets import TARGETS
from flexc.runtime.process.cache import load, store, versions
from flexc.runtime.process.recent import Recent
from flexc.runtime.replay.stable_text import UnstableError, stable_text
from flexc.runtime.tapes.gpus import CPU, gpu_facts, on_device
from flexc.runtime.tapes.tape import (
    Allocation,
    Launch,
    Operation,
    Relocation,
    Slot,
    Step,
    Tape,
)

NUMBERS = frozenset({int, float, bool, type(None)})

_kernels: Recent[Any] = Recent()
"""A GPU's kernels, loaded once, by the names of their entries."""


class MissingError(Exception):
    """A kernel that a tape names is no longer in the cache."""


def written_launch(launch: Launch) -> list[Any]:
    """Return JSON for a launch. A GPU's kernel is stored if needed.

    Raises:
        UnstableError: if a value of the launch cannot be written as JSON.
        FlexcError: if the kernel cannot be stored.
    """
    if not NUMBERS.issuperset(map(type, launch.values)):
        raise UnstableError(f"a launch of {launch.values}")
    launcher: Any = launch.launcher
    if isinstance(launcher, CppFunction):
        relocations = [r[:3] for r in launch.relocations]
        return [launcher.symbol, launch.values, relocations]
    relocations = [[*r[:3], _extents(r)] for r in launch.relocations]
    from flexc.runtime.kernels.triton_compiler import Entry

    entry = Entry.of(launcher.kernel)
    kernel = [store_spec(launcher.spec), launcher.grid, entry]
    return [kernel, launch.values, relocations]


def _extents(relocation: Relocation) -> Any:
    """Return sizes and strides of a tensor that is passed as a tensor map."""
    maps: Any = relocation.make
    return None if maps is None else maps.extents


class LaunchReader:
    """A reader that makes launches on one device from the JSON of `written_launch`."""

    def __init__(self, device: torch.device):
        self.device = device
        self._functions: dict[LibrarySymbol, CppFunction] = {}

    def read(self, kernel: Any, values: list[Any], relocations: list[Any]) -> Launch:
        if self.device == CPU:
            taken = [
                Relocation(at, slot, offset, None) for at, slot, offset in relocations
            ]
            return Launch(self._function(*kernel), values, tuple(taken), False)
        from flexc.runtime.kernels.triton_compiler import Entry

        name, grid, entry = kernel
        loaded = _kernels.get(name, lambda: _opened(name))
        given = (self.device, tuple(grid), len(values), Entry(*entry))
        with on_device(self.device):
            launcher = loaded.launcher(*given)
            taken = [
                Relocation(at, slot, offset, self._maps(loaded, at, extents))
                for at, slot, offset, extents in relocations
            ]
        return Launch(launcher, values, tuple(taken), True)

    def _maps(self, loaded: Any, position: int, extents: Any) -> Any:
        """Return a maker of tensor maps, None if the kernel takes an address."""
        if extents is None:
            return None
        sizes, steps = map(tuple, extents)
        return loaded.maps(self.device, position, (sizes, steps))

    def _function(self, file: str, name: str, types: list[str]) -> CppFunction:
        symbol = LibrarySymbol(file, name, tuple(types))
        if symbol not in self._functions:
            if load(file) is None:
                raise MissingError(file)
            self._functions[symbol] = open_symbol(symbol)
        return self._functions[symbol]


def _opened(name: str) -> Any:
    """Return a GPU's kernel. It is loaded to a device at its first launch there."""
    spec = load_spec(name)
    if spec is None:
        raise MissingError(name)
    return TARGETS[spec.target].load(spec)


log = logging.getLogger("flexc")

MOST_MISSES = 8
"""The largest number of failed lookups for tapes of the same mods. Once the mods are
compiled, running a call of other lengths is as fast as loading its tape.
"""

VARIABLES = ("FLEXC_MACHINE", "FLEXC_SANITIZE")
"""Environment variables that affect the compilation of kernels."""

MOST_ELEMENTS = 1 << 14
"""The largest number of elements of a constant that is stored."""

NAMED = frozenset({torch.dtype, torch.layout, torch.memory_format})
"""Types of values that are attributes of `torch`."""

_missed: Recent[list[str]] = Recent()
"""The names of tapes that were not found, by the key of the mods."""


class StoredTape:
    """The place on the disk for the tape of calls of equal facts."""

    __slots__ = ("_device", "_facts", "_is_missing", "_mods", "_name", "_rest")

    def __init__(
        self, facts: Hashable, device: torch.device, mods: Hashable = None
    ) -> None:
        """Make the place of a tape.

        `mods` is the part of the facts that is the mods' key. It is None for the
        companion of a tape that was looked up.
        """
        self._device = device
        self._facts = facts
        self._mods = mods
        self._name: str | None = None
        """The entry's name. None before the lookup, and for facts without a text."""
        self._is_missing = False
        self._rest: Any = None

    def load(self) -> tuple[Tape | None, dict[str, Any] | None]:
        """Return the tape, if it is there, and the rest. Only the first call looks it
        up.
        """
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
        except Exception as error:  # After any error, the call runs without the tape.
            log.debug("a tape on the disk cannot be read: %r", error)
            found = None, None
        if found[0] is None:
            missed.append(self._name)
            self._is_missing = True
        return found

    def store(self, tape: Tape) -> None:
        """Store a tape whose lookup failed, and the rest."""
        is_missing, self._is_missing = self._is_missing, False
        if self._name is None or not is_missing:
            return
        try:
            store(self._name, written(tape, self._rest).encode())
        except (UnstableError, FlexcError) as error:
            # The cache may be read-only.
            log.debug("a tape cannot be stored: %s", error)

    def companion(self, what: Hashable) -> StoredTape | None:
        """Return the place of another tape of the same calls, None without a name.

        `what` identifies the other tape, such as that of a derivative.
        """
        if self._name is None:
            return None
        return StoredTape((self._name, what), self._device)

    def with_rest(self, rest: Any) -> StoredTape:
        """Return this place with JSON that is stored together with the tape."""
        found = copy(self)
        found._rest = rest
        return found


def name_of(facts: Hashable, device: torch.device) -> str:
    """Return the name of the entry for some facts."""
    built = cpu_facts() if device == CPU else gpu_facts(device)
    text = stable_text((facts, versions(), built))
    return f"tape-{hashlib.sha256(text.encode()).hexdigest()}.json"


def cpu_facts() -> Hashable:
    """Return the processor and the compiler of a CPU's kernels, and its variables.

    The compiler is identified by its file, because asking for its version is slow.
    Kernels with tile registers run in a process only after it has asked for them.
    """
    command = find_command()
    file = os.stat(command[0])
    variables = {name: os.environ.get(name) for name in VARIABLES}
    cpu, asked = processor(), variables.get("FLEXC_MACHINE")
    may_have_tiles = "amx_tile" in cpu and asked in (None, "", "amx")
    refusal = tile_refusal() if may_have_tiles else None
    about = file.st_mtime_ns, file.st_size
    return cpu, command, about, tuple(variables.values()), refusal


def written(tape: Tape, rest: Any) -> str:
    """Return the text of a tape. A GPU's kernels that it names are stored.

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
    """Return the tape of a text and the rest. No tape if a kernel is missing."""
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
