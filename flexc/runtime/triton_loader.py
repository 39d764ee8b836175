"""From Triton source to something that can be launched.

Triton reads a kernel's source from its file, so the text goes to one, named
after its digest, in the cache directory; that also makes it easy to look at.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from triton import knobs

from flexc.codegen.kernel_spec import KernelSpec
from flexc.runtime.cache import store_text

ON_CURRENT = nullcontext()

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


def options(spec: KernelSpec) -> dict[str, Any]:
    return {
        "num_warps": spec.num_warps,
        "num_stages": spec.num_stages,
        # Triton's default is about to change.
        "enable_fp_fusion": True,
    }


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Makes a tensor's device the current one, if it is a GPU and is not that."""
    if device.type == "cpu" or device.index == torch.cuda.current_device():
        return ON_CURRENT
    return torch.cuda.device(device)


def load_triton(spec: KernelSpec) -> Launcher:
    """A function that launches a kernel on a grid with its arguments.

    Kernels are printed so that Triton compiles them once for a device; from then
    on the compiled kernel is launched without asking Triton which one it is.
    Triton launches on the current device, which need not be the tensors'.
    """
    function = load_jit_function(spec)
    meta = options(spec)
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
        else:
            with on_device(device):
                launch_on(device.index, grid, args)

    return launch


@dataclass(frozen=True, eq=False)
class DirectLaunch:
    """Launches a compiled kernel on the current device, with addresses for tensors.

    Triton's own launch looks up device, stream and hooks, and asks CUDA where each
    tensor lies, at every launch: that takes longer than many a kernel.
    """

    kernel: Any

    def __call__(
        self, grid: tuple[int, ...], stream: int, values: Sequence[Any], watched: bool
    ) -> None:
        kernel = self.kernel
        if watched:
            kernel[grid](*values, stream=stream)
            return
        kernel.run(
            *grid,
            stream,
            kernel.function,
            kernel.packed_metadata,
            None,
            None,
            None,
            *values,
        )


def load_direct(
    spec: KernelSpec, values: Sequence[Any], device: torch.device
) -> DirectLaunch:
    """A printed kernel, compiled for such values."""
    return compile_direct(load_jit_function(spec), values, options(spec), device)


def compile_direct(
    function: Any,
    values: Sequence[Any],
    meta: Mapping[str, Any],
    device: torch.device,
) -> DirectLaunch:
    """A kernel compiled for values of which tensors may be dtypes; nothing is run."""
    types = [v.dtype if isinstance(v, Tensor) else v for v in values]
    with torch.cuda.device(device):
        kernel = function.warmup(*types, grid=(1, 1, 1), **meta)
        assert kernel.run is not None  # Loaded here, and not at the first launch.
    return DirectLaunch(kernel)


def current_stream(device: torch.device) -> int:
    driver: Any = triton.runtime.driver.active
    return driver.get_current_stream(device.index)


def is_watched() -> bool:
    """Whether someone, say a profiler, asked Triton to be told of launches."""
    hooks = knobs.runtime
    return bool(hooks.launch_enter_hook.calls or hooks.launch_exit_hook.calls)
