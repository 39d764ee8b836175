"""Attention on two GPUs by NCCL equals that of one."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from tests.support import context_parallel, dtensors
from tests.support.context_parallel import run_ranks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]


def test_context_parallel(tmp_path: Path) -> None:
    for outcomes in run_ranks(2, tmp_path, context_parallel.two_gpus, "cuda"):
        wrong = {c: o for c, o in outcomes.items() if max(o.errors.values()) > 1}
        assert not wrong


def test_sharded_tensors_and_modules(tmp_path: Path) -> None:
    work = partial(dtensors.two_ranks, cases=dtensors.OF_TWO)
    for errors in run_ranks(2, tmp_path, work, "cuda"):
        assert not {c: error for c, error in errors.items() if error > 1}
