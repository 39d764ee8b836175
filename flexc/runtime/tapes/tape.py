"""Tapes: the steps of a call, recorded once and replayed on other tensors.

Between its checks and its results a call allocates, launches kernels and runs a few of
torch's operations. All of these steps follow from the facts of the call (shapes,
strides, dtypes, captured numbers). Only addresses differ. So a call runs once under a
`Recorder`, and calls of equal facts replay its `Tape`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from flexc.runtime.tapes.gpus import current_device, raw_stream


class Launcher(Protocol):
    """An object that launches a kernel on a grid."""

    @property
    def launch(self) -> Callable[..., None]:
        """The function that launches.

        It takes the stream (on a GPU only) and then the values.
        """
        ...


class Address(NamedTuple):
    """The position of a tensor's address among the values of a launch."""

    position: int
    """The index among the values."""
    argument: int
    """The index of the tensor among the kernel's arguments."""
    make: Callable[[int], Any] | None = None
    """A function that makes the value from the address. None for the address itself."""


class Prepared(NamedTuple):
    """A launch whose values lack the addresses of tensors."""

    launcher: Launcher
    values: list[Any]
    addresses: tuple[Address, ...]
    on_stream: bool
    """True if the launcher takes a stream before the values."""

    def __call__(self, stream: Any, args: Sequence[Any]) -> None:
        """Launch with the tensors among a kernel's arguments."""
        values = self.values.copy()
        for position, argument, make in self.addresses:
            address = args[argument].data_ptr()
            values[position] = address if make is None else make(address)
        first = (stream,) if self.on_stream else ()
        self.launcher.launch(*first, *values)


class Loaded(Protocol):
    """A kernel that was compiled and loaded."""

    def prepare(
        self, grid: tuple[int, ...], args: Sequence[Any], threads: int | None = None
    ) -> Prepared | None:
        """Return the launch on a grid, None for a kernel that must be interpreted.

        The current device must be that of the arguments. A CPU's kernel runs on at most
        `threads` threads.
        """
        ...

    def interpret(self, grid: tuple[int, ...], args: Sequence[Any]) -> None:
        """Run a kernel that cannot be launched."""
        ...


LITERALS = frozenset({int, bool, str, type(None)})
"""Types of arguments of operations that are written as literals into a tape's text.

Other values, floats included, get a name among the text's globals. So do all values of
launches: calls of other lengths then have the same text, which is compiled once.
"""


class Relocation(NamedTuple):
    """A value of a launch that is an address within a slot's tensor."""

    position: int
    """The index among the values."""
    slot: int
    offset: int
    """The offset in bytes from the tensor's first element."""
    make: Callable[[int], Any] | None
    """A function that makes the value from the address (see `Address`)."""


class Number(int):
    """A captured integer in a slot. At a replay the slot may have another integer."""

    slot: int

    @classmethod
    def of(cls, value: int, slot: int) -> Number:
        """Return the integer of a slot."""
        found = cls(value)
        found.slot = slot
        return found


class Reading(NamedTuple):
    """A value of a launch that each replay reads from what is given in a slot."""

    position: int
    """The index among the values, and among the kernel's arguments."""
    slot: int
    kind: str
    """The kind of value: "number" for the slot's own, else "dim" or "stride"."""
    dim: int = 0
    unit: int = 1
    """A stride is divided by this number."""


class Slot(NamedTuple):
    """A tensor of the tape among the arguments of an operation."""

    number: int


@dataclass(frozen=True, slots=True, eq=False)
class Allocation:
    """A new tensor, of zeros or uninitialised."""

    slot: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    like: int | None
    """The slot of a given tensor of which `torch.empty_like` makes this tensor."""
    is_zero: bool

    @property
    def uses(self) -> set[int]:
        return set() if self.like is None else {self.like}

    @property
    def size(self) -> int:
        """The size in bytes."""
        steps = zip(self.shape, self.strides, strict=True)
        last = sum((n - 1) * stride for n, stride in steps)
        return (last + 1) * self.dtype.itemsize if all(self.shape) else 0

    def source(self, names: Names) -> str:
        made = f"t{self.slot} = "
        if self.like is not None:
            return f"{made}{'zeros' if self.is_zero else 'empty'}_like(t{self.like})"
        options = f"dtype={names(self.dtype)}, device={names(self.device)}"
        made += f"empty({self.shape}, {self.strides}, {options})"
        return f"{made}.zero_()" if self.is_zero else made


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """A launch of a kernel."""

    launcher: Launcher
    values: list[Any]
    relocations: tuple[Relocation, ...]
    on_stream: bool
    readings: tuple[Reading, ...] = ()
    """Values that differ among the calls of a tape for a growing number of keys."""

    @property
    def uses(self) -> set[int]:
        return {found.slot for found in (*self.relocations, *self.readings)}

    def source(self, names: Names) -> str:
        moved = {found.position for found in (*self.relocations, *self.readings)}
        values = ["" if i in moved else names(v) for i, v in enumerate(self.values)]
        for position, slot, offset, make in self.relocations:
            named = slot in names.addresses
            address = f"a{slot}" if named else f"t{slot}.data_ptr()"
            address += f" + {offset}" if offset else ""
            values[position] = address if make is None else f"{names(make)}({address})"
        for position, slot, kind, dim, unit in self.readings:
            found = f"t{slot}"
            if kind != "number":
                found += f".shape[{dim}]" if kind == "dim" else f".stride()[{dim}]"
            values[position] = found if unit == 1 else f"{found} // {unit}"
        first = ["stream"] if self.on_stream else []
        return f"{names(self.launcher)}.launch({', '.join(first + values)})"


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One of torch's operations."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[int | None, ...]
    is_pure: bool
    """True if the operation writes to no tensor. It is dropped if its results are
    unused.
    """

    @property
    def uses(self) -> set[int]:
        return _slots_in((*self.args, *self.kwargs.values()))

    def source(self, names: Names) -> str:
        args = [_spelled(arg, names) for arg in self.args]
        args += [f"{name}={_spelled(arg, names)}" for name, arg in self.kwargs.items()]
        made = [f"t{slot}" if slot is not None else "_" for slot in self.outputs]
        targets = ", ".join(made) + "," * self.is_multiple
        return f"{targets} = {names(self.function)}({', '.join(args)})"

    @property
    def is_multiple(self) -> bool:
        """True if the results come in a tuple or a list."""
        returns = self.function._schema.returns
        return len(returns) != 1 or str(returns[0].type) != "Tensor"


Step = Allocation | Launch | Operation


class Names:
    """The names of objects that the text of a tape refers to."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {
            "empty": torch.empty_strided,
            "empty_like": torch.empty_like,
            "zeros_like": torch.zeros_like,
        }
        self.addresses: set[int] = set()
        """Slots whose addresses have names, `a0`, `a1`, ..."""

    def __call__(self, value: Any) -> str:
        name = f"c{len(self.names)}"
        self.names[name] = value
        return name


class Tape:
    """Recorded steps, compiled to a function of `count` given tensors.

    Steps that no result needs are left out.
    `source` is the text of the function. In it, `t0`, `t1`, ... are tensors, the given
    ones first. `a0`, `a1`, ... are the addresses of tensors that are passed more than
    once.
    """

    def __init__(
        self,
        device: torch.device,
        count: int,
        constants: Mapping[int, Tensor],
        steps: Sequence[Step],
        results: Sequence[int | None],
        grows: bool = False,
    ):
        self.grows = grows
        """True if the tape serves other numbers of keys, with the same decisions."""
        kept, needed = needed_steps(steps, {r for r in results if r is not None})
        given = sorted(slot for slot in needed if slot < count)
        self.device, self.count, self.results = device, count, tuple(results)
        self.constants = {n: t for n, t in constants.items() if n in needed}
        self.steps = tuple(step for step, _ in kept)
        names = Names()
        lines = [f"t{slot} = tensors[{slot}]" for slot in given]
        lines += [
            f"t{slot} = {names(tensor)}" for slot, tensor in self.constants.items()
        ]
        passed = [p.slot for step in self.steps for p in _relocations(step)]
        seen: set[int] = set()
        reused = {slot for slot in passed if slot in seen or seen.add(slot)}
        for i, (step, done) in enumerate(kept, 1):
            reused_here = {p.slot for p in _relocations(step)} & reused
            for slot in sorted(reused_here - names.addresses):
                lines.append(f"a{slot} = t{slot}.data_ptr()")
            names.addresses |= reused_here
            lines.append(step.source(names))
            if i < len(kept):  # Free memory for later steps.
                lines += [f"t{slot} = None" for slot in done if slot not in given]
        found = ", ".join("None" if r is None else f"t{r}" for r in results)
        lines.append(f"return ({found},)" if results else "return ()")
        self._index = None if device.type == "cpu" else device.index
        self.source = "def replay(tensors, stream):\n    " + "\n    ".join(lines)
        self._replay: Callable[[Sequence[Any], Any], tuple[Any, ...]]
        # A copy of the code, because Python specialises code for its globals.
        self._replay = FunctionType(code_of(self.source).replace(), names.names)

    def __call__(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """Return the results for tensors whose facts equal those at the recording."""
        index = self._index
        if index is None:
            return self._replay(tensors, None)
        if index == current_device():
            return self._replay(tensors, raw_stream(index))
        with torch.cuda.device(index):
            return self._replay(tensors, raw_stream(index))


@lru_cache(1024)
def code_of(source: str) -> CodeType:
    """Return the code of the function that a text defines."""
    module = compile(source, "<tape>", "exec")
    return next(part for part in module.co_consts if isinstance(part, CodeType))


def needed_steps(
    steps: Sequence[Step], results: Iterable[int]
) -> tuple[list[tuple[Step, tuple[int, ...]]], set[int]]:
    """Return the steps without idle ones, and all slots that these steps use.

    Each step comes with the slots that it is the last to use.
    """
    kept: list[tuple[Step, tuple[int, ...]]] = []
    needed = set(results)
    for step in reversed(steps):
        if is_idle(step, needed):
            continue
        uses = step.uses
        kept.append((step, tuple(uses - needed)))
        needed |= uses
    return kept[::-1], needed


def is_idle(step: Step, needed: set[int]) -> bool:
    """Return True if a step may be left out.

    Launches and operations that write are always kept.
    """
    match step:
        case Allocation():
            return step.slot not in needed
        case Operation():
            return step.is_pure and not needed & set(step.outputs)
        case Launch():
            return False


def _relocations(step: Step) -> tuple[Relocation, ...]:
    return step.relocations if isinstance(step, Launch) else ()


def _slots_in(arg: Any) -> set[int]:
    if isinstance(arg, Slot):
        return {arg.number}
    if isinstance(arg, list | tuple):
        return {slot for a in arg for slot in _slots_in(a)}
    return set()


def _spelled(arg: Any, names: Names) -> str:
    """Return an argument of an operation as the source text of a tape."""
    if type(arg) is Slot:
        return f"t{arg.number}"
    if isinstance(arg, list | tuple):
        inner = ", ".join(_spelled(a, names) for a in arg)
        return f"[{inner}]"
    return repr(arg) if type(arg) in LITERALS else names(arg)
