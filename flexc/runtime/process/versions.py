"""Which flexc, torch, Triton, xDSL and Python are here, and how flexc was installed."""

from __future__ import annotations

import hashlib
import os
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

import torch

import flexc

PACKAGE = Path(flexc.__file__).parent


@cache
def versions() -> str:
    """Return the versions of all that a kernel is made by."""
    found = [f"{p}={_version(p)}" for p in ("xdsl", "torch", "triton")]
    found += [f"git={torch.version.git_version}", f"python={platform.python_version()}"]
    return " ".join([*found, f"flexc={own_digest()}"])


def own_digest() -> str:
    """Return a digest of flexc's files: a checkout changes, its version does not."""
    digest, root = hashlib.sha256(), str(PACKAGE)
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for path in sorted(os.path.join(folder, name) for name in files):
            if path.endswith((".py", ".h")):
                digest.update(path.removeprefix(root).encode())
                with open(path, "rb") as file:
                    digest.update(file.read())
    return digest.hexdigest()


def _version(package: str) -> str:
    try:
        return version(package)
    except Exception:
        return "none"


def has_entry_point() -> bool:
    """Return whether torch.compile finds flexc's backend by itself."""
    try:
        found = distribution("flexc").entry_points
    except PackageNotFoundError:
        return False
    return any(point.group == "torch_dynamo_backends" for point in found)
