"""What a call of a compiled function depends on: a key, its tensors and numbers.

The walk is that of mods, over the function and its arguments at once, and reads
`torch.nn.Module`s and BlockMasks besides: all of torch's own modules, and of a
user's module its tables and the attributes that its code names.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from flexc.errors import StateError
from flexc.frontend.code_facts import code_facts
from flexc.frontend.plain_values import number_key
from flexc.frontend.rebuild import Rebuild
from flexc.frontend.special_methods import MODULE_TABLES, has_unread_code
from flexc.frontend.trail import Trail, Way
from flexc.frontend.walk import Capture, Walk
from flexc.runtime.inputs.options import Choices

UNKEYED_ATTRIBUTES = frozenset(
    {"data_ptr", "grad", "grad_fn", "is_leaf", "storage_offset", "untyped_storage"}
    | {"_version", "storage"}
)
"""Properties of tensors that a capture would freeze and no key tells apart."""

CPU = torch.device("cpu")

PLAIN_TENSORS = (Tensor, torch.nn.Parameter)
PLAIN = frozenset({*PLAIN_TENSORS, int, float, str, type(None), tuple, list, dict})


class Compiled:
    """A function with options of its own, which may be called by another one."""

    def __init__(self, fn: Callable[..., Any], choices: Choices):
        self.fn = fn
        self.choices = choices


def is_own(value: Any) -> bool:
    """Whether something is flexc's, and the same for the life of the process."""
    if isinstance(value, ModuleType):
        return value.__name__.partition(".")[0] == "flexc"
    if not isinstance(value, FunctionType | type):
        return False
    if isinstance(getattr(value, "__wrapped__", None), functools.partial):
        return False
    module = value.__module__  # Classes written in C may have a descriptor here.
    return isinstance(module, str) and module.partition(".")[0] == "flexc"


class _Modules(Walk):
    """Adds modules and BlockMasks to a walk or a rebuild."""

    def visit(self, value: Any) -> Any:
        if type(value) in PLAIN:  # Most of what is met, and nothing of the following.
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
        """A BlockMask, with all its attributes."""
        if (known := self._known(value)) is not None:
            return known
        self.key.append((BlockMask, tuple(vars(value))))
        copy = self._begin(value)
        for name, part in vars(value).items():
            self.fill_attribute(copy, name, self.visit(part), "")
        return copy

    def module_object(self, value: torch.nn.Module) -> Any:
        """A module, with all that a search of it may find."""
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
    """Equal keys would mean nothing, however much more is read."""


class CallWalk(_Modules):
    """A walk over a call, which ends as soon as it is known to have no key."""

    def spend(self, cost: int) -> None:
        if not self.sound:
            raise _UnsoundError
        super().spend(cost)


class _CallTrail(Trail, CallWalk):
    """The same walk, to name what it met."""


class _Rebuild(_Modules, Rebuild):
    """Copies of a function and its arguments over other tensors."""

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
    """`isinstance`, for which a symbol is the number that it stands for."""
    kind = SYMBOLS.get(type(value))
    return isinstance(value, classes) if kind is None else issubclass(kind, classes)


SYMBOLS: dict[type, type] = {
    torch.SymInt: int,
    torch.SymFloat: float,
    torch.SymBool: bool,
}


@dataclass(frozen=True, slots=True)
class CallState:
    """One call: the function, its arguments, and all that they reach."""

    parts: tuple[Any, ...]
    """(function, args, kwargs)"""
    captures: tuple[Capture, ...]
    sound: bool
    """Equal keys mean equal captured graphs."""
    structure: tuple[Any, ...]
    """The part of the key that is not about what tensors and numbers are."""

    @property
    def kind(self) -> tuple[Any, ...]:
        """What calls have in common of which one graph may serve all."""
        tensors = [c for c in self.captures if isinstance(c, Tensor)]
        facts = [(t.device, t.requires_grad) for t in tensors]
        return self.structure, tuple(facts), global_state()

    @property
    def inspects_types(self) -> bool:
        """Whether code tells a symbol from a number."""
        codes = [code_facts(k) for k in self.structure if isinstance(k, CodeType)]
        return any(f.inspects_types and not f.asks_instances_only for f in codes)

    @property
    def facts(self) -> tuple[Any, ...]:
        """All that a capture of fake values could make constant."""
        return tuple([_facts(c) for c in self.captures])

    def rebuild(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], set[CodeType]]:
        """(function, args, kwargs) with `values` in place of the captures.

        And the code of all functions that were read.
        """
        rebuild = _Rebuild(values)
        return rebuild.run(self.parts), rebuild.codes


def read_call(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> CallState:
    """Walk a call; equal keys mean that one capture serves both calls."""
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
    sound = sound and all([_is_plain(c) for c in captures if isinstance(c, Tensor)])
    return CallState(parts, captures, sound, tuple(walk.key))


def _too_much(parts: tuple[Any, ...], error: Exception) -> StateError:
    """What is said of a call that reaches too much to be walked."""
    fn, args, kwargs = parts
    name = getattr(fn, "__qualname__", type(fn).__qualname__)
    roots: dict[int, Way] = {id(fn): () if isinstance(fn, FunctionType) else ("self",)}
    roots |= {id(value): (key,) for key, value in kwargs.items()}
    with suppress(TypeError, ValueError):
        names = inspect.signature(fn).parameters
        roots |= {id(v): (n,) for n, v in zip(names, args, strict=False)}
    what = str(error) if isinstance(error, StateError) else "objects are nested deeply"
    where = _CallTrail(roots).heaviest(parts)
    return StateError(
        f"flexc.compile({name}) reads all that a call may depend on, and {what}"
        f"{where and f', most of them by way of `{where}`'}; keep that out of the "
        "function, compile a part of it, such as its attention, or use "
        'torch.compile(..., backend="flexc")'
    )


def _is_plain(tensor: Tensor) -> bool:
    is_strided = tensor.layout is torch.strided and not tensor.is_quantized
    return type(tensor) in PLAIN_TENSORS and is_strided


def _facts(capture: Capture) -> Any:
    if not isinstance(capture, Tensor):
        return number_key(capture)
    return capture.shape, capture.stride()


def global_state() -> tuple[Any, ...]:
    """Settings of torch that change what a function means."""
    casts: list[Any] = [None, None]
    if torch._C._is_any_autocast_enabled():
        casts = [
            torch.get_autocast_dtype(d) if torch.is_autocast_enabled(d) else None
            for d in ("cpu", "cuda")
        ]
    # A default device is a mode of functions; to ask for it takes a microsecond.
    modes = torch._C._len_torch_function_stack()
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.get_default_device() if modes else CPU,
        *casts,
    )
