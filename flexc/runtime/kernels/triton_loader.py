"""Loading and launching of printed Triton kernels."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from triton import knobs

from flexc.codegen.kernel_spec import KernelSpec, ParamSpec
from flexc.runtime.inputs.options import is_interpreting
from flexc.runtime.kernels.triton_compiler import TRITON, Entry, load_jit_function
from flexc.runtime.tapes.gpus import capability
from flexc.runtime.tapes.tape import Address, Prepared


class TritonKernel:
    """A printed kernel, loaded to each device at its first launch there.

    Triton compiles a printed kernel once for each device. flexc launches the compiled
    kernel directly, without Triton's lookup.
    """

    def __init__(self, spec: KernelSpec):
        self.spec = spec
        self._on: dict[int, OnDevice] = {}

    def prepare(
        self, grid: tuple[int, ...], args: Sequence[Any], threads: int | None = None
    ) -> Prepared | None:
        output = next(i for i, p in enumerate(self.spec.params) if p.role == "output")
        device = args[output].device
        if device.type == "cpu" or is_interpreting():
            return None
        return self._kernel(device, args).prepare(grid, args)

    def launcher(
        self, device: torch.device, grid: tuple[int, ...], count: int, entry: Entry
    ) -> OnGrid:
        """Return a launcher of the kernel with `count` values on a grid of a device."""
        return OnGrid(self._kernel(device, (), entry).kernel, grid, count, self.spec)

    def _kernel(
        self, device: torch.device, args: Sequence[Any] = (), entry: Entry | None = None
    ) -> OnDevice:
        kernel = self._on.get(device.index)
        if kernel is None:
            kernel = self._on[device.index] = self.load(device, args, entry)
        return kernel

    def load(
        self, device: torch.device, args: Sequence[Any], entry: Entry | None
    ) -> OnDevice:
        """Compile the kernel for `device`, which must be the current device."""
        kernel = compile_on(device, self.spec, args, entry)
        return OnDevice(self.spec, kernel, (None,) * len(self.spec.params))

    def interpret(self, grid: tuple[int, ...], args: Sequence[Any]) -> None:
        given = [_typed(*each) for each in zip(args, self.spec.params, strict=True)]
        load_jit_function(self.spec)[grid](*given, **TRITON.options(self.spec))


def _typed(value: Any, param: ParamSpec) -> Any:
    """Return an argument; the interpreter would take a small i64 number as an i32."""
    if param.role != "scalar" or param.dtype != "i64":
        return value
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    return tl.tensor(TensorHandle(np.array([value], np.int64), tl.int64), tl.int64)


def compile_on(
    device: torch.device,
    spec: KernelSpec,
    args: Sequence[Any],
    entry: Entry | None = None,
) -> Any:
    """Return the compiled kernel for `device`, which must be the current device."""
    if not torch.version.hip:
        return TRITON.take(spec, capability(device), entry)
    function = load_jit_function(spec)
    return function.warmup(*args, grid=(1, 1, 1), **TRITON.options(spec))


@dataclass(frozen=True, eq=False)
class OnDevice:
    """A kernel on one device.

    Parameters that are descriptors have tensor maps (see `gluon_loader.TensorMaps`).
    """

    spec: KernelSpec
    kernel: Any
    maps: tuple[Any, ...]

    def prepare(self, grid: tuple[int, ...], args: Sequence[Any]) -> Prepared:
        """Return a launch with placeholders for the addresses of tensors."""
        values: list[Any] = []
        addresses: list[Address] = []
        for number, (arg, maps) in enumerate(zip(args, self.maps, strict=True)):
            if isinstance(arg, Tensor):
                make = None if maps is None else maps.maker(arg)
                addresses.append(Address(len(values), number, make))
                values.append(0)
            else:
                values.append(arg)
            if maps is not None:
                values += maps.extents(arg)
        launcher = OnGrid(self.kernel, grid, len(values), self.spec)
        return Prepared(launcher, values, tuple(addresses), True)

    def at(self, position: int) -> Any:
        """Return the maps of the parameter at a position among a launch's values.

        Raise KeyError if no descriptor is there.
        """
        start = 0
        for param, maps in zip(self.spec.params, self.maps, strict=True):
            if start == position and maps is not None:
                return maps
            start += 1 if maps is None else 1 + 2 * len(param.box)
        raise KeyError(position)


class OnGrid:
    """A launcher of a compiled kernel on one grid.

    Triton's own launch looks up the device, the stream and hooks, and asks CUDA for the
    location of each tensor. That takes longer than many kernels run. This launcher
    calls Triton's C function directly if the kernel needs no scratch memory.
    """

    def __init__(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        count: int,
        spec: KernelSpec,
    ):
        """Load the kernel to the current device; `spec` is its source."""
        self.spec, self.grid, self.kernel = spec, grid, kernel
        start = kernel.run  # Reading `run` loads the kernel.
        # Only hooks use the values that are None here.
        rest = (kernel.function, kernel.packed_metadata, None, None, None)
        start, before, after, flat = innermost(start, grid, rest, count)
        hooks = knobs.runtime

        def launch(stream: Any, *values: Any) -> None:
            if hooks.launch_enter_hook.calls or hooks.launch_exit_hook.calls:
                kernel[grid](*values, stream=stream)  # Profilers are notified.
            elif flat:
                start(*before, stream, *after, *values)
            else:
                start(*before, stream, *after, values)

        self.launch = launch


def innermost(
    start: Any, before: tuple[Any, ...], after: tuple[Any, ...], count: int
) -> tuple[Any, tuple[Any, ...], tuple[Any, ...], bool]:
    """Return the C function of Triton's launcher, and the fixed arguments of its calls.

    Return the function, the arguments before and after the stream, and True if the
    function takes the values one by one. If the launcher allocates memory or passes
    changing arguments, return the launcher itself.
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
    except Exception:  # For example, the launcher allocates memory.
        return start, before, after, True
    flat = args[-count:] == values
    if not flat and args[-1] != values:
        return start, before, after, True
    end = len(args) - (count if flat else 1)
    return start.launch, args[:place], args[place + 1 : end], flat
