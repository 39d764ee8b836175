"""The random calls of tests/gpu, on a CPU."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from typing import Any

import pytest
import torch

import flexc
from tests.gpu import random_cases
from tests.gpu.random_calls import CALLS, KINDS, calls_of, family_of
from tests.gpu.shards import Shard, after
from tests.property.captures import moved
from tests.served import counting


def test_a_number_is_one_family() -> None:
    first, again = (
        [repr(call) for call in calls_of(family_of(5, "cpu"), 5)] for _ in range(2)
    )
    assert first == again
    assert len(set(first)) == KINDS * CALLS
    assert repr(family_of(6, "cpu")) != repr(family_of(5, "cpu"))


def test_calls_are_counted_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    call = next(calls_of(family_of(5, "cpu"), 5))
    served: Counter[str] = Counter()
    with counting(served):
        assert random_cases.error_of(call, "cpp") == ""
    assert served == {"cpp": 1}

    def wrong(*args: Any, **options: Any) -> Any:
        out, aux = right(*args, **options)
        return out + 0.25, aux

    right = flexc.flex_attention
    monkeypatch.setattr(flexc, "flex_attention", wrong)
    assert "is wrong by 0.2" in random_cases.error_of(call, "cpp")


def test_what_processes_tell() -> None:
    shard = Shard([3, 4], argparse.Namespace(seconds=0), 0.0)
    for told in (
        {"begun": "3.0"},
        {"passed": "3.0"},
        {"failed": "3.1", "error": "wrong", "call": "..."},
        {"finished": 3, "served": {"cpp": 8}},
    ):
        shard.hear(json.dumps(told))
    shard.hear("what a library prints")
    assert (shard.begun, shard.passed) == ("3.0", 1)
    assert [failure["failed"] for failure in shard.failures] == ["3.1"]
    assert shard.served == {"cpp": 8}


def test_what_comes_after_a_call() -> None:
    assert after("3.1", ["2.0", "3.0", "4.0"]) == ["3.2", "4.0"]
    assert after(f"3.{KINDS * CALLS - 1}", ["3.0", "4.0"]) == ["4.0"]


def test_tensors_keep_their_places_on_another_device() -> None:
    given = torch.arange(24.0).view(4, 6)[1:, 1::2].mT
    kept = moved(given, "meta")
    assert kept.stride() == given.stride()
    assert kept.storage_offset() == given.storage_offset()
    assert kept.untyped_storage().nbytes() == given.untyped_storage().nbytes()
