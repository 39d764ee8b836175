"""Along what the indices of captured reads vary."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from flexc.dialects.flex import Coordinates
from flexc.errors import GradientError
from flexc.passes.scalar.captured_reads import CaptureIndices
from flexc.passes.scalar.variation import NOTHING, Along
from flexc.runtime.autograd.captured_places import Sizes
from tests.support.captured_reads import Reads, is_constant

SIZES = Sizes(2, 4, 70, 50)

theta = torch.randn(64)
scalar = torch.tensor(0.5)
per_head = torch.randn(4)
per_batch_head = torch.randn(2, 4)
per_row = torch.randn(4, 70)
per_column = torch.randn(2, 50)
relative = torch.randn(4, 119)
table = torch.randn(32, 4)
pair = torch.randn(2, 4, 70, 50)
pair3 = torch.randn(4, 70, 50)
blocks = torch.randn(2, 1)
document = torch.arange(70) // 7
token = torch.arange(50) % 9
layer = torch.tensor(3)
offsets = torch.tensor([3, 1, 4, 1])
shift, width, stride = 49, 7, 3

Score = Callable[..., Any]


def t5_bucket(relative_position: Any, bidirectional: bool = True) -> Any:
    """Of transformers' T5Attention: 32 buckets, distances up to 128."""
    n = 32
    buckets = 0
    if bidirectional:
        n //= 2
        buckets = (relative_position > 0).to(torch.long) * n
        relative_position = torch.abs(relative_position)
    else:
        zero = torch.zeros_like(relative_position)
        relative_position = -torch.min(relative_position, zero)
    exact = n // 2
    scaled = torch.log(relative_position.float() / exact) / math.log(128 / exact)
    large = exact + (scaled * (n - exact)).to(torch.long)
    large = torch.min(large, torch.full_like(large, n - 1))
    return buckets + torch.where(relative_position < exact, relative_position, large)


def swin_index(q: Any, k: Any) -> Any:
    """Windows of 7 x 7: a table of (2 * 7 - 1) ** 2 biases."""
    rows = q // width - k // width + width - 1
    columns = q % width - k % width + width - 1
    return (rows * (2 * width - 1) + columns) % 64


def alibi(s, b, h, q, k):
    return s + per_head[h] * (k - q)


HEAD: list[tuple[str, Score]] = [
    ("scalar", lambda s, b, h, q, k: s * scalar),
    ("slopes", alibi),
    ("batch and head", lambda s, b, h, q, k: s + per_batch_head[b, h]),
    ("fixed", lambda s, b, h, q, k: s + theta[7]),
    ("from the end", lambda s, b, h, q, k: s + theta[-1]),
    ("captured number", lambda s, b, h, q, k: s + theta[shift]),
    ("captured index", lambda s, b, h, q, k: s + theta[layer]),
    ("flattened", lambda s, b, h, q, k: s + theta.view(2, 32)[b, h * 2]),
    ("cancelled", lambda s, b, h, q, k: s + theta[(q + h) - q]),
    ("looked up", lambda s, b, h, q, k: s + theta[offsets[h]]),
]
ROW: list[tuple[str, Score]] = [
    ("gate", lambda s, b, h, q, k: s * per_row[h, q]),
    ("documents", lambda s, b, h, q, k: s + theta[document[q]]),
    ("blocks", lambda s, b, h, q, k: s + theta[q // 8 + h]),
    ("cancelled", lambda s, b, h, q, k: s + theta[(q + k - k) % 64]),
    ("product", lambda s, b, h, q, k: s + theta[(q * h) % 64]),
]
COLUMN: list[tuple[str, Score]] = [
    ("padding", lambda s, b, h, q, k: s + per_column[b, k]),
    ("tokens", lambda s, b, h, q, k: s + theta[token[k]]),
    ("reversed", lambda s, b, h, q, k: s + theta[shift - k]),
]
DIAGONAL: list[tuple[str, Score]] = [
    ("relative", lambda s, b, h, q, k: s + relative[h, q - k + 49]),
    ("captured size", lambda s, b, h, q, k: s + relative[h, q - k + shift]),
    ("backwards", lambda s, b, h, q, k: s + relative[h, k - q + shift]),
    ("from the end", lambda s, b, h, q, k: s + relative[h, q - k]),
    ("clamped", lambda s, b, h, q, k: s + theta[(q - k).clamp(-31, 32) + 31]),
    ("number", lambda s, b, h, q, k: s + theta[(q - k).clamp(-shift, shift)]),
    ("distance", lambda s, b, h, q, k: s + theta[(q - k).abs() % 64]),
    (
        "where",
        lambda s, b, h, q, k: s + theta[torch.where(q - k < 0, k - q, (q - k) // 2)],
    ),
    ("compared", lambda s, b, h, q, k: s + theta[torch.where(q >= k, q - k, 63)]),
    ("larger", lambda s, b, h, q, k: s + theta[torch.maximum(q, k) - k]),
    ("spread", lambda s, b, h, q, k: s + theta[torch.max(q, k) - torch.min(q, k)]),
    ("several", lambda s, b, h, q, k: s + theta[(2 * q - k) - (q + 3)]),
    ("factors", lambda s, b, h, q, k: s + theta[(3 * q - 3 * k) // 5]),
    ("shifted left", lambda s, b, h, q, k: s + theta[((q << 2) - (k << 2)) >> 3]),
    ("moved", lambda s, b, h, q, k: s + theta[(q + shift) - (k + shift)]),
    ("per head", lambda s, b, h, q, k: s + theta[(q - k) * offsets[h] % 64]),
    ("bucket", lambda s, b, h, q, k: s + table[t5_bucket(k - q), h]),
    ("causal bucket", lambda s, b, h, q, k: s + table[t5_bucket(k - q, False), h]),
    (
        "wide",
        lambda s, b, h, q, k: s + theta[q.to(torch.int64) - k.to(torch.int64)],
    ),
    ("narrow", lambda s, b, h, q, k: s + theta[(q - k).to(torch.int16)]),
    # Bytes wrap around, and so does their difference, by as much.
    ("bytes", lambda s, b, h, q, k: s + theta[q.to(torch.int8) - k.to(torch.int8)]),
    ("int32", lambda s, b, h, q, k: s + theta[q.to(torch.int32) - k.to(torch.int32)]),
    (
        "logarithm",
        lambda s, b, h, q, k: (
            s + theta[torch.log2((q - k).abs() + 1.0).to(torch.int64)]
        ),
    ),
    (
        "floats",
        lambda s, b, h, q, k: s + theta[(q.float() - k.float()).abs().to(torch.int64)],
    ),
    (
        "whole floats",
        lambda s, b, h, q, k: s + theta[(q.float() * 2 - (k * 2.0 + 1)).long() // 4],
    ),
    (
        "floats compared",
        lambda s, b, h, q, k: s + theta[(q.float() > k.float()).long()],
    ),
    (
        "one hot",
        lambda s, b, h, q, k: s + torch.where(q == k, theta[(q == k).long()], 0.0),
    ),
]
PAIR: list[tuple[str, Score]] = [
    ("bias", lambda s, b, h, q, k: s + pair[b, h, q, k]),
    ("bias of heads", lambda s, b, h, q, k: s + pair3[h, q, k]),
    ("blocks", lambda s, b, h, q, k: s + blocks[q // 64, k // 64]),
    ("swin", lambda s, b, h, q, k: s + theta[swin_index(q, k)]),
    ("sum", lambda s, b, h, q, k: s + theta[(q + k) % 64]),
    ("ratio", lambda s, b, h, q, k: s + theta[q // (k + 1)]),
    ("blocks apart", lambda s, b, h, q, k: s + theta[q // 8 - k // 8]),
    ("remainders", lambda s, b, h, q, k: s + theta[q % 8 - k % 8]),
    ("unequal factors", lambda s, b, h, q, k: s + theta[(2 * q - k) % 64]),
    ("rounded", lambda s, b, h, q, k: s + theta[(q * 0.1 - k * 0.1).long()]),
    ("rounded sums", lambda s, b, h, q, k: s + theta[((q + 0.3) - (k + 0.3)).long()]),
    (
        "large floats",
        lambda s, b, h, q, k: s + theta[((q + 2.0**24) - (k + 2.0**24)).long()],
    ),
    ("halves", lambda s, b, h, q, k: s + theta[(q.half() - k.half()).long()]),
    ("row and distance", lambda s, b, h, q, k: s + relative[q % 4, q - k]),
    ("documents", lambda s, b, h, q, k: s + blocks[document[q] // 5, token[k]]),
    ("bits", lambda s, b, h, q, k: s + theta[(q ^ k) % 64]),
    ("product", lambda s, b, h, q, k: s + theta[(q * h - k * h) % 64]),
    ("cut", lambda s, b, h, q, k: s + theta[q.to(torch.int8).long() - k]),
]
CASES = [
    pytest.param(kind, mod, id=f"{kind.value}-{name}")
    for kind, mods in (
        (Coordinates.HEAD, HEAD),
        (Coordinates.ROW, ROW),
        (Coordinates.COLUMN, COLUMN),
        (Coordinates.DISTANCE, DIAGONAL),
        (Coordinates.PAIR, PAIR),
    )
    for name, mod in mods
]


def is_float(capture: Any) -> bool:
    return isinstance(capture, torch.Tensor) and capture.is_floating_point()


@pytest.mark.parametrize("simplified", [True, False], ids=["simple", "raw"])
@pytest.mark.parametrize(("kind", "mod"), CASES)
def test_classes(kind: Coordinates, mod: Score, simplified: bool) -> None:
    """Every read of a float is of its class, and constant along the rest."""
    reads = Reads.of(mod, simplified)
    floats = [c for c in reads.captures if is_float(c)]
    loads = [load for tensor in floats for load in reads.loads(tensor)]
    assert loads
    for load in loads:
        assert reads.indices.coordinates(load.indices) is kind
        for index in reads.evaluate(load, SIZES):
            assert is_constant(kind, index)


def test_all_reads_of_one_tensor() -> None:
    def mod(s, b, h, q, k):
        return s + theta[h] + theta[q - k] * theta[k]

    reads = Reads.of(mod)
    classes = [reads.indices.coordinates(load.indices) for load in reads.loads(theta)]
    assert classes == [Coordinates.HEAD, Coordinates.DISTANCE, Coordinates.COLUMN]


def test_reads_at_scores_are_refused() -> None:
    def mod(s, b, h, q, k):
        return s + theta[s.abs().clamp(max=63).to(torch.int64)]

    reads = Reads.of(mod)
    (load,) = reads.loads(theta)
    assert reads.indices.coordinates(load.indices) is None
    line = mod.__code__.co_firstlineno + 1
    with pytest.raises(
        GradientError,
        match=rf"test_capture_index.py:{line}: theta is read at a place that depends "
        r"on the score, so that its gradient cannot be computed: .*detach",
    ):
        reads.indices.read(load)


@pytest.mark.parametrize(
    ("mod", "why"),
    [
        (lambda s, b, h, q, k: s + theta[q // 8 - k // 8], "q_idx // 8"),
        (lambda s, b, h, q, k: s + theta[q + k], "q_idx + kv_idx"),
        (lambda s, b, h, q, k: s + theta[document[q] * k], "document[q_idx]"),
        (
            lambda s, b, h, q, k: s + theta[torch.where(q - k < 0, q, q - k)],
            "where(q_idx - kv_idx < 0, q_idx, q_idx - kv_idx)",
        ),
    ],
)
def test_pairs_have_a_reason(mod: Score, why: str) -> None:
    found = Reads.of(mod).read(theta).why
    assert found == f"{why} is not known to be a function of q_idx - kv_idx"


@pytest.mark.parametrize(("power", "kind"), [(24, "distance"), (25, "pair")])
def test_floats_of_long_sequences_round(power: int, kind: str) -> None:
    def mod(s, b, h, q, k):
        return s + theta[(q.float() - k.float()).long() % 64]

    reads = Reads.of(mod, length=1 << power)
    assert reads.read(theta).coordinates.value == kind


def test_sums_that_were_proved_to_fit_do_not_wrap() -> None:
    def mod(s, b, h, q, k):
        return s + theta[torch.maximum(q + shift, k + shift) - q]

    reads = Reads.of(mod, simplified=False)
    (load,) = reads.loads(theta)
    assert reads.indices.coordinates(load.indices) is Coordinates.PAIR
    fitting = CaptureIndices(reads.op.score_mod, fits=True)
    assert fitting.coordinates(load.indices) is Coordinates.DISTANCE


def test_indices_that_are_computed_for_pairs() -> None:
    def is_computed(index: Callable[..., Any]) -> bool:
        reads = Reads.of(lambda s, b, h, q, k: s + theta[index(h, q, k)])
        return reads.indices.are_computed_for_pairs()

    assert is_computed(lambda h, q, k: (q - k).clamp(0, 63))
    assert not is_computed(lambda h, q, k: q - k + 32)
    assert not is_computed(lambda h, q, k: k // 4 + h)


B, H, Q, K = Along.BATCH, Along.HEAD, Along.ROW, Along.COLUMN


@pytest.mark.parametrize(
    ("tensor", "mod", "parts"),
    [
        (scalar, lambda s, b, h, q, k: s * scalar, []),
        (per_head, alibi, [((0,), H, 1)]),
        (
            pair,
            lambda s, b, h, q, k: s + pair[b, h, q, k],
            [((0,), B, 1), ((1,), H, 1), ((2,), Q, 1), ((3,), K, 1)],
        ),
        (
            pair3,
            lambda s, b, h, q, k: s + pair3[1, 5 - q, k + shift - 20],
            [((0,), NOTHING, 0), ((1,), Q, -1), ((2,), K, 1)],
        ),
        (
            relative,
            lambda s, b, h, q, k: s + relative[h, k - q + shift],
            [((0,), H, 1), ((1,), Q | K, -1)],
        ),
        (
            table,
            lambda s, b, h, q, k: s + table[t5_bucket(k - q), h],
            [((0,), Q | K, None), ((1,), H, 1)],
        ),
        (
            blocks,
            lambda s, b, h, q, k: s + blocks[document[q] // 5, k],
            [((0,), Q, None), ((1,), K, 1)],
        ),
        (
            pair,
            lambda s, b, h, q, k: s + pair[b, h, h, q],
            [((0,), B, 1), ((1, 2), H, None), ((3,), Q, 1)],
        ),
        (
            pair3,
            lambda s, b, h, q, k: s + pair3[q % 4, h, q - k],
            [((1,), H, 1), ((0, 2), Q | K, None)],
        ),
        (
            pair3,
            lambda s, b, h, q, k: s + pair3[q % 2, k % 2, (q + k) % 2],
            [((0, 1, 2), Q | K, None)],
        ),
        (theta, lambda s, b, h, q, k: s + theta[2 * h], [((0,), H, None)]),
        (theta, lambda s, b, h, q, k: s + theta[h + layer], [((0,), H, None)]),
        (theta, lambda s, b, h, q, k: s + theta[h + b], [((0,), B | H, None)]),
    ],
)
def test_parts(tensor: torch.Tensor, mod: Score, parts: list[Any]) -> None:
    """Dimensions, what they vary with, and the step where they are a line."""
    read = Reads.of(mod).read(tensor)
    found = [(p.dims, p.along, p.line.step if p.line else None) for p in read.parts]
    assert found == parts
    assert read.injective == all(step is not None for _, _, step in parts)


@pytest.mark.parametrize(
    ("mod", "by_pair"),
    [
        (lambda s, b, h, q, k: s + theta[swin_index(q, k)], True),
        (lambda s, b, h, q, k: s + blocks[q // 64, k // 64], False),
        (lambda s, b, h, q, k: s + table[t5_bucket(k - q), h], False),
        (lambda s, b, h, q, k: s + pair[b, h, q, k], False),
    ],
)
def test_places_of_pairs(mod: Score, by_pair: bool) -> None:
    reads = Reads.of(mod)
    found = [reads.indices.read(load).by_pair for load in reads.indices.loads()]
    assert found == [by_pair]
