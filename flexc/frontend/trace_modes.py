"""Modes of torch functions under which mods are traced."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from flexc.errors import MutationError, UnsupportedOpError
from flexc.frontend.call_watch import set_profiler


class DetachWithoutGrad(TorchFunctionMode):
    """A mode that detaches results where gradients are disabled.

    A trace does not record disabled gradients, and is always made with gradients
    enabled.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if is_grad_enabled() or not isinstance(result, Tensor):
            return result
        return result.detach() if result.is_floating_point() else result


class IndexByScalars(TorchFunctionMode):
    """A mode that indexes by scalar tensors `i`, as in `x[i, :, None]`, without
    `i.item()`.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.__getitem__:
            tensor, items = args
            items = items if isinstance(items, tuple) else (items,)
            if _has_scalars(items):
                return _index(tensor, items)
        return func(*args, **(kwargs or {}))


def _is_integer(item: Any) -> bool:
    if not isinstance(item, Tensor) or item.dim():
        return False
    return item.dtype is not torch.bool and not item.dtype.is_floating_point


def _has_scalars(items: tuple[Any, ...]) -> bool:
    """Return True if an index is a scalar tensor, and no index has a rank."""
    tensors = [i for i in items if isinstance(i, Tensor | list)]
    return bool(tensors) and all(map(_is_integer, tensors))


def _index(tensor: Tensor, items: tuple[Any, ...]) -> Tensor:
    kept = tuple(slice(None) if isinstance(i, Tensor) else i for i in items)
    full = slice(None)
    view = tensor if all(k == full for k in kept) else tensor[kept]
    named = len([i for i in items if i is not None and i is not ...])
    indices: list[Tensor | None] = []
    for item in items:
        if isinstance(item, Tensor):
            wide = item.dtype in (torch.int32, torch.int64)
            indices.append(item if wide else item.to(torch.int32))
        elif item is ...:
            indices += [None] * (tensor.dim() - named)
        elif item is None or isinstance(item, slice):
            indices.append(None)
    return torch.ops.aten.index(view, indices)


_STATE: dict[Any, str] = {
    Tensor.device.__get__: "device",  # pyright: ignore
    Tensor.is_contiguous: "is_contiguous({})",
    Tensor.is_leaf.__get__: "is_leaf",  # pyright: ignore
    Tensor.is_inference: "is_inference()",
    Tensor.is_pinned: "is_pinned({})",
    Tensor.is_shared: "is_shared()",
    Tensor.retains_grad.__get__: "retains_grad",  # pyright: ignore
    Tensor.requires_grad.__get__: "requires_grad",  # pyright: ignore
    Tensor.storage_offset: "storage_offset()",
    Tensor.stride: "stride({})",
    Tensor.data_ptr: "data_ptr()",
    Tensor._version.__get__: "_version",  # pyright: ignore
}
"""State in which a captured tensor and its fake tensor may differ.

Each entry has an expression, with a place for arguments.
"""

_UNTOLD = (
    Tensor.grad.__get__,  # pyright: ignore
    Tensor.grad_fn.__get__,  # pyright: ignore
    Tensor.untyped_storage,
)
"""State of the same kind whose changes no condition can detect."""

_ABOUT_GRADIENTS = (
    Tensor.grad.__get__,  # pyright: ignore
    Tensor.grad_fn.__get__,  # pyright: ignore
    Tensor.is_leaf.__get__,  # pyright: ignore
    Tensor.requires_grad.__get__,  # pyright: ignore
)


class TensorWatch(TorchFunctionMode):
    """A mode that sees each tensor that a mod uses, and the reads of captures' state.

    `fakes` are stand-ins for `captures`. If the walk found none of an operation's
    tensors, the operation runs at once and is not traced. Autograd records it.
    """

    def __init__(self, fakes: Sequence[Any], captures: Sequence[Any]):
        super().__init__()
        self.conditions: dict[str, None] = {}
        """Expressions over `v`, the captures, with values that the trace relied on."""
        self._slots = {id(f): i for i, f in enumerate(fakes)}
        self._captures = captures
        self._made: dict[int, Tensor] = {}
        self._stand_ins: dict[int, tuple[Tensor, Tensor]] = {}

    def missed(self, tensor: Tensor) -> Tensor | None:
        """Return the tensor, missed by the walk, for which a graph's tensor stands."""
        pairs = self._stand_ins.values()
        found = [given for given, stand_in in pairs if stand_in is tensor]
        return found[0] if found else tensor if tensor.requires_grad else None

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        # torch's own calls are many, and are not the mod's.
        profiler = sys.getprofile()
        set_profiler(None)
        try:
            return self._call(func, args, kwargs or {})
        finally:
            set_profiler(profiler)

    def _call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if _sets(func):
            raise MutationError(
                f"a mod must not set a tensor's {_sets(func)}: use an out-of-place "
                "operation, as in `score = score + x`"
            )
        if func in _STATE or func in _UNTOLD:
            slot = self._slots.get(id(args[0]))
            if slot is not None:
                return self._asked(slot, func, args[1:], kwargs)
            if isinstance(args[0], FakeTensor) and func in _ABOUT_GRADIENTS:
                raise UnsupportedOpError(
                    "a mod must not ask a tensor that it computed for its gradient: "
                    "compute it before the call, and capture what it says"
                )
        tensors = [x for x in pytree.tree_leaves((args, kwargs)) if _is_tensor(x)]
        missed = list(filter(self._is_missed, tensors))
        if missed and func is Tensor.requires_grad_:
            raise UnsupportedOpError(
                "a mod must not differentiate, as torch.func.grad does: write the "
                "derivative out"
            )
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
        """Return a captured tensor's answer to a question about its stand-in."""
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


def _sets(func: Callable[..., Any]) -> str:
    """Return the name of what a function gives a tensor anew, "" if it is no such."""
    name = getattr(getattr(func, "__self__", None), "__name__", "")
    is_write = getattr(func, "__name__", "") == "__set__"
    return name if is_write and name != "requires_grad" else ""


def _writes(func: Callable[..., Any], kwargs: dict[str, Any]) -> bool:
    name = getattr(func, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    # torch's own functions, as `normalize`, pass on an `out` that is None.
    has_out = kwargs.get("out") is not None
    return in_place or name in _WRITING_METHODS or has_out
