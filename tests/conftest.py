"""Settings that all tests share."""

from __future__ import annotations

import gc
import os
from collections import defaultdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from zlib import crc32

import pytest
import torch
from hypothesis import HealthCheck, settings

from flexc.runtime.replay import stored_tapes
from tests.support.interpreted import INTERPRETING

# Calls verify the IR of each kernel before it is printed.
os.environ["FLEXC_VERIFY"] = "1"

# Calls are to be traced and lowered here, whatever an earlier run left on the disk.
stored_tapes.MOST_MISSES = 0

# `pytest --hypothesis-profile=long` (make test-long) for thousands of examples.
COMMON = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}
settings.register_profile("ci", max_examples=10, derandomize=True, **COMMON)
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


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add an option for samples of tests."""
    text = "run one in N of the parameters of each test, and at least one"
    parser.addoption("--every", type=int, default=1, metavar="N", help=text)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Drop what --every leaves out, and skip what this process or machine cannot run.

    A checksum of names chooses: one in N in their order would have few values of a
    parameter that changes fastest. Tests marked `whole` keep all parameters.
    """
    tests: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in sorted(items, key=lambda item: crc32(item.nodeid.encode())):
        tests[item.nodeid.partition("[")[0]].append(item)
    every: int = config.option.every
    kept = {i for some in tests.values() for i in some[: -(-len(some) // every)]}
    kept |= {item for item in items if "whole" in item.keywords}
    items[:] = [item for item in items if item in kept]
    reasons = {"gpu": "needs a GPU"} if not torch.cuda.is_available() else {}
    if not INTERPRETING:
        reasons["interpreted"] = "runs in a process of its own"
    for item in items:
        for name in reasons.keys() & item.keywords.keys():
            item.add_marker(pytest.mark.skip(reason=reasons[name]))


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of an empty cache, which the test's calls use."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("FLEXC_CACHE_DIR", str(folder))
    return folder


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Tests that draw random tensors draw the same ones on every run."""
    torch.manual_seed(0)
