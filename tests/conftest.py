"""Settings that all tests share."""

from __future__ import annotations

import gc
import os
from importlib.metadata import PackageNotFoundError, version

import pytest
import torch
from hypothesis import HealthCheck, settings

from flexc.runtime.replay import stored_tapes

# Calls verify the IR of each kernel before it is printed.
os.environ["FLEXC_VERIFY"] = "1"

# Calls are to be traced and lowered here, whatever an earlier run left on the disk.
stored_tapes.MOST_MISSES = 0

# `pytest --hypothesis-profile=long` (make test-long) for thousands of examples.
COMMON = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}
settings.register_profile("ci", max_examples=25, derandomize=True, **COMMON)
settings.register_profile("long", max_examples=2000, **COMMON)
settings.load_profile("ci")


def pytest_report_header() -> str:
    """Say which triton is tested: `make test` runs some tests with two."""
    try:
        triton = version("triton")
    except PackageNotFoundError:  # not on every platform
        triton = "absent"
    return f"torch {torch.__version__}, triton {triton}"


def pytest_collection_finish() -> None:
    """Collect garbage seldom: modules are large, and IR is short-lived cycles.

    With Python's defaults a sixth of the time of tests that lower goes there.
    """
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked `gpu` on a machine without one."""
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a GPU")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Tests that draw random tensors draw the same ones on every run."""
    torch.manual_seed(0)
