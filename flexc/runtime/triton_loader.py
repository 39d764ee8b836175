"""From Triton source to something that can be launched.

Triton reads a kernel's source from its file, so the text goes to one, named
after its digest, in the cache directory; that also makes it easy to look at.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from flexc.codegen.kernel_spec import KernelSpec
from flexc.runtime.cache import store_text

Launcher = Callable[[tuple[int, ...], Sequence[Any]], None]


def load_jit_function(spec: KernelSpec) -> Any:
    """The `triton.JITFunction` of a printed kernel."""
    path = store_text(f"{spec.entry}-{spec.digest[:32]}.py", spec.source)
    name = f"flexc_kernel_{spec.digest[:32]}"
    if name not in sys.modules:
        module_spec = importlib.util.spec_from_file_location(name, path)
        assert module_spec is not None
        assert module_spec.loader is not None
        module = importlib.util.module_from_spec(module_spec)
        sys.modules[name] = module
        module_spec.loader.exec_module(module)
    return getattr(sys.modules[name], spec.entry)


def load_triton(spec: KernelSpec) -> Launcher:
    """A function that launches a kernel on a grid with its arguments.

    Kernels are printed so that Triton compiles them once for a device; from then
    on the compiled kernel is launched without asking Triton which one it is.
    Triton launches on the current device, which need not be the tensors'.
    """
    function = load_jit_function(spec)
    meta = {
        "num_warps": spec.num_warps,
        "num_stages": spec.num_stages,
        # Triton's default is about to change.
        "enable_fp_fusion": True,
    }
    output = next(i for i, p in enumerate(spec.params) if p.role == "output")
    compiled: dict[int, Any] = {}

    def launch_on(index: int, grid: tuple[int, ...], args: Sequence[Any]) -> None:
        kernel = compiled.get(index)
        if kernel is None:
            compiled[index] = function[grid](*args, **meta)
        else:
            kernel[grid](*args)

    def launch(grid: tuple[int, ...], args: Sequence[Any]) -> None:
        device = args[output].device
        if device.type == "cpu":
            function[grid](*args, **meta)
        elif device.index == torch.cuda.current_device():
            launch_on(device.index, grid, args)
        else:
            with torch.cuda.device(device):
                launch_on(device.index, grid, args)

    return launch
