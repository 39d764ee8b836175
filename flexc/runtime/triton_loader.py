"""From printed Triton kernels to something that can be launched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from triton import knobs

from flexc.codegen.kernel_spec import KernelSpec
from flexc.runtime.build import capability
from flexc.runtime.options import is_interpreting
from flexc.runtime.triton_compiler import load_jit_function, options, take_kernel

ON_CURRENT = nullcontext()

Launcher = Callable[[tuple[int, ...], Sequence[Any]], None]


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Makes a tensor's device the current one, if it is a GPU and is not that."""
    if device.type == "cpu" or device.index == torch.cuda.current_device():
        return ON_CURRENT
    return torch.cuda.device(device)


def load_triton(spec: KernelSpec) -> Launcher:
    """A function that launches a kernel on a grid with its arguments.

    Kernels are printed so that Triton compiles them once for a device; the compiled
    kernel is launched without asking Triton which one it is. Triton launches on the
    current device, which need not be the tensors'.
    """
    output = next(i for i, p in enumerate(spec.params) if p.role == "output")
    compiled: dict[int, Any] = {}

    def launch(grid: tuple[int, ...], args: Sequence[Any]) -> None:
        device = args[output].device
        if device.type == "cpu" or is_interpreting():
            load_jit_function(spec)[grid](*args, **options(spec))
            return
        with on_device(device):
            kernel = compiled.get(device.index)
            if kernel is None:
                kernel = compiled[device.index] = compile_on(device, spec, args)
            kernel[grid](*args)

    return launch


def compile_on(device: torch.device, spec: KernelSpec, args: Sequence[Any]) -> Any:
    """A compiled kernel for a device, which is the current one."""
    if not torch.version.hip:
        return take_kernel(spec, capability(device))
    function = load_jit_function(spec)
    return function.warmup(*args, grid=(1, 1, 1), **options(spec))


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
