"""`flexc.compile` of functions whose lengths and numbers change."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import fake_tensor
from torch.nn.attention.flex_attention import create_block_mask

import flexc
from tests.unit.runtime.functions import COMPILE, Block, causal, dense, qkv, traces

LENGTHS = range(9, 30, 4)

attend: Any = flexc.flex_attention


def check(fn: Callable[..., Any], calls: list[tuple[Any, ...]], most: int) -> None:
    """Check a function's results, and how often it is traced."""
    compiled = COMPILE(fn)

    def run() -> None:
        for call in calls:
            with torch.no_grad():
                torch.testing.assert_close(compiled(*call), fn(*call))

    assert traces(run) <= most
    assert traces(run) == 0


def test_lengths_are_traced_once() -> None:
    block = Block().eval()
    check(block, [(torch.randn(2, n, 16),) for n in LENGTHS], 1)
    check(block, [(torch.randn(n, 7, 16),) for n in range(2, 6)], 1)
    grown = [(torch.randn(n, n + 3, 16),) for n in range(1, 5)]
    check(block, grown, 2)  # One is a size of its own: it broadcasts.


def test_gradients_at_new_lengths() -> None:
    block = Block().eval()
    compiled = COMPILE(block)

    def run() -> None:
        for n in LENGTHS:
            x = torch.randn(2, n, 16, requires_grad=True)
            found = torch.autograd.grad(compiled(x).square().sum(), x)
            expected = torch.autograd.grad(block(x).square().sum(), x)
            torch.testing.assert_close(found, expected)

    assert traces(run) == 1


def test_mods_capture_lengths() -> None:
    def fn(q: Tensor, k: Tensor) -> Any:
        shift, half = k.size(2) - q.size(2), q.size(2) // 2
        bias = torch.arange(k.size(2)) / k.size(2)

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return s + bias[j] if half > 5 else s - bias[j]

        def mask(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return (i + shift >= j) | (j < half)

        return attend(q, k, k, score, mask_mod=mask)

    calls = [(qkv(n)[0], qkv(n + m)[0]) for n in LENGTHS for m in (0, 3, 8)]
    check(fn, calls, 2)  # Both ways of the branch.


def test_captured_tensors_have_new_lengths() -> None:
    def fn(q: Tensor, documents: Tensor, bias: Tensor) -> Any:
        return attend(
            q,
            q,
            q,
            lambda s, b, h, i, j: s + bias[h, i, j],
            mask_mod=lambda b, h, i, j: documents[i] == documents[j],
        )

    calls = [(qkv(n)[0], torch.arange(n) // 5, torch.randn(2, n, n)) for n in LENGTHS]
    check(fn, calls, 2)  # Rows of the bias may have been channels.


def test_numbers_that_change_are_symbols() -> None:
    class Model:
        def __init__(self) -> None:
            self.factor, self.window, self.scale = 1.0, 3, 0.4

        def run(self, q: Tensor) -> Any:
            window = self.window

            def mask(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
                return (i - j).abs() < window

            out = attend(q, q, q, scale=self.scale, mask_mod=mask)
            return out * self.factor

    model, q = Model(), qkv()[0]
    compiled = COMPILE(model.run)
    compiled(q)

    def run() -> None:
        for n in range(2, 12):
            model.factor, model.window, model.scale = 0.1 * n, n, 1 / n
            torch.testing.assert_close(compiled(q), model.run(q))

    assert traces(run) == 1


def test_branches_on_lengths_are_guarded() -> None:
    def fn(q: Tensor) -> Any:
        if q.size(2) % 2 or q.size(2) > 20:
            return dense_(q) * q.size(2)
        return dense_(q), q.shape[2] // 2

    def dense_(q: Tensor) -> Any:
        return attend(q, q, q)

    check(fn, [(qkv(n)[0],) for n in range(8, 30, 3)], 3)


def test_strides_are_guarded() -> None:
    def fn(q: Tensor) -> Any:
        return attend(q, q, q).transpose(1, 2).flatten(2) + q.flatten(2).sum()

    plain = [(qkv(n)[0],) for n in LENGTHS]
    turned = [(torch.randn(1, n, 2, 8).transpose(1, 2),) for n in LENGTHS]
    parts = [(torch.randn(1, n, 3, 2, 8).unbind(2)[1].mT.mT,) for n in LENGTHS]
    check(fn, plain + turned + parts, 3)


TABLE = {n: 1.0 / n for n in LENGTHS}


@pytest.mark.parametrize(
    "use",
    [
        lambda n: TABLE[n],
        lambda n: len(f"{n}"),
        lambda n: math.sin(n),
        lambda n: sum(range(n)) / 100,
        lambda n: isinstance(n, int) + 1,
        lambda n: (type(n) is int) + 1,
    ],
)
def test_what_wants_true_numbers_gets_them(use: Callable[[int], float]) -> None:
    def fn(q: Tensor) -> Any:
        return attend(q, q, q) * use(q.size(2))

    check(fn, [(qkv(n)[0],) for n in LENGTHS], len(LENGTHS))


def test_symbols_are_instances_of_numbers() -> None:
    def fn(q: Tensor) -> Any:
        n = q.size(2)
        given = isinstance(q, Tensor) and not isinstance(n, float | torch.SymInt)
        return attend(q, q, q) + (given and isinstance(n / 2, float))

    check(fn, [(qkv(n)[0],) for n in LENGTHS], 1)


def test_block_masks_of_many_lengths(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trace with symbols that fails logs no error."""
    monkeypatch.setattr(fake_tensor.log, "handlers", [caplog.handler])

    def inside(q: Tensor) -> Any:
        n = q.size(2)
        mask = create_block_mask(causal, None, None, n, n, device="cpu")
        return attend(q, q, q, block_mask=mask)

    check(inside, [(qkv(n)[0],) for n in (100, 200, 300)], 3)
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]


def test_too_many_captures_end_in_none() -> None:
    """A function that is another one for each length is run at last."""
    table = {n: 1.0 / n for n in range(2, 200)}
    compiled = COMPILE(lambda q: q * table[q.size(2)])

    def run() -> None:
        for n in range(2, 200):
            q = torch.ones(1, 1, n, 2)
            torch.testing.assert_close(compiled(q), q / n)

    assert traces(run) == 128


def test_results_keep_their_values() -> None:
    compiled = COMPILE(lambda q, x: (dense(q, q, q), q.size(2), x, -x, q.size(2) / 7))
    for n, x in ((9, 0.0), (10, -0.0), (11, 1.0), (12, 2.0), (13, -0.0)):
        found = compiled(qkv(n)[0], x)[1:]
        assert repr(found) == repr((n, x, -x, n / 7))
