"""Gradients where softmax is at its ends: rows that see nothing, rows of what people
mask with in place of -inf, and scores so large that one key has all the weight."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import flexc
from tests.support.dense_gradients import attention
from tests.support.filled_memory import poisoned
from tests.support.pairwise import in_turn

LOWEST = torch.finfo(torch.float32).min
SHAPE = (1, 2, 70, 8)


def tensors(dtype: torch.dtype = torch.float32, size: float = 1.0) -> list[Tensor]:
    drawn = torch.randn(3, *SHAPE, dtype=torch.float64) * size
    return [t.to(dtype).requires_grad_() for t in drawn]


def attend(*inputs: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """Out and lse by flexc."""
    result: Any = flexc.flex_attention(*inputs, return_lse=True, **kwargs)
    return result


def check(
    inputs: list[Tensor],
    mods: Any,
    captured: tuple[Tensor, ...] = (),
    *,
    exact: torch.dtype = torch.float64,
    tol: float = 1e-4,
    scale: float | None = None,
    mask_mod: Any = None,
) -> list[Tensor]:
    """Gradients through out and lse; those of dense attention.

    `exact` is the type that dense attention is computed in: where rounding decides,
    the input's own.
    """
    leaves = [*inputs, *captured]
    wide = [t.detach().to(exact).requires_grad_() for t in leaves]
    with poisoned():
        out, lse = attend(*inputs, mods(*captured), mask_mod=mask_mod, scale=scale)
        d_out, d_lse = torch.randn_like(out), torch.randn_like(lse)
        found = torch.autograd.grad((out, lse), leaves, (d_out, d_lse))
    query, key, value, *rest = wide
    dense = attention(query, key, value, mods(*rest), mask_mod, scale=scale)
    d_lse = torch.where(dense.lse.isinf(), 0.0, d_lse)
    expected = torch.autograd.grad(dense, wide, (d_out.to(exact), d_lse.to(exact)))
    for got, want in zip(found, expected, strict=True):
        size = max(1.0, float(want.abs().max()))
        torch.testing.assert_close(got.to(exact), want, rtol=tol, atol=tol * size)
    return list(found)


# Rows that see nothing.


def empty_by_mask(bias: Tensor) -> Any:
    return lambda s, b, h, q, k: s * bias[q]


def some_rows(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (q % 5 != 0) & (k <= q)


def empty_by_score(bias: Tensor) -> Any:
    return lambda s, b, h, q, k: torch.where(
        (q % 5 != 0) & (k <= q), s * bias[q], -torch.inf
    )


def empty_by_bias(bias: Tensor) -> Any:
    hidden = torch.where(torch.arange(SHAPE[2]) % 5 == 0, -torch.inf, 0.0)

    def score_mod(s, b, h, q, k):
        return s + (bias[q] + hidden[q])

    return score_mod


@pytest.mark.parametrize(
    ("given", "dtype"),
    in_turn(
        [(empty_by_mask, some_rows), (empty_by_score, None), (empty_by_bias, None)],
        [torch.float32, torch.float64, torch.bfloat16],
    ),
)
def test_rows_that_see_nothing(given: tuple[Any, Any], dtype: torch.dtype) -> None:
    """They have no gradient, and give none to what they would have read."""
    mods, mask_mod = given
    bias = torch.randn(SHAPE[2]).requires_grad_()
    tol = 3e-2 if dtype is torch.bfloat16 else 1e-4
    d_query, _, _, d_bias = check(
        tensors(dtype), mods, (bias,), mask_mod=mask_mod, tol=tol
    )
    assert not d_query[:, :, ::5].any()
    assert not d_bias[::5].any()


@pytest.mark.parametrize("kept", [0, 1])
def test_a_mask_of_nothing(kept: int) -> None:
    inputs = tensors()
    found = check(
        inputs, lambda: None, mask_mod=lambda b, h, q, k: (k < kept) & (q == 3)
    )
    assert all(f.any() == bool(kept) for f in found[2:])


def test_cotangents_of_infinite_lse() -> None:
    """-inf has no gradient, whatever a loss makes of it."""
    inputs = tensors()
    out, lse = attend(*inputs, mask_mod=some_rows)
    losses = (
        (out * torch.sigmoid(lse)[..., None]).sum(),
        torch.where(lse.isinf(), 0.0, torch.exp(lse * lse / 16)).sum(),
    )
    for loss in losses:
        found = torch.autograd.grad(loss, inputs, retain_graph=True)
        assert all(f.isfinite().all() for f in found)
    (d_lse,) = torch.autograd.grad(losses[1], lse)
    assert d_lse.isnan().any()


# Numbers in place of -inf.


@pytest.mark.parametrize(
    ("low", "dtype"),
    in_turn(
        [-1e4, -1e9, -1e10, -1e30, LOWEST],
        [torch.float32, torch.float64, torch.float16],
    ),
)
def test_low_scores(dtype: torch.dtype, low: float) -> None:
    """Rows of nothing else weigh all keys alike, and have no gradient by scores."""

    def mods(gate: Tensor) -> Any:
        return lambda s, b, h, q, k: torch.where(
            (k <= q - 3) & (k > q - 50), s * gate[k], low
        )

    gate = torch.rand(SHAPE[2]).requires_grad_()
    tol = 3e-3 if dtype is torch.float16 else 1e-4
    d_query, *_ = check(tensors(dtype), mods, (gate,), tol=tol)
    assert not d_query[:, :, :3].any()


@pytest.mark.parametrize("low", [-1e4, -1e9, -1e30])
def test_low_numbers_that_are_added(low: float) -> None:
    """Scores are rounded to such a number: so they are in dense attention."""

    def mods(bias: Tensor) -> Any:
        return lambda s, b, h, q, k: s + torch.where(q >= k, bias[q - k], low)

    bias = torch.randn(SHAPE[2]).requires_grad_()
    check(tensors(), mods, (bias,))
    # A row of nothing else.
    check(tensors(), mods, (bias,), mask_mod=without_first, exact=torch.float32)


def without_first(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (q > 0) | (k > 0)


# Large scores.


@pytest.mark.parametrize("high", [1e4, 2.0**31, 1e30])
def test_high_scores(high: float) -> None:
    def mods(bias: Tensor) -> Any:
        return lambda s, b, h, q, k: torch.where((q + k) % 3 == 0, high, s + bias[k])

    bias = torch.randn(SHAPE[2]).requires_grad_()
    check(tensors(), mods, (bias,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [8.0, 100.0])
def test_large_inputs(dtype: torch.dtype, size: float) -> None:
    """Weights are as exact as scores of such a size are, if these are products."""
    inputs = tensors(dtype, size)
    query, key, _ = (t.detach().float() for t in inputs)
    unit = torch.finfo(torch.float32).eps
    tol = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 2e-2}[dtype]
    tol += 8 * unit * 0.25 * float((query @ key.mT).abs().max())
    check(inputs, lambda: None, scale=0.25, tol=tol)


@pytest.mark.parametrize("scale", [1e10, -1e10, 1e19, 1e30])
def test_huge_scales(scale: float) -> None:
    inputs = [t.detach().mul(2).round().requires_grad_() for t in tensors()]
    out, lse = attend(*inputs, scale=scale)
    found = torch.autograd.grad(out.sum() + lse.sum() / scale, inputs)
    assert all(f.isfinite().all() for f in found)


# A sink: a score of its own for each head, that no key has.


def test_sinks() -> None:
    """Through lse, also of rows that see nothing else."""
    query, key, value = inputs = tensors(torch.float64)
    sink = torch.randn(SHAPE[1], dtype=torch.float64, requires_grad=True)

    def with_sink(out: Tensor, lse: Tensor) -> Tensor:
        return out * torch.sigmoid(lse - sink[:, None])[..., None]

    result = attend(query, key, value, mask_mod=some_rows)
    dense = attention(query, key, value, None, some_rows)
    d_out = torch.randn_like(query)
    found, expected = (
        torch.autograd.grad(with_sink(*r), (*inputs, sink), d_out)
        for r in (result, dense)
    )
    torch.testing.assert_close(found, expected)
