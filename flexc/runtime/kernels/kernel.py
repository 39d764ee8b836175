"""Loaded kernels, which take a call's arguments and pass their parameters' values."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from hashlib import sha256
from math import prod
from typing import Any

import torch
from torch import Tensor

from flexc.codegen.kernel_spec import KernelSpec, ParamSpec
from flexc.runtime.kernels.targets import TARGETS
from flexc.runtime.process.cache import load, store
from flexc.runtime.tapes.gpus import on_device, stream_of
from flexc.runtime.tapes.recorder import Origin, recorder
from flexc.runtime.tapes.tape import Loaded

SIZES = ("dim", "stride")
"""The kinds of parameters that are read from tensors."""

Getter = Callable[[Sequence[Any]], Any]


def getter(param: ParamSpec) -> Getter:
    """Return a function from the call's arguments to the value of a parameter."""
    source, dim, unit = param.source, param.dim, param.unit
    match param.kind:
        case "dim":
            return lambda args: args[source].size(dim)
        case "stride" if unit != 1:
            return lambda args: args[source].stride(dim) // unit
        case "stride":
            return lambda args: args[source].stride(dim)
        case "progress":  # `Kernel.run` appends it.
            return lambda args: args[-1]
        case _:
            return lambda args: args[source]


class Kernel:
    """A kernel that was printed, compiled and loaded."""

    def __init__(self, spec: KernelSpec):
        self.spec = spec
        self._getters = tuple(getter(p) for p in spec.params)
        self.reports_progress = any(p.kind == "progress" for p in spec.params)
        self.loaded: Loaded = TARGETS[spec.target].load(spec)
        self.grid = lru_cache(maxsize=1024)(spec.grid_function)

    def __call__(self, query: Tensor, args: Sequence[Any]) -> None:
        """Run on (query, key, value, scale, captures, tables, outputs)."""
        b, h, q_len, _ = query.shape
        self.run(b, h, q_len, args)

    def run(
        self, b: int, h: int, n: int, args: Sequence[Any], *, threads: int | None = None
    ) -> None:
        """Run on the grid for these sizes; `n` is the size that the grid calls Sq.

        A CPU's kernel uses at most `threads` threads. Waking more threads than a small
        workload needs takes longer than the workload.
        """
        grid, origins = self.grid(b, h, n), partial(self.origins, args)
        if self.reports_progress:
            args = [*args, no_progress(grid, args)]
        launch(self.loaded, grid, self.values(args), threads, origins)

    def values(self, args: Sequence[Any]) -> list[Any]:
        """Return the values of the kernel's parameters for a call's arguments."""
        return [get(args) for get in self._getters]

    def origins(self, args: Sequence[Any]) -> list[Origin | None]:
        """Return, for each parameter, the tensor of which it is a size or a stride."""
        return [
            (args[p.source], p.kind, p.dim, p.unit) if p.kind in SIZES else None
            for p in self.spec.params
        ]


def no_progress(grid: Sequence[int], args: Sequence[Any]) -> Tensor:
    """Return a zero for each program of a grid, on the device of the arguments."""
    device = next(a.device for a in args if isinstance(a, Tensor))
    return torch.zeros(prod(grid), dtype=torch.int32, device=device)


def launch(
    loaded: Loaded,
    grid: tuple[int, ...],
    args: Sequence[Any],
    threads: int | None = None,
    origins: Callable[[], Sequence[Origin | None]] = tuple,
) -> None:
    """Run a loaded kernel on a grid with its arguments, on the device of its tensors.

    If the current thread records a tape, add the launch to the tape. `origins` returns,
    for each argument, the tensor of which it is a size or a stride.
    """
    device = next(a.device for a in args if isinstance(a, Tensor))
    with on_device(device):
        prepared = loaded.prepare(grid, args, threads)
        if (tape := recorder()) is not None:
            tape.launch(prepared, args, origins)
        if prepared is None:
            loaded.interpret(grid, args)
        else:
            prepared(stream_of(device), args)


def store_spec(spec: KernelSpec) -> str:
    """Store a kernel's spec, and return the name of its entry."""
    data = spec.to_json().encode()
    name = f"spec-{sha256(data).hexdigest()}.json"
    store(name, data)
    return name


def load_spec(name: str) -> KernelSpec | None:
    """Return the spec of an entry, None if it is missing."""
    data = load(name)
    return None if data is None else KernelSpec.from_json(data.decode())


def store_specs(name: str, specs: Sequence[KernelSpec]) -> None:
    """Store specs, and their names in an entry of their own."""
    store(name, json.dumps([store_spec(spec) for spec in specs]).encode())


def load_specs(name: str) -> list[KernelSpec] | None:
    """Return the specs that an entry names, None if any is missing."""
    data = load(name)
    found = [None] if data is None else [load_spec(n) for n in json.loads(data)]
    specs = [spec for spec in found if spec is not None]
    return specs if len(specs) == len(found) else None


PROGRAMS_OF_A_THREAD = 1024
"""The fewest programs for which another thread pays off."""


def threads_for(programs: int) -> int:
    """Return the number of threads that a CPU should use for short programs."""
    return max(1, programs // PROGRAMS_OF_A_THREAD)
