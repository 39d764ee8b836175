"""Kernels are printed as they were, up to names of values: see `tests.golden`."""

from __future__ import annotations

import json

import pytest

from flexc.codegen.kernel_spec import KernelSpec
from tests.golden import FILE, ROWS, digests, kernels, name_of, normal_form

GOLDEN: dict[str, list[str]] = json.loads(FILE.read_text())


@pytest.mark.parametrize(("kind", "case"), ROWS, ids=lambda part: part)
def test_kernels_are_printed_as_before(kind: str, case: str) -> None:
    """A change that is meant is taken over by `python -m tests.golden --update`."""
    assert digests(kernels(kind, case)) == GOLDEN[name_of(kind, case)]


def test_every_row_is_there() -> None:
    assert list(GOLDEN) == [name_of(*row) for row in ROWS]


def spec_of(source: str, target: str) -> KernelSpec:
    return KernelSpec(target, "f", (), ("1", "1", "1"), source)  # pyright: ignore


def test_names_of_values_do_not_matter() -> None:
    one = "def f(a, b):\n    top = max(a, b)\n    return top + a\n"
    texts = {
        normal_form(spec_of(text, "triton"))
        for text in (one, one.replace("top", "left"), one.replace("b", "other"))
    }
    assert len(texts) == 1
    for other in (one.replace("max", "min"), one.replace("top + a", "top + b")):
        assert normal_form(spec_of(other, "triton")) not in texts
    cpp = (
        "    const float* q,\n    int32_t n)\n        const float top = max(q[n], n);\n"
    )
    assert normal_form(spec_of(cpp, "cpp")) == normal_form(
        spec_of(cpp.replace("top", "left"), "cpp")
    )
    assert normal_form(spec_of(cpp, "cpp")) != normal_form(
        spec_of(cpp.replace("max", "min"), "cpp")
    )
