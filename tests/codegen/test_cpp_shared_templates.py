"""What kernels share with others: declared there, and defined in another object."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from xdsl.context import Context

from flexc.codegen.kernel_spec import KernelSpec
from flexc.passes.flex.flex_fold_heads import FlexFoldHeadsPass
from flexc.runtime.kernels import driver
from flexc.runtime.kernels.cpp_compiler import find_compiler
from flexc.runtime.kernels.cpp_loader import compiled
from tests.codegen.derivative_kernels import cpp_kernels, lowered
from tests.codegen.triton_kernels import Variant, call_of

NAMES = "Product|TileProduct|LoadTransposed|StoreTransposed|StreamDots|StreamSums"
SYMBOL = re.compile(rf" ([A-Za-z]) _ZN5flexc\d+(?:{NAMES})I")


def forward(few_rows: tuple[int, int] | None, tables: bool) -> list[KernelSpec]:
    module, build = call_of(Variant("documents", "sm90", "bf16", tables=tables))
    call = replace(build.call, few_rows=few_rows)
    if few_rows is not None:
        FlexFoldHeadsPass(*few_rows).apply(Context(), module)
    build = replace(build, call=call, backend="cpp", device="cpu")
    return [driver.lower(module, build)]


def on_matrix_unit(case: str, head_dim: int, kind: str = "") -> list[KernelSpec]:
    module, build = call_of(Variant(case, "sm90", "bf16", head_dim))
    build = replace(build, backend="cpp", device="cpu", machine="amx")
    return [*lowered(module, build, kind)] if kind else [driver.lower(module, build)]


KERNELS = {
    "forward": lambda: forward(None, True),
    "few rows": lambda: forward((2, 1), False),
    "backward": lambda: cpp_kernels(Variant("alibi_captured", "sm90"), "backward"),
    "amx 64": lambda: on_matrix_unit("sliding_window", 64),
    "amx 128": lambda: on_matrix_unit("causal", 128),
    "amx 256": lambda: on_matrix_unit("dense", 256),
    "amx backward": lambda: on_matrix_unit("causal", 128, "backward"),
}


@pytest.mark.skipif(shutil.which("nm") is None, reason="nm lists symbols")
@pytest.mark.parametrize("kind", KERNELS)
def test_a_kernel_defines_none_and_calls_all(kind: str, tmp_path: Path) -> None:
    """A type that the printer spells otherwise than a call would be compiled twice."""
    called = 0
    for spec in KERNELS[kind]():
        path = tmp_path / "kernel.o"
        path.write_bytes(compiled(spec.source, find_compiler()))
        listed = subprocess.run(["nm", path], capture_output=True, text=True).stdout
        assert SYMBOL.findall(listed) == ["U"] * len(spec.shared), spec.shared
        called += len(spec.shared)
    assert called
