"""Recorded launches: made once for a kind of call, and given what each call holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from flexc.frontend.closures import read_mods
from flexc.runtime.planner.ordering import TablesLayout
from flexc.runtime.planner.plans import Problem

pytest.importorskip("triton")

from flexc.runtime.planner import recording
from flexc.runtime.traces import trace_mods

CPU = torch.device("cpu")
PROBLEM = Problem(1, 1, 300, 520, 32, 64)

Launches = list[tuple[tuple[int, ...], list[Any]]]


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    """What would be launched, and nothing is compiled."""
    found: Launches = []

    def launch(
        grid: tuple[int, ...], stream: int, values: Sequence[Any], watched: bool
    ) -> None:
        found.append((grid, list(values)))

    for name in ("load_direct", "load_order"):
        monkeypatch.setattr(recording, name, lambda *_: launch)
    monkeypatch.setattr(recording, "current_stream", lambda _: 0)
    monkeypatch.setattr(recording, "_recordings", {})
    return found


def near(ids: torch.Tensor, window: float) -> Any:
    def mask(b, h, q_idx, kv_idx):
        return (ids[q_idx] == ids[kv_idx]) & (q_idx - kv_idx <= window)

    return mask


def tables_of(ids: torch.Tensor, window: float = 3) -> list[torch.Tensor]:
    signature, mods = trace_mods(read_mods(None, near(ids, window)), torch.float32, CPU)
    return recording.replayed_tables(signature, mods, PROBLEM, CPU, refine=True)


def test_each_call_launches_anew_with_its_own_addresses(launches: Launches) -> None:
    for _ in range(2):
        ids = torch.arange(600)
        launches.clear()
        tables = tables_of(ids)
        # summarize, classify, refine, order
        assert len(launches) == 4
        assert all(ids.data_ptr() in values for _, values in launches[:3])
        addresses = {t.data_ptr() for t in tables}
        assert addresses <= set(launches[-1][1])
    assert len(recording._recordings) == 1


def test_results_share_no_memory(launches: Launches) -> None:
    first, second = tables_of(torch.arange(600)), tables_of(torch.arange(600))
    ours, others = (
        {t.untyped_storage().data_ptr() for t in x} for x in (first, second)
    )
    assert not ours & others


def test_other_numbers_and_shapes_are_recorded_apart(launches: Launches) -> None:
    ids = torch.arange(600)
    for window in (3, 4, 0.0, -0.0):
        tables_of(ids, window)
    tables_of(torch.arange(700))
    tables_of(torch.arange(1200)[::2])
    assert len(recording._recordings) == 6


@pytest.mark.parametrize("shape", [(1, 1, 10, 9), (2, 3, 4, 4), (1, 2, 1, 1)])
def test_tables_are_aligned_and_apart(shape: tuple[int, int, int, int]) -> None:
    layout = TablesLayout(shape, both=True)
    tables = layout.views(torch.zeros(layout.size, dtype=torch.int32))
    b, h, rows, columns = shape
    expected = [(b, h, rows), (b, h, rows, columns)] * 2
    expected += [(b, h, columns), (b, h, columns, rows)] * 2
    assert [tuple(t.shape) for t in tables] == expected
    assert all(t.is_contiguous() for t in tables)
    assert all(offset % 16 == 0 for offset in layout.offsets)
    for table in tables:
        table += 1
    assert all((table == 1).all() for table in tables)
