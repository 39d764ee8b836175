"""Calls that are split along their keys, run by Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import AuxRequest

import flexc
from flexc.runtime.attention import run as running
from flexc.runtime.kernels.driver import counters
from tests.support.reference import attention

pytest.importorskip("triton.language")

pytestmark = pytest.mark.interpreted

Mod = Callable[..., Any] | None

CALLS: dict[str, tuple[int, int, Mod, Mod]] = {
    "decoding": (1, 700, None, None),
    "bias": (3, 520, lambda s, b, h, q, k: s + (q - k) / 64, None),
    "infinite": (
        3,
        520,
        lambda s, b, h, q, k: torch.where((k == 99 * q) & (q > 0), torch.inf, s),
        None,
    ),
    "causal": (60, 512, None, lambda b, h, q, k: k <= q + 400),
    "empty-rows": (5, 333, None, lambda b, h, q, k: (q % 2 == 0) & (k > 200)),
}


@pytest.mark.parametrize("case", CALLS)
def test_split_and_combined(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    q_len, kv_len, score_mod, mask_mod = CALLS[case]
    q = torch.randn(2, q_len, 4, 32).half().transpose(1, 2)
    k, v = torch.randn(2, 2, 2, kv_len, 32).half()
    exact = attention(q, k, v, score_mod, mask_mod, enable_gqa=True)
    before: Any = None
    for splits in (3, 9):
        monkeypatch.setattr(running, "choose_splits", lambda *_, n=splits: n)
        with torch.no_grad():
            result: Any = flexc.flex_attention(
                q,
                k,
                v,
                score_mod,
                mask_mod=mask_mod,
                enable_gqa=True,
                return_aux=AuxRequest(lse=True),
                backend="triton",
                kernel_options={"split_keys": True},
            )
        out, extra = result
        for got, want in ((out, exact.out), (extra.lse, exact.lse)):
            torch.testing.assert_close(
                got.double(), want, atol=4e-3, rtol=4e-3, equal_nan=True
            )
        assert out.stride() == q.stride()
        assert before in (None, counters), "another number of splits compiles nothing"
        before = counters.copy()
