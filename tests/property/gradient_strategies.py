"""Generated derivatives of generated calls."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from hypothesis import strategies as st

from tests.property.cases import Case, ModSource
from tests.property.gradient_cases import GradientCase
from tests.property.strategies import ALL_DTYPES, INPUT_LAYOUTS, cases

TABLES = ("torch", "torch", "without q", "partial", "flexc")
RESULTS = ((True, False), (True, True), (False, True))


@st.composite
def gradient_cases(
    draw: Any,
    dtypes: tuple[torch.dtype, ...] = ALL_DTYPES,
    longest: int = 129,
    depth: int = 3,
) -> GradientCase:
    case = draw(cases(dtypes, longest, depth))
    return GradientCase(
        case=aliased(case) if draw(st.booleans()) else case,
        tables=draw(st.sampled_from(TABLES)),
        shared_keys=draw(st.sampled_from((False, False, True))),
        results=draw(st.sampled_from(RESULTS)),
        wanted=draw(st.integers(1, 63) | st.just(63)),
        layouts=draw(st.tuples(*[st.sampled_from(INPUT_LAYOUTS)] * 2)),
        tile=draw(st.sampled_from((None, 16, 32))),
        deterministic=draw(st.booleans()),
        nan=draw(st.booleans()),
        plans=draw(st.booleans()),
    )


def aliased(case: Case) -> Case:
    """A case whose captured tensors of equal shape and type are one."""
    kept: dict[tuple[Any, ...], str] = {}
    tensors, names = dict(case.tensors), dict[str, str]()
    for name, spec in case.tensors.items():
        if not spec.dtype.is_floating_point:
            continue
        first = kept.setdefault((spec.shape, spec.dtype), name)
        if first != name:
            names[name] = first
            kinds = {spec.kind, tensors[first].kind}
            kind = "exact" if "exact" in kinds else "real"
            tensors[first] = replace(tensors[first], kind=kind)
            del tensors[name]

    def renamed(mod: ModSource | None) -> ModSource | None:
        if mod is None:
            return None
        texts = [re.sub(r"\bt\d+\b", _renaming(names), t) for t in mod.lines]
        return replace(mod, lines=tuple(texts))

    return replace(
        case,
        tensors=tensors,
        score_mod=renamed(case.score_mod),
        mask_mod=renamed(case.mask_mod),
    )


def _renaming(names: dict[str, str]) -> Callable[[re.Match[str]], str]:
    return lambda found: names.get(found[0], found[0])
