"""What a mod reads while it is traced, held against what the walk has read.

The walk goes by code that has not run, so that a call can be keyed in microseconds.
While a mod is traced all that it does is seen: functions it calls, and tensors it
meets. What the walk did not read makes the mod one that is traced at every call, and a
tensor that the walk did not find becomes a capture like others.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from types import CodeType, FrameType, ModuleType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from flexc.errors import MutationError, SourceLocation, UnsupportedOpError
from flexc.frontend.code_facts import DYNAMIC_NAMES, nested, trusted
from flexc.frontend.locations import is_user_file

_OPERATORS = ("_nn", "_special", "_linalg", "_fft")
_PURE_MODULES = frozenset(
    {"math", "cmath", "_operator", "_functools"}
    | {f"torch._C.{name}" for name in _OPERATORS}
)
"""Modules written in C whose functions read nothing but their arguments."""

_IMPURE_BUILTINS = DYNAMIC_NAMES | {"dir", "id"}

_INTERNAL = frozenset({"flexc", "mpmath", "sympy"})

_SPELLED = frozenset(
    method.__code__
    for cls in (torch.SymInt, torch.SymFloat, torch.SymBool)
    for name in ("__repr__", "__str__", "__format__")
    if hasattr(method := getattr(cls, name), "__code__")
)
"""What writes a symbolic number as text, where a mod expects digits."""

_APPLY = torch.autograd.Function.apply.__func__.__code__


class CallWatch:
    """Sees each function that a mod calls, in Python and in C.

    `codes` are those of the functions that the walk has read.
    """

    def __init__(self, codes: Iterable[CodeType]):
        self._read = {inner for code in codes for inner in nested(code)}
        self.unread: str | None = None
        """Something that was called and that the walk did not read."""
        self.asks_grad_mode = False
        self.spells_numbers = False
        self.custom_gradient = False
        """A torch.autograd.Function was applied."""

    def __enter__(self) -> CallWatch:
        self._random = _random_state()
        self._outer = sys.getprofile()
        if isinstance(getattr(self._outer, "__self__", self), CallWatch):
            sys.setprofile(self._event)
        else:  # There is one profiler at a time.
            self._note("a profiler was active")
        return self

    def __exit__(self, *_: object) -> None:
        if sys.getprofile() == self._event:
            sys.setprofile(self._outer)
        self.drew_random_numbers = _random_state() != self._random

    def _note(self, what: str) -> None:
        self.unread = self.unread or what

    def _event(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call":
            if not _is_internal(frame):
                self._called(arg, frame)
        elif event == "call":
            if not _is_internal(frame):
                self._entered(frame)
            elif frame.f_code in _SPELLED and not _is_internal(frame.f_back):
                self.spells_numbers = True
            elif frame.f_code is _APPLY:
                self.custom_gradient = True

    def _entered(self, frame: FrameType) -> None:
        code = frame.f_code
        if code not in self._read and not self._serves_torch(frame):
            self._note(f"{code.co_qualname} ({_where(frame)})")

    def _called(self, function: Any, frame: FrameType) -> None:
        if function is torch.is_grad_enabled:
            self.asks_grad_mode = True
        elif not _is_pure(function) and not self._serves_torch(frame):
            self._note(f"{function.__qualname__}()")

    def _serves_torch(self, frame: FrameType) -> bool:
        """Whether code of a library runs for torch, not for a mod."""
        while frame.f_back is not None and not _is_internal(frame.f_back):
            frame = frame.f_back
        code = frame.f_code
        return code not in self._read and _is_library(code.co_filename)


def _is_library(filename: str) -> bool:
    in_site = "site-packages" in filename or filename == "<string>"
    return in_site or not is_user_file(filename)


def _where(frame: FrameType | None) -> SourceLocation | None:
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame and SourceLocation(frame.f_code.co_filename, frame.f_lineno)


def _is_internal(frame: FrameType | None) -> bool:
    return frame is None or _is_internal_module(frame.f_globals.get("__name__"))


@lru_cache(4096)
def _is_internal_module(name: object) -> bool:
    if not isinstance(name, str):
        return False
    return trusted(name) or name.partition(".")[0] in _INTERNAL


def _is_pure(function: Any) -> bool:
    """Whether a function written in C reads nothing but its arguments."""
    owner = function.__self__
    if isinstance(owner, ModuleType):
        if owner.__name__ == "builtins":
            return function.__name__ not in _IMPURE_BUILTINS
        return owner.__name__ in _PURE_MODULES
    if owner is None:
        return trusted(function.__module__)
    cls = owner if isinstance(owner, type) else type(owner)
    return isinstance(owner, Tensor) or trusted(cls.__module__)


def _random_state() -> Any:
    """The state of Python's and NumPy's own generators of random numbers."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return random.getstate()
    _, keys, *rest = numpy.random.get_state()
    return random.getstate(), keys.tobytes(), rest


_STATE: dict[Any, str] = {
    Tensor.device.__get__: "device",  # pyright: ignore
    Tensor.is_contiguous: "is_contiguous({})",
    Tensor.is_leaf.__get__: "is_leaf",  # pyright: ignore
    Tensor.is_pinned: "is_pinned({})",
    Tensor.requires_grad.__get__: "requires_grad",  # pyright: ignore
    Tensor.storage_offset: "storage_offset()",
    Tensor.stride: "stride({})",
    Tensor.data_ptr: "data_ptr()",
    Tensor._version.__get__: "_version",  # pyright: ignore
}
"""What may be asked of a captured tensor and that its stand-in does not know."""

_GRADIENTS = (
    Tensor.grad.__get__,  # pyright: ignore
    Tensor.grad_fn.__get__,  # pyright: ignore
)
_ABOUT_GRADIENTS = (
    *_GRADIENTS,
    Tensor.is_leaf.__get__,  # pyright: ignore
    Tensor.requires_grad.__get__,  # pyright: ignore
)


class TensorWatch(TorchFunctionMode):
    """Sees each tensor that a mod meets, and what the mod asks of captured ones.

    `captures` are what `fakes` stand for. What is computed from tensors that the walk
    did not find alone is computed, as the user's code does it, and not traced: torch
    records its derivative.
    """

    def __init__(self, fakes: Sequence[Any], captures: Sequence[Any]):
        super().__init__()
        self.conditions: dict[str, None] = {}
        """Expressions over `v`, the captures, whose values tracing relied on."""
        self._slots = {id(f): i for i, f in enumerate(fakes)}
        self._captures = captures
        self._made: dict[int, Tensor] = {}
        self._stand_ins: dict[int, tuple[Tensor, Tensor]] = {}

    def missed(self, tensor: Tensor) -> Tensor | None:
        """The tensor, missed by the walk, that one in a graph stands for."""
        pairs = self._stand_ins.values()
        found = [given for given, stand_in in pairs if stand_in is tensor]
        return found[0] if found else tensor if tensor.requires_grad else None

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        # torch's own calls are many, and of no interest.
        profiler = sys.getprofile()
        sys.setprofile(None)
        try:
            return self._call(func, args, kwargs or {})
        finally:
            sys.setprofile(profiler)

    def _call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if func in _STATE or func in _GRADIENTS:
            slot = self._slots.get(id(args[0]))
            if slot is not None:
                return self._asked(slot, func, args[1:], kwargs)
            if isinstance(args[0], FakeTensor) and func in _ABOUT_GRADIENTS:
                raise UnsupportedOpError(
                    "a mod must not ask a tensor that it computed for its gradient"
                )
        tensors = [x for x in pytree.tree_leaves((args, kwargs)) if _is_tensor(x)]
        missed = list(filter(self._is_missed, tensors))
        if missed and _writes(func, kwargs):
            raise MutationError(
                f"a mod must not write to what it reads, as {func.__name__} does: use "
                "an out-of-place operation"
            )
        if missed and len(missed) == len(tensors):
            with disable_proxy_modes_tracing():
                return func(*args, **kwargs)
        if missed:
            args, kwargs = pytree.tree_map(self._stand_in, (args, kwargs))
        result = func(*args, **kwargs)
        made = filter(_is_tensor, pytree.tree_leaves(result))
        self._made.update((id(t), t) for t in made)
        return result

    def _is_missed(self, value: Any) -> bool:
        met = isinstance(value, FakeTensor) or id(value) in self._made
        return _is_tensor(value) and not met

    def _stand_in(self, value: Any) -> Any:
        if not self._is_missed(value):
            return value
        if id(value) not in self._stand_ins:
            with disable_proxy_modes_tracing():
                self._stand_ins[id(value)] = value, value.detach()
        return self._stand_ins[id(value)][1]

    def _asked(
        self, slot: int, func: Any, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        """What a captured tensor says that its stand-in is asked for."""
        value = func(self._captures[slot], *args, **kwargs)
        condition = "False"
        if func in _STATE and not kwargs:
            asked = _STATE[func].format(", ".join(map(repr, args)))
            condition = f"v[{slot}].{asked} == {value!r}"
        self.conditions[condition] = None
        return value


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


_AUGMENTED = "add and div floordiv lshift mod mul or pow rshift sub truediv xor"
_WRITING_METHODS = frozenset(
    {"__set__", "__setitem__"} | {f"__i{name}__" for name in _AUGMENTED.split()}
)


def _writes(func: Callable[..., Any], kwargs: dict[str, Any]) -> bool:
    name = getattr(func, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or name in _WRITING_METHODS or "out" in kwargs
