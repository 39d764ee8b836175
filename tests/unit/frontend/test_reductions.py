"""Reductions over short rows of captured tensors, and products of such rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils import parametrizations

import flexc
from flexc.errors import MutationError, UnsupportedOpError
from flexc.frontend.fields import MAX_REDUCED
from flexc.runtime.kernels.driver import counters

N, E = 70, 16

torch.manual_seed(0)
QUERY, KEY, VALUE = (torch.randn(1, 2, N, E) for _ in range(3))
GRID = torch.meshgrid(*map(torch.arange, (1, 2, N, N)), indexing="ij")
B, H, Q, K = (index.contiguous() for index in GRID)


class Rows:
    """Tables that mods read by row."""

    def __init__(self, width: int = 5):
        generator = torch.Generator().manual_seed(width)
        draw: Any = torch.randn(2, N, width, generator=generator)
        self.a, self.b = (table.clone().requires_grad_() for table in draw)
        self.half = self.a.detach().half()
        self.top = torch.randint(0, 5, (1, 2, 5, 3), generator=generator)
        self.whole = torch.randint(-9, 9, (N, width), generator=generator)


ROWS = Rows()

EDGES = torch.tensor([0, 1, 2, 4, 8, 16])
SHORT, LONG = torch.tensor([-0.5, 0.0, 0.5]), torch.linspace(-2, 2, 150)

SCORES: dict[str, Callable[..., Any]] = {
    "distance": lambda s, b, h, q, k: s - (ROWS.a[q] - ROWS.b[k]).pow(2).sum(-1),
    "mean": lambda s, b, h, q, k: s + (ROWS.a[q] * ROWS.b[k]).mean(dim=-1),
    "keepdim": lambda s, b, h, q, k: (
        s + (ROWS.a[q] / (1 + ROWS.a[k].abs().sum(-1, keepdim=True))).sum(-1)
    ),
    "amax": lambda s, b, h, q, k: s + (ROWS.a[q] + ROWS.b[k]).amax(-1),
    "amin": lambda s, b, h, q, k: s + (ROWS.a[q] + ROWS.b[k]).amin(-1),
    "max": lambda s, b, h, q, k: s * torch.max(ROWS.a[q] + ROWS.b[k], -1).values,
    "min": lambda s, b, h, q, k: s * (ROWS.a[q] + ROWS.b[k]).min(-1)[0],
    "prod": lambda s, b, h, q, k: s + (ROWS.a[q] + ROWS.b[k]).prod(-1),
    "half": lambda s, b, h, q, k: s + (ROWS.half[q] * ROWS.half[k]).sum(-1),
    "integers": lambda s, b, h, q, k: s + (ROWS.whole[q] * ROWS.whole[k]).sum(-1),
    "norm": lambda s, b, h, q, k: s - (ROWS.a[q] - ROWS.b[k]).norm(dim=-1),
    "norms": lambda s, b, h, q, k: (
        s + ROWS.a[q].norm(1, -1) - (ROWS.a[q] * ROWS.b[k]).norm(torch.inf, -1)
    ),
    "logsumexp": lambda s, b, h, q, k: s + (ROWS.a[q] + ROWS.b[k]).logsumexp(-1),
    "std": lambda s, b, h, q, k: s + (ROWS.a[q] - ROWS.b[k]).std(-1),
    "var": lambda s, b, h, q, k: s + (ROWS.a[q] - ROWS.b[k]).var(-1, unbiased=False),
    "argmax": lambda s, b, h, q, k: s + (ROWS.a[q] + ROWS.b[k]).argmax(-1),
    "argmin": lambda s, b, h, q, k: s + (ROWS.whole[q] * ROWS.whole[k]).argmin(-1),
    "counts": lambda s, b, h, q, k: s + ROWS.whole[q].count_nonzero(-1) % (k + 1),
    "bucketize": lambda s, b, h, q, k: s + torch.bucketize((q - k).abs(), EDGES),
    "bucketize of scores": lambda s, b, h, q, k: s + torch.bucketize(s, SHORT),
    "searchsorted": lambda s, b, h, q, k: (
        s + torch.searchsorted(LONG, s.contiguous(), side="right") / 64
    ),
    "cosine": lambda s, b, h, q, k: (
        s + functional.cosine_similarity(ROWS.a[q], ROWS.b[k], dim=-1)
    ),
    "pairwise": lambda s, b, h, q, k: (
        s - functional.pairwise_distance(ROWS.a[q], ROWS.b[k])
    ),
    "softmax": lambda s, b, h, q, k: (
        s + (ROWS.a[q].softmax(-1) * (ROWS.a[q] + ROWS.b[k]).log_softmax(-1)).sum(-1)
    ),
    "layer norm": lambda s, b, h, q, k: (
        s
        + (functional.layer_norm(ROWS.a[q] + ROWS.b[k], (5,)) * ROWS.a[0]).sum(-1)
        + (functional.rms_norm(ROWS.a[q] * ROWS.b[k], (5,)) * ROWS.a[1]).sum(-1)
    ),
    "rotated": lambda s, b, h, q, k: (
        s
        + (ROWS.a[q].flip(-1) * ROWS.b[k]).sum(-1)
        + (ROWS.a[q].roll(2, -1) * ROWS.b[k]).sum(-1)
        + (torch.cat((ROWS.a[q], ROWS.b[k]), -1)[..., 3:7] ** 2).sum(-1)
    ),
    "parts": lambda s, b, h, q, k: (
        s + (ROWS.a[q].split((2, 3), -1)[1] * ROWS.b[k].chunk(2, -1)[0]).sum(-1)
    ),
    "stacked": lambda s, b, h, q, k: (
        s + (torch.stack((ROWS.a[q], ROWS.b[k] * s[..., None]), -1)).amax((-1, -2))
    ),
    "loss": lambda s, b, h, q, k: (
        s - functional.huber_loss(ROWS.a[q], ROWS.b[k], reduction="none").mean(-1)
    ),
    "slice": lambda s, b, h, q, k: s + ROWS.a[:, 1:4][q].sum(-1) * ROWS.b[k, ..., 0],
}

MASKS: dict[str, Callable[..., Any]] = {
    "any": lambda b, h, q, k: (ROWS.top[b, h, q // 16] == k[..., None] // 16).any(-1),
    "all": lambda b, h, q, k: (ROWS.a[q] < ROWS.b[k] + 1).all(-1),
    "count": lambda b, h, q, k: (ROWS.a[q] < ROWS.b[k]).sum(-1) >= 2,
    "isin": lambda b, h, q, k: torch.isin(q - k, EDGES),
    "not isin": lambda b, h, q, k: torch.isin(k, EDGES, invert=True) | (q == k),
    "buckets": lambda b, h, q, k: (
        torch.bucketize(q, EDGES) >= torch.bucketize(k, EDGES)
    ),
}  # fmt: skip


def _attention(scores: Tensor, live: Tensor | None = None) -> Tensor:
    if live is not None:
        scores = scores.masked_fill(~live, -torch.inf)
    return scores.softmax(-1).nan_to_num() @ VALUE


def _scores() -> Tensor:
    return QUERY @ KEY.mT / E**0.5


@pytest.mark.parametrize("name", SCORES)
def test_scores(name: str) -> None:
    """Mods on indices of all pairs at once are the reference."""
    mod = SCORES[name]
    found = flexc.flex_attention(QUERY, KEY, VALUE, mod, backend="eager")
    expected = _attention(mod(_scores(), B, H, Q, K).float())
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "name",
    [
        *("distance", "keepdim", "amax", "min", "prod", "norm", "norms", "logsumexp"),
        *("std", "cosine", "softmax", "layer norm", "rotated", "stacked"),
    ],
)
def test_gradients(name: str) -> None:
    leaves = [ROWS.a, ROWS.b]
    found: Any = flexc.flex_attention(QUERY, KEY, VALUE, SCORES[name])
    expected = _attention(SCORES[name](_scores(), B, H, Q, K))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    seed = torch.randn_like(found)
    gradients = [
        torch.autograd.grad(out, leaves, seed, materialize_grads=True)
        for out in (found, expected)
    ]
    torch.testing.assert_close(*gradients, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", ["amax", "amin", "max", "min"])
def test_two_equal_extremes_share_the_gradient(name: str) -> None:
    table = torch.tensor([[1.0, 1.0], [2.0, 0.0]]).repeat(N // 2, 1).requires_grad_()
    bias = torch.rand(N)
    found: Any = flexc.flex_attention(
        QUERY,
        KEY,
        VALUE,
        lambda s, b, h, q, k: s + getattr(table[q] * bias[k], name)(),
    )
    extremes = getattr(table, f"a{name[-3:]}")(-1)
    expected = _attention(_scores() + extremes[:, None] * bias)
    gradients = [
        torch.autograd.grad(out.square().sum(), table) for out in (found, expected)
    ]
    torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str) -> None:
    mask = MASKS[name]
    found = flexc.flex_attention(QUERY, KEY, VALUE, mask_mod=mask)
    torch.testing.assert_close(found, _attention(_scores(), mask(B, H, Q, K)))


@pytest.mark.parametrize("product", [torch.dot, torch.inner, torch.matmul])
def test_products(product: Callable[..., Any]) -> None:
    a, b = ROWS.a.detach(), ROWS.b.detach()
    found = flexc.flex_attention(
        QUERY, KEY, VALUE, lambda s, _b, h, q, k: s + product(a[q], b[k])
    )
    torch.testing.assert_close(found, _attention(_scores() + a @ b.T))


def test_products_of_matrices() -> None:
    a = ROWS.a.detach()
    found = flexc.flex_attention(
        QUERY,
        KEY,
        VALUE,
        lambda s, b, h, q, k: (
            s
            + torch.einsum("d,d->", a[q], a[k])
            + (a[:4] @ a[k])[q % 4]
            + (a[:4] @ a[:8].T)[q % 4, k % 8]
        ),
    )
    fours, eights = torch.arange(N) % 4, torch.arange(N) % 8
    expected = _scores() + a @ a.T + a[fours] @ a.T + a[fours] @ a[eights].T
    torch.testing.assert_close(found, _attention(expected), atol=1e-4, rtol=1e-4)


def test_a_norm_of_nothing_has_no_gradient() -> None:
    """The distance of a row to itself is 0, where a root has no derivative."""
    table = torch.randn(N, 3, requires_grad=True)
    distances: list[Callable[..., Any]] = [
        lambda s, b, h, q, k: s - (table[q] - table[k]).norm(),
        lambda s, b, h, q, k: s - torch.dist(table[q], table[k]),
        lambda s, b, h, q, k: s - (table[q] - table[k]).norm(3),
    ]
    for distance in distances:
        found: Any = flexc.flex_attention(QUERY, KEY, VALUE, distance)
        (gradient,) = torch.autograd.grad(found.square().sum(), table)
        assert gradient.isfinite().all()


def test_parts_are_chosen_by_position() -> None:
    """Which part of a row an element is in need not be known."""
    a = ROWS.a.detach()
    found = flexc.flex_attention(
        QUERY,
        KEY,
        VALUE,
        lambda s, b, h, q, k: (
            s
            + torch.cat([a[q], a[k, :3] * s, a[:0, 0]])[(q + k) % 8]
            + (a[q] + a[k]).flip(0)[k % 5]
        ),
    )
    scores, pairs = _scores(), torch.zeros(N, N)
    for i, j in itertools.product(range(N), repeat=2):
        at, flipped = (i + j) % 8, 4 - j % 5
        scores[..., i, j] *= 1 + (a[j, at - 5] if at >= 5 else 0)
        pairs[i, j] += (a[i, at] if at < 5 else 0) + a[i, flipped] + a[j, flipped]
    torch.testing.assert_close(found, _attention(scores + pairs), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_softmax_of_narrow_rows(dtype: torch.dtype) -> None:
    """Sums are not rounded to the rows' dtype before they divide.

    A row's log-sum-exp over one key of score 0 is what the mod adds.
    """
    a = (torch.randn(N, 5) + 20).to(dtype)
    query, key = torch.zeros(1, 5, N, E), torch.zeros(1, 5, 1, E)
    result: Any = flexc.flex_attention(
        *(query, key, key),
        lambda s, b, h, q, k: s + (a[q] + 0).softmax(-1)[h],
        return_lse=True,
    )
    exact, found = a.double().softmax(-1).T[None], result[1]
    # A weight is rounded once, by half a unit in the last place.
    once = torch.finfo(dtype).eps / 2 * exact + 1e-5
    assert ((found - exact).abs() <= once).all()
    powers = (a - a.amax(-1, keepdim=True)).exp()
    total = powers[:, 0]
    for n in range(1, 5):
        total = total + powers[:, n]
    thrice = (powers / total[:, None]).T[None]
    assert ((thrice - exact).abs() > once).any(), "the bound tells the two apart"


WRITES: tuple[Callable[..., Tensor], ...] = (
    lambda a, b: a.bfloat16().mul_(b),
    lambda a, b: a.bfloat16().mul_(3),
    lambda a, b: a.bfloat16().div_(b),
    lambda a, b: a.half().add_(b, alpha=3),
    lambda a, b: a.bfloat16().addcmul_(b, b, value=2),
)


@pytest.mark.parametrize("write", WRITES)
def test_writes_round_once(write: Callable[..., Tensor]) -> None:
    """What is written to a narrow tensor is computed in the operands' common dtype."""
    a, b = torch.randn(N), torch.randn(N)
    query, key = torch.zeros(1, 1, N, E), torch.zeros(1, 1, 1, E)
    result: Any = flexc.flex_attention(
        *(query, key, key),
        lambda s, _b, _h, q, k: s + write(a[q] * 1, b[q]),
        return_lse=True,
    )
    expected = [write(x * 1, y) for x, y in zip(a, b, strict=True)]
    torch.testing.assert_close(
        result[1][0, 0], torch.stack(expected).float(), atol=2e-5, rtol=1e-6
    )


def test_diagonals() -> None:
    a = ROWS.a.detach()
    found = flexc.flex_attention(
        *(QUERY, KEY, VALUE),
        lambda s, b, h, q, k: (
            s
            + torch.outer(a[q], a[k]).diagonal().sum()
            + torch.outer(a[q], a[k]).diagonal(1).sum()
            + torch.outer(a[q], a[k, :2]).diagonal(-4, 0, -1).sum()
            + torch.outer(a[q], a[k]).diagonal(9).sum()
        ),
    )
    last = a.shape[1] - 1
    pairs = a @ a.T + a[:, :last] @ a[:, 1:].T + a[:, 4:] @ a[:, : last - 3].T
    expected = _attention(_scores() + pairs)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_writes_to_what_the_mod_made() -> None:
    """Other writes, and those to what has a view, are refused."""
    a = ROWS.a.detach()

    def own(s: Tensor, b: Any, h: Any, q: Any, k: Any) -> Tensor:
        row = a[q] * a[k]
        row.clamp_(min=0).add_(1)
        return s + row.sum()

    found = flexc.flex_attention(QUERY, KEY, VALUE, own)
    pairs = (a[:, None] * a).clamp(min=0).sum(-1) + a.shape[1]
    torch.testing.assert_close(
        found, _attention(_scores() + pairs), atol=1e-4, rtol=1e-4
    )

    def viewed(s: Tensor, b: Any, h: Any, q: Any, k: Any) -> Tensor:
        row = a[q] * a[k]
        first = row[:2]
        row.add_(1)
        return s + first.sum()

    def captured(s: Tensor, b: Any, h: Any, q: Any, k: Any) -> Tensor:
        return s + a.add_(1)[q, 0]

    def part(s: Tensor, b: Any, h: Any, q: Any, k: Any) -> Tensor:
        row = a[q] * a[k]
        row.split(2)[0].add_(1)
        return s + row.sum()

    def factory(s: Tensor, b: Any, h: Any, q: Any, k: Any) -> Tensor:
        total = torch.zeros(())
        total.add_(a[q, 0])
        return s + total

    def whole(s: Tensor, b: Any, h: Any, q: Any, k: Any) -> Tensor:
        return s + a.split(2, 1)[0].add_(1)[q, 0]

    for refused in (viewed, captured, part, factory, whole):
        with pytest.raises(MutationError, match="add_"):
            flexc.flex_attention(QUERY, KEY, VALUE, refused)


def test_views_and_rows_without_elements() -> None:
    """Their sizes are known, too."""
    a, empty, weights = torch.randn(N, 2, 3), torch.randn(N, 0), torch.randn(N)
    found = flexc.flex_attention(
        QUERY,
        KEY,
        VALUE,
        lambda s, b, h, q, k: (
            s
            + (a[q] * a[k]).flatten().sum()
            + (a[q] + a[k]).view(3, 2).sum(0).prod()
            + (empty[q] * empty[k]).sum(-1)
            + torch.where((empty[q] < empty[k]).all(), weights[k], 0)
        ),
    )
    pairs = (a[:, None] + a).view(N, N, 3, 2).sum(2).prod(-1)
    expected = _scores() + a.flatten(1) @ a.flatten(1).T + pairs + weights
    torch.testing.assert_close(found, _attention(expected), atol=1e-4, rtol=1e-4)


def _traces(width: int, length: int) -> int:
    """Return how many mods a call traces."""
    table = torch.randn(length, width)
    q, k, v = (x[:, :, :length] for x in (QUERY, KEY, VALUE))
    before = counters["traced"]
    found = flexc.flex_attention(
        q, k, v, lambda s, b, h, i, j: s + (table[i] * table[j]).sum(-1)
    )
    expected = (q @ k.mT / E**0.5 + table @ table.T).softmax(-1) @ v
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    return counters["traced"] - before


def test_another_width_is_traced_again() -> None:
    """Another number of rows is not."""
    kinds = ((3, N), (4, N), (4, 40), (3, 40))
    assert [_traces(*kind) for kind in kinds] == [1, 1, 0, 0]


def test_captured_length() -> None:
    """A number that the size of a row depends on is fixed, too."""
    a = ROWS.a.detach()

    def with_rows(n: int) -> Callable[..., Any]:
        return lambda s, b, h, q, k: s + (a[q, :n] * a[k, :n]).sum(-1)

    for n in (2, 3):
        found = flexc.flex_attention(QUERY, KEY, VALUE, with_rows(n))
        torch.testing.assert_close(found, _attention(_scores() + a[:, :n] @ a[:, :n].T))


def test_no_extreme() -> None:
    empty = torch.randn(N, 0)
    with pytest.raises(UnsupportedOpError, match="has no extreme"):
        flexc.flex_attention(
            QUERY, KEY, VALUE, lambda s, b, h, q, k: s + (empty[q] * empty[k]).amax()
        )


def test_too_long() -> None:
    a = torch.randn(N, MAX_REDUCED + 1)
    with pytest.raises(
        UnsupportedOpError, match=r"65 elements .* reduce before"
    ) as error:
        flexc.flex_attention(
            QUERY, KEY, VALUE, lambda s, b, h, q, k: s + torch.dot(a[q], a[k])
        )
    assert "test_reductions.py" in str(error.value)


def test_of_captures_alone() -> None:
    """Long rows of captured tensors alone are reduced before the kernel, by torch."""
    a = torch.randn(N, 500)
    found = flexc.flex_attention(
        QUERY, KEY, VALUE, lambda s, b, h, q, k: s + a.mean(-1)[q] * a.amax(-1)[k]
    )
    expected = _scores() + a.mean(-1)[:, None] * a.amax(-1)
    torch.testing.assert_close(found, _attention(expected))


def test_of_captures_alone_by_functions_that_may_write() -> None:
    """torch's own functions pass on an `out` of None."""
    a = torch.randn(N, 500, requires_grad=True)
    found: Any = flexc.flex_attention(
        QUERY, KEY, VALUE, lambda s, b, h, q, k: s + functional.normalize(a)[q, k]
    )
    expected = _attention(_scores() + functional.normalize(a)[:, :N])
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(out.sum(), a) for out in (found, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(
    "result",
    [
        lambda a: a[a > 0].sum(),
        lambda a: (a > 0).sum(-1).unique().numel() * a[0, :N],
    ],
    ids=["sum", "count"],
)
def test_of_captures_alone_whose_size_depends_on_data(result: Any) -> None:
    a = torch.randn(N, 500)
    found = flexc.flex_attention(
        QUERY, KEY, VALUE, lambda s, b, h, q, k: s + result(a).expand(N)[k]
    )
    torch.testing.assert_close(found, _attention(_scores() + result(a)))


def test_of_captures_alone_whose_size_torch_compile_lacks() -> None:
    a = torch.randn(N, 500)

    @torch.compile(backend="eager", fullgraph=True)
    def attend(query: torch.Tensor) -> Any:
        return flexc.flex_attention(
            query, KEY, VALUE, lambda s, b, h, q, k: s + a[a > 0].sum()
        )

    with pytest.raises(UnsupportedOpError, match="size depends on data"):
        attend(QUERY)


def test_of_captures_alone_in_calls_that_repeat() -> None:
    """The second call is recorded, and traces the mod too: its result is not kept."""
    a = torch.randn(N * N)
    for _ in range(3):
        found = flexc.flex_attention(
            QUERY, KEY, VALUE, lambda s, b, h, q, k: s + a.cumsum(0).view(N, N)[q, k]
        )
        torch.testing.assert_close(
            found, _attention(_scores() + a.cumsum(0).view(N, N))
        )
        a.mul_(0.5)


def test_of_captures_alone_beside_what_is_decomposed() -> None:
    """Only ops on what depends on a pair are decomposed."""
    linear: Any = parametrizations.orthogonal(torch.nn.Linear(3, N))
    a = torch.randn(N, 3)
    found = flexc.flex_attention(
        QUERY,
        KEY,
        VALUE,
        lambda s, b, h, q, k: s + functional.rms_norm(linear.weight[q] + a[k], (3,))[0],
    )
    rows = functional.rms_norm(linear.weight[:, None] + a, (3,))
    torch.testing.assert_close(found, _attention(_scores() + rows[..., 0]))


def test_places_of_extremes_are_refused() -> None:
    a = ROWS.a.detach()
    with pytest.raises(UnsupportedOpError, match=r"aten\.max\.dim"):
        flexc.flex_attention(
            QUERY, KEY, VALUE, lambda s, b, h, q, k: s + (a[q] * a[k]).max(-1)[1]
        )
