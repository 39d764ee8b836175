"""A check that a traced mod calls only functions that the walk has read.

The walk reads code that has not run, so that computing a call's key is fast. A mod that
calls a function that the walk did not read is traced at every call.
"""

from __future__ import annotations

import gc
import pickle
import random
import re
import sys
from collections.abc import Iterable
from cProfile import Profile
from functools import lru_cache
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor

from flexc.errors import SourceLocation
from flexc.frontend.code_facts import DYNAMIC_NAMES, nested, trusted
from flexc.frontend.locations import is_installed, is_user_file

_OPERATORS = ("_nn", "_special", "_linalg", "_fft")
_PURE_MODULES = frozenset(
    {"math", "cmath", "_operator", "_functools"}
    | {f"torch._C.{name}" for name in _OPERATORS}
)
"""Modules in C whose functions depend on their arguments alone."""

_IMPURE_BUILTINS = DYNAMIC_NAMES | {"dir", "id"}

_INTERNAL = frozenset({"_weakrefset", "flexc", "mpmath", "sympy", "weakref"})
"""Packages whose code runs during a trace but does not belong to the mod.

Callbacks of weak references may run at any time.
"""

_NOT_SYMBOLIC = frozenset(
    id(method.__code__)
    for cls in (torch.SymInt, torch.SymFloat, torch.SymBool)
    for name in ("__repr__", "__str__", "__format__", "__round__")
    if isinstance(method := getattr(cls, name, None), FunctionType)
)
"""Methods that print the name of a symbolic number instead of its digits.

Code is told apart by its identity: to compute its hash takes longer than the rest of an
event, of which a trace has thousands.
"""

_ARITHMETIC = frozenset(
    id(getattr(torch.SymFloat, f"__{name}__").__code__)
    for name in ("add", "radd", "neg")
)
"""The operators of symbolic floats: binary, reflected and unary."""

_PYTHONS_GENERATOR = random.random.__self__  # pyright: ignore
"""Python's own generator, to which the functions of `random` are bound."""

_APPLY = torch.autograd.Function.apply.__func__.__code__


def set_profiler(profiler: Any) -> None:
    """Set a profiler, such as one that `sys.getprofile` returned.

    Python 3.11's cProfile is a profiler in C, which `sys.setprofile` cannot set. It
    pairs calls and returns by their order, so one function replaces it and sets it
    again: the returns that it sees are as many as the calls that it saw.
    """
    if isinstance(profiler, Profile):
        profiler.enable()
    else:
        sys.setprofile(profiler)


class CallWatch:
    """A profiler that sees each function that a mod calls, in Python and in C.

    `codes` is the code of the functions that the walk has read.
    """

    def __init__(self, codes: Iterable[CodeType]):
        self._read = {inner for code in codes for inner in nested(code)}
        self._known: dict[int, tuple[CodeType, bool]] = {}
        """By its identity, code that ran, and True if the walk has read it."""
        self.unread: str | None = None
        """The first function that was called without having been read."""
        self.asks_grad_mode = False
        self.wants_numbers = False
        """True if a symbolic number was used in a way that requires a real number."""
        self.custom_gradient = False
        """True if a torch.autograd.Function was applied."""
        self.draws_in_python = False
        """True if a random number was drawn from Python's own generator."""
        self.numpy_drew = False
        """True if the state of NumPy's generator changed, perhaps by another thread."""

    def __enter__(self) -> CallWatch:
        self._numpy_state = _numpy_state()
        # A collection may run any finalizer.
        self._collects = gc.isenabled()
        gc.disable()
        self._outer = sys.getprofile()
        owner = getattr(self._outer, "__self__", self._outer)
        if owner is None or isinstance(owner, CallWatch | Profile):
            set_profiler(self._event)
        else:  # Only one profiler can be active.
            self._note("a profiler was active")
        return self

    def __exit__(self, *_: object) -> None:
        if sys.getprofile() == self._event:
            set_profiler(self._outer)
        if self._collects:
            gc.enable()
        self.numpy_drew |= _numpy_state() != self._numpy_state

    def _note(self, what: str) -> None:
        self.unread = self.unread or what

    def _event(self, frame: FrameType, event: str, arg: Any) -> None:
        # A trace has thousands of events, nearly all of them of torch's own code.
        if event == "c_return":
            return
        code = frame.f_code
        internal = _is_internal_module(frame.f_globals.get("__name__"))
        if event == "c_call":
            if not internal:
                self._called(arg, frame)
            elif _asks_state(arg.__name__):
                self._asked(arg.__name__, frame)
        elif event == "call":
            if not internal:
                self._entered(frame)
            elif id(code) in _NOT_SYMBOLIC:
                self.wants_numbers |= not _is_internal(frame.f_back)
            elif code is _APPLY:
                self.custom_gradient = True
            elif _asks_state(code.co_name):
                self._asked(code.co_name, frame)
        elif event == "return" and id(code) in _ARITHMETIC:
            # Terms may cancel, as in `x + 1e16 - 1e16`. The symbolic result is exact,
            # but Python rounds.
            is_symbol = isinstance(arg, torch.SymFloat)
            self.wants_numbers |= is_symbol and arg.node.expr.is_Atom

    def _entered(self, frame: FrameType) -> None:
        code = frame.f_code
        if not self._was_read(code) and not self._serves_torch(frame):
            self._note(f"{code.co_qualname} ({_where(frame)})")

    def _was_read(self, code: CodeType) -> bool:
        """Return True if the walk has read a code object."""
        known = self._known.get(id(code))
        if known is None:
            known = self._known[id(code)] = code, code in self._read
        return known[1]

    def _asked(self, name: str, frame: FrameType) -> None:
        """Note a setting that a mod reads through a function of torch."""
        caller = frame.f_back
        if caller is None or _is_internal(caller):
            return
        if not self._serves_torch(caller):
            self._note(f"{name.removeprefix('_get_')}, a setting of torch")

    def _called(self, function: Any, frame: FrameType) -> None:
        if function is torch.is_grad_enabled:
            self.asks_grad_mode = True
        elif (
            _asks_state(function.__name__) or not _is_pure(function)
        ) and not self._serves_torch(frame):
            self.draws_in_python |= function.__self__ is _PYTHONS_GENERATOR
            self._note(f"{function.__qualname__}()")

    def _serves_torch(self, frame: FrameType) -> bool:
        """Return True if a library's code runs for torch, not for a mod."""
        while frame.f_back is not None and not _is_internal(frame.f_back):
            frame = frame.f_back
        code = frame.f_code
        return _is_library(code.co_filename) and not self._was_read(code)


def _where(frame: FrameType | None) -> SourceLocation | None:
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame and SourceLocation(frame.f_code.co_filename, frame.f_lineno)


@lru_cache(4096)
def _is_library(filename: str) -> bool:
    """Return True if a file belongs to Python or to an installed package."""
    installed = is_installed(filename) or filename == "<string>"
    return installed or not is_user_file(filename)


def _is_internal(frame: FrameType | None) -> bool:
    return frame is None or _is_internal_module(frame.f_globals.get("__name__"))


@lru_cache(4096)
def _is_internal_module(name: object) -> bool:
    if not isinstance(name, str):
        return False
    return trusted(name) or name.partition(".")[0] in _INTERNAL


def _is_pure(function: Any) -> bool:
    """Return True if a function in C depends on its arguments alone."""
    owner = function.__self__
    if isinstance(owner, ModuleType):
        if owner.__name__ == "builtins":
            return function.__name__ not in _IMPURE_BUILTINS
        return owner.__name__ in _PURE_MODULES
    if owner is None:
        return trusted(function.__module__)
    cls = owner if isinstance(owner, type) else type(owner)
    if isinstance(owner, torch.Generator):
        return False
    return isinstance(owner, Tensor) or trusted(cls.__module__)


_SETTING = re.compile(
    "_get_.*|(is|are|get)_.*(device|dtype|enabled|mode|precision|state|threads)|.*seed"
)


@lru_cache(4096)
def _asks_state(name: str) -> bool:
    """Return True if a function of this name returns a setting or a random state.

    The default dtype is not among these, because all keys hold it.
    """
    return _SETTING.fullmatch(name) is not None and name != "get_default_dtype"


def _numpy_state() -> bytes:
    """Return the state of NumPy's own random generator, of any kind.

    Calls of the generator's methods cannot be seen.
    """
    numpy = sys.modules.get("numpy")
    return b"" if numpy is None else pickle.dumps(numpy.random.get_state(legacy=False))
