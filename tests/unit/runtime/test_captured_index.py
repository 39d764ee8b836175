"""Captured reads out of range: what is known at a call raises before its kernel runs,
whatever torch would read is read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import flexc
from flexc.errors import CapturedIndexError
from flexc.runtime.kernels.driver import counters

SMALL = torch.randn(64)
SQUARE = torch.randn(64, 64)
FLAGS = torch.rand(64) > 0.5
IDS = torch.arange(128) // 50
PLACES = torch.arange(128)
HEADS = torch.randn(2)
DISTANCES = torch.randn(129)
LIMIT = 64


def attend(
    score_mod: Any = None,
    mask_mod: Any = None,
    length: int = 128,
    heads: int = 2,
    backend: str = "cpp",
    rows: int | None = None,
) -> Tensor:
    query = torch.randn(1, heads, rows or length, 16)
    key = torch.randn(1, heads, length, 16)
    with torch.no_grad():
        out: Any = flexc.flex_attention(
            query, key, key, score_mod, mask_mod=mask_mod, backend=backend
        )
    return out


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return k <= q


def first(b: Any, h: Any, q: Any, k: Any) -> Any:
    return k < LIMIT


def first_rows(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q < 32) & (k < 3 * LIMIT)


def window(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q - k < LIMIT) & (k <= q)


def same(b: Any, h: Any, q: Any, k: Any) -> Any:
    return IDS[q] == IDS[k]


OUTSIDE: dict[str, tuple[Any, Any]] = {
    "column": (lambda s, b, h, q, k: s + SMALL[k], None),
    "row": (lambda s, b, h, q, k: s + SMALL[q], None),
    "head": (lambda s, b, h, q, k: s * HEADS[h + 1], None),
    "causal": (lambda s, b, h, q, k: s + SMALL[k], causal),
    "two axes": (lambda s, b, h, q, k: s + SQUARE[q % 64, k], causal),
    "distance": (lambda s, b, h, q, k: s + SMALL[q - k + 20], window),
    "negative": (lambda s, b, h, q, k: s + SMALL[k - q], causal),
    "in a branch": (lambda s, b, h, q, k: torch.where(k > 3, SMALL[k], s), None),
    "of no weight": (lambda s, b, h, q, k: s + SMALL[k] * (k < 64), None),
    "mask": (None, lambda b, h, q, k: FLAGS[k]),
    "mask and": (None, lambda b, h, q, k: (k >= 5) & FLAGS[k]),
    "mask or": (None, lambda b, h, q, k: (k < 64) | FLAGS[k]),
    "wide": (lambda s, b, h, q, k: s + SMALL[k * 2**40], None),
    "condition": (lambda s, b, h, q, k: torch.where(FLAGS[k], s, 0.0), None),
}


@pytest.mark.parametrize("backend", ["cpp", "eager"])
@pytest.mark.parametrize("name", OUTSIDE)
def test_outside(name: str, backend: str) -> None:
    score_mod, mask_mod = OUTSIDE[name]
    for _ in range(2):
        with pytest.raises(IndexError) as raised:
            attend(score_mod, mask_mod, backend=backend)
        error = raised.value
        assert isinstance(error, CapturedIndexError)
        assert error.location is not None
        assert error.location.filename == __file__


def test_the_message() -> None:
    with pytest.raises(CapturedIndexError) as raised:
        attend(OUTSIDE["causal"][0], causal)
    text = str(raised.value)
    line = OUTSIDE["causal"][0].__code__.co_firstlineno
    assert text.startswith(f"{__file__}:{line}: SMALL has 64 elements")
    assert "is 127 at b 0, h 1, q_idx 127, kv_idx 127" in text


def test_the_message_tells_the_size_that_is_needed() -> None:
    table = torch.zeros(2, 30)
    with pytest.raises(CapturedIndexError) as raised:
        attend(lambda s, b, h, q, k: s + table[h, (q - k).abs()], length=40)
    assert "is 39 at b 0, h 1, q_idx 39, kv_idx 0" in str(raised.value)


INSIDE: dict[str, tuple[Any, Any]] = {
    "guarded": (lambda s, b, h, q, k: s + SMALL[k], first),
    "guarded rows": (lambda s, b, h, q, k: s + SMALL[q], first_rows),
    "guarded distance": (lambda s, b, h, q, k: s + SMALL[q - k], window),
    "from the end": (lambda s, b, h, q, k: s + DISTANCES[q - k], None),
    "clamped": (lambda s, b, h, q, k: s + SMALL[k.clamp(max=63)], None),
    "wrapped": (lambda s, b, h, q, k: s + SMALL[k % 64], None),
    "chosen": (lambda s, b, h, q, k: torch.where(k < 64, SMALL[k], s), None),
    "not chosen": (
        lambda s, b, h, q, k: torch.where((k >= 64) | (q < 0), s, s + SMALL[k]),
        None,
    ),
    "mask and": (None, lambda b, h, q, k: (k < 64) & FLAGS[k]),
    "mask or": (None, lambda b, h, q, k: (k >= 64) | FLAGS[k]),
    "documents": (lambda s, b, h, q, k: s + SMALL[k], same),
    "data": (lambda s, b, h, q, k: s + SMALL[PLACES[k]], None),
    "nothing": (
        lambda s, b, h, q, k: s + SMALL[k + 64], lambda b, h, q, k: k < b
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", INSIDE)
def test_inside(name: str) -> None:
    """Also what is guarded, and what only the data of a call says."""
    attend(*INSIDE[name])


def test_lengths_are_told_apart() -> None:
    """The same mod at lengths that suit, and at others; once known it is known."""
    score_mod = OUTSIDE["column"][0]
    attend(score_mod, length=64)
    before = counters["lowered"]
    for length in (65, 128, 65):
        with pytest.raises(CapturedIndexError):
            attend(score_mod, length=length)
    attend(score_mod, length=64)
    attend(score_mod, length=40)
    assert counters["lowered"] == before


def test_few_rows() -> None:
    attend(OUTSIDE["row"][0], rows=1)
    with pytest.raises(CapturedIndexError):
        attend(OUTSIDE["column"][0], rows=1)
    with pytest.raises(CapturedIndexError):
        attend(OUTSIDE["head"][0], rows=1)


def test_few_rows_of_a_group() -> None:
    """Heads and queries are said as mods are told of them, not as they are folded."""
    query, key = torch.randn(1, 4, 2, 16), torch.randn(1, 1, 40, 16)
    with pytest.raises(CapturedIndexError) as raised:
        flexc.flex_attention(query, key, key, OUTSIDE["head"][0], enable_gqa=True)
    assert "h + 1 is 4 at b 0, h 3, q_idx 1, kv_idx 39" in str(raised.value)


def test_block_masks() -> None:
    """Planned masks read at all pairs."""
    with pytest.raises(CapturedIndexError):
        flexc.create_block_mask(OUTSIDE["mask"][1], None, None, 128, 128, device="cpu")
    flexc.create_block_mask(INSIDE["mask and"][1], None, None, 128, 128, device="cpu")


def test_under_autograd() -> None:
    query = torch.randn(1, 2, 128, 16, requires_grad=True)
    with pytest.raises(CapturedIndexError):
        flexc.flex_attention(query, query, query, OUTSIDE["column"][0])


def test_explain_says_what_is_suspicious() -> None:
    """It computes nothing, and raises nothing."""
    raises = "a call raises CapturedIndexError if lengths show"
    for name, mods in (("column", OUTSIDE["column"]), ("data", INSIDE["data"])):
        found = flexc.explain(
            mods[1], None, None, 128, 128, device="cpu", score_mod=mods[0]
        )
        assert "suspicious" in str(found)
        assert (raises in " ".join(str(found).split())) == (name == "column")


def test_explain_calls_no_bucket_of_floats_suspicious() -> None:
    table = torch.randn(2, 32)

    def bucket(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        near = (q - k).abs().float().add(1).log2()
        return s + table[h, near.clamp(max=31).to(torch.int32)]

    found = flexc.explain(None, 1, 2, 128, 128, device="cpu", score_mod=bucket)
    found = " ".join(str(found).split())
    assert "is made of a float, and the size there is 32: it is guarded" in found
    assert "suspicious" not in found
