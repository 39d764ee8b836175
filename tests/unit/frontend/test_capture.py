"""What tracing makes of captured values, and the guards it records."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.fx._symbolic_trace import is_fx_tracing

from flexc.errors import UnsupportedOpError
from flexc.frontend.capture import capture_mods
from flexc.frontend.captured import CapturedMods
from flexc.frontend.closures import read_mods
from tests.unit.frontend.evaluate import check_score, run_imported

Builder = Callable[..., Callable[..., Any]]


def capture(score_mod: Any) -> CapturedMods:
    return capture_mods(read_mods(score_mod, None))


def placeholders(mods: CapturedMods) -> int:
    assert mods.score is not None
    return len([n for n in mods.score.graph.graph.nodes if n.op == "placeholder"])


def shifted(by: Any) -> Callable[..., Any]:
    return lambda s, b, h, q, k: s + by * (q - k)


def branching(width: Any) -> Callable[..., Any]:
    def score_mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s * width if width > 2 else s

    return score_mod


def windowed(table: torch.Tensor) -> Callable[..., Any]:
    return lambda s, b, h, q, k: s + table[h] * table.shape[0]


@pytest.mark.parametrize("by", [-3, 0, 1, 2, 10**6, 0.0, -0.0, 1.0, 0.1, -2.5e-8])
def test_numbers_are_inputs(by: Any) -> None:
    mods = capture(shifted(by))
    assert mods.score is not None
    (given,) = mods.score.inputs
    assert (given.slot, given.name, given.rank) == (0, "by", None)
    assert mods.guards.conditions == ()
    assert placeholders(mods) == 6
    check_score(shifted(by))


@pytest.mark.parametrize("by", [math.inf, -math.inf, math.nan, True, 2**70])
def test_other_numbers_are_constants(by: Any) -> None:
    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return torch.where(q > k, s, by if by < 2**69 else 1.0)

    signature = read_mods(mod, None)
    assert signature.captures == ()
    check_score(mod)


def test_threads_may_trace_at_once() -> None:
    begin = threading.Barrier(4)

    def trace(by: int) -> int:
        begin.wait()
        return sum([placeholders(capture(shifted(by))) for _ in range(10)])

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(trace, range(4))) == [60] * 4
    # A tracer says so to all of the process.
    assert not is_fx_tracing()


def test_unused_captures_are_dropped() -> None:
    unused, used = 3, torch.ones(4)
    mods = capture(lambda s, b, h, q, k: (unused, s + used[h])[1])
    assert mods.score is not None
    assert [i.name for i in mods.score.inputs] == ["used"]
    assert placeholders(mods) == 6


def test_a_branch_on_a_number_is_guarded() -> None:
    mods = capture(branching(5))
    assert mods.guards.hold([7])
    assert not mods.guards.hold([2])
    below = capture(branching(-1))
    assert below.guards.hold([2])
    assert not below.guards.hold([3])
    check_score(branching(5))
    check_score(branching(-1))


def test_a_branch_on_a_float_is_guarded() -> None:
    mods = capture(branching(2.5))
    assert mods.guards.hold([2.25])
    assert not mods.guards.hold([2.0])


def test_numbers_that_must_be_constants_are_pinned() -> None:
    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s / math.sqrt(dim) + sum(q * i for i in range(steps))

    dim, steps = 64, 3
    signature = read_mods(mod, None)
    mods = capture_mods(signature)
    assert mods.guards.hold(signature.captures)
    assert not mods.guards.hold([65, 3])
    assert not mods.guards.hold([64, 4])
    check_score(mod)


def test_numbers_as_dictionary_keys_are_pinned() -> None:
    chosen = 2

    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s * {1: 10.0, 2: 20.0}[chosen]

    mods = capture(mod)
    assert mods.guards.hold([2])
    assert not mods.guards.hold([1])
    check_score(mod)


def test_a_mod_that_looks_at_types_sees_numbers() -> None:
    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s * width if isinstance(width, int) else s

    width = 3
    signature = read_mods(mod, None)
    assert signature.static_numbers
    assert not capture_mods(signature).guards.hold([4])
    check_score(mod)


def test_sizes_are_not_constants() -> None:
    mods = capture(windowed(torch.ones(4)))
    assert mods.guards.hold([torch.ones(9)])
    got, _ = run_imported(windowed(torch.ones(5)))
    assert got is not None
    assert got[0] == -2.5 + 5


def test_sizes_of_zero_and_one_hold_their_guards() -> None:
    for n in (0, 1, 2):
        table = torch.ones(n, 1)

        def mod(s: Any, b: Any, h: Any, q: Any, k: Any, t: Any = table) -> Any:
            return s + t[h, 0] * t.shape[0]

        assert capture(mod).guards.hold([table])


def test_a_branch_on_a_size_is_guarded() -> None:
    table = torch.ones(4)

    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s + table[h] if table.shape[0] > 3 else s

    mods = capture(mod)
    assert mods.guards.hold([torch.ones(9)])
    assert not mods.guards.hold([torch.ones(3)])


def test_arithmetic_on_numbers() -> None:
    a, c, x = 7, -3, 0.75
    check_score(lambda s, b, h, q, k: s + a // c + a % c + a * c - a)
    check_score(lambda s, b, h, q, k: s * (a / c) + x * a - x / c + (-x) ** 2)
    check_score(lambda s, b, h, q, k: s + min(a, 4) + max(c, 0) + abs(c) + a**2)
    check_score(lambda s, b, h, q, k: s + float(a) * x + math.floor(x * a))
    check_score(lambda s, b, h, q, k: torch.clamp(s, c, a) + q * x + (q - k) // c)
    check_score(lambda s, b, h, q, k: (s > x) & (q < a) | (k == c))
    check_score(lambda s, b, h, q, k: (q << a) + (q - k) ** 2 + (q % a) * (q & a))


def test_scalar_tensors_are_inputs() -> None:
    gain, shift = torch.tensor(2.5), torch.tensor(3, dtype=torch.int64)
    check_score(lambda s, b, h, q, k: s * gain + (q - shift))
    gradient = torch.tensor(2.5, requires_grad=True)
    mods = capture(lambda s, b, h, q, k: s * gradient)
    assert mods.score is not None
    assert len(mods.score.inputs) == 1


def test_tracing_changes_nothing_of_the_users() -> None:
    mod = branching(5)
    capture(mod)
    assert mod.__closure__ is not None
    assert mod.__closure__[0].cell_contents == 5


def test_score_of_doubles() -> None:
    mods = capture_mods(read_mods(lambda s, b, h, q, k: s * 2, None), torch.float64)
    assert mods.score is not None
    (result,) = (n.args[0] for n in mods.score.graph.graph.nodes if n.op == "output")
    assert result.meta["val"].dtype is torch.float64


def test_batches_of_positions_are_refused() -> None:
    twice = torch.vmap(lambda x: x * 2)
    with pytest.raises(UnsupportedOpError, match="batches"):
        capture(lambda s, b, h, q, k: s * twice(torch.stack([h * 1.0, h * 1.0]))[0])


def test_functions_of_trusted_modules_are_keyed_by_what_they_are() -> None:
    reads = read_mods(lambda s, b, h, q, k: torch.tanh(s) * math.pi, None)
    assert reads.cacheable
    assert not reads.captures
