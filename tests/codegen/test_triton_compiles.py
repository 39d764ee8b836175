"""Every variant of the corpus compiles for every GPU, without one.

The whole matrix is slow; a part of it that has every case, every target, every
dtype, head dim and kind of table is not.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from tests.codegen.triton_kernels import (
    TARGETS,
    Variant,
    check_names,
    compiled,
    has_mask,
    lower,
    some_of_corpus,
    spilled_bytes,
)
from tests.support.corpus import CORPUS

pytestmark = pytest.mark.usefixtures("compiler_caches")

DEMO = (
    "causal",
    "sliding_window",
    "prefix_lm",
    "documents",
    "alibi",
    "soft_cap",
    "relative_bias",
    "t5_buckets",
    "neighbourhood_2d",
    "dilated",
    "head_windows",
    "pair_bias",
)
"""Their kernels are to be lean too, for Hopper."""

MATRIX = [
    Variant(case, target, dtype, dim, tables)
    for case, target, dtype, dim in product(
        CORPUS, TARGETS, ("fp32", "bf16"), (64, 128, 80)
    )
    for tables in ((False, True) if has_mask(case) else (False,))
]

ROWS = ("row_distances", "row_products", "row_places", "lookups")
SOME = [
    *(Variant(case, "sm90") for case in ROWS),
    *(Variant("alibi", target, "fp32") for target in ("sm80", "sm100")),
    *(Variant("documents", target, tables=True) for target in ("sm90", "gfx942")),
    *(
        Variant("soft_cap", t, "fp16", dim)
        for t, dim in (("sm90", 80), ("gfx942", 128))
    ),
    Variant("relative_bias", "gfx942", trusted=False),
    Variant("t5_buckets", "sm100", head_dim=128, trusted=False),
    Variant("activations", "sm90", length=200),
    Variant("gates", "gfx942", length=200),
]

MOST_SPILLED_BYTES = 64
"""A few registers in the prologue cost nothing; spills in the loop are hundreds."""

SPILLED_BYTES = {"t5_buckets": 1280}
"""A logarithm and a gather for every pair: more values than registers, so far."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("variant", SOME, ids=str)
def test_compiles(variant: Variant) -> None:
    binary = "hsaco" if variant.target == "gfx942" else "cubin"
    assert compiled(variant).asm[binary]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("variant", MATRIX, ids=str)
def test_the_whole_matrix_compiles(variant: Variant) -> None:
    test_compiles(variant)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", DEMO)
def test_hopper_kernels_are_lean(case: str, tmp_path: Path) -> None:
    ptx = compiled(Variant(case, "sm90")).asm["ptx"]
    assert "wgmma.mma_async" in ptx
    assert "cp.async" in ptx or ".v4.b32" in ptx
    assert spilled_bytes(ptx, tmp_path) <= SPILLED_BYTES.get(case, MOST_SPILLED_BYTES)


@pytest.mark.parametrize("trusted", [True, False], ids=["trusted", "guarded"])
@pytest.mark.parametrize("case", some_of_corpus(every=6))
def test_emitted_source_is_clean(case: str, trusted: bool, tmp_path: Path) -> None:
    variants = [
        Variant(case, "sm90", tables=tables, trusted=trusted)
        for tables in ((False, True) if has_mask(case) else (False,))
    ]
    check_names([lower(variant).source for variant in variants], tmp_path)
