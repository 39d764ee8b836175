"""Tensors that hold others, which kernels would read as if the memory were theirs.

Classes with a `__torch_dispatch__`, fake and functional tensors, and what left a
transform of torch.func have a shape and a dtype, but no elements at their address.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from flexc.errors import FlexcError, ShapeError
from flexc.frontend.special_methods import SILENT_METHODS
from flexc.runtime.inputs.arguments import DENSE
from flexc.runtime.inputs.transforms import is_transformed, plain

_Key: Any = torch._C.DispatchKey  # pyright: ignore[reportAttributeAccessIssue]
_keys_of: Any = torch._C._dispatch_keys  # pyright: ignore[reportAttributeAccessIssue]

PLAIN = frozenset({Tensor, torch.nn.Parameter})
"""Classes of tensors that do nothing of their own."""

_NO_OPERATIONS = SILENT_METHODS | {
    "__annotations__",
    "__copy__",
    "__deepcopy__",
    "__dict__",
    "__doc__",
    "__format__",
    "__hash__",
    "__module__",
    "__reduce_ex__",
    "__setstate__",
    "__torch_dispatch__",
    "__weakref__",
}
"""Names that classes have without computing something else."""

LEFT_A_TRANSFORM = (_Key.FuncTorchGradWrapper, _Key.FuncTorchBatched)


def check_captured(captures: Sequence[Any]) -> None:
    """Check the tensors among what mods capture."""
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
    """Return an operation of tensors that a class has of its own, if there is one."""
    for base in cls.__mro__[: cls.__mro__.index(Tensor)]:
        for name, value in vars(base).items():
            disabled = value is torch._C._disabled_torch_function_impl
            if name not in _NO_OPERATIONS and hasattr(Tensor, name) and not disabled:
                return name
    return None


def check_tensor(
    name: str, tensor: Tensor, error: type[FlexcError] = ShapeError
) -> None:
    """Refuse a tensor that holds others, but for those of transforms that are on."""
    got = wrapper(tensor)
    if got is not None:
        raise error(f"{name} expects {DENSE}, got {got}")


def address_of(tensor: Tensor) -> int:
    """Where the elements of a tensor lie; 0 if it has none, or holds other tensors."""
    if type(tensor) not in PLAIN:
        return 0
    try:
        return tensor.data_ptr()
    except RuntimeError:
        return 0


def wrapper(tensor: Tensor) -> str | None:
    """What holds the elements of a tensor, and what to do; None if it does itself."""
    if address_of(tensor):
        return None  # To look for keys takes microseconds.
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
