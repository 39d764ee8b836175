"""Kernels of calls that are split along their keys compile without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from flexc.codegen.gluon.ptxas import problems
from flexc.codegen.kernel_spec import KernelSpec
from flexc.frontend.import_graph import build_combine_module
from flexc.runtime.kernels import driver
from flexc.runtime.kernels.schedules import (
    OVERLAP,
    TRITON,
    Schedule,
)
from tests.codegen import gluon_kernels, triton_kernels
from tests.codegen.triton_kernels import (
    Variant,
    sass_of,
    spilled_bytes,
    waits_first,
)

CASES = [
    Variant("dense", "sm90", head_dim=128),
    Variant("causal", "sm90", head_dim=128, length=200),
    Variant("alibi", "sm90", head_dim=128),
    Variant("documents", "sm90", head_dim=128, tables=True),
]


def lower(variant: Variant, schedule: Schedule) -> KernelSpec:
    module, build = triton_kernels.call_of(variant, split=True)
    return driver.lower(module, build, schedule)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("variant", CASES, ids=str)
def test_with_roles(variant: Variant) -> None:
    compiled = gluon_kernels.compile_spec(lower(variant, OVERLAP))
    assert problems(compiled.log) == []
    assert waits_first(compiled.kernel.asm["ptx"])
    assert compiled.kernel.metadata.launch_pdl


@pytest.mark.timeout(600)
@pytest.mark.parametrize("variant", CASES[1:3], ids=str)
def test_with_tritons_schedule(variant: Variant, tmp_path: Path) -> None:
    spec = lower(variant, TRITON)
    compiled = triton_kernels.compile_spec(spec, "sm90")
    assert waits_first(sass_of(compiled, tmp_path))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("head_dim", [24, 128, 512])
def test_combining(head_dim: int, tmp_path: Path) -> None:
    variant = Variant("dense", "sm90", head_dim=head_dim)
    _, build = triton_kernels.call_of(variant, split=True)
    spec = driver.lower(build_combine_module(build.call), build, TRITON)
    compiled = triton_kernels.compile_spec(spec, "sm90")
    assert spilled_bytes(compiled.asm["ptx"], tmp_path) == 0
    assert waits_first(sass_of(compiled, tmp_path))
    assert compiled.metadata.launch_pdl
