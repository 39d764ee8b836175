"""Tapes: operations and launches, recorded once and replayed on other tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from flexc.runtime.kernels.cpp_loader import load_cpp
from flexc.runtime.kernels.kernel import launch
from flexc.runtime.tapes.recorder import Recorder, recorder
from flexc.runtime.tapes.tape import (
    Allocation,
    Launch,
    Operation,
    Tape,
)
from tests.codegen.test_cpp_loader import SPEC

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def twice() -> Callable[[Tensor, Tensor], None]:
    """A kernel that doubles what is contiguous."""
    loaded = load_cpp(SPEC)

    def run(x: Tensor, out: Tensor) -> None:
        launch(loaded, (1, 1, 1), [x, out, x.numel()])

    return run


def record(run: Callable[..., Any], *tensors: Any) -> Tape | None:
    with Recorder(tensors) as seen:
        results = run(*tensors)
    assert recorder() is None
    return seen.tape(results if isinstance(results, tuple) else (results,), CPU)


def check(run: Callable[..., Any], *shapes: Sequence[int]) -> Tape:
    """A tape gives what `run` gives, of tensors that it has not seen."""
    tape = record(run, *(torch.randn(shape) for shape in shapes))
    assert tape is not None
    for _ in range(2):
        given = [torch.randn(shape) for shape in shapes]
        expected = run(*(t.clone() for t in given))
        expected = expected if isinstance(expected, tuple) else (expected,)
        for found, right in zip(tape(given), expected, strict=True):
            assert torch.equal(found, right)
            assert found.stride() == right.stride()
    return tape


def test_operations_are_replayed() -> None:
    check(lambda x, y: (x @ y.mT, (x + 1).sum(-1)), (3, 4), (5, 4))
    check(lambda x: torch.cat([x, torch.zeros(2, 4)]).unbind(0), (3, 4))
    check(lambda x: torch.where(x > 0, x, -1.0).to(torch.float64), (7,))
    check(lambda x: x.clone().mul_(3).add_(x), (5,))
    check(lambda x: x.flip(0), (5,))


def test_a_kernel_reads_and_writes_within_tensors(twice: Any) -> None:
    def run(x: Tensor) -> Tensor:
        out = torch.empty(4, 6)
        for row, target in zip(x[1:].unbind(0), out.unbind(0), strict=False):
            twice(row, target)
        return out[:3]

    tape = check(run, (4, 6))
    # Views of what kernels read are no operations: a launch takes an address.
    kinds = [type(step) for step in tape.steps]
    assert kinds.count(Launch) == 3
    assert kinds.count(Operation) == 1
    assert " + 24" in tape.source


def test_what_nothing_needs_is_left_out(twice: Any) -> None:
    def run(x: Tensor) -> Tensor:
        (x * 5).sum()
        torch.empty(100)
        out = torch.empty_like(x)
        twice(x.detach(), out)
        return out

    assert len(check(run, (6,)).steps) == 2


def test_memory_goes_to_what_comes_next(twice: Any) -> None:
    def run(x: Tensor) -> Tensor:
        first, second, third = (torch.empty_like(x) for _ in range(3))
        twice(x, first)
        twice(first, second)
        twice(second, third)
        return third

    tape = check(run, (1 << 19,))
    lines = tape.source.splitlines()
    freed = [line.split()[0] for line in lines if line.endswith("= None")]
    assert len(freed) == 1  # The second goes when the function returns.


def test_small_temporaries_are_parts_of_one(twice: Any) -> None:
    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        first, second, third = (torch.empty_like(x) for _ in range(3))
        wide = torch.empty(x.numel(), 2)
        twice(x, first)
        twice(first, second)
        twice(second[1:], wide.flatten()[:5])
        twice(wide.flatten()[1:4], third[:3])
        twice(second[:5], third[1:])
        return third, second.sum()

    tape = check(run, (6,))
    # Of the temporaries an operation reads one, which so has memory of its own.
    assert [type(step) for step in tape.steps].count(Allocation) == 3


def test_zeros_are_zero_at_every_call(twice: Any) -> None:
    def run(x: Tensor) -> tuple[Tensor, ...]:
        made = torch.zeros(6), torch.zeros_like(x), x.new_zeros(2, 3).mT
        for tensor in made:
            twice(x[:2], tensor[:2])
        return made

    assert ".zero_()" in check(run, (6,)).source


def test_views_of_all_of_a_tensor_are_the_tensor(twice: Any) -> None:
    def run(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        out = torch.empty(3, 2)
        twice(x, out[None][0].view(6))
        return out[None][0], out.mT, out.view(torch.int32)

    assert [type(step) for step in check(run, (6,)).steps].count(Operation) == 2
    check(lambda x: torch.ops.aten._neg_view(x), (3,))
    check(lambda x: x.view(-1)[1:].mul_(2), (3,))


def test_two_views_of_one_tensor_are_told_apart(twice: Any) -> None:
    """What is given together may lie together, and need not at the next call."""

    def run(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        out, other = torch.empty_like(x), torch.empty_like(y)
        twice(x, out)
        twice(y, other)
        return out, other

    both = torch.randn(2, 5)
    tape = record(run, *both.unbind(0))
    assert tape is not None
    x, y = torch.randn(5), torch.randn(5)
    out, other = tape([x, y])
    assert torch.equal(out, 2 * x)
    assert torch.equal(other, 2 * y)


def test_reads_on_the_host_are_no_tape(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "flexc")
    x = torch.arange(4.0)
    assert record(lambda x: x + x.sum().item(), x) is None
    assert record(lambda x: x[x > 1], x) is None
    assert record(lambda x: x * 2 if bool((x > 0).any()) else x, x) is None
    said = [r.getMessage() for r in caplog.records if r.name == "flexc"]
    assert len(said) == 3
    assert all("reads data on the host" in message for message in said)


def test_tensors_from_elsewhere_are_no_tape_unless_they_are_held() -> None:
    table = torch.arange(4.0)
    x = torch.randn(4)
    assert record(lambda x: x + table, x) is None

    def held(x: Tensor) -> Tensor:
        seen = recorder()
        assert seen is not None
        seen.hold(table)
        return x + table

    tape = record(held, x)
    assert tape is not None
    y = torch.randn(4)
    assert torch.equal(tape([y])[0], y + table)


def test_constants_that_nothing_reads_are_not_held(twice: Any) -> None:
    table = torch.arange(4.0)

    def run(x: Tensor) -> Tensor:
        first, second, third = (torch.empty_like(x) for _ in range(3))
        twice(x, first)
        twice(first, second)
        twice(second, third)
        if (seen := recorder()) is not None:
            seen.hold(table)
        return third

    assert not check(run, (6,)).constants


def test_numbers_are_those_that_were_given() -> None:
    tape = record(lambda x, n: x * n, torch.randn(3), 0.1)
    assert tape is not None
    x = torch.randn(3)
    assert torch.equal(tape([x, None])[0], x * 0.1)


def test_a_result_may_be_given() -> None:
    tape = record(lambda x: (x, None, x[1:]), torch.randn(3))
    assert tape is not None
    x = torch.randn(3)
    same, nothing, rest = tape([x])
    assert same is x
    assert nothing is None
    assert rest.data_ptr() == x[1:].data_ptr()


def test_an_error_leaves_no_recorder() -> None:
    with pytest.raises(ZeroDivisionError):
        record(lambda x: x + 1 / 0, torch.randn(3))
    assert recorder() is None


def test_views_as_they_are_take_no_step() -> None:
    tape = check(lambda x: x.expand(3, 4).contiguous().view(3, 4) + 1, (3, 4))
    assert len(tape.steps) == 1
