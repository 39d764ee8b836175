"""`flexc doctor`: what this machine has, what it can run, and what it lacks."""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

from flexc import __version__
from flexc.errors import DeviceError, FlexcError, OptionError

REQUIRED = ("torch", "xdsl", "sympy", "numpy")
"""Packages without which nothing runs."""

PACKAGES = (*REQUIRED, "triton")
MISSING = "not installed"

VARIABLES = (
    "CXX",
    "FLEXC_CACHE_DIR",
    "FLEXC_CACHE_SIZE",
    "FLEXC_MACHINE",
    "FLEXC_SANITIZE",
    "OMP_NUM_THREADS",
    "TRITON_INTERPRET",
)

OPTIONAL = {
    "matplotlib": "for explain to save a .png",
    "rich": "to see what is compiled",
    "transformers": 'for attn_implementation="flexc"',
}
"""Optional packages, and their use."""


def doctor(args: argparse.Namespace) -> int:
    """Print what this machine has, and try what it can run. Return 1 if nothing runs.

    Where something is missing, the text says how to get it.
    """
    lines = [("flexc", __version__)]
    lines += [("python", f"{platform.python_version()} on {platform.platform()}")]
    lines += [(name, _version(name)) for name in PACKAGES]
    missing = [name for name in REQUIRED if _version(name) == MISSING]
    if not missing:
        lines += [("compiler", _compiler()), ("cpu", _cpu()), ("gpu", _gpus())]
    lines += [(name, os.environ[name]) for name in VARIABLES if name in os.environ]
    _print_table(lines)
    print()
    if missing:
        wanted = " ".join(map(_requirement, missing))
        print(f"flexc needs {', '.join(missing)}: pip install {wanted}")
        return 1
    tries = {"cpu": lambda: _try("cpu"), "gpu": _try_gpu, "cache": _try_cache}
    found = {f"{name} works": _outcome(each) for name, each in tries.items()}
    lacks = [(name, use) for name, use in OPTIONAL.items() if not find_spec(name)]
    hints = [(f"no {name}", f"pip install {name}, {use}") for name, use in lacks]
    _print_table([*found.items(), *hints])
    runs = (found["cpu works"], found["gpu works"])
    return 0 if any(text.startswith("yes") for text in runs) else 1


def _print_table(lines: Sequence[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in lines)
    for name, text in lines:
        print(f"{name:<{width}}  {text}")


def _outcome(attempt: Callable[[], str]) -> str:
    try:
        return f"yes: {attempt()}"
    except Exception as error:  # A broken installation may raise anything.
        return f"no: {str(error) or type(error).__name__}"


def _try(device: str) -> str:
    """Compute attention in both directions on a device, and compare it with torch's."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    import flexc

    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    shape, on = (3, 1, 2, 128, 64), {"device": device, "dtype": dtype}
    inputs: Any = torch.randn(shape, **on).unbind()
    for each in inputs:
        each.requires_grad_()
    found: Any = flexc.flex_attention(*inputs, mask_mod=lambda b, h, q, k: q >= k)
    results = []
    for out in (found, scaled_dot_product_attention(*inputs, is_causal=True)):
        results.append((out, *torch.autograd.grad(out.sum(), inputs)))
    torch.testing.assert_close(*results, rtol=0.1, atol=0.1)
    return "attention and its gradients are those of torch"


def _try_gpu() -> str:
    import torch

    if torch.cuda.is_available():
        return _try("cuda")
    if torch.version.cuda is None and torch.version.hip is None:
        raise DeviceError(
            f"torch {torch.__version__} is built for CPUs; install a build for your "
            "GPU, if there is one, from https://pytorch.org"
        )
    raise DeviceError("torch finds no GPU; nvidia-smi says if there is one")


def _try_cache() -> str:
    from flexc.runtime.process.cache import cache_dir

    folder = cache_dir()
    if not os.access(folder, os.W_OK):
        raise OptionError(f"{folder} cannot be written; set FLEXC_CACHE_DIR to another")
    return str(folder)


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return MISSING


def _requirement(package: str) -> str:
    """Return a package with the versions that flexc takes, quoted for a shell."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        known = requires("flexc") or ()
    except PackageNotFoundError:  # flexc is a folder on the path.
        known = ()
    named = (text.partition(";")[0].strip() for text in known)
    found = (text for text in named if re.split(r"[^\w-]", text)[0] == package)
    return shlex.quote(next(found, package))


def _compiler() -> str:
    from flexc.runtime.kernels.cpp_compiler import find_compiler

    try:
        found = find_compiler()
    except FlexcError as error:
        return f"none: {error}"
    return f"{' '.join(found.command)}: {found.version.partition(chr(10))[0]}"


def _cpu() -> str:
    import torch

    from flexc.runtime.kernels.cpp_compiler import host_machine, lacks_tiles

    try:
        kind = host_machine() + lacks_tiles()
    except FlexcError as error:
        kind = str(error)
    return f"{platform.machine()}, {kind}, {torch.get_num_threads()} threads"


def _gpus() -> str:
    import torch

    if not torch.cuda.is_available():
        return "none"
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return ", ".join(names)
