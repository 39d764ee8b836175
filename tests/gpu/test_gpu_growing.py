"""Decoding on a GPU with more and more keys, by tapes that serve many lengths."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.unit.runtime.test_growing import (
    LAYOUTS,
    MODS,
    Layout,
    decode,
    fresh,
    tensors,
)

pytestmark = pytest.mark.gpu

LENGTHS = [*range(120, 135), *range(1000, 1030), *range(2040, 2060), 8192, 8200, 1]


@pytest.mark.parametrize("mods", MODS)
@pytest.mark.parametrize("layout", LAYOUTS)
@torch.no_grad()
def test_all_lengths_have_the_bits_of_fresh_calls(
    layout: Layout, mods: dict[str, Any]
) -> None:
    """The number of splits changes, and lengths of whole blocks have other kernels."""
    buffers = [b.cuda().bfloat16() for b in tensors(8200, 32, 8, 128)]
    expected = [fresh(buffers, n, layout, **mods) for n in LENGTHS]
    for length, right in zip(LENGTHS, expected, strict=True):
        for _ in range(2):
            found = decode(buffers, length, layout, **mods)
            assert all(map(torch.equal, found, right))
