"""Run tests with Triton's interpreter, which Triton chooses when it is imported.

A file's tests run in a process of their own, which the one test that other runs see
starts. The interpreter's matrix product knows no bfloat16.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import settings

INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
DTYPES = (torch.float32, torch.float16)

starts_a_process = pytest.mark.skipif(INTERPRETING, reason="this is that process")
within_the_process = pytest.mark.skipif(
    not INTERPRETING, reason="runs in a process of its own"
)


def interpreter_marks(timeout: int) -> list[pytest.MarkDecorator]:
    """Return the marks of a file of tests that Triton's interpreter runs."""
    return [
        pytest.mark.timeout(timeout),
        pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # numpy's, of log(0)
    ]


@starts_a_process
def run_interpreted(request: pytest.FixtureRequest) -> None:
    """Run the tests of a test's file by Triton's interpreter."""
    interpret(request, str(request.path))


def interpret(request: pytest.FixtureRequest, tests: str, **variables: str) -> None:
    """Run tests, or the same sample, in a process with Triton's interpreter."""
    profile = settings.get_current_profile_name()
    options = ["-m", ""] if profile == "long" else []
    options += [f"--every={request.config.getoption('every')}"]
    options += [f"--hypothesis-profile={profile}", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, tests],
        env=os.environ | {"TRITON_INTERPRET": "1"} | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
