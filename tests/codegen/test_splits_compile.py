"""Kernels of calls that are split along their keys compile without a GPU."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

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
from tests.codegen.triton_kernels import Variant, spilled_bytes

CASES = [
    Variant("dense", "sm90", head_dim=128),
    Variant("causal", "sm90", head_dim=128, length=200),
    Variant("alibi", "sm90", head_dim=128),
    Variant("documents", "sm90", head_dim=128, tables=True),
]


def assert_waits_first(kernel: Any) -> None:
    """Assert that a kernel is launched early, and first waits for earlier ones."""
    before, wait, _ = kernel.asm["ptx"].partition("griddepcontrol.wait;")
    assert wait
    assert kernel.metadata.launch_pdl
    assert not re.search(r"\b(ld|st)\.(global|volatile)|cp\.async|atom|red\.", before)


def lower(variant: Variant, schedule: Schedule) -> KernelSpec:
    module, build = triton_kernels.call_of(variant, split=True)
    return driver.lower(module, build, schedule)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("variant", CASES, ids=str)
def test_with_roles(variant: Variant) -> None:
    compiled = gluon_kernels.compile_spec(lower(variant, OVERLAP))
    assert problems(compiled.log) == []
    assert_waits_first(compiled.kernel)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("variant", CASES[1:3], ids=str)
def test_with_tritons_schedule(variant: Variant) -> None:
    spec = lower(variant, TRITON)
    assert triton_kernels.compile_spec(spec, "sm90").asm["cubin"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("head_dim", [24, 128, 512])
def test_combining(head_dim: int, tmp_path: Path) -> None:
    variant = Variant("dense", "sm90", head_dim=head_dim)
    _, build = triton_kernels.call_of(variant, split=True)
    spec = driver.lower(build_combine_module(build.call), build, TRITON)
    compiled = triton_kernels.compile_spec(spec, "sm90")
    assert spilled_bytes(compiled.asm["ptx"], tmp_path) == 0
    assert_waits_first(compiled)
