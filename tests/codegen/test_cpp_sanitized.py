"""Kernels that check themselves: a short sample of what `make sanitize-cpu` runs."""

from __future__ import annotations

import sys

import pytest

from tests.support.sanitize import main


@pytest.mark.skipif(sys.platform != "linux", reason="loads a library before others")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "arguments", [[], pytest.param(["--machine", "amx"], marks=pytest.mark.slow)]
)
def test_kernels_stay_in_their_tensors(
    arguments: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    status = main(arguments)
    assert status == 0, capfd.readouterr().err[-4000:]
