"""What the calls of one family capture: other numbers, sizes, layouts and values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import torch

from tests.property.captures import LAYOUTS, TensorSpec
from tests.property.cases import Case, Sizes

OTHER_DTYPE = {
    torch.float32: torch.float64,
    torch.float64: torch.float32,
    torch.int32: torch.int64,
    torch.int64: torch.int32,
}
"""Types between which nothing of what is known of a mod changes."""

FREE_SIZES = (1, 1, 2, 3, 7, 12)
LAID_OUT_ANEW = (0.0, 0.0, 0.0, 0.5)
"""How often captured tensors have other strides or types: kernels may be new then."""
LONGER = (0, 0, 0, 1, 5)
"""How much longer than it must be a captured tensor is."""


def changed(family: Case, sizes: Sizes, random: Random) -> dict[str, Any]:
    """Fields of a call in place of the family's."""
    numbers = numbers_of(family, sizes, random)
    often = random.choice(LAID_OUT_ANEW)
    tensors = {
        name: spec_of(spec, sizes, numbers, random, often)
        for name, spec in family.tensors.items()
    }
    return {"numbers": numbers, "tensors": tensors}


def numbers_of(family: Case, sizes: Sizes, random: Random) -> dict[str, Any]:
    often = random.choice((0.0, 0.5, 1.0))
    found: dict[str, Any] = {}
    for name, value in family.numbers.items():
        others = family.others.get(name, ())
        if isinstance(others, str):
            value = sizes.kv_len - 1
        elif others and random.random() < often:
            value = random.choice(others)
        found[name] = value
    return found


def spec_of(
    spec: TensorSpec,
    sizes: Sizes,
    numbers: Mapping[str, Any],
    random: Random,
    often: float,
) -> TensorSpec:
    """A tensor that is as long as it has to be for a call, or longer."""
    shape = tuple(
        length(span, sizes, numbers, random) + random.choice(LONGER) * (span != "free")
        for span in spec.spans
    )
    layout, dtype = spec.layout, spec.dtype
    if random.random() < often:
        layout = random.choice(LAYOUTS)
    if random.random() < often / 2:
        dtype = OTHER_DTYPE.get(dtype, dtype)
    return replace(spec, shape=shape, layout=layout, dtype=dtype)


def length(span: str, sizes: Sizes, numbers: Mapping[str, Any], random: Random) -> int:
    match span:
        case "b":
            return sizes.batch
        case "h":
            return sizes.heads
        case "q_idx":
            return sizes.q_len
        case "kv_idx":
            return sizes.kv_len
        case "distance":
            return sizes.q_len + sizes.kv_len - 1
        case "longest":
            return max(sizes.q_len, sizes.kv_len)
        case "free":
            return random.choice(FREE_SIZES)
    return numbers[span]
