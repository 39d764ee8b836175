"""From printed Triton kernels to something that can be launched."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor
from triton import knobs

from flexc.codegen.kernel_spec import KernelSpec
from flexc.runtime.inputs.options import is_interpreting
from flexc.runtime.kernels.triton_compiler import (
    Entry,
    load_jit_function,
    options,
    take_kernel,
)
from flexc.runtime.tapes.gpus import capability
from flexc.runtime.tapes.prepared import Address, Prepared


class TritonKernel:
    """A printed kernel, loaded to each device at its first launch there.

    Kernels are printed so that Triton compiles them once for a device; the compiled
    kernel is launched without asking Triton which one it is.
    """

    def __init__(self, spec: KernelSpec):
        self.spec = spec
        self._on: dict[int, Any] = {}

    def prepare(
        self, grid: tuple[int, ...], args: Sequence[Any], threads: int | None = None
    ) -> Prepared | None:
        output = next(i for i, p in enumerate(self.spec.params) if p.role == "output")
        device = args[output].device
        if device.type == "cpu" or is_interpreting():
            return None
        return prepare(self._kernel(device, args), grid, args, self.spec)

    def launcher(
        self, device: torch.device, grid: tuple[int, ...], count: int, entry: Entry
    ) -> OnGrid:
        """Return the launcher on a grid of a device, of so many values."""
        return OnGrid(self._kernel(device, (), entry), grid, count, self.spec)

    def _kernel(
        self, device: torch.device, args: Sequence[Any], entry: Entry | None = None
    ) -> Any:
        kernel = self._on.get(device.index)
        if kernel is None:
            kernel = compile_on(device, self.spec, args, entry)
            self._on[device.index] = kernel
        return kernel

    def interpret(self, grid: tuple[int, ...], args: Sequence[Any]) -> None:
        load_jit_function(self.spec)[grid](*args, **options(self.spec))


def compile_on(
    device: torch.device,
    spec: KernelSpec,
    args: Sequence[Any],
    entry: Entry | None = None,
) -> Any:
    """A compiled kernel for a device, which is the current one."""
    if not torch.version.hip:
        return take_kernel(spec, capability(device), entry)
    function = load_jit_function(spec)
    return function.warmup(*args, grid=(1, 1, 1), **options(spec))


def prepare(
    kernel: Any,
    grid: tuple[int, ...],
    args: Sequence[Any],
    spec: KernelSpec | None = None,
) -> Prepared:
    """The launch of a compiled kernel with addresses for tensors."""
    tensors = [i for i, arg in enumerate(args) if isinstance(arg, Tensor)]
    values = list(args)
    for i in tensors:
        values[i] = 0
    places = tuple(Address(i, i) for i in tensors)
    launcher = OnGrid(kernel, grid, len(values), spec)
    return Prepared(launcher, values, places, True)


class OnGrid:
    """A compiled kernel's launches on a grid.

    Triton's own launch looks up device, stream and hooks, and asks CUDA where each
    tensor lies, at every launch: that takes longer than many a kernel. What it passes
    on, of memory that a kernel asks for, is the same each time where that is none.
    """

    def __init__(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        count: int,
        spec: KernelSpec | None = None,
    ):
        """`spec` is what the kernel was compiled from; None of flexc's own source."""
        self.spec, self.grid, self.kernel = spec, grid, kernel
        start = kernel.run  # Loads it to the current device.
        # Without what only hooks are told.
        rest = (kernel.function, kernel.packed_metadata, None, None, None)
        start, before, after, flat = innermost(start, grid, rest, count)
        hooks = knobs.runtime

        def launch(stream: Any, *values: Any) -> None:
            if hooks.launch_enter_hook.calls or hooks.launch_exit_hook.calls:
                kernel[grid](*values, stream=stream)  # Someone, a profiler, is told.
            elif flat:
                start(*before, stream, *after, *values)
            else:
                start(*before, stream, *after, values)

        self.launch = launch


def innermost(
    start: Any, before: tuple[Any, ...], after: tuple[Any, ...], count: int
) -> tuple[Any, tuple[Any, ...], tuple[Any, ...], bool]:
    """The function in C of a launcher of Triton's, and what it passes to that.

    This is what it passes before and after the stream, and whether it passes so many
    values one by one. Of a launcher that allocates memory for a kernel, or passes
    anything else at each launch, this is the launcher itself.
    """
    if any(getattr(start, f"{kind}_scratch_size", 0) for kind in ("global", "profile")):
        return start, before, after, True
    passed: list[tuple[Any, ...]] = []
    stream, values = object(), tuple(object() for _ in range(count))
    asked = copy(start)
    try:
        asked.launch = lambda *args: passed.append(args)
        asked(*before, stream, *after, *values)
        (args,) = passed
        place = args.index(stream)
    except Exception:  # It allocates memory, say.
        return start, before, after, True
    flat = args[-count:] == values
    if not flat and args[-1] != values:
        return start, before, after, True
    end = len(args) - (count if flat else 1)
    return start.launch, args[:place], args[place + 1 : end], flat
