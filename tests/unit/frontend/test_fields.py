"""Views of captured tensors: dimensions of one element repeat, as torch's do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import flexc
from tests.support.reference import attention
from tests.unit.frontend.evaluate import check_mask, check_score

T, U, W = torch.randn(3, 4, 3, generator=torch.Generator().manual_seed(0)).unbind()
ROW, COLUMN, ONE, A = T[:1].clone(), T[:, :1].clone(), T[0, :1].clone(), T[None] + 1
ZEROTH = torch.tensor([0])
QUERY, KEY, VALUE = torch.randn(3, 1, 4, 8, 16).unbind()
one, two = 1, 2

Mod = Callable[..., Any]

VIEWS: dict[str, Callable[[], Tensor]] = {
    "slice, expanded": lambda: T[:1].expand(4, 3),
    "slice and tensor": lambda: T[:1] + U,
    "last row": lambda: W[-1:] + U,
    "narrow": lambda: T.narrow(0, 1, 1) + U,
    "narrow by numbers": lambda: T.narrow(0, one, one) + U,
    "steps": lambda: (T[::4] + U) * T[1:4:3],
    "negative bounds": lambda: (T[-2:-1] + U) * T[:-3],
    "bounds beyond the end": lambda: (T[3:100] + U) * T[-100:1],
    "bounds that are captured": lambda: (T[:one] + U) * T[one:two] - T[-one:],
    "column": lambda: T[:, 1:2] + U,
    "slices of slices": lambda: ((T[:2] + ROW)[1:] + U) * COLUMN,
    "where": lambda: torch.where(T[:1] > 0, ROW, T[1:2]).expand(4, 3),
    "view": lambda: T[:1].view(-1, 3) + ROW.view(-1, 3) + U,
    "reshape": lambda: (T.reshape(-1, 12).reshape(-1, 4, 3) + A)[0],
    "flatten": lambda: T[:1, :1].flatten() + U,
    "transpose": lambda: (T[:1].t() + U.t()).permute(1, 0) + ROW.T.t(),
    "squeeze": lambda: T[:1].squeeze(0) + T[:, :1].squeeze()[:, None] + U,
    "squeeze nothing": lambda: T[:1].squeeze(1) + U,
    "index": lambda: T[ZEROTH] + U,
    "index and slice": lambda: T[ZEROTH, :1] + U,
    "index_select": lambda: torch.index_select(T, 0, ZEROTH) + U,
    "take": lambda: T[:1].take(ZEROTH) + U,
    "embedding": lambda: torch.nn.functional.embedding(ZEROTH, T) + U,
    "arange": lambda: torch.arange(1) + torch.arange(3, 4) * U,
    "arange of a number": lambda: torch.arange(one, two) * U,
    "arange with a step": lambda: torch.arange(2, 5, 7)[None] * U,
    "full": lambda: torch.full((1,), 2.0) + torch.ones(1, 1) * U - torch.zeros(1, 3),
    "new_full": lambda: T.new_full((1, 3), 2.0) + T.new_ones((one, 3)) * U,
    "ones_like": lambda: torch.ones_like(T[:1]) + torch.full_like(ONE, 3.0) * U,
    "sizes": lambda: U * T[:1].shape[0] + T[1:].shape[0] + (T[:1] + U).shape[0],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_dimensions_of_one_element_repeat(view: Callable[[], Tensor]) -> None:
    check_score(lambda s, b, h, q, k: s + view()[h, k % 3])
    check_mask(lambda b, h, q, k: view()[h, k % 3] > 0.3)


def check_attention(score_mod: Mod | None, mask_mod: Mod | None = None) -> None:
    out = flexc.flex_attention(
        QUERY, KEY, VALUE, score_mod=score_mod, mask_mod=mask_mod
    )
    expected = attention(QUERY, KEY, VALUE, score_mod, mask_mod).out.float()
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


def test_kernels_repeat_slices() -> None:
    check_attention(
        lambda s, b, h, q, k: (
            s + (T[:1].expand(4, 3) * (W[-1:] + U))[h, k % 3] + T[:1].squeeze(0)[k % 3]
        ),
        lambda b, h, q, k: (T.narrow(0, 1, 1) + U)[h, k % 3] > -1.0,
    )


@pytest.mark.parametrize("rows", [(1, 4), (4, 1)])
@pytest.mark.parametrize("backend", ["auto", "eager"])
def test_a_dimension_is_one_at_one_call_and_more_at_another(
    rows: tuple[int, int], backend: str
) -> None:
    """What repeats is decided anew where the sizes decide otherwise."""

    def mods(table: Tensor) -> tuple[Mod, Mod]:
        return (
            lambda s, b, h, q, k: s + (table * U)[h, k % 3],
            lambda b, h, q, k: table.expand(4, 3)[h, k % 3] > -0.5,
        )

    for n in rows:
        score_mod, mask_mod = mods(T[:n].contiguous())
        out = flexc.flex_attention(
            QUERY, KEY, VALUE, score_mod, mask_mod=mask_mod, backend=backend
        )
        expected = attention(QUERY, KEY, VALUE, score_mod, mask_mod).out.float()
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("ends", [(1, 4), (4, 1), (2, 1)])
def test_a_slice_is_one_at_one_call_and_more_at_another(ends: tuple[int, int]) -> None:
    def mod(end: int) -> Mod:
        return lambda s, b, h, q, k: s + (T[:end] + U[:4])[h, k % 3]

    def first(end: int) -> Mod:
        return lambda s, b, h, q, k: s + (T[:end] + ROW)[h % end, k % 3]

    for end in ends:
        check_attention(first(end))
        if end != 2:
            check_attention(mod(end))


@pytest.mark.parametrize("sizes", [(1, 4), (4, 1)])
def test_a_squeezed_dimension_is_one_at_one_call_only(sizes: tuple[int, int]) -> None:
    def mod(table: Tensor) -> Mod:
        def score_mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
            squeezed = table.squeeze(0)
            return s + (squeezed[k % 3] if squeezed.dim() == 1 else squeezed[h, k % 3])

        return score_mod

    for n in sizes:
        check_attention(mod(T[:n].contiguous()))
