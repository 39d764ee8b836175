"""Kernels that are compiled before calls come."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import flexc
from flexc.errors import DeviceError, DtypeError, GradientError, OptionError, ShapeError
from flexc.runtime.kernels.driver import counters

pytestmark = pytest.mark.usefixtures("cache_folder")

SHAPE = 1, 2, 40, 8


def with_slopes(slopes: Tensor) -> Any:
    def score_mod(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return s + 3 * slopes[h] * (q - k)

    return score_mod


def made() -> tuple[int, int]:
    return counters["traced"], counters["built"]


@pytest.mark.parametrize("backward", [False, True])
def test_calls_find_their_kernels(backward: bool) -> None:
    slopes = torch.ones(2, requires_grad=backward)
    found = flexc.warmup(
        flexc.flex_attention,
        SHAPE,
        SHAPE,
        SHAPE,
        with_slopes(slopes),
        backward=backward,
    )
    assert found.built >= 1 + backward
    assert found.lowered == found.built
    assert slopes.grad is None
    before = made()
    query = torch.randn(SHAPE, requires_grad=backward)
    out: Any = flexc.flex_attention(query, query, query, with_slopes(slopes))
    if backward:
        out.sum().backward()
    assert made() == before


def test_a_second_warmup_does_nothing() -> None:
    arguments = (flexc.flex_attention, SHAPE, SHAPE, SHAPE, with_slopes(torch.ones(2)))
    flexc.warmup(*arguments)
    again = flexc.warmup(*arguments)
    assert (again.traced, again.lowered, again.loaded, again.built) == (0, 0, 0, 0)


def test_modules_keep_their_gradients() -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = torch.nn.Linear(8, 8)

        def forward(self, x: Tensor, times: int) -> Any:
            x = self.project(x) * times
            return flexc.flex_attention(x, x, x)

    layer = Layer()
    flexc.warmup(layer, (1, 2, 12, 8), 2, backward=True)
    assert layer.project.weight.grad is None


def test_shapes_become_tensors_and_all_else_is_passed() -> None:
    given: list[Any] = []

    def function(*args: Any, **kwargs: Any) -> None:
        given.extend([*args, kwargs])

    kept, names = torch.ones(2), ("a", "b")
    flexc.warmup(function, (2, 3), kept, names, 4, dtype=torch.float16, option=(1, 2))
    zeros, *rest = given
    assert torch.equal(zeros, torch.zeros(2, 3, dtype=torch.float16))
    assert rest == [kept, names, 4, {"option": (1, 2)}]


def test_mistakes() -> None:
    function: Any = 3
    with pytest.raises(OptionError, match="expects a function, got int"):
        flexc.warmup(function)
    with pytest.raises(ShapeError, match=r"sizes of 0 or more, got \(1, -2\)"):
        flexc.warmup(flexc.flex_attention, (1, -2))
    dtype: Any = "bfloat16"
    with pytest.raises(DtypeError, match=r"expects a torch.dtype, got 'bfloat16'"):
        flexc.warmup(flexc.flex_attention, SHAPE, dtype=dtype)
    with pytest.raises(GradientError, match="requires a gradient, got none"):
        flexc.warmup(lambda x: x.detach(), SHAPE, backward=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for an absent GPU")
def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(DeviceError, match="where torch sees no GPU, got cuda"):
        flexc.warmup(flexc.flex_attention, SHAPE, SHAPE, SHAPE, device="cuda")
