"""Whatever is wrong with a text of IR, `flexc-opt` says so (see `tests.fuzz_ir`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def fuzz(*options: str) -> None:
    """Try mutated texts in a process of their own, whose memory is bounded."""
    command = [sys.executable, "-m", "tests.fuzz_ir", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_mutated_texts_are_taken_or_refused() -> None:
    fuzz("--seconds", "20")


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_thousands_of_mutated_texts_are_taken_or_refused() -> None:
    fuzz("--count", "5000", "--seed", "1")
