"""Run tests with Triton's interpreter, which Triton chooses when it is imported.

Tests marked `interpreted` run in a process of their own, one for all of a folder, which
the one test that other runs see starts. The interpreter's matrix product knows no
bfloat16.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from hypothesis import settings

INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
DTYPES = (torch.float32, torch.float16)


@pytest.mark.timeout(9000)
@pytest.mark.skipif(INTERPRETING, reason="this is that process")
def run_interpreted(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Run the marked tests of a test's folder, or the same sample, in one process."""
    pytest.importorskip("triton.language")
    if version("triton").startswith("3.6."):
        pytest.skip("fails with the numpy that torch takes")
    files = request.path.parent.glob("test_*.py")
    marked = [str(f) for f in files if "mark.interpreted" in f.read_text()]
    profile = settings.get_current_profile_name()
    is_long = profile == "long"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("-m", "interpreted" if is_long else "interpreted and not slow"),
            *("-W", "ignore::RuntimeWarning"),  # numpy's, of log(0)
            f"--timeout={7200 if is_long else 600}",
            f"--every={request.config.getoption('every')}",
            f"--hypothesis-profile={profile}",
            *sorted(marked),
        ],
        env=os.environ | {"TRITON_INTERPRET": "1", "FLEXC_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
