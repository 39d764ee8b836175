"""Random calls on a CPU: some of them, and the generator itself."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import torch

import flexc
from tests.property.captures import moved
from tests.random_calls import __main__ as random_calls
from tests.random_calls.calls import Call
from tests.random_calls.families import CPU, calls_of, family_of
from tests.random_calls.shards import Shard, after
from tests.support.kernel_counts import counting

PLAIN, LEARNING = 28, 26
"""Families without gradients and with them, whose kernels are compiled soon."""

OPTIONS = random_calls.parser().parse_args([])

SOME = {PLAIN: 10, LEARNING: 3}
"""Calls of a family."""


@pytest.mark.parametrize("family", SOME)
def test_some_calls(family: int) -> None:
    calls = calls_of(family_of(family, "cpu"), family)
    for i, call in enumerate(islice(calls, SOME[family])):
        verdict, error = random_calls.verdict_of(call)
        assert verdict == "right", f"{family}.{i}: {error}\n{call!r}"


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_five_thousand_calls(capsys: pytest.CaptureFixture[str]) -> None:
    status = random_calls.main(["--calls", "5000"])
    assert status == 0, capsys.readouterr().out


def a_call() -> Call:
    call = next(calls_of(family_of(PLAIN, "cpu"), PLAIN))
    return replace(call, mode="plain", through="flexc", max_scores=True)


def test_a_number_is_one_family() -> None:
    first, again = (
        [repr(call) for call in calls_of(family_of(5, "cpu"), 5)] for _ in range(2)
    )
    assert first == again
    assert len(set(first)) == CPU.calls
    assert repr(family_of(6, "cpu")) != repr(family_of(5, "cpu"))


def test_calls_are_counted_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    served: Counter[str] = Counter()
    with counting(served):
        assert random_calls.verdict_of(a_call()) == ("right", "")
    assert set(served) == {"cpp"}

    def wrong(*args: Any, **options: Any) -> Any:
        out, aux = right(*args, **options)
        return out + 0.25, aux

    right = flexc.flex_attention
    monkeypatch.setattr(flexc, "flex_attention", wrong)
    verdict, error = random_calls.verdict_of(a_call())
    assert verdict == "wrong"
    assert "is wrong by 0.2" in error


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (flexc.errors.OptionError("no"), "refused"),
        (flexc.errors.OptionError(""), "untyped"),
        (ValueError("no"), "untyped"),
    ],
)
def test_errors_are_told_apart(
    error: Exception, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **options: Any) -> Any:
        raise error

    monkeypatch.setattr(flexc, "flex_attention", refuse)
    assert random_calls.verdict_of(a_call())[0] == verdict


def test_what_processes_tell(capsys: pytest.CaptureFixture[str]) -> None:
    shard = Shard([3, 4], OPTIONS, 0.0)
    for told in (
        {"begun": "3.0"},
        {"done": "3.0", "verdict": "right"},
        {"done": "3.1", "verdict": "wrong", "error": "by 2", "call": "..."},
        {"done": "3.2", "verdict": "refused", "error": "no", "call": "..."},
        {"finished": 3, "served": {"cpp": 8}},
    ):
        shard.hear(json.dumps(told))
    shard.hear("what a library prints")
    assert shard.begun == "3.0"
    assert shard.verdicts == {"right": 1, "wrong": 1, "refused": 1}
    assert [failure["done"] for failure in shard.failures] == ["3.1"]
    assert shard.served == {"cpp": 8}
    assert "--only 3.1" in capsys.readouterr().out


def test_what_comes_after_a_call() -> None:
    assert after("3.1", ["2.0", "3.0", "4.0"], 16) == ["3.2", "4.0"]
    assert after("3.15", ["3.0", "4.0"], 16) == ["4.0"]


def test_tensors_keep_their_places_on_another_device() -> None:
    given = torch.arange(24.0).view(4, 6)[1:, 1::2].mT
    kept = moved(given, "meta")
    assert kept.stride() == given.stride()
    assert kept.storage_offset() == given.storage_offset()
    assert kept.untyped_storage().nbytes() == given.untyped_storage().nbytes()
