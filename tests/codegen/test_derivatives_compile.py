"""Kernels of derivatives compile for every GPU, without one, and as C++.

Lowering and compilers take their time: some cases of the corpus, of which each has
what others have not, meet one of them each; all are marked slow.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from flexc.runtime.kernels.kernel import Kernel
from tests.codegen.derivative_kernels import cpp_kernels, triton_kernels
from tests.codegen.triton_kernels import (
    SHARED_MEMORY,
    TARGETS,
    Variant,
    check_names,
    compile_spec,
    has_mask,
    some_of_corpus,
)
from tests.support.corpus import CORPUS

pytestmark = pytest.mark.usefixtures("compiler_caches")

KINDS = ("backward", "jvp", "second")

SOME = [
    (Variant("alibi_captured", "sm90"), "backward"),
    (Variant("relative_bias", "sm80", "fp16"), "backward"),
    (Variant("clamped_relative_bias", "gfx942"), "backward"),
    (Variant("soft_cap", "sm100", head_dim=128), "jvp"),
    (Variant("documents", "sm90", tables=True), "backward"),
    (Variant("graph_distance", "sm90", "fp32", length=200, trusted=False), "backward"),
    (Variant("temperature", "sm90"), "second"),
    (Variant("row_distances", "sm90"), "backward"),
]
"""Sums by head and row, of short rows, by distance, by pair; tables; ragged lengths."""

ALL = list(product((Variant(case, t) for case in CORPUS for t in TARGETS), KINDS))


def name(value: object) -> str:
    return str(value)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("variant", "kind"), SOME, ids=name)
def test_compiles(variant: Variant, kind: str) -> None:
    binary = "hsaco" if variant.target == "gfx942" else "cubin"
    for spec in triton_kernels(variant, kind):
        compiled = compile_spec(spec, variant.target)
        assert compiled.asm[binary]
        assert compiled.metadata.shared <= SHARED_MEMORY[variant.target], spec.entry


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("variant", "kind"), ALL, ids=name)
def test_the_whole_matrix_compiles(variant: Variant, kind: str) -> None:
    test_compiles(variant, kind)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("case", "kind"),
    [("relative_bias", "backward"), ("t5_buckets", "jvp"), ("gates", "second")],
)
def test_compiles_as_cpp(case: str, kind: str) -> None:
    for spec in cpp_kernels(Variant(case, "sm90"), kind):
        Kernel(spec)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", some_of_corpus(every=10))
def test_emitted_source_is_clean(case: str, tmp_path: Path) -> None:
    specs = [s for kind in KINDS for s in triton_kernels(Variant(case, "sm90"), kind)]
    if has_mask(case):
        guarded = Variant(case, "sm90", tables=True, trusted=False)
        specs += triton_kernels(guarded, "backward")
    check_names([spec.source for spec in specs], tmp_path)
