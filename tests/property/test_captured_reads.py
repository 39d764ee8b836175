"""Classes of generated indices hold at all pairs; gradients are those of all pairs."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import event, given
from hypothesis import strategies as st
from torch import Tensor

from flexc.dialects.flex import Coordinates
from flexc.passes.scalar.captured_reads import IndexPart
from flexc.passes.scalar.variation import Along
from flexc.runtime.autograd.captured_gradients import CapturedGradient, ReadScatter
from flexc.runtime.autograd.captured_places import Sizes, chunks_for
from tests.property.affine_masks import Spelled
from tests.property.captured_indices import indices
from tests.support.captured_reads import (
    Reads,
    dense_gradient,
    is_constant,
    of_chunk,
    summed,
)

SHAPE = (2, 3, 13, 11)
SIZES = Sizes(*SHAPE)

AXES = {Along.BATCH: 0, Along.HEAD: 1, Along.ROW: 2, Along.COLUMN: 3}

extents = st.integers(1, 14)


def score_mod(tensor: Tensor, places: list[Spelled]) -> Any:
    """A mod that adds what it reads at some places."""
    functions = [p.function for p in places]
    match functions:
        case [f]:
            return lambda s, b, h, q, k: s + tensor[f(b, h, q, k)]
        case [f, g]:
            return lambda s, b, h, q, k: s + tensor[f(b, h, q, k), g(b, h, q, k)]
        case _:
            f, g, e = functions
            return lambda s, b, h, q, k: (
                s + tensor[f(b, h, q, k), g(b, h, q, k), e(b, h, q, k)]
            )


def check_part(part: IndexPart, found: list[Tensor]) -> None:
    """A part's indices are the same along what it is said not to vary with."""
    for dim in part.dims:
        for axis, place in AXES.items():
            first = found[dim].narrow(place, 0, 1)
            assert axis in part.along or bool((found[dim] == first).all())


@given(
    places=st.lists(st.tuples(indices, extents), min_size=1, max_size=3),
    simplified=st.booleans(),
    seed=st.integers(0, 1000),
    max_bytes=st.sampled_from([1 << 28, 2000]),
)
def test_generated_reads(
    places: list[tuple[Spelled, int]], simplified: bool, seed: int, max_bytes: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    tensor = torch.zeros([size for _, size in places], dtype=torch.float64)
    reads = Reads.of(score_mod(tensor, [p for p, _ in places]), simplified, 64)
    (load,) = reads.loads(tensor)
    read = reads.indices.read(load)
    event(read.coordinates.value)
    found = reads.evaluate(load, SIZES)
    assert all(is_constant(read.coordinates, index) for index in found)
    for part in read.parts:
        check_part(part, found)
    adjoints = torch.randn(SHAPE, generator=generator, dtype=torch.float64)
    scatter = ReadScatter(read)
    gradient = CapturedGradient(tensor, reads.captures, SIZES, torch.float64)
    chunks = chunks_for(read.coordinates, SIZES, max_bytes=max_bytes, rows=4)
    for chunk in chunks if read.coordinates is Coordinates.PAIR else [None]:
        own = adjoints if chunk is None else of_chunk(adjoints, chunk)
        gradient.add(scatter, summed(read.coordinates, own), chunk)
    expected = dense_gradient(tensor, found, adjoints)
    torch.testing.assert_close(gradient.result(), expected, rtol=1e-12, atol=1e-12)
