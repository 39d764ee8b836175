"""What `flexc.compile` bears: functions that reach much, many calls, many threads."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor, nn

import flexc
from flexc import errors
from flexc.runtime.compiled.compiled_function import (
    MAX_FACTS,
    MAX_KINDS,
    MAX_TRACES,
    _kinds,
)
from flexc.runtime.compiled.shortcut import MAX_CALLS
from flexc.runtime.kernels import driver
from flexc.runtime.kernels.driver import counters
from flexc.runtime.process.recent import MOST
from flexc.runtime.replay import repeats
from tests.unit.runtime.functions import COMPILE, Block, dense, qkv, traces

MANY = 200_000


class Scaled(nn.Module):
    """A module with a configuration, as models from hubs have."""

    def __init__(self, vocab: Any):
        super().__init__()
        self.inner = SimpleNamespace(config=SimpleNamespace(vocab=vocab))

    def forward(self, q: Tensor) -> Tensor:
        return dense(q, q, q) * len(self.inner.config.vocab)


@pytest.mark.parametrize("kind", [list, tuple, set, dict.fromkeys])
def test_large_containers_are_named(kind: Any) -> None:
    model = COMPILE(Scaled(kind(range(MANY))))
    with pytest.raises(errors.StateError, match=r"way of `self.inner.config.vocab`"):
        model(qkv()[0])


def test_many_objects_are_named() -> None:
    table = {"all": [SimpleNamespace(a=i) for i in range(MANY)]}
    compiled = COMPILE(lambda q: q * table["all"][1].a)
    with pytest.raises(errors.StateError, match=r"5,000 objects .* `table\['all'\]`"):
        compiled(qkv()[0])


def test_arguments_are_named() -> None:
    compiled = COMPILE(lambda q, rest: q * len(rest[0]))
    for call in (
        lambda: compiled(qkv()[0], [range(1), list(range(MANY))]),
        lambda: compiled(qkv()[0], rest=[range(1), list(range(MANY))]),
    ):
        with pytest.raises(errors.StateError, match=r"`rest\[1\]`; keep that out"):
            call()


def test_what_is_shared_within_itself_ends() -> None:
    tree: Any = [1.0]
    for _ in range(40):
        tree = [tree, tree]
    deep: Any = []
    for _ in range(5_000):
        deep = [deep]
    for reached, name in (
        (tree, r"`<lambda>.__defaults__\[0\]\["),
        (deep, "nested deeply"),
    ):
        compiled = COMPILE(lambda q, reached=reached: q * len(reached))
        with pytest.raises(errors.StateError, match=name):
            compiled(qkv()[0])


def test_walk_ends_where_no_key_can_be() -> None:
    """A function that only runs is not read any further, however much it reaches."""
    rest = list(range(MANY))

    def dynamic(q: Tensor) -> Tensor:
        return dense(q, q, q) * getattr(q, "ndim")  # noqa: B009

    def fn(q: Tensor) -> Tensor:
        return dynamic(q) + len(rest)

    q = qkv()[0]
    assert traces(lambda: torch.testing.assert_close(COMPILE(fn)(q), fn(q))) == 0


def test_large_models_are_within_the_budget() -> None:
    blocks = nn.Sequential(*[Block() for _ in range(24)]).eval()
    with torch.no_grad():
        compiled, x = COMPILE(blocks), torch.randn(1, 4, 16)
        assert traces(lambda: compiled(x)) == 1
        assert traces(lambda: compiled(x)) == 0


def closure(factor: float, window: int, bias: Tensor) -> Any:
    """Mods over other values at each call."""

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return s * factor + bias[j]

    def mask(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return i - j < window

    return score, mask


attend: Any = flexc.flex_attention


def through_arguments(q: Tensor, k: Tensor, score: Any, mask: Any) -> Any:
    return attend(q, k, k, score, mask_mod=mask)


def through_numbers(
    q: Tensor, k: Tensor, factor: float, window: int, bias: Tensor
) -> Any:
    score, mask = closure(factor, window, bias)
    return attend(q, k, k, score, mask_mod=mask) * (window + 1)


def counts() -> dict[str, int]:
    return {name: count for name, count in counters.items() if count}


def run_all(n: int, functions: tuple[Any, Any]) -> None:
    """Calls of which none was made before."""
    q, k = torch.ones(1, 1, 20, 8), torch.ones(1, 1, 20 + n, 8)
    values = (1.0 + n / 7, 3 + n, torch.full((20 + n,), float(n)))
    score, mask = closure(*values)
    attend(q, k, k, score, mask_mod=mask)
    functions[0](q, k, score, mask)
    functions[1](q, k, *values)
    flexc.compile(lambda q: attend(q, k, k, score, mask_mod=mask))(q)


def check_bounded(function: Any) -> None:
    known = function._shortcut._known
    assert known is None or len(known.ready) <= MAX_CALLS
    assert len(_kinds) <= MAX_KINDS
    for (kind,) in _kinds._values.values():
        assert len(kind._traces) <= MAX_TRACES
        assert len(kind._known) <= MAX_FACTS


def run_many(most: int) -> tuple[int, int]:
    """Resident bytes at a tenth of so many calls, and after all of them."""
    functions = (flexc.compile(through_arguments), flexc.compile(through_numbers))
    sizes, before = [], counts()
    for n in range(most):
        if n == most // 10:
            before = counts()
        run_all(n, functions)
        if n in (most // 10, most - 1):
            gc.collect()
            sizes.append(psutil.Process().memory_info().rss)
    assert counts() == before
    for function in functions:
        check_bounded(function)
    assert len(repeats.KNOWN) <= repeats.KNOWN.most
    assert max(len(driver._kernels), len(driver._traced)) <= MOST
    return sizes[0], sizes[1]


def test_new_values_lengths_and_closures_compile_nothing() -> None:
    run_many(200)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_thousand_calls_leave_nothing() -> None:
    before, after = run_many(10_000)
    assert after - before < 50_000_000  # Of what is kept, and bounded.


@pytest.mark.parametrize("compiled", [False, True])
def test_threads_compile_each_kernel_once(
    compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fresh() -> tuple[Any, Any]:
        """Equal mods whose code nobody has met: with constants of their own."""
        unique[0] += 1
        monkeypatch.setenv("FLEXC_CACHE_DIR", str(tmp_path / str(unique)))
        scope: dict[str, Any] = {"attend": attend, "n": 2.0}
        mod = f"lambda s, *_: s * n * {unique[0]}.5"
        exec(f"def fn(q, k): return attend(q, k, k, {mod})", scope)
        fn = flexc.compile(scope["fn"]) if compiled else scope["fn"]
        return fn, scope["fn"]

    unique = [len(tmp_path.name) + 71 * compiled]
    q = qkv()[0]
    names = ("functions traced", "traced", "lowered", "built")

    def difference(before: dict[str, int]) -> dict[str, int]:
        return {n: counters[n] - before.get(n, 0) for n in names}

    fn, _ = fresh()
    before = counts()
    fn(q, q)
    alone = difference(before)
    fn, plain = fresh()
    together = threading.Barrier(8)

    def call(_: int) -> Tensor:
        together.wait()
        return fn(q, q)

    before = counts()
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(call, range(8)))
    assert difference(before) == alone
    for result in results:
        torch.testing.assert_close(result, plain(q, q))
