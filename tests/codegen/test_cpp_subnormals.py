"""Numbers below the least normal one: kernels make none, on any thread, and leave the
threads as they were. What they read stays what it is."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import flexc
from tests.support.threads import torch_threads

LEAST = torch.finfo(torch.float32).tiny

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="a bit that x86 has"
)


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    with torch_threads(2):
        yield


def tensors(rows: int = 512) -> list[Tensor]:
    return list(torch.randn(3, 1, 4, rows, 16))


def subnormal(x: Tensor) -> Tensor:
    """Where numbers are, by their bits: comparisons may take them for 0."""
    bits = x.detach().contiguous().view(torch.int32) & 0x7FFFFFFF
    return (bits > 0) & (bits < 0x00800000)


def keeps_subnormals() -> bool:
    """Whether torch makes them, in all parts of an operation on all threads."""
    return bool(subnormal(torch.full((1 << 20,), LEAST) * 0.5).all())


def attend(*inputs: Any, **kwargs: Any) -> Tensor:
    out: Any = flexc.flex_attention(*inputs, **kwargs)
    return out


def steep(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return score - 0.5 * (q - k).abs()


def test_results_that_are_too_small_are_zero() -> None:
    query, key, value = tensors()
    out = attend(query * 0, key, value.sign() * LEAST)
    assert not subnormal(out).any()
    assert (out == 0).float().mean() > 0.9


def test_gradients_that_are_too_small_are_zero() -> None:
    inputs = [t.requires_grad_() for t in tensors()]
    out = attend(*inputs, steep)
    found = torch.autograd.grad(out, inputs, torch.randn_like(out) * LEAST)
    assert not any(subnormal(t).any() for t in found)


def test_threads_are_left_as_they_were() -> None:
    inputs = [t.requires_grad_() for t in tensors()]
    assert keeps_subnormals()
    out = attend(*inputs, steep)
    assert keeps_subnormals()
    torch.autograd.grad(out.sum(), inputs)
    assert keeps_subnormals()
    attend(*(t[:, :1, :1] for t in inputs))  # On the caller's thread alone.
    assert keeps_subnormals()


def test_a_thread_that_flushes_goes_on_to() -> None:
    torch.set_flush_denormal(True)
    try:
        attend(*tensors())
        number = torch.full((1,), LEAST) * 0.5
        assert number.view(torch.int32).item() == 0
    finally:
        torch.set_flush_denormal(False)


def test_numbers_that_are_read_stay() -> None:
    """A mod compares with them as torch does."""
    query, key, value = tensors()
    small = torch.where(torch.arange(512) % 3 == 0, LEAST / 4, 0.0)

    def positive(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (small[k] > 0) | (k == 1)

    def chosen(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return torch.where((small[k] > 0) | (k == 1), s, -torch.inf)

    kept = (torch.arange(512) % 3 == 0) | (torch.arange(512) == 1)
    exact = torch.nn.functional.scaled_dot_product_attention(
        query, key[:, :, kept], value[:, :, kept]
    )
    for found in (
        attend(query, key, value, mask_mod=positive),
        attend(query, key, value, chosen),
    ):
        torch.testing.assert_close(found, exact)
