"""Emitted Gluon kernels compile for Hopper, without a GPU, into what they are for.

That is asynchronous products which overlap, and values that stay in registers.
"""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

from flexc.codegen.gluon.ptxas import problems
from flexc.errors import ScheduleError
from flexc.runtime.kernels.schedules import SIMPLE
from tests.codegen.gluon_kernels import compiled, lower
from tests.codegen.triton_kernels import Variant, has_mask, waits_first
from tests.support.corpus import CORPUS

pytestmark = pytest.mark.usefixtures("compiler_caches")

SOME = [
    Variant("dense", "sm90", head_dim=128),
    Variant("causal", "sm90", head_dim=128),
    Variant("causal", "sm90", head_dim=256),
    Variant("soft_cap", "sm90", "fp16", head_dim=64),
    Variant("alibi", "sm90", head_dim=64),
    Variant("documents", "sm90", head_dim=128, tables=True),
    Variant("relative_bias", "sm90", head_dim=128, length=200),
    Variant("sliding_window", "sm90", head_dim=64, length=200),
    Variant("causal", "sm90", head_dim=64, program_rows=128),
    Variant("prefix_lm", "sm90", head_dim=64, program_rows=64),
    Variant("soft_cap", "sm90", head_dim=128, program_rows=64),
    Variant("dense", "sm90", head_dim=256, program_rows=64),
]

ALSO = [
    Variant("soft_cap", "sm90", head_dim=128),
    Variant("causal", "sm90", head_dim=64),
]
"""What lies between others of `SOME`."""

MATRIX = [
    Variant(case, "sm90", dtype, dim, tables)
    for case, dtype, dim in product(CORPUS, ("bf16", "fp16"), (64, 128, 256))
    for tables in ((False, True) if has_mask(case) else (False,))
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "variant",
    [*SOME, *(pytest.param(v, marks=pytest.mark.slow) for v in ALSO)],
    ids=str,
)
def test_products_overlap_and_nothing_spills(variant: Variant, tmp_path: Path) -> None:
    kernel = compiled(variant)
    assert problems(kernel.log) == []
    assert "HGMMA" in kernel.sass(tmp_path)
    assert waits_first(kernel.kernel.asm["ptx"])


CROWDS = [
    Variant("soft_cap", "sm90", head_dim=64),
    Variant("relative_bias", "sm90", head_dim=64, length=200),
    Variant("sliding_window", "sm90", head_dim=64),
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("variant", CROWDS, ids=str)
def test_few_registers_suffice_without_overlap(variant: Variant) -> None:
    """Of four programs on a multiprocessor."""
    kernel = compiled(variant, SIMPLE)
    assert "# programs on a multiprocessor: 4" in lower(variant, SIMPLE).source
    assert problems(kernel.log) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("variant", MATRIX, ids=str)
def test_matrix(variant: Variant, tmp_path: Path) -> None:
    """What a schedule refuses, it refuses before anything is printed."""
    try:
        lower(variant)
    except ScheduleError:
        return
    kernel = compiled(variant)
    assert "HGMMA" in kernel.sass(tmp_path)


@pytest.mark.timeout(600)
def test_one_wait_leaves_a_product_running(tmp_path: Path) -> None:
    """That of the loop; the first block and the last product stand alone."""
    sass = compiled(Variant("dense", "sm90", head_dim=128)).sass(tmp_path)
    waits = re.findall(r"DEPBAR\.LE gsb0, (0x\w+)", sass)
    consumers = 2
    assert waits.count("0x1") == consumers, waits
    assert waits.count("0x0") == 3 * consumers, waits
