"""Lowering calls to Triton, and compiling what is emitted without a GPU."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from torch.nn.attention.flex_attention import create_block_mask
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource
from xdsl.dialects.builtin import ModuleOp, UnitAttr

from flexc.codegen.kernel_spec import KernelSpec, ParamSpec
from flexc.dialects.flex import AttentionOp
from flexc.runtime.kernels import driver
from flexc.runtime.kernels.triton_compiler import (
    TRITON,
    TRITON_TYPES,
    load_jit_function,
)
from tests.support.corpus import CORPUS
from tests.support.flex_modules import make_call, make_module


def some_of_corpus(every: int) -> list[Any]:
    """Parameters for all cases, of which one in so many is not slow."""
    return [
        pytest.param(case, marks=[] if i % every == 0 else pytest.mark.slow)
        for i, case in enumerate(CORPUS)
    ]


HEADS, KV_HEADS = 4, 2
LENGTH = 256

TARGETS = {
    "sm80": GPUTarget("cuda", 80, 32),
    "sm90": GPUTarget("cuda", 90, 32),
    "sm100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
SHARED_MEMORY = {"sm80": 166912, "sm90": 232448, "sm100": 232448, "gfx942": 65536}
"""Bytes that a program may have, as the runtime asks the device."""
CAPABILITY = {"sm80": 80, "sm90": 90, "sm100": 100, "gfx942": None}
"""The compute capability of each, as the runtime asks the device."""

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Variant:
    """A case of the corpus and what its kernel is made for."""

    case: str
    target: str
    dtype: str = "bf16"
    head_dim: int = 64
    tables: bool = False
    length: int = LENGTH
    trusted: bool = True
    """Whether the runtime has proved that captured reads are inside, indices fit."""
    program_rows: int | None = None
    """Rows of a program on Hopper, where there are few programs."""

    def __str__(self) -> str:
        facts = [self.case, self.target, self.dtype, f"d{self.head_dim}"]
        facts += ["tables"] * self.tables + ["guarded"] * (not self.trusted)
        facts += [f"rows{self.program_rows}"] * (self.program_rows is not None)
        return "-".join([*facts, *[f"s{self.length}"] * (self.length != LENGTH)])


def has_mask(case: str) -> bool:
    return CORPUS[case].factory(1, HEADS, KV_HEADS, 16, 16)[1] is not None


@contextmanager
def vendor_of(target: str) -> Iterator[None]:
    """The driver asks torch whose GPU a kernel is for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.version, "hip", "6.4" if target == "gfx942" else None)
        yield


def call_of(variant: Variant, split: bool = False) -> tuple[ModuleOp, driver.Build]:
    """The `flex` module of a variant, and what its kernels are made for.

    Those of a call that is `split` along its keys, if that is said.
    """
    sizes = (1, HEADS, KV_HEADS, variant.length, variant.length)
    score_mod, mask_mod = CORPUS[variant.case].factory(*sizes)
    dtype, dim = DTYPES[variant.dtype], variant.head_dim
    query = torch.zeros(1, HEADS, variant.length, dim, dtype=dtype)
    key = torch.zeros(1, KV_HEADS, variant.length, dim, dtype=dtype)
    mask: Any = mask_mod
    if variant.tables:
        assert mask_mod is not None
        mask = create_block_mask(
            mask_mod, 1, HEADS, variant.length, variant.length, "cpu"
        )
    call = make_call((query, key, key.clone()), score_mod, mask, 0.125)
    build = call.build()
    if split:
        build = replace(build, call=driver.split_call(build.call))
    module, _ = make_module(call, build.call)
    if variant.trusted:
        attention = next(o for o in module.walk() if isinstance(o, AttentionOp))
        attention.captures_inside = attention.indices_fit = UnitAttr()
    values = {**vars(build), "device": "cuda", "program_rows": variant.program_rows}
    values["shared_memory"] = SHARED_MEMORY[variant.target]
    values["capability"] = CAPABILITY[variant.target]
    return module, driver.Build(**values)


def lower(variant: Variant) -> KernelSpec:
    """The emitted kernel of a variant."""
    module, build = call_of(variant)
    with vendor_of(variant.target):
        return driver.lower(module, build)


def triton_type(param: ParamSpec) -> str:
    name = TRITON_TYPES.get(param.dtype, param.dtype)
    return name if param.role == "scalar" else f"*{name}"


@cache
def compiled(variant: Variant) -> Any:
    """Down to the target's binary."""
    return compile_spec(lower(variant), variant.target)


def compile_spec(spec: KernelSpec, target: str) -> Any:
    """A printed kernel, compiled for a target."""
    source = ASTSource(
        load_jit_function(spec),
        {p.name: triton_type(p) for p in spec.params},
        {},
        {
            (i,): [["tt.divisibility", 16]]
            for i, p in enumerate(spec.params)
            if p.role != "scalar"
        },
    )
    options = TRITON.options(spec)
    return triton.compile(source, target=TARGETS[target], options=options)


def check_names(sources: Sequence[str], path: Path) -> None:
    """Undefined and unused names are bugs of the printer or of a pass."""
    ruff = shutil.which("ruff", path=str(Path(sys.executable).parent))
    if ruff is None:
        pytest.skip("ruff is not installed")
    for i, source in enumerate(sources):
        (path / f"{i}.py").write_text(source)
    done = subprocess.run(
        [ruff, "check", "--isolated", "--select", "F", "."],
        cwd=path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def sass_of(kernel: Any, path: Path) -> str:
    """The machine code of a kernel of Triton's, as text."""
    (path / "kernel.cubin").write_bytes(kernel.asm["cubin"])
    done = subprocess.run(
        [knobs.nvidia.cuobjdump.path, "-sass", "kernel.cubin"],
        cwd=path,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


WAIT = re.compile(r"griddepcontrol\.wait|ACQBULK")
ACCESS = re.compile(
    r"\b(ld|st)\.(global|volatile)|cp\.async|\b(atom|red)\."
    r"|\b(LDG|STG|LDGSTS|ATOMG?|RED|UTMALDG|UTMASTG|UBLKCP)\b"
)
"""Instructions that access a GPU's memory, in PTX and in machine code."""


def waits_first(code: str) -> bool:
    """Whether a kernel waits for earlier kernels before it accesses memory.

    The code is PTX or machine code. ptxas may have moved reads in the latter, but that
    of a kernel with roles may begin with a role, which runs later.
    """
    before, *after = WAIT.split(code, maxsplit=1)
    return bool(after) and not ACCESS.search(before)


def spilled_bytes(ptx: str, path: Path) -> int:
    """What ptxas, for Hopper, stores to local memory for lack of registers."""
    ptxas = get_ptxas(90).path
    (path / "kernel.ptx").write_text(ptx)
    target = re.search(r"^\.target (\w+)", ptx, re.MULTILINE)
    assert target is not None
    done = subprocess.run(
        [ptxas, "-v", f"--gpu-name={target[1]}", "kernel.ptx", "-o", "out"],
        cwd=path,
        capture_output=True,
        text=True,
        check=True,
    )
    stores = re.search(r"(\d+) bytes spill stores", done.stderr)
    assert stores is not None, done.stderr
    return int(stores[1])
