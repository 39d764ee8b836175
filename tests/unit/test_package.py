"""A wheel holds all of flexc, and runs where nothing else of the repository is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]

BUILD = "from setuptools.build_meta import build_wheel; print(build_wheel('dist'))"

USE = """
import sys
sys.path.insert(0, sys.argv[1])
import torch, flexc
from flexc import cli, opt
assert flexc.__file__.startswith(sys.argv[1])
query = torch.randn(1, 2, 100, 64)
out = flexc.flex_attention(query, query, query, mask_mod=lambda b, h, q, k: q >= k)
torch.testing.assert_close(out[:, :, 0], query[:, :, 0])
cli.main(["--version"])
"""


def test_wheel(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="77")
    source, installed, empty = (tmp_path / n for n in ("source", "installed", "empty"))
    copytree(ROOT / "flexc", source / "flexc", ignore=ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (source / name).write_bytes((ROOT / name).read_bytes())
    run = (sys.executable, "-W", "ignore", "-c")
    made = subprocess.run([*run, BUILD], cwd=source, capture_output=True, check=True)
    wheel = source / "dist" / made.stdout.decode().split()[-1]
    ZipFile(wheel).extractall(installed)

    wanted = {p.relative_to(source) for p in (source / "flexc").rglob("*.*")}
    assert Path("flexc/py.typed") in wanted
    assert not [path for path in wanted if not (installed / path).exists()]
    empty.mkdir()
    used = subprocess.run(
        [*run, USE, str(installed)], cwd=empty, capture_output=True, text=True
    )
    assert used.returncode == 0, used.stderr
    assert used.stdout.startswith("flexc ")
