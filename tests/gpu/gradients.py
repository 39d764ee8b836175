"""Derivatives of a call, by flexc and by dense attention in two precisions.

An error may be twice that of torch's unfused code with products of the call's own
precision, and what rounding takes besides. Nothing here needs a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
import torch.autograd.forward_ad as fw
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

import flexc
from tests.support.corpus import (
    CORPUS,
    Device,
    Mods,
)
from tests.support.dense_gradients import attention
from tests.support.filled_memory import poisoned
from tests.support.leaves import Learned

MakeMods = Callable[..., Mods]
"""Mods of what they capture."""

Results = tuple[Tensor, Tensor]
Run = Callable[..., Results]


class Sizes(NamedTuple):
    """The sizes of one call."""

    batch: int = 2
    heads: int = 4
    kv_heads: int = 2
    q_len: int = 200
    kv_len: int = 333
    head_dim: int = 64
    value_dim: int = 64


@dataclass(frozen=True)
class Call:
    """Query, key, value and what mods capture; all of it is differentiated."""

    tensors: Sequence[Tensor]
    mods: MakeMods = lambda *captured: (None, None)
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    """More arguments for flexc; a block mask takes the place of the mask."""
    names: Sequence[str] = ("query", "key", "value")

    def leaves(self, dtype: torch.dtype | None = None) -> list[Tensor]:
        """The tensors as leaves, in the same memory unless they are cast."""
        return [
            t.detach().to(t.dtype if dtype is None else dtype).requires_grad_()
            for t in self.tensors
        ]

    def by_flexc(self, query: Any, key: Any, value: Any, *captured: Tensor) -> Results:
        score_mod, mask_mod = self.mods(*captured)
        given: dict[str, Any] = {"enable_gqa": True, "return_lse": True}
        if "block_mask" not in self.options:
            given["mask_mod"] = mask_mod
        result: Any = flexc.flex_attention(
            query, key, value, score_mod, **given | self.options
        )
        return result

    def densely(self, query: Any, key: Any, value: Any, *captured: Tensor) -> Results:
        found = attention(query, key, value, *self.mods(*captured))
        return found.out, found.lse

    def cotangents(self) -> Results:
        query, _, value, *_ = self.tensors
        d_out = torch.randn(*query.shape[:3], value.shape[3], device=query.device)
        return d_out.to(query.dtype), torch.randn(query.shape[:3], device=query.device)

    def name(self, number: int) -> str:
        named = number < len(self.names)
        return self.names[number] if named else f"capture {number - len(self.names)}"


def qkv_of(s: Sizes, dtype: torch.dtype, device: Device) -> list[Tensor]:
    shapes = (
        (s.batch, s.heads, s.q_len, s.head_dim),
        (s.batch, s.kv_heads, s.kv_len, s.head_dim),
        (s.batch, s.kv_heads, s.kv_len, s.value_dim),
    )
    return [torch.randn(shape, device=device).to(dtype) for shape in shapes]


def corpus_call(
    case: str, s: Sizes, dtype: torch.dtype, device: Device, tables: str = ""
) -> Call:
    """A case of the corpus, by a BlockMask of torch's or of flexc's if it is named."""

    def problem(*given: Tensor) -> tuple[Mods, list[Tensor]]:
        made = Learned(*s[:5], device, given=given)
        return CORPUS[case].build(made), made.tensors

    (_, mask_mod), captured = problem()
    call = Call(
        [*qkv_of(s, dtype, device), *captured], lambda *given: problem(*given)[0]
    )
    if not tables:
        return call
    assert mask_mod is not None
    make: Any = create_block_mask if tables == "torch" else flexc.create_block_mask
    block_mask = make(mask_mod, s.batch, s.heads, s.q_len, s.kv_len, device)
    return replace(call, options={"block_mask": block_mask})


# Derivatives


def gradients(run: Run, leaves: Sequence[Tensor], cotangents: Results) -> list[Tensor]:
    """Through out and lse."""
    out, lse = run(*leaves)
    along = (cotangents[0].to(out.dtype), cotangents[1].to(lse.dtype))
    found = torch.autograd.grad(
        (out, lse), leaves, along, allow_unused=True, materialize_grads=True
    )
    return list(found)


def jvp(run: Run, leaves: Sequence[Tensor], tangents: Sequence[Tensor]) -> list[Tensor]:
    """Tangents of out and lse."""
    with fw.dual_level(), torch.no_grad():
        duals = [
            fw.make_dual(leaf.detach(), t.to(leaf.dtype))
            for leaf, t in zip(leaves, tangents, strict=True)
        ]
        out, lse = (fw.unpack_dual(r).tangent for r in run(*duals))
    assert out is not None
    assert lse is not None
    return [out, lse]


def second(
    run: Run,
    leaves: Sequence[Tensor],
    cotangents: Results,
    tangents: Sequence[Tensor],
) -> list[Tensor]:
    """Derivatives of the gradients' product with tangents: by the cotangents and by
    all tensors."""
    out, lse = run(*leaves)
    along = [
        c.to(r.dtype).detach().requires_grad_()
        for c, r in zip(cotangents, (out, lse), strict=True)
    ]
    first = torch.autograd.grad((out, lse), leaves, along, create_graph=True)
    total = torch.stack(
        [(g.to(t.dtype) * t).sum() for g, t in zip(first, tangents, strict=True)]
    ).sum()
    return list(torch.autograd.grad(total, [*along, *leaves]))


# Comparisons


@contextmanager
def memory(poison: bool) -> Iterator[None]:
    """Memory that shows what was not written; gradients are then deterministic."""
    if not poison:
        yield
        return
    with poisoned():
        yield


def check_gradients(call: Call, *, poison: bool = True) -> list[Tensor]:
    cotangents = call.cotangents()
    with memory(poison):
        got = gradients(call.by_flexc, call.leaves(), cotangents)
    exact = gradients(call.densely, call.leaves(torch.float64), cotangents)
    rough = gradients(call.densely, call.leaves(), cotangents)
    for i, values in enumerate(zip(got, exact, rough, strict=True)):
        close(call.name(i), *values, dtype=call.tensors[0].dtype)
    return got


def check_jvp(call: Call) -> None:
    tangents = [torch.randn_like(t) for t in call.tensors]
    with poisoned():
        got = jvp(call.by_flexc, call.leaves(), tangents)
    exact = jvp(call.densely, call.leaves(torch.float64), tangents)
    rough = jvp(call.densely, call.leaves(), tangents)
    for name, *values in zip(("out", "lse"), got, exact, rough, strict=True):
        close(name, *values, dtype=call.tensors[0].dtype)


def check_second(call: Call) -> None:
    cotangents = call.cotangents()
    tangents = [torch.randn(t.shape, device=t.device) for t in call.tensors]
    with poisoned():
        got = second(call.by_flexc, call.leaves(), cotangents, tangents)
    exact = second(call.densely, call.leaves(torch.float64), cotangents, tangents)
    rough = second(call.densely, call.leaves(), cotangents, tangents)
    names = ["d_out", "d_lse", *(call.name(i) for i in range(len(call.tensors)))]
    for name, *values in zip(names, got, exact, rough, strict=True):
        close(f"second: {name}", *values, dtype=call.tensors[0].dtype)


TIMES = {torch.float32: 4}
"""Of torch's error, other than twice. In single precision a tangent shows that it is
summed before it is centred, in one pass over the keys."""


def close(
    name: str, got: Tensor, exact: Tensor, rough: Tensor, *, dtype: torch.dtype
) -> None:
    """Hold a result to a multiple of the error of one of products in `dtype`."""
    assert got.shape == exact.shape, f"{name}: {tuple(got.shape)}"
    assert got.isfinite().all(), f"{name} is not finite"
    for measure, what in ((largest, "at most"), (length, "in all")):
        error = measure(got.double() - exact)
        allowed = TIMES.get(dtype, 2) * measure(rough.double() - exact)
        allowed += torch.finfo(dtype).eps * measure(exact)
        assert error <= allowed, (
            f"{name}: wrong by {error:.3g} {what}, of {allowed:.3g}"
        )


def largest(values: Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0


def length(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(values))
