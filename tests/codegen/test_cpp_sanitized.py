"""Kernels that check themselves on a short sample; `make sanitize-cpu` has a long one."""

from __future__ import annotations

import sys

import pytest

from tests.sanitize import main


@pytest.mark.skipif(sys.platform != "linux", reason="loads a library before others")
@pytest.mark.timeout(600)
def test_kernels_stay_in_their_tensors(capfd: pytest.CaptureFixture[str]) -> None:
    status = main([])
    assert status == 0, capfd.readouterr().err[-4000:]
