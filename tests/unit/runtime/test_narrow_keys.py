"""Keys and values of 8 bits: what is refused, and with which advice."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention as torch_attention

import flexc
from flexc.errors import DtypeError, FlexcError, GradientError, OptionError, ShapeError

SCALE = torch.ones(2, 2)


def attend(query: Tensor | None = None, **options: Any) -> Tensor:
    """A call of two batches, four heads over two, five queries and twelve keys."""
    query = torch.randn(2, 4, 5, 8) if query is None else query
    key = options.pop("key", torch.ones(2, 2, 12, 8, dtype=torch.int8))
    value = options.pop("value", key)
    found: Any = flexc.flex_attention(query, key, value, enable_gqa=True, **options)
    return found


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"key": torch.ones(2, 2, 12, 8, dtype=torch.uint8)}, DtypeError, "one dtype"),
        ({"key_scale": SCALE.half()}, DtypeError, "key_scale expects float32"),
        ({"value_scale": SCALE.double()}, DtypeError, "value_scale expects float32"),
        ({"key_scale": 2.0}, ShapeError, "key_scale expects a tensor"),
        ({"key_scale": torch.ones(3)}, ShapeError, r"\(2 or 1, 2 or 1\)"),
        ({"key_scale": torch.ones(2, 4)}, ShapeError, r"got \(2, 4\)"),
        ({"key_scale": torch.ones(2, 2, 5)}, ShapeError, "divides the 12 keys"),
        ({"key_scale": torch.ones(2, 2, 0)}, ShapeError, "divides the 12 keys"),
        ({"value_scale": torch.ones(2, 2, 12, 1)}, ShapeError, r"\(2, 2, 12, 1\)"),
        ({"query": torch.randn(2, 4, 5, 8, requires_grad=True)}, OptionError, "grad"),
        ({"key_scale": SCALE.clone().requires_grad_()}, OptionError, "no gradients"),
        ({"query": torch.ones(2, 4, 5, 8, dtype=torch.int8)}, DtypeError, "int8"),
    ],
)
def test_refused(options: Any, error: type[FlexcError], said: str) -> None:
    with pytest.raises(error, match=said):
        attend(**options)


@pytest.mark.parametrize("narrow", [torch.int8, torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_queries_of_16_bits(dtype: torch.dtype, narrow: torch.dtype) -> None:
    """Blocks of widened keys are kept, as those of the query's dtype are."""
    query = torch.randn(1, 4, 128, 64).to(dtype)
    key, value = (torch.randn(1, 2, 200, 64).mul(4).to(narrow) for _ in range(2))
    found = attend(query, key=key, value=value, scale=0.02)
    expected = attend(query.float(), key=key.float(), value=value.float(), scale=0.02)
    # Weights are rounded to 8 bits or more, and values reach 16.
    torch.testing.assert_close(found.float(), expected, atol=16 * 2**-8, rtol=2**-7)


@pytest.mark.parametrize(
    "shape", [(), (1,), (2,), (1, 2), (2, 1), (2, 2), (1, 2, 1), (2, 1, 4), (2, 2, 12)]
)
def test_scales_are_broadcast(shape: tuple[int, ...]) -> None:
    query, scale = torch.randn(2, 4, 5, 8), torch.rand(shape) + 0.5
    key = torch.randint(-9, 10, (2, 2, 12, 8), dtype=torch.int8)
    each = scale
    if scale.dim() == 3:
        each = scale.repeat_interleave(12 // scale.size(2), 2)
    factor = each[..., None] if scale.dim() == 3 else each[..., None, None]
    expected = attend(query, key=key * factor)
    found = attend(query, key=key, key_scale=scale, value_scale=scale)
    torch.testing.assert_close(found, expected)


def test_one_kernel_serves_all_scales_of_a_rank() -> None:
    attend(key_scale=SCALE)
    before = flexc.runtime.kernels.driver.counters.copy()
    attend(key_scale=SCALE * 3)
    attend(key_scale=torch.ones(()))
    assert flexc.runtime.kernels.driver.counters == before


def test_autocast_leaves_them_alone() -> None:
    key = torch.ones(2, 2, 12, 8).to(torch.float8_e4m3fn)
    with torch.autocast("cpu", torch.bfloat16):
        assert attend(key=key).dtype == torch.bfloat16


def test_repeated_calls_read_the_scales_that_are_given() -> None:
    query = torch.randn(2, 4, 5, 8)
    for factor in (1.0, 2.0, 3.0, 4.0):
        found = attend(query, value_scale=SCALE * factor)
        torch.testing.assert_close(found, torch.full_like(found, factor))


def test_compiled_functions_run_them_and_transforms_refuse_them() -> None:
    query, key = torch.randn(1, 2, 5, 8), torch.ones(1, 2, 5, 8, dtype=torch.int8)
    found: Any = flexc.compile(lambda q, k: attend(q, key=k) + 1)(query, key)
    assert torch.equal(found, attend(query, key=key) + 1)
    with pytest.raises(FlexcError):
        torch.func.vmap(flexc.flex_attention)(query[None], key[None], key[None])


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
def test_torch_compile_calls_them() -> None:
    query, key = torch.randn(1, 2, 5, 8), torch.ones(1, 2, 5, 8, dtype=torch.int8)
    call: Any = torch.compile(lambda q, k: attend(q, key=k) + 1)
    torch.testing.assert_close(call(query, key), torch.full_like(query, 2.0))


@pytest.mark.parametrize("narrow", [torch.int8, torch.float8_e4m3fn])
def test_graphs_of_torch_refuse_gradients(narrow: torch.dtype) -> None:
    query = torch.randn(1, 2, 5, 8, requires_grad=True)
    key = torch.ones(1, 2, 5, 8).to(narrow)
    options: Any = {"inductor": False}
    call: Any = torch.compile(torch_attention, backend="flexc", options=options)
    with torch.no_grad():
        torch.testing.assert_close(call(query, key, key), torch.ones_like(query))
    with pytest.raises(GradientError, match=r"dtype, torch\.float32, got torch"):
        call(query, key, key).sum().backward()


@pytest.mark.parametrize("limit", [5, 20])
@pytest.mark.parametrize("narrow", [torch.int8, torch.float8_e5m2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_scores_with_bounds(
    dtype: torch.dtype, narrow: torch.dtype, limit: int
) -> None:
    """Weights are rounded to the query's dtype, whatever values are stored as."""

    def capped(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return limit * torch.tanh(score / limit)

    query = torch.randn(1, 4, 40, 16)
    key, value = (torch.randn(1, 2, 50, 16).mul(4).to(narrow) for _ in range(2))
    found = attend(query.to(dtype), key=key, value=value, score_mod=capped)
    exact = query.to(dtype).float(), key.float(), value.float()
    query, key, value = exact
    expected = attend(query, key=key, value=value, score_mod=capped)
    # Weights, their sum, quotients and results are rounded; values reach 16.
    tolerance = 16 * torch.finfo(dtype).eps * 4
    torch.testing.assert_close(found.float(), expected, atol=tolerance, rtol=1e-5)
