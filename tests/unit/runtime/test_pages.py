"""Calls with a page table: what they refuse, and what is said of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import flexc
from flexc.errors import DeviceError, DtypeError, FlexcError, OptionError, ShapeError

Q = torch.randn(2, 4, 3, 16)
POOL = torch.randn(6, 2, 8, 16)
TABLE = torch.tensor([[0, 3], [5, 1]], dtype=torch.int32)
WIDE = torch.zeros(2, 4, dtype=torch.int32)


def attend(query: Any, key: Any, value: Any, table: Any, **options: Any) -> Any:
    given: Any = {"enable_gqa": True, "page_table": table} | options
    return flexc.flex_attention(query, key, value, **given)


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ((Q, POOL, POOL, [[0, 3], [5, 1]]), ShapeError, "page_table expects a tensor"),
        ((Q, POOL, POOL, TABLE[0]), ShapeError, "page_table expects a tensor"),
        ((Q, POOL, POOL, TABLE.long()), DtypeError, r"convert it with .int\(\)"),
        (
            (Q, POOL, POOL, TABLE.to("meta")),
            DeviceError,
            "query's device cpu, got meta",
        ),
        ((Q, POOL, POOL, TABLE[:1]), ShapeError, "a row for each of 2 sequences"),
        ((Q, POOL, POOL, WIDE[:, ::2]), ShapeError, "adjacent in memory"),
        ((Q, POOL, POOL[:5], TABLE), ShapeError, "equal numbers and sizes of pages"),
        ((Q, POOL[:, :, :4], POOL, TABLE), ShapeError, "equal numbers and sizes"),
        ((Q, POOL[:0], POOL[:0], TABLE), ShapeError, "at least one page"),
        ((Q, POOL[:, :, :0], POOL[:, :, :0], TABLE), ShapeError, "at least one"),
        ((Q, POOL[..., :8], POOL, TABLE), ShapeError, "head dim"),
        ((Q, POOL.half(), POOL.half(), TABLE), DtypeError, "dtype"),
        ((Q[:, :3], POOL, POOL, TABLE), ShapeError, "multiple"),
    ],
)
def test_mistakes(given: Any, error: type[FlexcError], says: str) -> None:
    with pytest.raises(error, match=says):
        attend(*given)


def test_gradients_are_refused() -> None:
    with pytest.raises(OptionError, match="expect no gradients"):
        attend(Q.clone().requires_grad_(), POOL, POOL, TABLE)


def test_no_pages_and_no_queries() -> None:
    out, lse = attend(Q, POOL, POOL, TABLE[:, :0].contiguous(), return_lse=True)
    assert not out.any()
    assert (lse == -torch.inf).all()
    assert attend(Q[:, :, :0], POOL, POOL, TABLE).shape == (2, 4, 0, 16)


@pytest.mark.parametrize("numbers", [[-1, 99], [2**31 - 1, -(2**31)]])
def test_entries_that_no_key_needs_may_be_any(numbers: list[int]) -> None:
    table = torch.tensor([[2, *numbers], [4, *numbers]], dtype=torch.int32)
    lengths = torch.tensor([8, 5])
    mask = flexc.causal_lower_right(3, lengths)
    found = attend(Q, POOL, POOL, table, mask_mod=mask)
    assert found.isfinite().all()
    assert found.equal(attend(Q, POOL, POOL, table.clamp(0, 5), mask_mod=mask))


def test_explain_says_where_keys_lie() -> None:
    lengths = torch.tensor([8, 16])

    def run(query: torch.Tensor) -> Any:
        mask = flexc.causal_lower_right(query.size(2), lengths)
        return attend(query, POOL, POOL, TABLE, mask_mod=mask)

    (found,) = flexc.explain(run, Q)
    assert "keys in pages" in str(found)
    assert "of 8 keys" in str(found)
    assert "pages found key by key" in str(found)
    assert run(Q).equal(run(Q))
