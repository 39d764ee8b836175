"""Tensors without memory of their own, and calls that are traced or transformed.

Classes with a `__torch_dispatch__`, fake and functional tensors, and tensors that left
a transform of torch.func have a shape and a dtype, but no elements at their address.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import (
    retrieve_current_functorch_interpreter,
    temporarily_clear_interpreter_stack,
)
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch.overrides import _pop_mode, _push_mode
from torch.utils._python_dispatch import (
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)

from flexc.errors import FlexcError, ShapeError, TracingError
from flexc.frontend.code_facts import SILENT_METHODS, names_in
from flexc.runtime.inputs.arguments import DENSE

TRACING_MODES = (FakeTensorMode, FunctionalTensorMode, ProxyTorchDispatchMode)

_functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]

current_transform = _functorch.maybe_current_level
count_of_modes = torch._C._len_torch_dispatch_stack


def is_transformed() -> bool:
    """Return True within vmap, grad, jvp and other transforms of torch.func."""
    return current_transform() is not None


def is_functionalized() -> bool:
    """Return True if the innermost transform is torch.func.functionalize."""
    if not is_transformed():
        return False
    kind = retrieve_current_functorch_interpreter().key()
    return kind == _functorch.TransformType.Functionalize


def plain(tensor: Tensor) -> Tensor:
    """Return an unwrapped tensor with the shape and strides that the mods see.

    For a batched tensor, it is the first slice, zeros if there is none.
    """
    while _functorch.is_functorch_wrapped_tensor(tensor):
        inner = _functorch.get_unwrapped(tensor)
        if _functorch.is_batchedtensor(tensor):
            dim = _functorch.maybe_get_bdim(tensor)
            some = inner.size(dim) > 0
            inner = inner.select(dim, 0) if some else inner.new_zeros(tensor.shape)
        tensor = inner
    return tensor


def is_batched(tensor: Tensor) -> bool:
    """Return True if vmap maps over a tensor, at any level of transforms."""
    while _functorch.is_functorch_wrapped_tensor(tensor):
        if _functorch.is_batchedtensor(tensor):
            return True
        tensor = _functorch.get_unwrapped(tensor)
    return False


def tracing(query: Tensor | None = None) -> str | None:
    """Return a description of the tracer of a call, None if the call has real data.

    Without a query, only torch's modes are asked.
    """
    if type(query) is not Tensor and isinstance(query, FakeTensor | FunctionalTensor):
        return "a fake tensor"
    if count_of_modes():
        for mode in _get_current_dispatch_mode_stack():
            if isinstance(mode, TRACING_MODES):
                return f"a call under {type(mode).__name__}"
    return None


class OnlyRunError(TracingError):
    """A capture meets code that can only be run, such as a transform of torch.func."""


class CaptureMode(FakeTensorMode):
    """A fake mode of `flexc.compile`, which runs a function that it cannot capture."""


def check_runs(what: str) -> None:
    """Let a function of `flexc.compile` that contains `what` only run."""
    modes = _get_current_dispatch_mode_stack()
    if any(isinstance(mode, CaptureMode) for mode in modes):
        raise OnlyRunError(f"{what} is not captured")


_Key: Any = torch._C.DispatchKey  # pyright: ignore[reportAttributeAccessIssue]
_keys_of: Any = torch._C._dispatch_keys  # pyright: ignore[reportAttributeAccessIssue]


@contextmanager
def without_modes() -> Iterator[None]:
    """Run code that is not the user's without torch's modes and transforms."""
    with _disable_current_modes(), temporarily_clear_interpreter_stack():
        modes = [_pop_mode() for _ in range(torch._C._len_torch_function_stack())]
        try:
            yield
        finally:
            for mode in reversed(modes):
                _push_mode(mode)


PLAIN = frozenset({Tensor, torch.nn.Parameter})
"""Classes of tensors without operations of their own."""


def has_dispatch(value: Any) -> bool:
    """Return True for a tensor whose operations are not those of torch's kernels."""
    if type(value) in PLAIN:
        return torch._is_functional_tensor(value)  # pyright: ignore
    return isinstance(value, Tensor) and _keys_of(value).has(_Key.Python)


_NO_OPERATIONS = SILENT_METHODS | names_in(
    """
    __annotations__ __copy__ __deepcopy__ __dict__ __doc__ __format__ __hash__
    __module__ __reduce_ex__ __setstate__ __torch_dispatch__ __weakref__
    """
)
"""Attributes of a class that do not change what operations compute."""

LEFT_A_TRANSFORM = (_Key.FuncTorchGradWrapper, _Key.FuncTorchBatched)


def check_captured(captures: Sequence[Any]) -> None:
    """Check the tensors among the captures of mods."""
    for capture in captures:
        if not isinstance(capture, Tensor):
            continue
        check_tensor("a mod's capture", capture)
        cls = type(capture)
        if cls not in PLAIN and (method := own_operation(cls)) is not None:
            raise ShapeError(
                f"a mod's capture expects a tensor with torch's own operations, got a "
                f"{cls.__name__}, which has its own {method}; capture "
                "tensor.as_subclass(torch.Tensor)"
            )


@lru_cache(1024)
def own_operation(cls: type) -> str | None:
    """Return the name of a tensor operation that a class overrides, else None."""
    for base in cls.__mro__[: cls.__mro__.index(Tensor)]:
        for name, value in vars(base).items():
            disabled = value is torch._C._disabled_torch_function_impl
            if name not in _NO_OPERATIONS and hasattr(Tensor, name) and not disabled:
                return name
    return None


def check_tensor(
    name: str, tensor: Tensor, error: type[FlexcError] = ShapeError
) -> None:
    """Refuse a tensor that wraps others, except wrappers of active transforms."""
    got = wrapper(tensor)
    if got is not None:
        raise error(f"{name} expects {DENSE}, got {got}")


def address_of(tensor: Tensor) -> int:
    """Return the address of a tensor's elements, 0 for none or for a wrapper."""
    if type(tensor) not in PLAIN:
        return 0
    try:
        return tensor.data_ptr()
    except RuntimeError:
        return 0


def wrapper(tensor: Tensor) -> str | None:
    """Return a description of a tensor's wrapper with advice, None without one."""
    if address_of(tensor):
        return None  # Reading the dispatch keys is slow.
    keys = _keys_of(tensor)
    if keys.has(_Key.Functionalize) or isinstance(tensor, FunctionalTensor):
        return "a functional tensor; call flexc outside of functionalize"
    if is_transformed():
        keys = _keys_of(tensor := plain(tensor))
    elif any(map(keys.has, LEFT_A_TRANSFORM)):
        return "one that left its torch.func transform; return it from there"
    return _of_a_class(tensor) if keys.has(_Key.Python) else None


def _of_a_class(tensor: Tensor) -> str:
    if isinstance(tensor, FakeTensor):
        return "a fake tensor, which has no data; give it real ones"
    name = type(tensor).__name__
    if hasattr(tensor, "to_local"):
        advice = "call to_local(), or let local_map run attention on each part"
    elif hasattr(tensor, "get_data"):
        advice = "call get_data(), and say what is masked by a mask_mod"
    else:
        advice = "pass the tensors that it holds"
    return f"a {name}, whose operations its __torch_dispatch__ computes; {advice}"
