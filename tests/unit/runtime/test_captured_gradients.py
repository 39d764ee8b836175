"""Gradients of captured tensors from sums of adjoints, against all pairs in fp64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from flexc.dialects.flex import Coordinates
from flexc.passes.scalar.captured_reads import read_of_index
from flexc.passes.scalar.copier import sliced
from flexc.runtime.autograd import captured_gradients
from flexc.runtime.autograd.captured_gradients import CapturedGradient, ReadScatter
from flexc.runtime.autograd.captured_places import (
    AXES,
    Chunk,
    Sizes,
    chunks_for,
)
from tests.support.captured_reads import (
    Reads,
    dense_gradient,
    of_chunk,
    summed,
)
from tests.unit.passes.test_capture_index import swin_index, t5_bucket

SIZES = Sizes(2, 4, 37, 29)
SHAPE = (2, 4, 37, 29)

document = torch.randint(0, 5, (37,))
token = torch.randint(-9, 9, (29,))
per_row = torch.tensor([2, 0, 1, 1])
shift, far, layer = 28, 1 << 40, torch.tensor(3)


def sums_shape(
    kind: Coordinates, sizes: Sizes, chunk: Chunk | None = None
) -> list[int]:
    chunk = chunk or Chunk.whole(sizes)
    return [len(chunk.positions(axis, sizes)) for axis in AXES[kind]]


def sums_bytes(
    kind: Coordinates, sizes: Sizes, chunk: Chunk | None = None, parts: int = 1
) -> int:
    return 4 * parts * math.prod(sums_shape(kind, sizes, chunk))


Case = tuple[tuple[int, ...], Callable[[Tensor], Callable[..., Any]]]

ALONG_ONE: dict[str, Case] = {
    "scalar": ((), lambda x: lambda s, b, h, q, k: s * x),
    "slopes": ((4,), lambda x: lambda s, b, h, q, k: s + x[h] * q),
    "heads of batches": ((4, 2), lambda x: lambda s, b, h, q, k: s + x[h, b]),
    "one element": ((3, 5), lambda x: lambda s, b, h, q, k: s + x[-1, 2]),
    "a captured element": ((5,), lambda x: lambda s, b, h, q, k: s + x[layer]),
    "a layer": ((5, 4), lambda x: lambda s, b, h, q, k: s + x[layer][h]),
    "looked up heads": ((3,), lambda x: lambda s, b, h, q, k: s + x[per_row[h]]),
    "gate": ((4, 37), lambda x: lambda s, b, h, q, k: s + x[h, q]),
    "short gate": ((3, 30), lambda x: lambda s, b, h, q, k: s + x[h - 1, q - 3]),
    "transposed gate": ((37, 4), lambda x: lambda s, b, h, q, k: s + x.T[h, q]),
    "documents": ((5,), lambda x: lambda s, b, h, q, k: s + x[document[q]]),
    "documents of heads": (
        (4, 5),
        lambda x: lambda s, b, h, q, k: s + x[h, document[q]],
    ),
    "row blocks": ((5, 2), lambda x: lambda s, b, h, q, k: s + x[q // 8, b]),
    "tokens": ((9, 4), lambda x: lambda s, b, h, q, k: s + x[token[k], h]),
    "reversed columns": ((29,), lambda x: lambda s, b, h, q, k: s + x[shift - k]),
    "relative": ((4, 65), lambda x: lambda s, b, h, q, k: s + x[h, q - k + shift]),
    "relative, short": ((40,), lambda x: lambda s, b, h, q, k: s + x[k - q + 3]),
    "relative, from the end": ((65,), lambda x: lambda s, b, h, q, k: s + x[q - k]),
    "relative, far": ((65,), lambda x: lambda s, b, h, q, k: s + x[q - k + far]),
    "clipped": (
        (2, 17),
        lambda x: lambda s, b, h, q, k: s + x[b, (q - k).clamp(-8, 8) + 8],
    ),
    "bucket": ((32, 4), lambda x: lambda s, b, h, q, k: s + x[t5_bucket(k - q), h]),
    "bucket of all heads": (
        (32,),
        lambda x: lambda s, b, h, q, k: s + x[t5_bucket(k - q)],
    ),
    "nothing to read": ((0, 4), lambda x: lambda s, b, h, q, k: s + x[q, h]),
}

OF_PAIRS: dict[str, Case] = {
    "pairs": (SHAPE, lambda x: lambda s, b, h, q, k: s + x[b, h, q, k]),
    "pairs of heads": (
        SHAPE[1:],
        lambda x: lambda s, b, h, q, k: s + x[h, q, k],
    ),
    "shifted pairs": (
        (29, 30, 4),
        lambda x: lambda s, b, h, q, k: s + x[k - 2, 33 - q, h],
    ),
    "blocks": ((4, 5), lambda x: lambda s, b, h, q, k: s + x[q // 8, k // 8]),
    "blocks of heads": (
        (5, 4, 4),
        lambda x: lambda s, b, h, q, k: s + x[q // 8, h, k // 8],
    ),
    "documents and tokens": (
        (5, 9),
        lambda x: lambda s, b, h, q, k: s + x[document[q], token[k]],
    ),
    "documents and columns": (
        (2, 5, 29),
        lambda x: lambda s, b, h, q, k: s + x[b, document[q], k],
    ),
    "windows": ((64,), lambda x: lambda s, b, h, q, k: s + x[swin_index(q, k)]),
    "windows of heads": (
        (64, 4),
        lambda x: lambda s, b, h, q, k: s + x[swin_index(q, k), h],
    ),
    "row and distance": (
        (37, 2, 65),
        lambda x: lambda s, b, h, q, k: s + x[q, b, q - k + shift],
    ),
    "of all": (
        (11,),
        lambda x: lambda s, b, h, q, k: s + x[(b + 2 * h + 3 * q + 5 * k) % 11],
    ),
    "out of range": (
        (7, 7),
        lambda x: lambda s, b, h, q, k: s + x[q - 20, (k * k) - 30],
    ),
}

CASES = ALONG_ONE | OF_PAIRS


CHUNKS = {
    "whole": [Chunk.whole(SIZES)],
    "heads": [
        Chunk(range(b, b + 1), heads, range(37))
        for b in range(2)
        for heads in (range(3), range(3, 4))
    ],
    "rows": [
        Chunk(range(b, b + 1), range(h, h + 1), rows)
        for b in range(2)
        for h in range(4)
        for rows in (range(16), range(16, 32), range(32, 37))
    ],
}


def add_all(
    gradient: CapturedGradient,
    scatter: ReadScatter,
    adjoints: Tensor,
    chunks: list[Chunk],
) -> Tensor:
    for chunk in chunks:
        sums = summed(scatter.coordinates, of_chunk(adjoints, chunk))
        assert list(sums.shape) == sums_shape(scatter.coordinates, SIZES, chunk)
        gradient.add(scatter, sums.to(gradient.site.device), chunk)
    return gradient.result()


def scattered(name: str) -> tuple[Tensor, Reads, ReadScatter, Tensor, Tensor]:
    """A case's tensor and read; adjoints of all pairs, and the gradient in fp64."""
    shape, make = CASES[name]
    tensor = torch.randn(shape, dtype=torch.float64)
    reads = Reads.of(make(tensor))
    (load,) = reads.loads(tensor)
    adjoints = torch.randn(SHAPE, dtype=torch.float64)
    expected = dense_gradient(tensor, reads.evaluate(load, SIZES), adjoints)
    return tensor, reads, ReadScatter(reads.indices.read(load)), adjoints, expected


@pytest.mark.parametrize("cut", ["whole", "heads"])
@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str, cut: str) -> None:
    """Equal to adding each pair's adjoint where it read; out of range, nothing."""
    tensor, reads, scatter, adjoints, expected = scattered(name)
    gradient = CapturedGradient(tensor, reads.captures, SIZES, torch.float64)
    found = add_all(gradient, scatter, adjoints, CHUNKS[cut])
    assert found.dtype is torch.float64
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", OF_PAIRS)
def test_rows_of_pairs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of rows, of which a few at a time are added."""
    monkeypatch.setattr(captured_gradients, "MAX_PLACES", 100)
    tensor, reads, scatter, adjoints, expected = scattered(name)
    gradient = CapturedGradient(tensor, reads.captures, SIZES, torch.float64)
    found = add_all(gradient, scatter, adjoints, CHUNKS["rows"])
    assert scatter.coordinates is Coordinates.PAIR
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_gradients_as_a_gpu_adds(
    name: str, deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor, reads, scatter, adjoints, expected = scattered(name)
    monkeypatch.setattr(captured_gradients, "adds_in_turn", lambda target: False)
    gradient = CapturedGradient(
        tensor, reads.captures, SIZES, torch.float64, deterministic
    )
    found = add_all(gradient, scatter, adjoints, CHUNKS["heads"])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_nothing_waits_for_a_device(name: str) -> None:
    """On a device without values nothing can be asked for one."""
    tensor, reads, scatter, adjoints, _ = scattered(name)
    captures = [c.to("meta") if isinstance(c, Tensor) else c for c in reads.captures]
    gradient = CapturedGradient(tensor.to("meta"), captures, SIZES)
    found = add_all(gradient, scatter, adjoints, CHUNKS["heads"])
    assert found.is_meta
    assert found.shape == tensor.shape


@pytest.mark.parametrize("name", CASES)
def test_places_are_remembered(name: str) -> None:
    """Unless they are read from tensors, whose values may be others."""
    tensor, reads, scatter, adjoints, expected = scattered(name)
    kept = []
    for _ in range(2):
        kept.append([dict(part.kept) for part in scatter.parts])
        gradient = CapturedGradient(tensor, reads.captures, SIZES, torch.float64)
        found = add_all(gradient, scatter, adjoints, CHUNKS["whole"])
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert kept[1] == [part.kept for part in scatter.parts]
    for part in scatter.parts:
        assert all(isinstance(k, int) for k in part.kept.values()) or not part.reads


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_narrow_tensors(dtype: torch.dtype) -> None:
    """Sums are added in fp32, whatever their own type, and rounded once."""
    tensor = torch.randn(5, 4).to(dtype)
    reads = Reads.of(lambda s, b, h, q, k: s + tensor[q // 8, h])
    scatter = ReadScatter(reads.read(tensor))
    sums = torch.randn(2, 4, 37).to(dtype)
    gradient = CapturedGradient(tensor, reads.captures, SIZES, dtype)
    gradient.add(scatter, sums)
    found = gradient.result()
    exact = torch.zeros(5, 4, dtype=torch.float64)
    exact.index_add_(0, torch.arange(37) // 8, sums.double().sum(0).T)
    assert found.dtype is dtype
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), exact, rtol=unit, atol=1e-5)


def test_several_reads_of_one_tensor() -> None:
    """Of other classes, of equal ones, sliced and not."""
    tensor = torch.randn(64, dtype=torch.float64)

    def mod(s, b, h, q, k):
        one = tensor[h] + tensor[q] * tensor[k + 1]
        return s + one + tensor[q - k] + tensor[(q + k) % 64] * tensor[document[q]]

    reads = Reads.of(mod)
    gradient = CapturedGradient(tensor, reads.captures, SIZES, torch.float64)
    expected = torch.zeros_like(tensor)
    for load in reads.loads(tensor):
        adjoints = torch.randn(SHAPE, dtype=torch.float64)
        scatter = ReadScatter(reads.indices.read(load))
        gradient.add(scatter, summed(scatter.coordinates, adjoints))
        expected += dense_gradient(tensor, reads.evaluate(load, SIZES), adjoints)
    assert len(reads.loads(tensor)) == 6
    torch.testing.assert_close(gradient.result(), expected, rtol=1e-12, atol=1e-12)


def test_autograd_agrees() -> None:
    """Torch's own gradient of mods, broadcast over all pairs."""
    table = torch.randn(32, 4, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(4, 65, dtype=torch.float64, requires_grad=True)
    slopes = torch.randn(4, dtype=torch.float64, requires_grad=True)

    def mod(s, b, h, q, k):
        return s + table[t5_bucket(k - q), h] + bias[h, q - k + shift] + slopes[h]

    adjoints = torch.randn(SHAPE, dtype=torch.float64)
    at = torch.meshgrid(*map(torch.arange, SHAPE), indexing="ij")
    scores = torch.zeros(SHAPE, dtype=torch.float64)
    tensors = (table, bias, slopes)
    expected = torch.autograd.grad(mod(scores, *at), tensors, adjoints)
    reads = Reads.of(mod)
    for tensor, gradient in zip(tensors, expected, strict=True):
        scatter = ReadScatter(reads.read(tensor))
        found = CapturedGradient(tensor, reads.captures, SIZES, torch.float64)
        found.add(scatter, summed(scatter.coordinates, adjoints))
        torch.testing.assert_close(found.result(), gradient, rtol=1e-12, atol=1e-12)


def test_sums_that_are_still_to_be_added_up() -> None:
    tensor, reads, scatter, _, _ = scattered("relative")
    for sums in (torch.randn(2, 4, 3, 65), torch.randn(2, 4, 1, 65)):
        parts = CapturedGradient(tensor, reads.captures, SIZES)
        parts.add(scatter, sums)
        whole = CapturedGradient(tensor, reads.captures, SIZES)
        whole.add(scatter, sums.sum(2))
        torch.testing.assert_close(parts.result(), whole.result())
    tensor, reads, scatter, _, _ = scattered("slopes")
    sums = torch.randn(2, 4, 37)
    parts = CapturedGradient(tensor, reads.captures, SIZES)
    parts.add(scatter, sums)
    torch.testing.assert_close(parts.result(), sums.double().sum((0, 2)))


def test_a_read_is_known_by_its_index_region() -> None:
    """As it is kept in IR: an index, the tensor's number, and the class."""
    for name in CASES:
        tensor, reads, scatter, adjoints, expected = scattered(name)
        (load,) = reads.loads(tensor)
        place = [c is tensor for c in reads.captures].index(True)
        index = sliced(reads.op.score_mod, load.indices)
        again = ReadScatter(read_of_index(index, place, scatter.coordinates))
        gradient = CapturedGradient(tensor, reads.captures, SIZES, torch.float64)
        found = add_all(gradient, again, adjoints, CHUNKS["whole"])
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_equal_calls_give_equal_bits() -> None:
    for name in CASES:
        tensor, reads, scatter, adjoints, _ = scattered(name)
        adjoints, runs = adjoints.float(), []
        for _ in range(2):
            gradient = CapturedGradient(tensor, reads.captures, SIZES)
            runs.append(add_all(gradient, scatter, adjoints, CHUNKS["whole"]))
        assert torch.equal(*runs)


KINDS = list(Coordinates)


@pytest.mark.parametrize("max_bytes", [1, 5_000, 40_000, 10**6, 10**9])
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.value)
def test_chunks(kind: Coordinates, max_bytes: int) -> None:
    """They cover all pairs once, and are small, unless 16 rows are not."""
    chunks = chunks_for(kind, SIZES, max_bytes=max_bytes, rows=16, rows_of_diagonals=16)
    count = torch.zeros(SHAPE, dtype=torch.int32)
    for chunk in chunks:
        of_chunk(count, chunk).add_(1)
        assert chunk.rows.start % 16 == 0
        parts = -(-len(chunk.rows) // 16) if kind is Coordinates.DISTANCE else 1
        least = len(chunk.batch) == len(chunk.heads) == 1 and len(chunk.rows) <= 16
        assert least or sums_bytes(kind, SIZES, chunk, parts=parts) <= max_bytes
    assert (count == 1).all()


def test_chunks_are_about_equal() -> None:
    sizes = Sizes(3, 10, 100, 100)
    pair = Coordinates.PAIR
    whole = sums_bytes(pair, sizes)
    assert len(chunks_for(pair, sizes, max_bytes=whole)) == 1
    assert [len(c.batch) for c in chunks_for(pair, sizes, max_bytes=whole - 1)] == [
        2,
        1,
    ]
    heads = chunks_for(pair, sizes, max_bytes=4 * 40_000)
    assert [len(c.heads) for c in heads] == [4, 4, 2] * 3
    rows = chunks_for(pair, sizes, max_bytes=39_999, rows=8)
    assert [len(c.rows) for c in rows[:2]] == [56, 44]
    assert len(rows) == 60
