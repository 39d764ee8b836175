"""Functions that `flexc.compile` refuses, runs as they are, or shares with torch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import (
    flex_attention,
)

from flexc import errors
from tests.unit.runtime.functions import (
    COMPILE,
    Block,
    dense,
    qkv,
    traces,
)


@pytest.fixture
def block() -> Block:
    return Block().eval()


def attends_if_positive(q: Tensor) -> Any:
    return flex_attention(q, q, q) if q.sum() > 0 else q


def attends_on_item(q: Tensor) -> Any:
    return flex_attention(q, q, q, scale=q.max().item())


@pytest.mark.parametrize("fn", [attends_if_positive, attends_on_item])
def test_data_dependent_control_flow(fn: Callable[[Tensor], Any]) -> None:
    with pytest.raises(
        errors.DataDependentControlFlowError,
        match=r"test_captured_code.py:\d+: a compiled function is captured",
    ):
        COMPILE(fn)(qkv()[0])


def test_errors_name_the_line_of_a_mod() -> None:
    @COMPILE
    def fn(q: Tensor) -> Any:
        return flex_attention(q, q, q, lambda s, b, h, i, j: s if s > 0 else -s)

    with pytest.raises(errors.DataDependentControlFlowError, match="a score_mod runs"):
        fn(qkv()[0])


def test_functions_that_change_objects_are_run() -> None:
    seen: list[Any] = []

    @COMPILE
    def appends(q: Tensor) -> Any:
        seen.append(q.shape)
        return flex_attention(q, q, q)

    q = qkv()[0]
    for count in (1, 2, 3):
        torch.testing.assert_close(appends(q), dense(q, q, q))
        assert len(seen) == count
    assert appends.graph(q) is None


def test_functions_whose_mods_compute_with_captured_tensors_are_run() -> None:
    table = torch.randn(64)

    @COMPILE
    def sums(q: Tensor) -> Any:
        return flex_attention(q, q, q, lambda s, b, h, i, j: s + table.cumsum(0)[j])

    @COMPILE
    def sums_before(q: Tensor) -> Any:
        made = table.cumsum(0)
        return flex_attention(q, q, q, lambda s, b, h, i, j: s + made[j])

    q = qkv()[0]
    torch.testing.assert_close(sums(q), sums_before(q))
    table.neg_()
    torch.testing.assert_close(sums(q), sums_before(q))
    assert sums.graph(q) is None
    assert sums_before.graph(q) is not None


def test_functions_that_cannot_be_keyed_are_run(block: Block) -> None:
    @COMPILE
    def dynamic(q: Tensor) -> Any:
        return flex_attention(q, q, q) * getattr(block, "win" + "dow")

    q = qkv()[0]
    torch.testing.assert_close(dynamic(q), dense(q, q, q) * 4)
    block.window = 7
    torch.testing.assert_close(dynamic(q), dense(q, q, q) * 7)
    assert dynamic.graph(q) is None


def test_gradients_of_the_rest() -> None:
    @COMPILE
    def fn(q: Tensor, w: Tensor) -> Any:
        return (w * w).sum() + flex_attention(q, q, q).detach().sum()  # pyright: ignore

    q, w = qkv()[0], torch.randn(3, requires_grad=True)
    assert traces(lambda: fn(q, w).backward()) == 1
    torch.testing.assert_close(w.grad, 2 * w.detach())
    assert traces(lambda: fn(q, w)) == 0


def test_gradients_of_captured_code_are_those_of_the_code(block: Block) -> None:
    @COMPILE
    def runs(x: Tensor) -> Any:
        return getattr(block, "for" + "ward")(x)

    x = torch.randn(2, 10, 16)
    captured = COMPILE(block)
    assert captured.graph(x) is not None
    assert runs.graph(x) is None
    parameters = list(block.parameters())
    found, expected = (
        torch.autograd.grad(fn(x).square().sum(), parameters) for fn in (captured, runs)
    )
    torch.testing.assert_close(found, expected)


def test_steering_of_autograd_is_kept() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            return 2 * grads[0]

    def custom(q: Tensor, w: Tensor) -> Any:
        return Double.apply(w).sum() + flex_attention(q, q, q).sum()  # pyright: ignore

    def frozen(q: Tensor, w: Tensor) -> Any:
        with torch.no_grad():
            fixed = w * 3
        return (fixed + 2 * w).sum() + flex_attention(q, q, q).sum()  # pyright: ignore

    q = qkv()[0]
    for fn in (custom, frozen):
        w = torch.randn(3, requires_grad=True)
        COMPILE(fn)(q, w).backward()
        torch.testing.assert_close(w.grad, torch.full((3,), 2.0))


def test_other_threads_keep_torchs_attention() -> None:
    inside, leave = threading.Event(), threading.Event()

    @COMPILE
    def waits(q: Tensor) -> Any:
        inside.set()
        leave.wait(20)
        return flex_attention(q, q, q)

    q = qkv()[0]
    thread = threading.Thread(target=waits, args=(q,))
    thread.start()
    assert inside.wait(20)
    with pytest.raises(ValueError, match="same number of heads"):
        flex_attention(q, q[:, :1], q[:, :1])
    leave.set()
    thread.join()


def test_backend_of_torch_compile() -> None:
    bias = torch.randn(2, 64)

    def fn(q: Tensor, k: Tensor, v: Tensor, slope: Tensor) -> Any:
        table = bias * 2
        return 1 + flex_attention(  # pyright: ignore
            q, k, v, lambda s, b, h, i, j: s + table[h, j] + slope * (i - j)
        )

    options: Any = {"backend": "eager"}
    compiled: Any = torch.compile(fn, backend="flexc", options=options, fullgraph=True)
    slope = torch.tensor(0.25)
    for length in (12, 15, 18):
        tensors = qkv(length)
        expected = dense(
            *tensors, lambda s, b, h, i, j: s + 2 * bias[h, j] + 0.25 * (i - j)
        )
        torch.testing.assert_close(compiled(*tensors, slope), 1 + expected)
    refused: Any = torch.compile(fn, backend="flexc", options={"tiles": 1})
    with pytest.raises(Exception, match=r"options has no key .* The keys are backend"):
        refused(*qkv(), slope)
