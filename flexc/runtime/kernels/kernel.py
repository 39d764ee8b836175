"""A loaded kernel: takes a call's arguments, passes what its parameters ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from torch import Tensor

from flexc.codegen.kernel_spec import KernelSpec, ParamSpec
from flexc.runtime.tapes.prepared import Loaded
from flexc.runtime.tapes.recorder import recorder
from flexc.runtime.tapes.streams import on_device, stream_of

Getter = Callable[[Sequence[Any]], Any]


def getter(param: ParamSpec) -> Getter:
    """How a parameter is read off the call's arguments."""
    source, dim, unit = param.source, param.dim, param.unit
    match param.kind:
        case "dim":
            return lambda args: args[source].size(dim)
        case "stride" if unit != 1:
            return lambda args: args[source].stride(dim) // unit
        case "stride":
            return lambda args: args[source].stride(dim)
        case _:
            return lambda args: args[source]


class Kernel:
    """A kernel that was printed, compiled and loaded."""

    def __init__(self, spec: KernelSpec):
        self.spec = spec
        self._getters = tuple(getter(p) for p in spec.params)
        self.loaded: Loaded = load(spec)
        self.grid = lru_cache(maxsize=1024)(spec.grid_function)

    def __call__(self, query: Tensor, args: Sequence[Any]) -> None:
        """Run on (query, key, value, scale, captures, tables, outputs)."""
        b, h, q_len, _ = query.shape
        self.run(b, h, q_len, args)

    def run(
        self, b: int, h: int, n: int, args: Sequence[Any], *, threads: int | None = None
    ) -> None:
        """Run on the grid for these sizes, n being what the grid calls Sq.

        A CPU's kernel runs on `threads` threads at most: to wake more than little
        work needs takes longer than the work.
        """
        launch(self.loaded, self.grid(b, h, n), self.values(args), threads)

    def values(self, args: Sequence[Any]) -> list[Any]:
        """What its parameters ask for."""
        return [get(args) for get in self._getters]


def launch(
    loaded: Loaded,
    grid: tuple[int, ...],
    args: Sequence[Any],
    threads: int | None = None,
) -> None:
    """Run a loaded kernel on a grid with its arguments, on the device of its tensors.

    A recorder of this thread is told.
    """
    device = next(a.device for a in args if isinstance(a, Tensor))
    with on_device(device):
        prepared = loaded.prepare(grid, args, threads)
        if (tape := recorder()) is not None:
            tape.launch(prepared, args)
        if prepared is None:
            loaded.interpret(grid, args)
        else:
            prepared(stream_of(device), args)


def load(spec: KernelSpec) -> Loaded:
    """Compile and load a kernel with the loader of its target."""
    if spec.target == "triton":
        from flexc.runtime.kernels.triton_loader import TritonKernel

        return TritonKernel(spec)
    if spec.target == "gluon":
        from flexc.runtime.kernels.gluon_loader import GluonKernel

        return GluonKernel(spec)
    from flexc.runtime.kernels.cpp_loader import load_cpp

    return load_cpp(spec)
