"""The versions of flexc, torch, Triton, xDSL and Python, and flexc's entry points."""

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
    """Return the versions of all software that affects a kernel."""
    found = [f"{p}={_version(p)}" for p in ("xdsl", "torch", "triton")]
    found += [f"git={torch.version.git_version}", f"python={platform.python_version()}"]
    return " ".join([*found, f"flexc={own_digest()}"])


def own_digest() -> str:
    """Return a digest of flexc's files. A checkout may change without its version."""
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
    """Return True if torch.compile finds flexc's backend by its entry point."""
    try:
        found = distribution("flexc").entry_points
    except PackageNotFoundError:
        return False
    return any(point.group == "torch_dynamo_backends" for point in found)
