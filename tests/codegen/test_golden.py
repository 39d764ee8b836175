"""Kernels are printed as they were, up to names of values: see `tests.golden`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from flexc.codegen.cpp.target import RESERVED
from flexc.codegen.kernel_spec import KernelSpec
from flexc.runtime.kernels.cpp_loader import support_headers
from tests.golden import FILE, ROWS, digests, kernels, name_of, normal_form

GOLDEN: dict[str, list[str]] = json.loads(FILE.read_text())


DEFINED = r"^(?:[^\s/#(][^(\n]*?\b(\w+)\(|template .*(?:struct|class|using) (\w+))"
"""A line that defines a function or a template of the support headers."""


def support_names(spec: KernelSpec) -> Iterator[str]:
    """Yield what a C++ kernel takes of the support headers by name."""
    defined = re.findall(DEFINED, support_headers(), re.MULTILINE)
    names = {name for pair in defined for name in pair}
    body = spec.source.partition("FLEXC_KERNEL")[2]
    yield from names & set(re.findall(r"(?<![.\w])(\w+)(?=[(<{])", body))


@pytest.mark.parametrize(("kind", "case"), ROWS, ids=lambda part: part)
def test_kernels_are_printed_as_before(kind: str, case: str) -> None:
    """A change that is meant is taken over by `python -m tests.golden --update`.

    No value may have the name of a function that a C++ kernel calls.
    """
    specs = kernels(kind, case)
    assert digests(specs) == GOLDEN[name_of(kind, case)]
    assert not {name for spec in specs for name in support_names(spec)} - RESERVED


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
