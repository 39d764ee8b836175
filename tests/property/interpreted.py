"""Running tests with Triton's interpreter, which it chooses when it is imported.

A file's tests run in a process of their own, which the one test that other runs see
starts. The interpreter's matrix product knows no bfloat16.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings

INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
DTYPES = (torch.float32, torch.float16)

starts_a_process = pytest.mark.skipif(INTERPRETING, reason="this is that process")
within_the_process = pytest.mark.skipif(
    not INTERPRETING, reason="runs in a process of its own"
)


def run_interpreted(request: pytest.FixtureRequest) -> None:
    """Run the tests of a test's file, or a sample as large, where Triton interprets."""
    profile = settings.get_current_profile_name()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-m", ""] if profile == "long" else []
    command += [f"--every={request.config.getoption('every')}"]
    command += [f"--hypothesis-profile={profile}", str(request.path)]
    done = subprocess.run(
        command,
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def splats_of_comparisons() -> Iterator[None]:
    """Triton's interpreter gives a splat of a condition its operands' type."""
    tl: Any = pytest.importorskip("triton.language")
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    original = InterpreterBuilder.create_splat

    def create_splat(self: Any, ret_ty: Any, arg: Any) -> Any:
        if arg.data.dtype != np.bool_:
            return original(self, ret_ty, arg)
        value = np.full(ret_ty.shape, arg.data.reshape(-1)[0])
        return TensorHandle(value, tl.int1)

    InterpreterBuilder.create_splat = create_splat
    try:
        yield
    finally:
        InterpreterBuilder.create_splat = original
