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


def test_a_compiled_function_attends_to_a_cache() -> None:
    cache = flexc.PagedKV(2, 2, 8, 4, 16)
    cache.append(torch.randn(2, 2, 6, 16), torch.randn(2, 2, 6, 16))
    query = torch.randn(2, 4, 6, 16)
    found = flexc.compile(lambda q: cache.attend(q) * 2)(query)
    assert torch.equal(found, cache.attend(query) * 2)


OUT, LSE = torch.randn(2, 4, 3, 16), torch.randn(2, 4, 3)


@pytest.mark.parametrize(
    ("parts", "error", "says"),
    [
        ((), OptionError, "pairs of tensors"),
        ((OUT, OUT), OptionError, "pairs of tensors"),
        (((OUT, LSE, LSE),), OptionError, "pairs of tensors"),
        (((OUT, None),), OptionError, "pairs of tensors"),
        (((OUT, LSE.half()),), DtypeError, "lse in float32"),
        (((OUT, LSE[:, :, :2]),), ShapeError, r"lse \(B, H, S\), got"),
        (
            ((OUT, LSE), (OUT[:1], LSE[:1])),
            ShapeError,
            r"agree in out.* \(1, 4, 3, 16\)",
        ),
        (((OUT, LSE), (OUT.half(), LSE)), ShapeError, "agree in out.* torch.float16"),
        (((OUT, LSE), (OUT, LSE.double())), ShapeError, "agree in lse.* torch.float64"),
        (((OUT, LSE), (OUT.to("meta"), LSE)), ShapeError, "on cpu and .* on meta"),
    ],
)
def test_parts_that_do_not_merge(
    parts: Any, error: type[FlexcError], says: str
) -> None:
    with pytest.raises(error, match=says):
        flexc.merge_attention(*parts)


def test_parts_whose_scores_are_infinite() -> None:
    """A score of +inf outweighs all others, and a row of -inf is 0."""
    inf, nan = torch.inf, torch.nan
    columns = [1, 2, 0.5], [inf, 3, 1], [-inf, 5, -inf], [-inf] * 3, [nan, 1, 1]
    lses = torch.tensor([*columns, [3.0, inf, inf]]).T.contiguous().requires_grad_()
    outs = torch.arange(18.0).view(3, 6, 1).requires_grad_()
    parts = [(o[None, None], s[None, None]) for o, s in zip(outs, lses, strict=True)]
    out, lse = flexc.merge_attention(*parts)
    dense = lses.logsumexp(0)
    torch.testing.assert_close(lse[0, 0], dense, equal_nan=True)
    first = (lses[:, 0].softmax(0) * outs[:, 0, 0]).sum()
    expected = torch.stack([first, *map(torch.tensor, (1.0, 8.0, 0.0, torch.nan, 14))])
    torch.testing.assert_close(out.flatten(), expected, equal_nan=True)
    kept = torch.tensor([0, 1, 2, 3, 5])
    (out.flatten() + lse.flatten())[kept].sum().backward()
    assert outs.grad is not None
    assert lses.grad is not None
    for grad in (outs.grad[:, kept], lses.grad[:, kept]):
        assert grad.isfinite().all()
    given = lses[:, 0].detach().requires_grad_()
    found = given.softmax(0) @ outs[:, 0, 0].detach() + given.logsumexp(0)
    torch.testing.assert_close(lses.grad[:, 0], torch.autograd.grad(found, given)[0])


def test_attention_to_parts_of_keys_with_an_infinite_score() -> None:
    query, key, value = (torch.randn(1, 1, 4, 16) for _ in range(3))

    def score(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return torch.where((q == 1) & (k == 3), torch.inf, s)

    def attend(low: int, high: int) -> Any:
        keep = lambda b, h, q, k: (low <= k) & (k < high)  # noqa: E731
        return flexc.flex_attention(
            query, key, value, score, mask_mod=keep, return_lse=True
        )

    merged = flexc.merge_attention(attend(0, 2), attend(2, 4))
    torch.testing.assert_close(tuple(merged), attend(0, 4), equal_nan=True)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: flexc.merge_attention((OUT, LSE), (x.float(), LSE)),
        lambda x: flexc.merge_attention((x.float(), x.float())),
        lambda x: flexc.causal_lower_right(4, x),
        lambda x: flexc.flex_attention(OUT, OUT, OUT, page_table=x),
        lambda x: flexc.flex_attention_varlen(OUT[0], OUT[0], OUT[0], x, x),
    ],
)
@pytest.mark.filterwarnings("ignore:.*nested tensors")
def test_nested_tensors_are_refused(call: Any) -> None:
    strided = torch.nested.nested_tensor([torch.arange(3), torch.arange(4)])
    with pytest.raises(ShapeError, match="in memory, got a nested one"):
        call(strided)


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ((3, [5, 6]), r"kv_len expects a number .* got \[5, 6\]"),
        ((3, 5.0), "kv_len expects"),
        ((3, torch.tensor([5.0])), "kv_len expects .* got torch.float32"),
        ((3, torch.ones(1, 2).int()), r"kv_len expects .* shape \(1, 2\)"),
        (([3], 5), r"q_len expects a number of tokens, got \[3\]"),
        (
            (torch.tensor([3, 4]), 5),
            "q_len expects .* torch.int64",
        ),
    ],
)
def test_counts_that_are_none(counts: Any, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        flexc.causal_lower_right(*counts)
