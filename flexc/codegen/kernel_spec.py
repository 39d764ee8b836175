"""What a printer hands to the runtime: source text and how to call it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property


@dataclass(frozen=True)
class ParamSpec:
    """One kernel parameter, and what of the call's arguments it receives.

    `dtype` is the IR's name of a type ("f32", "bf16", "i64"): the element's for a
    tensor. `role` is "input" or "output" for tensors, "scalar" for numbers.
    `kind`, `source`, `dim` and `unit` are those of `#tile.param`. `box` is a
    descriptor's: sizes of what is copied at once, one for each of the tensor's
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
    """Registers that each thread may have when the kernel starts."""
    schedule: str = ""
    """How its warps share the work, where there was a choice."""
    rejected: tuple[str, ...] = ()
    """Which schedules were preferred to that, and why they were left."""
    copied_ahead: int = 0
    """Bytes of captured tensors that Triton holds in shared memory for later steps."""
    shared: tuple[str, ...] = ()
    """Instantiations of the C++ templates that it calls and other kernels call too."""

    @cached_property
    def digest(self) -> str:
        """A name for this kernel: equal for equal text, parameters and options."""
        bare = replace(self, schedule="", rejected=())
        return hashlib.sha256(bare.to_json().encode()).hexdigest()

    @cached_property
    def grid_function(self) -> Callable[[int, int, int], tuple[int, ...]]:
        """The numbers of programs for given B, Hq and Sq."""
        # A process whose launches are on the disk does without xDSL.
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
