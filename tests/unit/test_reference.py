"""The reference itself, held to torch's own eager flex_attention."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from tests.support.corpus import CORPUS, Case
from tests.support.reference import attention, log_sigmoid, visible_pairs

SIZES = (2, 4, 2, 37, 53)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("case", CORPUS.values(), ids=CORPUS.keys())
def test_equals_torch(case: Case) -> None:
    score_mod, mask_mod = case.factory(*SIZES)
    query = torch.randn(2, 4, 37, 16, dtype=torch.float64)
    key = torch.randn(2, 2, 53, 16, dtype=torch.float64)
    value = torch.randn(2, 2, 53, 8, dtype=torch.float64)
    block_mask = mask_mod and create_block_mask(mask_mod, 2, 4, 37, 53, device="cpu")
    expected = flex_attention(
        query, key, value, score_mod, block_mask, enable_gqa=True, return_lse=True
    )
    ours = attention(query, key, value, score_mod, mask_mod, enable_gqa=True)
    torch.testing.assert_close((ours.out, ours.lse), expected, rtol=1e-6, atol=1e-7)


def test_log_sigmoid_of_ops() -> None:
    x = torch.tensor([-torch.inf, -800.0, -1.5, 0.0, 2.0, 800.0, torch.inf]).double()
    torch.testing.assert_close(log_sigmoid(x), torch.nn.functional.logsigmoid(x))


def test_rows_without_columns() -> None:
    """0, -inf and -inf, whether the mask or the length leaves nothing."""
    _, mask_mod = CORPUS["nothing"].factory(1, 1, 1, 3, 5)
    query, key = torch.randn(1, 1, 3, 4), torch.randn(1, 1, 5, 4)
    for keys, mask in ((key, mask_mod), (key[:, :, :0], None)):
        out, lse, max_scores = attention(query, keys, keys, mask_mod=mask)
        assert torch.equal(out, torch.zeros_like(out))
        assert torch.equal(lse, torch.full_like(lse, -torch.inf))
        assert torch.equal(max_scores, lse)


def test_visible_pairs() -> None:
    _, mask_mod = CORPUS["causal"].factory(1, 1, 1, 7, 7)
    assert visible_pairs(mask_mod, 0, 7, 7) == 28
    assert visible_pairs(None, 0, 7, 7) == 49
