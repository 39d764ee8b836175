"""Calls that are split along their keys, on a GPU, against double precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask

import flexc
from flexc.runtime.attention import run as running
from flexc.runtime.kernels.driver import counters
from tests.gpu.gradients import Sizes
from tests.gpu.test_gpu_numerics import close, inputs, mods_of
from tests.support.corpus import Mods
from tests.support.filled_memory import poisoned
from tests.support.reference import attention

pytestmark = pytest.mark.gpu

SPLIT: dict[str, Any] = {"split_keys": True}

QKV = tuple[Tensor, Tensor, Tensor]

DECODING = Sizes(batch=2, heads=8, kv_heads=2, q_len=1, kv_len=5000, head_dim=128)
DECODING = DECODING._replace(value_dim=128)


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many splits calls had."""
    found: list[int] = []
    choose = running.choose_splits

    def noted(*args: Any) -> int:
        found.append(choose(*args))
        return found[-1]

    monkeypatch.setattr(running, "choose_splits", noted)
    return found


def forced(monkeypatch: pytest.MonkeyPatch, splits: int) -> None:
    monkeypatch.setattr(running, "choose_splits", lambda *_: splits)


def attend(
    qkv: QKV, mods: Mods, tables: bool = False, schedule: str | None = None
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp."""
    score_mod, mask_mod = mods
    given: dict[str, Any] = {"mask_mod": mask_mod}
    if tables:
        b, h, q_len = qkv[0].shape[:3]
        assert mask_mod is not None
        made = create_block_mask(mask_mod, b, h, q_len, qkv[1].size(2), "cuda")
        given = {"block_mask": made}
    given["kernel_options"] = SPLIT | ({"schedule": schedule} if schedule else {})
    with torch.no_grad(), poisoned():
        result: Any = flexc.flex_attention(
            *qkv, score_mod, enable_gqa=True, return_aux=AuxRequest(lse=True), **given
        )
    return result[0], result[1].lse


def check(qkv: QKV, mods: Mods, got: tuple[Tensor, Tensor]) -> None:
    dtype = qkv[0].dtype
    exact = attention(*qkv, *mods, enable_gqa=True)
    rough = attention(*qkv, *mods, enable_gqa=True, precision=dtype)
    slack = torch.finfo(dtype).eps * float(exact.out.abs().max())
    # One more rounding of a score than torch's, to half a unit in the last place: in
    # units of log2. A relative error of weights moves the output by up to 2 |v| of it.
    finite = exact.max_scores[exact.max_scores.isfinite()].abs()
    if finite.numel():
        unit = torch.finfo(torch.float32).eps / 2 * float(finite.max())
        slack += 2 * unit * float(qkv[2].abs().max())
    close("out", got[0], exact.out, rough.out.to(dtype), slack)
    close("lse", got[1], exact.lse, rough.lse, 1e-4)
    assert (got[0][exact.max_scores == -torch.inf] == 0).all()


CASES = ("dense", "causal", "alibi", "soft_cap", "some_rows_empty")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("q_len", [1, 17, 130])
@pytest.mark.parametrize("case", CASES)
def test_long_rows_are_split(
    case: str, q_len: int, dtype: torch.dtype, chosen: list[int]
) -> None:
    sizes = DECODING._replace(q_len=q_len)
    qkv, mods = inputs(sizes, dtype), mods_of(case, sizes)
    check(qkv, mods, attend(qkv, mods))
    if (case, q_len) == ("some_rows_empty", 1):  # The only row is known to be empty.
        return
    assert chosen
    assert chosen[-1] > 1


@pytest.mark.parametrize("splits", [2, 3, 7, 40, 133])
@pytest.mark.parametrize("schedule", [None, "triton"])
@pytest.mark.parametrize("case", ["causal", "documents", "some_rows_empty"])
def test_any_number_of_splits(
    case: str, schedule: str | None, splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also more than there are blocks; other numbers compile nothing."""
    sizes = Sizes(q_len=200, kv_len=1333)
    qkv, mods = inputs(sizes, torch.bfloat16), mods_of(case, sizes)
    forced(monkeypatch, 5)
    attend(qkv, mods, schedule=schedule)
    before = counters.copy()
    forced(monkeypatch, splits)
    got = attend(qkv, mods, schedule=schedule)
    check(qkv, mods, got)
    assert counters == before
    again = attend(qkv, mods, schedule=schedule)
    assert got[0].equal(again[0])
    assert got[1].equal(again[1])


@pytest.mark.parametrize("head_dim", [3, 64, 80, 256, 512])
def test_head_dims(head_dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    forced(monkeypatch, 6)
    sizes = Sizes(q_len=33, kv_len=1000, head_dim=head_dim, value_dim=head_dim)
    for case in ("causal", "alibi"):
        qkv, mods = inputs(sizes, torch.bfloat16), mods_of(case, sizes)
        check(qkv, mods, attend(qkv, mods))


@pytest.mark.parametrize("case", ["causal", "documents", "some_rows_empty"])
def test_tables(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forced(monkeypatch, 6)
    for lengths in ((300, 1500), (256, 1024)):
        sizes = Sizes(q_len=lengths[0], kv_len=lengths[1])
        qkv, mods = inputs(sizes, torch.bfloat16), mods_of(case, sizes)
        check(qkv, mods, attend(qkv, mods, tables=True))


def test_scores_that_people_mask_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of nothing but -1e30 has equal weights, in splits of unequal lengths."""
    forced(monkeypatch, 7)
    sizes = Sizes(q_len=40, kv_len=1100)
    mods: Mods = (lambda s, b, h, q, k: torch.where(q % 2 == 0, s, -1e30), None)
    qkv = inputs(sizes, torch.bfloat16)
    check(qkv, mods, attend(qkv, mods))


def test_the_outputs_layout_is_the_querys(monkeypatch: pytest.MonkeyPatch) -> None:
    forced(monkeypatch, 3)
    q, k, v = inputs(Sizes(kv_len=1024), torch.bfloat16)
    q = q.transpose(1, 2).contiguous().transpose(1, 2)
    got = attend((q, k, v), (None, None))
    assert got[0].stride() == q.stride()
    check((q, k, v), (None, None), got)


def test_what_is_differentiated(chosen: list[int]) -> None:
    """Where there is a score mod, derivatives need lse in two parts."""
    qkv, mods = inputs(DECODING, torch.bfloat16), mods_of("alibi", DECODING)
    q, k, v = (x.clone().requires_grad_() for x in qkv)
    out: Any = flexc.flex_attention(
        q, k, v, mods[0], enable_gqa=True, kernel_options=SPLIT
    )
    assert not chosen
    torch.autograd.grad(out.float().square().sum(), (q, k, v))
    out = flexc.flex_attention(q, k, v, enable_gqa=True, kernel_options=SPLIT)
    assert chosen[-1] > 1
    got = torch.autograd.grad(out.float().square().sum(), (q, k, v))
    wide = [x.double().requires_grad_() for x in qkv]
    group = DECODING.heads // DECODING.kv_heads
    k, v = (x.repeat_interleave(group, 1) for x in wide[1:])
    exact = torch.nn.functional.scaled_dot_product_attention(wide[0], k, v)
    want = torch.autograd.grad(exact.square().sum(), wide)
    for mine, theirs in zip(got, want, strict=True):
        error = (mine.double() - theirs).abs().max()
        assert float(error) <= 0.03 * float(theirs.abs().max())


def test_graphs_of_launches(chosen: list[int]) -> None:
    qkv, mods = inputs(DECODING, torch.bfloat16), mods_of("causal", DECODING)

    def run() -> Any:
        with torch.no_grad():
            return flexc.flex_attention(
                *qkv, mask_mod=mods[1], enable_gqa=True, kernel_options=SPLIT
            )

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    assert min(chosen) > 1
    for new, old in zip(inputs(DECODING, torch.bfloat16), qkv, strict=True):
        old.copy_(new)
    graph.replay()
    torch.cuda.synchronize()
    assert out.equal(run())


def test_explain_tells() -> None:
    qkv = inputs(DECODING, torch.bfloat16)

    def run() -> Any:
        with torch.no_grad():
            return flexc.flex_attention(*qkv, enable_gqa=True, kernel_options=SPLIT)

    run()
    (found,) = flexc.explain(run)
    assert found.schedule is not None
    assert found.schedule.splits > 1
    assert found.schedule.name is not None
