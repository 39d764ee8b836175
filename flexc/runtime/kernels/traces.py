"""Traced mods, cached for calls whose mods are equal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.convert_frame import compile_lock
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from flexc.frontend.captured import CapturedMods
from flexc.frontend.closures import ModSignature
from flexc.runtime.inputs.tensor_facts import check_captures
from flexc.runtime.inputs.wrappers import check_captured, is_transformed, plain
from flexc.runtime.kernels.driver import trace
from flexc.runtime.process.recent import Recent

_traced: Recent[CapturedMods] = Recent()


def trace_mods(
    signature: ModSignature, score_dtype: torch.dtype, device: torch.device
) -> tuple[ModSignature, CapturedMods]:
    """Return the traced mods of a signature, from an earlier call or a new trace.

    The returned signature has additional captures: the tensors that only the trace
    found. The signature is not cacheable if the trace read state that no cache key
    covers.
    """
    if signature.cacheable:
        key = (signature.key, score_dtype, device.type)
        mods = _find(key, signature) or _make(key, signature, score_dtype, device)
    else:
        mods = _trace(signature, score_dtype, device)
    if mods.unread is not None:
        check_captured(mods.found)
        check_captures(mods.found, device)
        captures = (*signature.captures, *mods.found)
        signature = replace(signature, captures=captures, cacheable=False)
    return _without_gradients(signature, mods), mods


def _find(key: Any, signature: ModSignature) -> CapturedMods | None:
    return _traced.find(key, lambda mods: mods.guards.hold(signature.captures))


def _make(
    key: Any, signature: ModSignature, score_dtype: torch.dtype, device: torch.device
) -> CapturedMods:
    """Trace mods, unless another thread has traced them: tracing has one lock."""
    with compile_lock:
        mods = _find(key, signature)
        if mods is None:
            mods = _trace(signature, score_dtype, device)
            if mods.unread is None:
                _traced.add(key, mods)
    return mods


def _without_gradients(signature: ModSignature, mods: CapturedMods) -> ModSignature:
    """Detach the captures that no mod reads; these captures have no derivatives."""
    captures = signature.captures
    idle = [
        isinstance(c, Tensor) and c.requires_grad and i not in mods.slots
        for i, c in enumerate(captures)
    ]
    if not any(idle):
        return signature
    pairs = zip(captures, idle, strict=True)
    kept = [c.detach() if i and isinstance(c, Tensor) else c for c, i in pairs]
    return replace(signature, captures=tuple(kept))


def _trace(
    signature: ModSignature, score_dtype: torch.dtype, device: torch.device
) -> CapturedMods:
    """Trace mods; within torch.func's transforms, trace with the wrapped tensors."""
    if not is_transformed():
        return trace(signature, score_dtype, device.type)
    captures = tuple(
        plain(c) if isinstance(c, Tensor) else c for c in signature.captures
    )
    with temporarily_clear_interpreter_stack():
        return trace(replace(signature, captures=captures), score_dtype, device.type)
