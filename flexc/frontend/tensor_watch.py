"""The tensors that a mod meets while it is traced, and what it asks of them.

A tensor that the walk did not find becomes a capture like others.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from flexc.errors import MutationError, UnsupportedOpError

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
"""What a captured tensor may be asked and its fake tensor cannot answer.

Each has an expression, with a place for arguments.
"""

_UNTOLD = (
    Tensor.grad.__get__,  # pyright: ignore
    Tensor.grad_fn.__get__,  # pyright: ignore
    Tensor.untyped_storage,
)
"""The same, where no condition says that the answer is another one."""

_ABOUT_GRADIENTS = (
    Tensor.grad.__get__,  # pyright: ignore
    Tensor.grad_fn.__get__,  # pyright: ignore
    Tensor.is_leaf.__get__,  # pyright: ignore
    Tensor.requires_grad.__get__,  # pyright: ignore
)


class TensorWatch(TorchFunctionMode):
    """Sees each tensor that a mod meets, and what the mod asks of captured ones.

    `captures` are what `fakes` stand for. An operation all of whose tensors are ones
    that the walk did not find runs at once, and is not traced: autograd records it.
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
