"""Which blocks of well-known masks are known to be dead or full: all that are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from flexc.passes.masks.blocks.block_classifier import build_classifier
from flexc.passes.scalar import WhyNot
from flexc.passes.scalar.variation import NOTHING, Along
from tests.property.classifier_reference import Grid, classified, counted, imported

MaskMod = Callable[[Any, Any, Any, Any], Any]

GRIDS = {
    "square": Grid(2, 2, 256, 256, 64, 64),
    "fine": Grid(2, 2, 128, 128, 16, 16),
    "ragged": Grid(2, 2, 100, 173, 16, 7),
    "rows": Grid(2, 2, 40, 90, 1, 32),
    "pairs": Grid(2, 2, 40, 50, 1, 1),
    "decode": Grid(2, 2, 3, 300, 128, 128),
}

LONGEST = max(max(g.q_len, g.kv_len) for g in GRIDS.values())

WINDOWS = torch.tensor([9, 70])
LENGTHS = torch.tensor([150, 31])
STARTS = torch.tensor([0, 20, 20, 77, 300])
DOCUMENTS = torch.arange(LONGEST) // 23
PACKED = torch.stack([DOCUMENTS, torch.arange(LONGEST) // 60 + 2**62])
IS_IMAGE = torch.arange(16) % 3 == 0
TABLE = torch.rand(2, 20, 20, generator=torch.Generator().manual_seed(0)) > 0.5
SLOPE = torch.linspace(-3, 9, LONGEST).nan_to_num()
WITH_NAN = SLOPE.where(torch.arange(LONGEST) % 50 != 7, float("nan"))
POSITIONS = torch.arange(LONGEST) * 2


def ranges(b: Any, h: Any, q: Any, k: Any) -> Tensor:
    """Sequences that lie in one behind the other, as an "or"."""
    live = q < 0
    for i in range(4):
        inside = [(x >= STARTS[i]) & (x < STARTS[i + 1]) for x in (q, k)]
        live = live | (inside[0] & inside[1])
    return live


def neighbourhood(width: int, radius: int) -> MaskMod:
    """A square of pixels of an image, shifted inwards at the borders."""

    def mask_mod(b: Any, h: Any, q: Any, k: Any) -> Tensor:
        x = (q % width).clamp(radius, width - 1 - radius)
        y = (q // width).clamp(radius, width - 1 - radius)
        near_x = (k % width - x).abs() <= radius
        return near_x & ((k // width - y).abs() <= radius)

    return mask_mod


def numbers() -> dict[str, MaskMod]:
    """Masks that capture Python numbers."""
    offset, window, empty, chunk, stride, taken = 73, 21, -3, 50, 24, 5
    return {
        "bottom_right": lambda b, h, q, k: q + offset >= k,
        "moved_window": lambda b, h, q, k: (
            (q + offset >= k) & (q + offset - k < window)
        ),
        "window": lambda b, h, q, k: (q >= k) & (q - k <= window),
        "band": lambda b, h, q, k: (q - k).abs() <= window,
        "outside_of_band": lambda b, h, q, k: (q - k).abs() > window,
        "empty_window": lambda b, h, q, k: (q >= k) & (q - k <= empty),
        "empty_band": lambda b, h, q, k: (q - k).abs() <= empty,
        "chunks": lambda b, h, q, k: q // chunk == k // chunk,
        "causal_chunks": lambda b, h, q, k: (q // chunk == k // chunk) & (q >= k),
        "dilated": lambda b, h, q, k: ((q - k) % stride == 0) & (q >= k),
        "dilated_window": lambda b, h, q, k: (
            ((q - k) % 3 == 0) & (q >= k) & (q - k < window)
        ),
        "wide_strides": lambda b, h, q, k: (q - k) % 130 < taken,
        "antidiagonals": lambda b, h, q, k: (q + k) % 130 < taken,
        "other_residues": lambda b, h, q, k: (q - k) % stride != taken,
        "short_columns": lambda b, h, q, k: (k % 8 == 7) & (q >= k),
        "long_columns": lambda b, h, q, k: (k % 130 < taken) & (q >= k),
        "some_columns": lambda b, h, q, k: (k % chunk < taken) & (q >= k),
        "sparse_transformer": lambda b, h, q, k: (
            (q >= k) & ((q - k < 16) | (k % 8 == 7))
        ),
        "global_and_local": lambda b, h, q, k: (
            ((q - k).abs() <= window) | (k < taken) | (q < taken)
        ),
        "sinks": lambda b, h, q, k: ((q - k < window) | (k < 4)) & (q >= k),
        "rows_below": lambda b, h, q, k: (q < 60) & (q >= k),
        "clamped": lambda b, h, q, k: torch.maximum(q - window, 0 * q) <= k,
        "by_head": lambda b, h, q, k: torch.where(h == 0, q >= k, q - k < window),
    }


def constants() -> dict[str, MaskMod]:
    return {
        "causal": lambda b, h, q, k: q >= k,
        "anticausal": lambda b, h, q, k: ~(q >= k),
        "exclusive": lambda b, h, q, k: (q >= k) ^ (k < 10),
        "floored": lambda b, h, q, k: ((q - k) // 3 >= -2) & ((q - k) % 4 != 3),
        "checkerboard": lambda b, h, q, k: (q + k) % 2 == 0,
        "rows_empty": lambda b, h, q, k: (q % 3 != 0) & (k <= q),
        "half_speed": lambda b, h, q, k: q.float() * 0.5 >= k.float(),
        "float_distance": lambda b, h, q, k: (q.float() - k.float()).abs() <= 20.5,
        "nothing": lambda b, h, q, k: k < 0,
        "everything": lambda b, h, q, k: k >= 0,
        "squares_of_16": neighbourhood(16, 3),
    }


def tensors() -> dict[str, MaskMod]:
    """Masks that capture tensors."""
    return {
        "head_windows": lambda b, h, q, k: (q >= k) & (q - k < WINDOWS[h]),
        "prefix": lambda b, h, q, k: (k < LENGTHS[b]) | (q >= k),
        "padding": lambda b, h, q, k: k < LENGTHS[b],
        "causal_padding": lambda b, h, q, k: (k < LENGTHS[b]) & (q >= k),
        "padding_of_both": lambda b, h, q, k: (k < LENGTHS[b]) & (q < LENGTHS[b]),
        "documents": lambda b, h, q, k: DOCUMENTS[q] == DOCUMENTS[k],
        "causal_documents": lambda b, h, q, k: (
            (DOCUMENTS[q] == DOCUMENTS[k]) & (q >= k)
        ),
        "packed": lambda b, h, q, k: (PACKED[b, q] == PACKED[b, k]) & (q >= k),
        "packed_padding": lambda b, h, q, k: (
            (PACKED[b, q] == PACKED[b, k]) & (k < LENGTHS[b]) & (q < LENGTHS[b])
        ),
        "ranges": ranges,
        "modalities": lambda b, h, q, k: (
            (q >= k) | (IS_IMAGE[DOCUMENTS[q]] & (DOCUMENTS[q] == DOCUMENTS[k]))
        ),
        "positions": lambda b, h, q, k: (
            (POSITIONS[q] >= POSITIONS[k]) & (POSITIONS[q] - POSITIONS[k] < 40)
        ),
        "floats": lambda b, h, q, k: SLOPE[q] >= SLOPE[k] + 2,
        "nans": lambda b, h, q, k: WITH_NAN[q] >= SLOPE[k],
        "not_nans": lambda b, h, q, k: ~(WITH_NAN[q] >= SLOPE[k]),
    }


FAMILIES = numbers() | constants() | tensors()

APPROXIMATE = {
    # A block that starts within a row of pixels has fewer squares than the
    # ranges of its two coordinates have.
    ("squares_of_16", "ragged"),
    # Pairs of two documents all lie below the diagonal; each is looked at alone.
    ("modalities", "ragged"),
}


def check_exact(mask_mod: MaskMod, grid: Grid, fits: bool = False) -> None:
    mask = imported(mask_mod)
    classifier = mask.classifier(1 << 24, fits)
    assert classifier is not None
    found = classified(classifier, mask.captures, grid)
    for name, got, expected in zip(
        ("dead", "full"), found, counted(mask, grid), strict=True
    ):
        assert not (got & ~expected).any(), f"{name}: wrong"
        assert torch.equal(got, expected), f"{name}: not all are known"


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("name", FAMILIES)
def test_all_blocks_are_known(name: str, grid: str) -> None:
    if (name, grid) in APPROXIMATE:
        pytest.skip("not exact")
    check_exact(FAMILIES[name], GRIDS[grid])


@pytest.mark.parametrize("name", numbers())
def test_all_blocks_are_known_where_nothing_wraps_around(name: str) -> None:
    check_exact(FAMILIES[name], GRIDS["ragged"], fits=True)


def test_block_tables() -> None:
    grid = Grid(2, 2, 160, 160, 16, 16)
    check_exact(lambda b, h, q, k: TABLE[h, q // 16, k // 16], grid)
    check_exact(
        lambda b, h, q, k: TABLE[h, q // 16, k // 16] | (q // 16 == k // 16), grid
    )
    check_exact(lambda b, h, q, k: TABLE[h, q // 16, k // 32] & (q >= k), grid)


@pytest.mark.parametrize("name", ["causal", "window", "chunks", "head_windows"])
def test_lines_need_no_summaries(name: str) -> None:
    classifier = imported(FAMILIES[name]).classifier(1 << 24, fits=True)
    assert classifier is not None
    assert not classifier.summaries


def test_documents_need_one_summary_of_each_side() -> None:
    classifier = imported(FAMILIES["causal_documents"]).classifier(1 << 24, fits=False)
    assert classifier is not None
    assert [s.axis for s in classifier.summaries] == ["row", "column"]
    assert all(s.along == NOTHING for s in classifier.summaries)
    assert classifier.unknown == ()


def test_what_answers_depend_on() -> None:
    along = {"head_windows": Along.HEAD, "packed": Along.BATCH, "causal": NOTHING}
    for name, expected in along.items():
        classifier = imported(FAMILIES[name]).classifier(1 << 24, fits=False)
        assert classifier is not None
        assert classifier.along == expected


def test_what_is_not_understood_is_named() -> None:
    table = torch.ones(8, 8, dtype=torch.bool)

    def tree(b: Any, h: Any, q: Any, k: Any) -> Any:
        return table[q, k]

    proof = build_classifier(imported(tree).region, 1 << 24, fits=False)
    assert isinstance(proof, WhyNot)
    assert "table[q_idx, kv_idx]: differs from pair to pair" in proof.reason
    mask = imported(lambda b, h, q, k: tree(b, h, q, k) & (q >= k))
    classifier = mask.classifier(1 << 24, fits=False)
    assert classifier is not None
    (line,) = classifier.unknown
    assert line == "table[q_idx, kv_idx]: differs from pair to pair"


def test_sums_that_may_wrap_around_prove_nothing() -> None:
    number = 2**31 - 20

    def mask_mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q - k) + number >= 0

    mask = imported(mask_mod)
    grid = Grid(1, 1, 64, 64, 16, 16)
    dead, full = counted(mask, grid)
    classifier = mask.classifier(1 << 24, fits=False)
    assert classifier is not None
    found_dead, found_full = classified(classifier, mask.captures, grid)
    assert not (found_dead & ~dead).any()
    assert not (found_full & ~full).any()
    assert found_full.any()
