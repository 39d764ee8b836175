"""Emitted Triton source, run by Triton's interpreter, on generated mods.

Triton decides when it is imported whether it interprets: the tests of this file run
in a process of their own, which the one test that other runs see starts. That
interpreter's matrix product knows no bfloat16.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.calls import check_backend
from tests.property.cases import Case
from tests.property.strategies import cases

tl = pytest.importorskip("triton.language")

INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
DTYPES = (torch.float32, torch.float16)


@pytest.fixture(autouse=True, scope="module")
def _splat_of_a_comparison() -> Iterator[None]:
    """Triton's interpreter gives a splat of a condition its operands' type."""
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    original = InterpreterBuilder.create_splat

    def create_splat(self: Any, ret_ty: Any, arg: Any) -> Any:
        if arg.data.dtype != np.bool_:
            return original(self, ret_ty, arg)
        value = np.full(ret_ty.shape, arg.data.reshape(-1)[0])
        return TensorHandle(value, tl.int1)

    InterpreterBuilder.create_splat = create_splat
    yield
    InterpreterBuilder.create_splat = original


@pytest.mark.timeout(3600)
@pytest.mark.skipif(INTERPRETING, reason="this is that process")
def test_in_a_process_that_interprets() -> None:
    profile = settings.get_current_profile_name()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += [f"--hypothesis-profile={profile}", __file__]
    done = subprocess.run(
        command,
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(3600)
@pytest.mark.skipif(not INTERPRETING, reason="runs in a process of its own")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of log(0)
@given(cases(DTYPES, longest=65), st.sampled_from((None, 16, 32)))
def test_results_are_those_of_dense_attention(case: Case, block: int | None) -> None:
    check_backend(case, "triton", block)
