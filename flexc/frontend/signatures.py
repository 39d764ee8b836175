"""Arguments and results of mods, and checks of both."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import CoroutineType, GeneratorType
from typing import Any, Literal

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.nn.attention.flex_attention import BlockMask

from flexc.errors import ModSignatureError, SourceLocation
from flexc.frontend.closures import Mod
from flexc.frontend.locations import mod_location

ModKind = Literal["score_mod", "mask_mod"]

MOD_ARGS: dict[ModKind, tuple[str, ...]] = {
    "score_mod": ("score", "b", "h", "q_idx", "kv_idx"),
    "mask_mod": ("b", "h", "q_idx", "kv_idx"),
}

POSITIONS = MOD_ARGS["mask_mod"]

INDICES_BY_RANK = {
    1: [("kv_idx",)],
    2: [("q_idx", "kv_idx"), ("b", "kv_idx"), ("h", "kv_idx")],
    3: [("b", "q_idx", "kv_idx"), ("h", "q_idx", "kv_idx")],
    4: [POSITIONS],
}
"""The meanings of the dimensions of a dense mask or bias, the likeliest first."""


def check_arity(kind: ModKind, mod: Mod | None) -> None:
    """Check that a mod accepts the arguments of its kind."""
    if mod is None:
        return
    check_callable(kind, mod)
    if _is_compiled(mod):
        raise ModSignatureError(
            f"a {kind} expects a plain function, got one of torch.compile; pass the "
            "function itself, which is compiled into the kernel"
        )
    names = ", ".join(MOD_ARGS[kind])
    signature = _signature(mod)
    if signature is None or _takes(signature, kind):
        return
    raise ModSignatureError(
        f"a {kind} is called with ({names}), but this one takes {signature}"
        f"{_other_use(kind, signature)}",
        mod_location(mod),
    )


def check_callable(kind: ModKind, mod: Any, sizes: Sequence[int] | None = None) -> None:
    """Check that a mod is a function or a callable object.

    `sizes` are the call's batch, heads, queries and keys, if known.
    """
    if callable(mod) and not isinstance(mod, type):
        return
    names = ", ".join(MOD_ARGS[kind])
    got = described(mod, sizes)
    raise ModSignatureError(f"{kind} expects a function of ({names}), got {got}")


def _is_compiled(mod: Mod) -> bool:
    """Return True if a function is the result of `torch.compile`.

    Dynamo marks the functions that it wraps, and those that it must not trace.
    """
    wraps = hasattr(mod, "_torchdynamo_orig_callable")
    return wraps and not getattr(mod, "_torchdynamo_disable", False)


def takes(mod: Callable[..., Any], kind: ModKind) -> bool:
    """Return True if a function accepts a mod's arguments, or may do so."""
    signature = _signature(mod)
    return signature is None or _takes(signature, kind)


def _signature(mod: Callable[..., Any]) -> inspect.Signature | None:
    if isinstance(mod, GraphModule):  # Captures follow the mod's arguments.
        return None
    try:
        module = isinstance(mod, torch.nn.Module)
        return inspect.signature(mod.forward if module else mod)
    except (TypeError, ValueError):
        return None


def _takes(signature: inspect.Signature, kind: ModKind) -> bool:
    try:
        signature.bind(*MOD_ARGS[kind])
    except TypeError:
        return False
    return True


def _other_use(kind: ModKind, signature: inspect.Signature) -> str:
    """Return advice for a function that is not a mod of this kind."""
    other: ModKind = "mask_mod" if kind == "score_mod" else "score_mod"
    if _takes(signature, other):
        names = list(signature.parameters)
        if kind == "score_mod" and names[:1] in (["score"], ["s"]):
            return f": {_missing(names)} is missing"
        return f": these are the arguments of a {other}, pass it as {other}="
    if len(signature.parameters) < 3:
        return ": if it makes the mod, pass what it returns"
    return ""


def _missing(names: Sequence[str]) -> str:
    """Return the argument that a score_mod of four lacks, as far as names say it."""
    lacks = [name for name in MOD_ARGS["score_mod"] if name not in names]
    if len(lacks) == 1:
        return lacks[0]
    return "kv_idx" if names[1:3] == ["b", "h"] else "an argument"


def described(value: Any, sizes: Sequence[int] | None = None) -> str:
    """Describe a value given in place of a mod or a BlockMask, with advice."""
    match value:
        case type():
            name = value.__name__
            return f"the class {name}: pass an instance, as in {name}(...)"
        case BlockMask():
            return "a BlockMask: pass it as block_mask="
        case Tensor() if value.is_nested:
            return "a nested tensor"
        case Tensor():
            return f"a tensor of shape {tuple(value.shape)}{_as_mod(value, sizes)}"
        case _ if type(value).__module__ == "numpy":
            return (
                f"{type(value).__name__}: make it a tensor, and pass a function that "
                "indexes that"
            )
        case _:
            return type(value).__name__


def _as_mod(dense: Tensor, sizes: Sequence[int] | None) -> str:
    """Return the source of a mod that reads a dense mask or bias."""
    if dense.dim() not in INDICES_BY_RANK:
        return ""
    known = dict(zip(POSITIONS, sizes, strict=True)) if sizes is not None else {}
    usual, *others = INDICES_BY_RANK[dense.dim()]
    fitting = [c for c in (usual, *others) if _fits(dense, c, known)]
    names = zip(fitting[0] if fitting else usual, dense.shape, strict=True)
    indices = ", ".join("0" if size == 1 else name for name, size in names)
    if dense.is_floating_point():
        args = ", ".join(MOD_ARGS["score_mod"])
        return f": pass score_mod=lambda {args}: score + bias[{indices}]"
    element = f"mask[{indices}]" + " != 0" * (dense.dtype is not torch.bool)
    args = ", ".join(POSITIONS)
    return f": pass mask_mod=lambda {args}: {element}"


def _fits(dense: Tensor, names: Sequence[str], known: dict[str, int]) -> bool:
    sizes = zip(names, dense.shape, strict=True)
    return all(size in (1, known.get(name, size)) for name, size in sizes)


def check_result(kind: ModKind, result: Any, where: SourceLocation | None) -> None:
    """Check that a mod returned one number, or one boolean for a mask."""
    fault = _fault(kind, result)
    if fault is None:
        return
    expected = "a boolean scalar" if kind == "mask_mod" else "a scalar"
    raise ModSignatureError(f"a {kind} returns {expected}, got {fault}", where)


def _fault(kind: ModKind, result: Any) -> str | None:
    """Describe the fault of a result with advice. Return None for a valid result."""
    got = type(result).__name__
    match result:
        case Tensor():
            return _tensor_fault(kind, result)
        case _ if type(result).__module__ == "numpy":
            return f"{got} of NumPy: convert it, as in `bool(x)` or `float(x)`"
        case bool() | torch.SymBool():
            return None
        case int() | float() | torch.SymInt() | torch.SymFloat():
            number = got.removeprefix("Sym").lower()
            return None if kind == "score_mod" else f"{number}: {_CONDITION}"
        case None:
            return "None: is a `return` missing?"
        case tuple() | list():
            return f"{got} of {len(result)}: return one of them"
        case GeneratorType() | CoroutineType():
            result.close()
            return f"{got}: write a plain function, without `yield` and `async`"
        case _ if callable(result):
            return f"{got}: call it with the positions"
        case _:
            return got


_CONDITION = "return a condition, as in `q_idx >= kv_idx`"


def _tensor_fault(kind: ModKind, result: Tensor) -> str | None:
    if result.dim() != 0:
        return f"a tensor of shape {_sizes(result)}: index it"
    if kind == "mask_mod" and result.dtype.is_floating_point:
        return f"{result.dtype}: {_CONDITION}, or pass what adds to scores as score_mod"
    if kind == "mask_mod" and result.dtype is not torch.bool:
        return f"{result.dtype}: compare it, as in `x != 0`"
    return f"{result.dtype}: take its real part" if result.dtype.is_complex else None


def _sizes(tensor: Tensor) -> tuple[Any, ...]:
    """Return the shape, with the hints of symbolic sizes."""
    return tuple(
        n.node.hint if isinstance(n, torch.SymInt) else n for n in tensor.shape
    )
