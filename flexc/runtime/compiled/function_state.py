"""The state that a call of a compiled function depends on: a key, and captures.

The walk is the walk over mods, applied to the function and its arguments at once. It
also reads BlockMasks and `torch.nn.Module`s. Of torch's own modules it reads
everything, and of a user's module the tables and the attributes that its code names. If
a walk exceeds its limit, it is repeated as a `Trail`, which finds the value that holds
most of the cost.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from flexc.errors import StateError
from flexc.frontend.closures import Rebuild
from flexc.frontend.code_facts import (
    MODULE_TABLES,
    code_facts,
    has_unread_code,
    number_key,
)
from flexc.frontend.walk import Capture, Walk
from flexc.runtime.inputs.options import Choices

MAX_TEXT = 80
"""The largest number of characters of a path that an error shows."""


class Step:
    """A step of the path to a value, with the cost of what is reached by it."""

    def __init__(self, before: Step | None = None, text: str = ""):
        self.before = before
        self.text = text
        self.cost = 0
        self.next: dict[str, Step] = {}

    def to(self, text: str) -> Step:
        """Return the step to a member."""
        return self.next.setdefault(text, Step(self, text))


class Trail(Walk):
    """A walk that records the path to each value, as a Python expression."""

    def __init__(self, roots: Mapping[int, str]):
        """Make a walk from values, whose names are given by their ids."""
        super().__init__()
        self._start = Step()
        self._steps = {
            i: self._start.to(n) if n else self._start for i, n in roots.items()
        }
        """The first step to each value, by the value's id."""
        self._holders: list[Any] = []
        self._members: list[int] = []
        """The number of visited members of each holder."""

    def spend(self, cost: int) -> None:
        step: Step | None = self._step()
        while step is not None:
            step.cost += cost
            step = step.before
        super().spend(cost)

    def visit(self, value: Any) -> Any:
        self._steps.setdefault(id(value), self._step_to(value))
        self._holders.append(value)
        self._members.append(0)
        result = super().visit(value)
        self._holders.pop()
        self._members.pop()
        return result

    @property
    def _holder(self) -> Any:
        return self._holders[-1] if self._holders else self._owner

    def _step(self) -> Step:
        return self._steps.get(id(self._holder), self._start)

    def _step_to(self, value: Any) -> Step:
        holder, step = self._holder, self._step()
        match holder:
            case tuple() | list():
                self._members[-1] += 1
                return step.to(f"[{self._members[-1] - 1}]")
            case dict():
                return step.to(f"[{self.name!r}]")
            case FunctionType() if value is holder.__defaults__:
                return self._start.to(f"{holder.__name__}.__defaults__")
            case FunctionType():
                return self._start.to(self.name)
            case None | MethodType() | functools.partial():
                return step
        return step.to(f"[{self.name}]" if self.name.isdigit() else f".{self.name}")

    def heaviest(self, parts: Any) -> str:
        """Return the longest path that holds more than half of the cost of a walk."""
        with suppress(StateError, RecursionError):
            self.run(parts)
        text, step = "", self._start
        half = sum(n.cost for n in step.next.values()) / 2
        while step := next((n for n in step.next.values() if n.cost > half), None):
            text += step.text
        return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."


UNKEYED_ATTRIBUTES = frozenset(
    {"data_ptr", "grad", "grad_fn", "is_leaf", "storage_offset", "untyped_storage"}
    | {"_version", "storage"}
)
"""Properties of tensors that a capture would make constant and that no key holds."""

CPU = torch.device("cpu")

PLAIN_TENSORS = (Tensor, torch.nn.Parameter)
PLAIN = frozenset({*PLAIN_TENSORS, int, float, str, type(None), tuple, list, dict})


class Compiled:
    """A compiled function with its own options. Compiled functions may call it."""

    def __init__(self, fn: Callable[..., Any], choices: Choices):
        self.fn = fn
        self.choices = choices


def is_own(value: Any) -> bool:
    """Return True if a value belongs to flexc and is constant in a process."""
    if isinstance(value, ModuleType):
        return value.__name__.partition(".")[0] == "flexc"
    if not isinstance(value, FunctionType | type):
        return False
    if isinstance(getattr(value, "__wrapped__", None), functools.partial):
        return False
    module = value.__module__  # Classes written in C may have a descriptor here.
    return isinstance(module, str) and module.partition(".")[0] == "flexc"


class _Modules(Walk):
    """A mixin that adds modules and BlockMasks to a walk or a rebuild."""

    def visit(self, value: Any) -> Any:
        if type(value) in PLAIN:  # Most values are plain, and need no check below.
            return super().visit(value)
        if isinstance(value, torch.nn.Module):
            return self.module_object(value)
        if type(value) is BlockMask:
            return self.block_mask(value)
        if isinstance(value, Compiled):
            self.key.append((type(value), value.choices))
            return self.remake(value, self.visit(value.fn))
        if is_own(value):
            return self.by_identity(isinstance if value is is_instance else value)
        return super().visit(value)

    def visit_read(self, value: Any) -> Any:
        return self.visit(value)

    def block_mask(self, value: BlockMask) -> Any:
        """Visit a BlockMask with all its attributes."""
        if (known := self._known(value)) is not None:
            return known
        self.key.append((BlockMask, tuple(vars(value))))
        copy = self._note(value, self.begin(value))
        for name, part in vars(value).items():
            self.fill_attribute(copy, name, self.visit(part), "")
        return copy

    def module_object(self, value: torch.nn.Module) -> Any:
        """Visit a module with all tables that a search of the module may read."""
        if isinstance(value, torch.jit.ScriptModule):
            return self.unknown(value)
        is_new = self._id(value) not in self._seen
        copy = self.object(value)
        if is_new and not has_unread_code(type(value)):
            self.key.append(value.training)
            for name in MODULE_TABLES:
                self.table(copy, name, vars(value)[name])
        return copy


class _UnsoundError(Exception):
    """No key can represent the call, regardless of how much more is read."""


class CallWalk(_Modules):
    """A walk over a call, which stops as soon as the call is known to have no key."""

    def spend(self, cost: int) -> None:
        if not self.sound:
            raise _UnsoundError
        super().spend(cost)


class _CallTrail(Trail, CallWalk):
    """The walk over a call, with the path to each value."""


class _Rebuild(_Modules, Rebuild):
    """A copy of a function and its arguments, with other tensors and numbers."""

    def remake(self, value: Any, parts: Any) -> Any:
        if isinstance(value, Compiled):
            return type(value)(parts, value.choices)
        return super().remake(value, parts)

    def fill_function(
        self, copy: Any, cells: Any, globals_: Any, defaults: Any
    ) -> None:
        if globals_.get("isinstance") is isinstance:
            globals_["isinstance"] = is_instance
        super().fill_function(copy, cells, globals_, defaults)


def is_instance(value: Any, classes: Any) -> bool:
    """Return `isinstance` of a value, where a symbol counts as its number."""
    kind = SYMBOLS.get(type(value))
    return isinstance(value, classes) if kind is None else issubclass(kind, classes)


SYMBOLS: dict[type, type] = {
    torch.SymInt: int,
    torch.SymFloat: float,
    torch.SymBool: bool,
}


@dataclass(frozen=True, slots=True)
class CallState:
    """One call: the function, its arguments, and all objects that they reach."""

    parts: tuple[Any, ...]
    """The function, its positional and its keyword arguments."""
    captures: tuple[Capture, ...]
    sound: bool
    """True if equal keys mean equal captured graphs."""
    structure: tuple[Any, ...]
    """The part of the key without the facts of tensors and numbers."""

    @property
    def kind(self) -> tuple[Any, ...]:
        """The facts that calls share if one graph may serve them."""
        tensors = [c for c in self.captures if isinstance(c, Tensor)]
        facts = [(t.device, t.requires_grad) for t in tensors]
        return self.structure, tuple(facts), global_state()

    @property
    def inspects_types(self) -> bool:
        """True if the code distinguishes a symbol from a number."""
        codes = [code_facts(k) for k in self.structure if isinstance(k, CodeType)]
        return any(f.inspects_types and not f.asks_instances_only for f in codes)

    @property
    def facts(self) -> tuple[Any, ...]:
        """All facts that a capture of fake values could make constant."""
        return tuple([_facts(c) for c in self.captures])

    def rebuild(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], set[CodeType]]:
        """Return (function, args, kwargs) with `values` in place of the captures.

        The second result is the code of all functions that were read.
        """
        rebuild = _Rebuild(values)
        return rebuild.run(self.parts), rebuild.codes


def read_call(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> CallState:
    """Walk a call. Equal keys mean that one capture serves both calls."""
    parts = (fn, args, kwargs)
    walk = CallWalk()
    try:
        walk.run(parts)  # pyright: ignore[reportArgumentType]
    except _UnsoundError:
        return CallState(parts, (), False, ())
    except (StateError, RecursionError) as error:
        raise _too_much(parts, error) from None
    captures = tuple(walk.captures)
    sound = walk.sound and walk._attributes.isdisjoint(UNKEYED_ATTRIBUTES)
    for tensor in [c for c in captures if isinstance(c, Tensor)]:
        sound &= type(tensor) in PLAIN_TENSORS and tensor.layout is torch.strided
        sound &= not tensor.is_quantized
    return CallState(parts, captures, sound, tuple(walk.key))


def _too_much(parts: tuple[Any, ...], error: Exception) -> StateError:
    """Return the error for a call that reaches too many objects."""
    fn, args, kwargs = parts
    name = getattr(fn, "__qualname__", type(fn).__qualname__)
    roots = {id(fn): "" if isinstance(fn, FunctionType) else "self"}
    roots |= {id(value): key for key, value in kwargs.items()}
    with suppress(TypeError, ValueError):
        names = inspect.signature(fn).parameters
        roots |= {id(v): n for n, v in zip(names, args, strict=False)}
    what = str(error) if isinstance(error, StateError) else "objects are nested deeply"
    where = _CallTrail(roots).heaviest(parts)
    return StateError(
        f"flexc.compile({name}) reads all that a call may depend on, and {what}"
        f"{where and f', most of them by way of `{where}`'}; keep that out of the "
        "function, compile a part of it, such as its attention, or use "
        'torch.compile(..., backend="flexc")'
    )


def _facts(capture: Capture) -> Any:
    if not isinstance(capture, Tensor):
        return number_key(capture)
    return capture.shape, capture.stride()


def global_state() -> tuple[Any, ...]:
    """Return the settings of torch that change the results of a function."""
    casts: list[Any] = [None, None]
    if torch._C._is_any_autocast_enabled():
        casts = [
            torch.get_autocast_dtype(d) if torch.is_autocast_enabled(d) else None
            for d in ("cpu", "cuda")
        ]
    # A default device is a function mode. Asking for the device is slow.
    modes = torch._C._len_torch_function_stack()
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.get_default_device() if modes else CPU,
        *casts,
    )
