"""Score mods that say themselves what their gradient is: only forward, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import flexc
from flexc.errors import GradientError, UnsupportedOpError
from tests.support.dense_gradients import attention


class Rounded(torch.autograd.Function):
    """Rounds, and passes gradients straight through."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.round(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0]


SLOPES = torch.randn(2)


def rounded(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Any:
    return Rounded.apply(s * SLOPES[h])


def plainly(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return torch.round(s * SLOPES[h])


def attend(x: Tensor, mod: Callable[..., Any] = rounded) -> Any:
    return flexc.flex_attention(x, x, x, mod)


def given() -> Tensor:
    return torch.randn(1, 2, 12, 16)


def gradient(x: Tensor) -> object:
    return attend(x.requires_grad_())


def gradient_of_a_capture(x: Tensor) -> object:
    learned = torch.ones(2, requires_grad=True)
    mod = lambda s, b, h, q, k: Rounded.apply(s) * learned[h]  # noqa: E731
    return attend(x, mod)


def gradient_of_a_transform(x: Tensor) -> object:
    return torch.func.grad(lambda x: attend(x).sum())(x)


def tangent(x: Tensor) -> object:
    return torch.func.jvp(attend, (x,), (x,))


def compiled(x: Tensor) -> object:
    return flexc.compile(attend)(x.requires_grad_())


ASKED = (gradient, gradient_of_a_capture, gradient_of_a_transform, tangent, compiled)


@pytest.mark.parametrize("ask", ASKED, ids=lambda ask: ask.__name__)
def test_derivatives_are_refused(ask: Callable[[Tensor], object]) -> None:
    for _ in range(2):  # The second call finds what the first one traced.
        with pytest.raises(GradientError, match=r"torch\.autograd\.Function") as raised:
            ask(given())
        assert raised.value.location is not None
        assert raised.value.location.filename == __file__


def test_the_forward_is_right() -> None:
    """Where no gradient is recorded, under a transform that asks for none too."""
    torch.manual_seed(0)  # No score is halfway between two integers.
    x = given()
    expected = attend(x, plainly)
    torch.testing.assert_close(attend(x), expected)
    with torch.no_grad():
        torch.testing.assert_close(attend(x.requires_grad_()), expected)
        torch.testing.assert_close(torch.vmap(attend)(x[None])[0], expected)


@pytest.mark.parametrize("kwargs", [{}, {"padding_idx": 3}, {"sparse": True}], ids=str)
def test_embeddings_have_the_gradients_of_torch(kwargs: dict[str, Any]) -> None:
    embedding = torch.nn.Embedding(8, 2, **kwargs)
    torch.nn.init.normal_(embedding.weight)

    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s + embedding((q - k).abs().clamp(max=7))[h]

    query = torch.randn(1, 2, 16, 8)
    gradients = []
    ours: Any = flexc.flex_attention(query, query, query, mod)
    theirs = attention(query, query, query, mod, None).out
    for out in (ours, theirs):
        (gradient,) = torch.autograd.grad(out.square().sum(), embedding.weight)
        gradients.append(gradient.to_dense())
    assert_close(*gradients, check_dtype=False)


def test_embeddings_that_count_indices_are_refused() -> None:
    embedding = torch.nn.Embedding(8, 2, scale_grad_by_freq=True)
    query = torch.randn(1, 2, 16, 8)
    with pytest.raises(UnsupportedOpError, match=r"as in emb.weight\[index\]"):
        flexc.flex_attention(
            query, query, query, lambda s, b, h, q, k: s + embedding(k % 8)[h]
        )
