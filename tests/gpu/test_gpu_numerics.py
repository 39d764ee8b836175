"""Kernels on a GPU against dense attention in double precision.

An error may be twice that of torch's own math with products of the same precision,
and what rounding the exact result takes besides.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask

import flexc
from flexc.runtime.kernels.driver import counters
from tests.gpu.gradients import Sizes, qkv_of
from tests.support.corpus import CORPUS, Mods
from tests.support.filled_memory import poisoned
from tests.support.reference import Reference, attention

pytestmark = pytest.mark.gpu

HEAD_DIMS = (1, 3, 16, 20, 64, 80, 96, 128, 192, 256, 512)
LENGTHS = ((1, 1), (1, 300), (127, 129), (128, 128), (300, 1), (513, 257))

DEVICE = "cuda"


def inputs(s: Sizes, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = qkv_of(s, dtype, DEVICE)
    return q, k, v


def mods_of(case: str, s: Sizes) -> Mods:
    return CORPUS[case].factory(*s[:5], DEVICE)


def run(
    qkv: tuple[Tensor, Tensor, Tensor], mods: Mods, *, tables: bool = False
) -> Reference:
    """What flexc computes, in memory that shows what was not written."""
    score_mod, mask_mod = mods
    given: dict[str, Any] = {"mask_mod": mask_mod}
    if tables:
        q, k, _ = qkv
        assert mask_mod is not None
        b, h, q_len, _ = q.shape
        made = create_block_mask(mask_mod, b, h, q_len, k.shape[2], DEVICE)
        given = {"block_mask": made}
    aux = AuxRequest(lse=True, max_scores=True)
    with torch.no_grad(), poisoned():
        result: Any = flexc.flex_attention(
            *qkv, score_mod, enable_gqa=True, return_aux=aux, **given
        )
    out, extra = result
    return Reference(out, extra.lse, extra.max_scores)


def check(qkv: tuple[Tensor, Tensor, Tensor], mods: Mods, got: Reference) -> None:
    dtype = qkv[0].dtype
    exact = attention(*qkv, *mods, enable_gqa=True)
    rough = attention(*qkv, *mods, enable_gqa=True, precision=dtype)
    # Rounding the result to its type; lse and max_scores are float32.
    slack = torch.finfo(dtype).eps * float(exact.out.abs().max())
    close("out", got.out, exact.out, rough.out.to(dtype), slack)
    for name in ("lse", "max_scores"):
        values = [getattr(r, name) for r in (got, exact, rough)]
        close(name, *values, slack=1e-4)
    assert (got.out[exact.max_scores == -torch.inf] == 0).all()


def close(name: str, got: Tensor, exact: Tensor, rough: Tensor, slack: float) -> None:
    finite = exact.isfinite()
    assert got[~finite].double().equal(exact[~finite]), f"{name}: infinities differ"
    if not finite.any():
        return
    error = float((got.double() - exact)[finite].abs().max())
    allowed = 2 * float((rough.double() - exact)[finite].abs().max()) + slack
    assert error <= allowed, f"{name} is wrong by {error:.3g}, of {allowed:.3g}"


@pytest.mark.parametrize("case", CORPUS)
def test_the_corpus(case: str) -> None:
    sizes = Sizes()
    qkv, mods = inputs(sizes, torch.bfloat16), mods_of(case, sizes)
    check(qkv, mods, run(qkv, mods))


OF_ALL_KINDS = ("causal", "documents", "soft_cap", "t5_buckets")


@pytest.mark.parametrize("case", OF_ALL_KINDS)
def test_fp16(case: str) -> None:
    sizes = Sizes()
    qkv, mods = inputs(sizes, torch.float16), mods_of(case, sizes)
    check(qkv, mods, run(qkv, mods))


MASKED = [c for c in CORPUS if CORPUS[c].factory(1, 2, 2, 16, 16)[1] is not None]


@pytest.mark.parametrize("case", MASKED)
def test_the_corpus_by_tables(case: str) -> None:
    by_tables(case, Sizes())


@pytest.mark.parametrize("case", ["causal", "documents_per_batch", "head_windows"])
def test_whole_blocks_by_tables(case: str) -> None:
    by_tables(case, Sizes(q_len=256, kv_len=384))


def by_tables(case: str, sizes: Sizes) -> None:
    qkv, mods = inputs(sizes, torch.bfloat16), mods_of(case, sizes)
    check(qkv, mods, run(qkv, mods, tables=True))


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_head_dims(head_dim: int) -> None:
    for value_dim in {head_dim, 512 // head_dim, 40}:
        sizes = Sizes(head_dim=head_dim, value_dim=value_dim)
        qkv, mods = inputs(sizes, torch.bfloat16), mods_of("alibi", sizes)
        check(qkv, mods, run(qkv, mods))


@pytest.mark.parametrize("case", ["dense", "causal", "relative_bias", "documents"])
def test_lengths(case: str) -> None:
    """One kernel serves nearly all of them."""
    for q_len, kv_len in LENGTHS:
        sizes = Sizes(q_len=q_len, kv_len=kv_len)
        qkv, mods = inputs(sizes, torch.bfloat16), mods_of(case, sizes)
        check(qkv, mods, run(qkv, mods))


@pytest.mark.parametrize("heads", [(1, 1), (6, 3), (8, 1)])
def test_grouped_heads(heads: tuple[int, int]) -> None:
    sizes = Sizes(heads=heads[0], kv_heads=heads[1])
    qkv, mods = inputs(sizes, torch.bfloat16), mods_of("head_windows", sizes)
    check(qkv, mods, run(qkv, mods))


@pytest.mark.parametrize("case", ["soft_cap", "alibi", "pair_bias"])
def test_float32(case: str) -> None:
    sizes = Sizes()
    qkv, mods = inputs(sizes, torch.float32), mods_of(case, sizes)
    check(qkv, mods, run(qkv, mods))


def test_strides() -> None:
    sizes = Sizes(q_len=96, kv_len=160)
    q, k, v = inputs(sizes, torch.bfloat16)
    mods = mods_of("causal", sizes)
    interleaved = q.transpose(1, 2).contiguous().transpose(1, 2)
    sliced = torch.stack([k, k], dim=-1)[..., 0]
    shared = v[:1].expand(v.shape)
    qkv = interleaved, sliced, shared
    check(qkv, mods, run(qkv, mods))


def test_other_lengths_and_values_compile_nothing() -> None:
    def call(q_len: int, kv_len: int) -> None:
        sizes = Sizes(q_len=q_len, kv_len=kv_len)
        qkv, mods = inputs(sizes, torch.bfloat16), mods_of("relative_bias", sizes)
        check(qkv, mods, run(qkv, mods))

    call(200, 333)
    before = counters.copy()
    call(77, 1001)
    call(150, 45)
    assert counters == before
