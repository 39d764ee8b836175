"""Drawn calls on several processes equal those of one.

All ranks draw the same examples, in lockstep: hypothesis runs within each process, and
the ranks share what went wrong, so that all fail at the same example.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import DeviceMesh

from tests.support.context_parallel import (
    HEADS,
    METHODS,
    Case,
    masks,
    outcome,
    run_ranks,
    scores,
)


@st.composite
def cases(draw: Any, ranks: int) -> tuple[Case, str]:
    mask = draw(st.sampled_from(list(masks(1))))
    score = draw(st.sampled_from(list(scores(1)[0])))
    method = draw(st.sampled_from(METHODS))
    kv_heads = draw(
        st.sampled_from(
            [h for h in (1, 2, 4) if method != "all-to-all" or h % ranks == 0]
        )
    )
    kind = draw(st.sampled_from(("contiguous", "zig-zag", "owners")))
    if kind == "contiguous":
        sizes = st.integers(0, 90)
        lengths = draw(st.lists(sizes, min_size=ranks, max_size=ranks).filter(any))
        return Case(mask, score, tuple(lengths), kv_heads), method
    lengths = (draw(st.integers(ranks, 200)),)
    owner = st.integers(0, ranks - 1)
    layout = kind
    if kind == "owners":
        layout = tuple(draw(st.lists(owner, min_size=1, max_size=8 * ranks)))
    return Case(mask, score, lengths, kv_heads, layout), method


def drawn_calls(mesh: DeviceMesh, examples: int) -> int:
    """Run drawn calls on all ranks. Return how many."""
    ran = 0

    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(cases(mesh.size()))
    def run(drawn: tuple[Case, str]) -> None:
        nonlocal ran
        ran += 1
        case, method = drawn
        try:
            errors = outcome(case, method, mesh).errors
            fault = "" if max(errors.values()) <= 1 else str(errors)
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"
        faults = [""] * mesh.size()
        dist.all_gather_object(faults, fault)
        assert not any(faults), (case, method, faults)

    run()
    return ran


def few(mesh: DeviceMesh) -> int:
    return drawn_calls(mesh, 8)


def many(mesh: DeviceMesh) -> int:
    return drawn_calls(mesh, 60)


def test_drawn_calls_on_two_processes(tmp_path: Path) -> None:
    assert HEADS == 4
    assert min(run_ranks(2, tmp_path, few)) >= 6


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_drawn_calls_on_four_processes(tmp_path: Path) -> None:
    assert min(run_ranks(4, tmp_path, many)) >= 40
