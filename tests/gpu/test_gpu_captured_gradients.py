"""Sums of adjoints, added where a mod reads, on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flexc.runtime.autograd.captured_gradients import CapturedGradient
from tests.support.captured_reads import of_chunk, summed
from tests.unit.runtime.test_captured_gradients import (
    CASES,
    CHUNKS,
    SIZES,
    add_all,
    scattered,
)

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    """In any order and, twice, in one order: equal bits."""
    tensor, reads, scatter, adjoints, expected = scattered(name)
    captures = [c.cuda() if isinstance(c, Tensor) else c for c in reads.captures]
    runs: list[Tensor] = []
    for deterministic in (False, True, True):
        gradient = CapturedGradient(
            tensor.cuda(), captures, SIZES, torch.float64, deterministic
        )
        runs.append(add_all(gradient, scatter, adjoints, CHUNKS["heads"]))
    for run in runs[:2]:
        torch.testing.assert_close(run.cpu(), expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(*runs[1:])


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_nothing_waits() -> None:
    for name in CASES:
        add_without_waiting(name)


def add_without_waiting(name: str) -> None:
    tensor, reads, scatter, adjoints, _ = scattered(name)
    kind = scatter.coordinates
    captures = [c.cuda() if isinstance(c, Tensor) else c for c in reads.captures]
    chunks = CHUNKS["heads"]
    sums = [(summed(kind, of_chunk(adjoints, c)).cuda(), c) for c in chunks]
    tensor = tensor.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        gradient = CapturedGradient(tensor, captures, SIZES, torch.float64)
        for part, chunk in sums:
            gradient.add(scatter, part, chunk)
        gradient.result()
    finally:
        torch.cuda.set_sync_debug_mode("default")
