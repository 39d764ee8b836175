"""Some random calls; `python -m tests.gpu.random_cases` makes thousands."""

from __future__ import annotations

import pytest

from tests.gpu.random_cases import main


@pytest.mark.gpu
@pytest.mark.timeout(900)
def test_random_calls(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["--cases", "128", "--shards", "8"])
    assert status == 0, capsys.readouterr().out
