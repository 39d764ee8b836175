"""The result of printing a kernel: its source text, and how to call it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property


@dataclass(frozen=True)
class ParamSpec:
    """A kernel parameter and the source of its value among the call's arguments.

    `dtype` is the IR's name of a type ("f32", "bf16", "i64"); for a tensor, that of its
    elements. `role` is "input" or "output" for a tensor, "scalar" for a number. `kind`,
    `source`, `dim` and `unit` are those of `#tile.param`. `box` is the shape of the
    tile that one copy through a descriptor moves, with a size for each of the tensor's
    dimensions.
    """

    name: str
    dtype: str
    role: str
    kind: str
    source: int
    dim: int = 0
    unit: int = 1
    box: tuple[int, ...] = ()


@dataclass(frozen=True)
class KernelSpec:
    """A printed kernel. `grid` is the text of an affine map (B, Hq, Sq) -> sizes."""

    target: str
    entry: str
    params: tuple[ParamSpec, ...]
    grid: str
    source: str
    num_warps: int | None = None
    num_stages: int | None = None
    max_registers: int | None = None
    """The registers of each thread when the kernel starts, or None for the default."""
    schedule: str = ""
    """The name of the chosen schedule, "" if there was no choice."""
    rejected: tuple[str, ...] = ()
    """The schedules that would have been preferred, each with the reason against it."""
    copied_ahead: int = 0
    """The bytes of captures that Triton copies to shared memory ahead of use."""
    launches_early: bool = False
    """True if the kernel may be launched before the kernel before it has ended."""
    shared: tuple[str, ...] = ()
    """The instantiations of C++ templates that the kernel shares with other kernels."""

    @cached_property
    def digest(self) -> str:
        """A name that is equal for kernels of equal text, parameters and options."""
        bare = replace(self, schedule="", rejected=())
        return hashlib.sha256(bare.to_json().encode()).hexdigest()

    @cached_property
    def grid_function(self) -> Callable[[int, int, int], tuple[int, ...]]:
        """The function from B, Hq and Sq to the numbers of programs."""
        # Imported here so that a process whose launches are cached on disk needs no
        # xDSL.
        from xdsl.context import Context
        from xdsl.dialects.builtin import AffineMapAttr
        from xdsl.parser import Parser

        attr = Parser(Context(), self.grid).parse_attribute()
        assert isinstance(attr, AffineMapAttr)
        affine_map = attr.data
        return lambda b, h, q_len: tuple(affine_map.eval([b, h, q_len], []))

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> KernelSpec:
        data = json.loads(text)
        for param in data["params"]:
            param["box"] = tuple(param["box"])
        data["params"] = tuple(ParamSpec(**p) for p in data["params"])
        for name in ("rejected", "shared"):
            data[name] = tuple(data[name])
        return cls(**data)
