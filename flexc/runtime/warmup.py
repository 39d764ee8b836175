"""`flexc.warmup`: compile kernels before the calls that need them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from flexc.errors import DtypeError, GradientError, OptionError, ShapeError
from flexc.runtime.kernels.driver import counters
from flexc.runtime.planner.block_mask import check_gpu, read_device

USAGE = (
    "as in flexc.warmup(flexc.flex_attention, (1, 8, 1024, 64), (1, 8, 1024, 64), "
    "(1, 8, 1024, 64), mask_mod=causal)"
)


@dataclass(frozen=True)
class WarmupReport:
    """The work of a warmup.

    All counts are 0 if this process had compiled or loaded everything already.
    """

    traced: int
    """The number of calls whose `score_mod` and `mask_mod` were traced."""
    lowered: int
    """The number of kernels that were lowered."""
    loaded: int
    """The number of kernels whose source was found on the disk."""
    built: int
    """The number of kernels that were compiled, or loaded as binaries from the disk."""
    seconds: float


def warmup(
    function: Callable[..., Any],
    /,
    *args: Any,
    backward: bool = False,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    **kwargs: Any,
) -> WarmupReport:
    """Call a function once, on tensors of zeros, so that its kernels are compiled.

    The kernels are also stored on the disk, for other processes. On a CPU, a kernel
    serves all lengths, but up to 16 queries have their own, and up to 32 may. On a GPU
    there is one kernel for lengths that are multiples of 128, and one for other
    lengths. On a Hopper GPU, calls with few rows in total have kernels of their own,
    with fewer rows in a program.

        flexc.warmup(flexc.flex_attention, *[(4, 8, 4096, 64)] * 3, mask_mod=causal,
                     dtype=torch.bfloat16, device="cuda", backward=True)

    Args:
        function: `flexc.flex_attention`, or a function or module that calls it, such as
            a result of `flexc.compile` or `torch.compile`.
        args: its arguments. A tuple of integers is the shape of a tensor. All other
            arguments, tensors included, are passed unchanged.
        backward: also compile the gradients of float tensors given by their shape, and
            of other tensors that require them. No `.grad` changes.
        dtype: the dtype of tensors that are given by their shape, by default torch's
            default dtype.
        device: the device of these tensors, by default torch's default device.
        kwargs: passed unchanged, such as `score_mod` and `mask_mod`.

    Raises:
        FlexcError: an error of the call, or of an invalid shape.
    """
    if not callable(function):
        raise OptionError(
            f"warmup expects a function, got {type(function).__name__}; pass one that "
            f"calls flex_attention, followed by the shapes of its arguments, {USAGE}"
        )
    if device is not None:
        check_gpu(read_device(device))
    given = [_given(a, dtype, device, backward) for a in args]
    before, start = counters.copy(), time.perf_counter()
    with torch.set_grad_enabled(backward):
        results = function(*given, **kwargs)
    if backward:
        _differentiate(results)
    names = ("traced", "lowered", "loaded", "built")
    done = {name: counters[name] - before[name] for name in names}
    return WarmupReport(**done, seconds=time.perf_counter() - start)


def _given(
    argument: Any,
    dtype: torch.dtype | None,
    device: torch.device | str | None,
    backward: bool,
) -> Any:
    """Return an argument, or zeros for a shape."""
    if not isinstance(argument, tuple) or not all(type(n) is int for n in argument):
        return argument
    if min(argument, default=0) < 0:
        raise ShapeError(f"warmup expects sizes of 0 or more, got {argument}")
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if not isinstance(dtype, torch.dtype):
        raise DtypeError(f"warmup expects a torch.dtype, got {dtype!r}")
    wants = backward and dtype.is_floating_point
    return torch.zeros(argument, dtype=dtype, device=device, requires_grad=wants)


def _differentiate(results: Any) -> None:
    """Compute the gradients of results, and discard them."""
    recorded = [
        r for r in tree_leaves(results) if isinstance(r, Tensor) and r.requires_grad
    ]
    if not recorded:
        raise GradientError(
            "warmup with backward=True expects a result that requires a gradient, got "
            "none; leave out backward=True, or pass tensors that require gradients, "
            f"{USAGE}"
        )
    leaves = list(dict.fromkeys(_leaves(recorded)))
    along = [torch.zeros_like(r) for r in recorded]
    torch.autograd.grad(recorded, leaves, along, allow_unused=True)


def _leaves(results: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield the leaf tensors of the graph of results."""
    nodes = [r.grad_fn for r in results]
    seen = set(nodes)
    yield from (r for r in results if r.grad_fn is None)
    while nodes:
        node = nodes.pop()
        if node is None:
            continue
        if (leaf := getattr(node, "variable", None)) is not None:
            yield leaf
        for further, _ in node.next_functions:
            if further not in seen:
                seen.add(further)
                nodes.append(further)
