"""The kernels that plan masks compile for GPUs, and run in Triton's interpreter."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask
from xdsl.dialects.builtin import ModuleOp

from flexc.codegen.kernel_spec import KernelSpec
from flexc.frontend.closures import read_mods
from flexc.passes.flex.planning.tables import build_order
from flexc.runtime.kernels.build import NO_CALL, Build, build_of
from flexc.runtime.kernels.driver import trace_mods
from flexc.runtime.planner import plans, tables
from flexc.runtime.planner.block_mask import checked_problem, plan_block_mask
from flexc.runtime.planner.plans import MaskPlan, build_for, lower
from flexc.runtime.process.recent import Recent
from tests.support.block_tables import differences
from tests.support.corpus import CORPUS
from tests.support.pairwise import in_turn

pytest.importorskip("triton")

CASES = (
    "causal", "documents_per_batch", "head_windows", "boolean_table", "dilated",
    "modalities",
)  # fmt: skip
CPU = torch.device("cpu")
BUILD = build_of(NO_CALL, CPU, "triton")


def specs_of(case: str, target: str = "sm90") -> list[KernelSpec]:
    from tests.codegen.triton_kernels import CAPABILITY, vendor_of

    mask_mod = CORPUS[case].factory(2, 2, 2, 256, 256)[1]
    signature, mods = trace_mods(read_mods(None, mask_mod), torch.float32, CPU)
    problem = checked_problem((2, 2, 256, 256), 128)
    build = build_for(signature, problem, CPU, "triton")
    plan = MaskPlan(mods, replace(build, capability=CAPABILITY[target]))
    with vendor_of(target):
        return lower(plan.attention.module, plan.build)


@pytest.mark.parametrize(("case", "target"), in_turn(CASES, ["sm90", "gfx942"]))
def test_compiles(case: str, target: str) -> None:
    from tests.codegen.triton_kernels import compile_spec

    for spec in specs_of(case, target):
        assert compile_spec(spec, target).asm


@pytest.mark.parametrize("target", ["sm90", "gfx942"])
def test_order_compiles(target: str) -> None:
    from tests.codegen.triton_kernels import CAPABILITY, compile_spec, vendor_of

    build = replace(BUILD, capability=CAPABILITY[target])
    with vendor_of(target):
        (spec,) = lower(ModuleOp([build_order()]), build, "order")
    assert compile_spec(spec, target).asm


def test_threads_compile_order_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each GPU that they ask for."""
    compiled: list[int | None] = []

    def compile_order(spec: KernelSpec, build: Build) -> str:
        time.sleep(0.05)  # Others ask meanwhile.
        compiled.append(build.capability)
        return f"kernel {build.capability}"

    monkeypatch.setattr(tables, "_kernels", Recent())
    monkeypatch.setattr(plans, "compile_kernel", compile_order)
    builds = [replace(BUILD, capability=n) for n in (80, 90)]
    with ThreadPoolExecutor(8) as pool:
        kernels = pool.map(tables.order_kernels, 4 * builds)
        found = list(pool.map(lambda made: made["order"], kernels))
    assert found == 4 * ["kernel 80", "kernel 90"]
    assert len(compiled) == 2


@pytest.mark.interpreted
@pytest.mark.parametrize("case", CASES)
def test_interpreted(case: str) -> None:
    shapes: list[tuple[tuple[int, int], Any]] = [
        ((70, 130), 16),
        ((200, 140), (32, 64)),
    ]
    for (q_len, kv_len), block in shapes:
        mask_mod: Any = CORPUS[case].factory(2, 2, 2, q_len, kv_len)[1]
        sizes = (2, 2, q_len, kv_len)
        problem = checked_problem(sizes, block)
        ours = plan_block_mask(mask_mod, problem, CPU, "triton")
        torchs = create_block_mask(mask_mod, *sizes, "cpu", block)
        assert differences(ours, torchs) == []
