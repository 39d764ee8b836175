"""`flexc.explain`: find the attention calls of a target and explain each call.

`subject` holds one call and its schedule, and `facts` the facts that are proved about
the call. `blocks` holds the class of each block and the counts of blocks. `gradients`
describes the differentiation of the call. `report` prints an explanation, and `picture`
draws the blocks.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypedDict, Unpack, overload

import torch
from torch import Tensor

import flexc.runtime.interface  # noqa: F401  (torch's attention is sent there)
from flexc.errors import DtypeError, OptionError, did_you_mean
from flexc.frontend.closures import read_mods
from flexc.frontend.signatures import check_callable
from flexc.runtime.attention.call import Attention, Outputs, read_signature
from flexc.runtime.autograd import run_attention
from flexc.runtime.autograd.functions import is_differentiated
from flexc.runtime.explain.report import Explanation, Explanations
from flexc.runtime.inputs.arguments import DTYPES, MAX_HEAD_DIM
from flexc.runtime.inputs.options import (
    BACKENDS,
    NO_CHOICES,
    Choices,
    resolve_backend,
)
from flexc.runtime.inputs.tensor_facts import Placement
from flexc.runtime.inputs.wrappers import check_captured
from flexc.runtime.interception import Results, Scope, activate, current_scope
from flexc.runtime.planner.block_mask import (
    checked_problem,
    default_device,
    read_device,
)

__all__ = ["Explanation", "Explanations", "explain"]

Mod = Callable[..., Any]

SIZES = ("B", "H", "Q_LEN", "KV_LEN")

USAGE = (
    "call explain(mask_mod, B, H, Q_LEN, KV_LEN) for a mask, or explain(fn, *args) "
    "with the arguments of a function that calls flex_attention"
)


class Options(TypedDict, total=False):
    """The options of the explanation of a mask, apart from sizes."""

    score_mod: Mod | None
    device: torch.device | str | None
    dtype: torch.dtype | None
    head_dim: int
    BLOCK_SIZE: int | tuple[int, int] | None


@overload
def explain(
    target: Mod | None,
    /,
    B: int | None = None,
    H: int | None = None,
    *,
    Q_LEN: int,
    KV_LEN: int | None = None,
    **options: Unpack[Options],
) -> Explanation: ...


@overload
def explain(
    target: Mod | None,
    /,
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int | None = None,
    **options: Unpack[Options],
) -> Explanation: ...


@overload
def explain(target: Mod, /, *args: Any, **kwargs: Any) -> Explanations: ...


def explain(
    target: Mod | None, /, *args: Any, **kwargs: Any
) -> Explanation | Explanations:
    """Explain attention: the facts that flexc proves, and the visited blocks.

    `explain(mask_mod, B, H, Q_LEN, KV_LEN)` explains a call with this mask, with
    torch's names for the sizes, and computes no attention.

    `explain(fn, *args, **kwargs)` runs a function or module once, and explains each
    distinct call of `flex_attention`, torch's or flexc's, that the function makes.
    Within `flexc.distributed.context_parallel` it says how ranks share it.

    Args:
        target: `mask_mod(b, h, q_idx, kv_idx)` or None, or a function.
        B: the number of batches, 1 if None.
        H: the number of query heads, 1 if None.
        Q_LEN: the number of queries.
        KV_LEN: the number of keys, by default the number of queries.
        score_mod: `score_mod(score, b, h, q_idx, kv_idx)` of the call.
        device: the device whose kernels are explained. By default the device of
            captured tensors, else the accelerator or the CPU. "cuda" is valid on a
            machine without a GPU.
        dtype: the dtype of query, key and value, by default float32 on a CPU and
            bfloat16 on a GPU.
        head_dim: the head dimension of query, key and value.
        BLOCK_SIZE: the rows and columns of the blocks to count and draw; by default
            the blocks that the kernel skips or visits.

    Returns:
        An `Explanation`, or for a function `Explanations`, a tuple of them. Print
        an explanation, read its attributes, or `save` its picture. If autograd would
        record the call, the explanation describes how gradients are computed.

    Raises:
        FlexcError: one of the classes of `flexc.errors`.
    """
    if is_mask_call(target, args, kwargs):
        names = (*SIZES, *Options.__annotations__)
        for name in kwargs:
            if name not in names:
                raise OptionError(
                    f"explain expects options {', '.join(names)}, got {name!r}"
                    + did_you_mean(name, names)
                )
        return explain_mask(target, *args, **kwargs)
    if not callable(target):
        raise OptionError(f"explain expects a function, got {_kind(target)}; {USAGE}")
    return explain_function(target, args, kwargs)


def is_mask_call(target: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return True if the arguments are sizes, rather than arguments of a function."""
    if target is None or "Q_LEN" in kwargs or "KV_LEN" in kwargs:
        return True
    sizes = all(a is None or isinstance(a, int | float | str) for a in args)
    return len(args) in (3, 4) and sizes and None not in args[2:]


def explain_mask(
    mask_mod: Mod | None,
    B: int | None = None,
    H: int | None = None,
    Q_LEN: int | None = None,
    KV_LEN: int | None = None,
    *,
    score_mod: Mod | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    head_dim: int = 64,
    BLOCK_SIZE: int | tuple[int, int] | None = None,
) -> Explanation:
    """Explain the call that these mods and sizes describe."""
    if mask_mod is not None:
        check_callable("mask_mod", mask_mod)
    Q_LEN = KV_LEN if Q_LEN is None else Q_LEN
    KV_LEN = Q_LEN if KV_LEN is None else KV_LEN
    if Q_LEN is None or KV_LEN is None:
        raise OptionError(f"explain expects Q_LEN and KV_LEN; {USAGE}")
    sizes = (1 if B is None else B, 1 if H is None else H, Q_LEN, KV_LEN)
    problem = checked_problem(sizes, 128 if BLOCK_SIZE is None else BLOCK_SIZE)
    block = None if BLOCK_SIZE is None else (problem.q_block, problem.kv_block)
    place, backend = where(score_mod, mask_mod, device)
    dtype = BACKENDS[backend].usual_dtype if dtype is None else dtype
    check_inputs(dtype, head_dim, BACKENDS[backend].device)
    call = Attention(
        *stand_ins(sizes, (head_dim, head_dim), dtype, place),
        scale=1 / math.sqrt(head_dim),
        tables=None,
        signature=read_signature(score_mod, mask_mod, place),
        outputs=Outputs(),
        backend=backend,
        choices=NO_CHOICES,
    ).with_traced()
    return Explanation.of(call, block, differentiated=is_differentiated(call))


def check_inputs(dtype: object, head_dim: object, device: str) -> None:
    """Check the dtype and the head dimension of calls on a type of device."""
    if dtype not in (known := DTYPES.get(device, DTYPES["cpu"])):
        names = ", ".join(str(d).removeprefix("torch.") for d in known)
        raise DtypeError(f"dtype expects one of {names} on {device}, got {dtype}")
    if type(head_dim) is not int or not 1 <= head_dim <= MAX_HEAD_DIM:
        raise OptionError(f"head_dim expects 1 to {MAX_HEAD_DIM}, got {head_dim!r}")


def where(
    score_mod: Mod | None, mask_mod: Mod | None, device: torch.device | str | None
) -> tuple[torch.device, str]:
    """Return the device of stand-ins for query and key, and the backend to explain."""
    captured = read_mods(score_mod, mask_mod).captures
    check_captured(captured)
    tensors = [c for c in captured if isinstance(c, Tensor)]
    if device is None and tensors:
        device = tensors[0].device
    elif device is None or not is_absent(read_device(device)):
        device = default_device(device)
    device = read_device(device)
    if is_absent(device):
        return torch.device("cpu"), "triton"
    return device, resolve_backend("auto", device)


def is_absent(device: torch.device) -> bool:
    """Return True if `device` is a GPU and the machine has none.

    The kernels of an absent GPU are explained nevertheless.
    """
    return device.type == "cuda" and not torch.cuda.is_available()


def stand_ins(
    sizes: tuple[int, int, int, int],
    dims: tuple[int, int],
    dtype: torch.dtype,
    device: torch.device,
    kv_heads: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a query, key and value of these shapes, each expanded from one row.

    `dims` are the head dimensions of the key and of the value.
    """
    batch, heads, q_len, kv_len = sizes
    kv_heads = kv_heads or heads
    row = [torch.zeros((1, 1, 1, dim), dtype=dtype, device=device) for dim in dims]
    return (
        row[0].expand(batch, heads, q_len, -1),
        row[0].expand(batch, kv_heads, kv_len, -1),
        row[1].expand(batch, kv_heads, kv_len, -1),
    )


def explain_function(
    fn: Mod, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Explanations:
    """Run a function, and explain the attention calls that the function makes."""
    check_arguments(fn, args, kwargs)
    recorder = CallRecorder(current_scope())
    with activate(Scope(Choices(), recorder.run, watches=True)):
        fn(*args, **kwargs)
    if not recorder.seen:
        raise OptionError(f"{_name(fn)} called no flex_attention; {USAGE}")
    return Explanations(
        replace(
            Explanation.of(seen.call, None, seen.times, seen.differentiated),
            ranks=seen.ranks,
        )
        for seen in recorder.seen.values()
    )


@dataclass
class CallGroup:
    """A group of attention calls with equal explanations."""

    call: Attention
    differentiated: bool
    """True if autograd records the calls."""
    ranks: str = ""
    times: int = 0


class CallRecorder:
    """A recorder that runs attention and keeps one call for each key."""

    def __init__(self, outer: Scope | None) -> None:
        shares = outer is not None and outer.ranks is not None
        self.outer = outer if shares else None
        self.seen: dict[Any, CallGroup] = {}

    def run(self, call: Attention) -> Results:
        call.check_memory()
        call = call.with_traced()
        if call.query.numel() and call.key.size(2):
            differentiated = is_differentiated(call)
            key = (differentiated, call.deterministic, *key_of(call))
            if key not in self.seen:
                self.seen[key] = CallGroup(
                    light(call), differentiated, self.ranks(call)
                )
            self.seen[key].times += 1
        run = None if self.outer is None else self.outer.run
        return (run or run_attention)(call)

    def ranks(self, call: Attention) -> str:
        """Return how ranks share a call, empty if they do not."""
        say = None if self.outer is None else self.outer.ranks
        return "" if say is None else say(call)


def check_arguments(fn: Mod, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    called = fn.forward if isinstance(fn, torch.nn.Module) else fn
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):
        return  # Some C functions have no signature; calling them reports errors.
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise OptionError(f"{_name(fn)} cannot be called: {error}; {USAGE}") from error


def key_of(call: Attention) -> tuple[Any, ...]:
    """Return a key that is equal for calls with equal explanations."""
    captures = tuple(
        id(c) if isinstance(c, Tensor) else c for c in call.signature.captures
    )
    tables = () if call.tables is None else call.tables.tensors
    mods = call.signature.key if call.signature.cacheable else id(call.signature)
    shapes = (call.query.shape, call.key.shape, call.value.shape)
    listed = tuple((t.data_ptr(), t.shape) for t in tables)
    placement = Placement.of(*call.operands)
    pages = call.pages and call.pages.size
    choices = (pages, call.backend, call.choices.tiles, call.choices.ignored)
    return mods, captures, shapes, placement, listed, call.query.dtype, *choices


def light(call: Attention) -> Attention:
    """Return the call without the memory of its query, key and value."""
    (b, h, q_len, e), (_, kv_heads, kv_len, _) = call.query.shape, call.key.shape
    dims, query = (e, call.value.size(3)), call.query
    tensors = stand_ins(
        (b, h, q_len, kv_len), dims, query.dtype, query.device, kv_heads
    )
    placement = Placement.of(*call.operands)
    query, key, value = tensors
    return replace(call, query=query, key=key, value=value, placement=placement)


def _kind(value: object) -> str:
    return type(value).__name__


def _name(fn: object) -> str:
    return getattr(fn, "__name__", type(fn).__name__)
