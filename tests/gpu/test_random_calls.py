"""Some random calls; `python -m tests.random_calls --device cuda` makes thousands."""

from __future__ import annotations

import pytest

from tests.random_calls.__main__ import main


@pytest.mark.gpu
@pytest.mark.timeout(900)
def test_random_calls(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["--device", "cuda", "--calls", "128", "--processes", "8"])
    assert status == 0, capsys.readouterr().out
