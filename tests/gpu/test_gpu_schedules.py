"""Kernels with roles on a GPU: which calls get them, and what they compute."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest

import flexc
from flexc.errors import ScheduleError
from flexc.runtime.explain.subject import ScheduleFacts
from flexc.runtime.kernels.driver import counters
from tests.gpu.gradients import Sizes
from tests.gpu.test_gpu_numerics import check, inputs, mods_of
from tests.support.corpus import Mods
from tests.support.filled_memory import poisoned
from tests.support.reference import Reference

HOPPER = (9, 0)


def has_roles() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == HOPPER


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not has_roles(), reason="needs a GPU of capability 9.0"),
]

BF16 = torch.bfloat16
QKV = tuple[Tensor, Tensor, Tensor]


def attend(qkv: QKV, mods: Mods, schedule: str | None = None) -> Reference:
    """What a call computes, with a schedule that it asks for or with its own."""
    score_mod, mask_mod = mods
    aux = AuxRequest(lse=True, max_scores=True)
    with torch.no_grad(), poisoned():
        result: Any = flexc.flex_attention(
            *qkv,
            score_mod,
            mask_mod=mask_mod,
            enable_gqa=True,
            return_aux=aux,
            kernel_options=None if schedule is None else {"schedule": schedule},
        )
    out, extra = result
    return Reference(out, extra.lse, extra.max_scores)


def schedule_of(call: Callable[[], Any]) -> ScheduleFacts:
    """The schedule of the one call of attention in a function, which is run."""
    (found,) = flexc.explain(call)
    assert found.schedule is not None
    return found.schedule


@pytest.mark.usefixtures("many_programs")
@pytest.mark.parametrize("case", ["dense", "causal", "soft_cap"])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_what_products_and_softmax_share(case: str, head_dim: int) -> None:
    sizes = Sizes(head_dim=head_dim, value_dim=head_dim)
    qkv, mods = inputs(sizes, BF16), mods_of(case, sizes)
    found = schedule_of(lambda: attend(qkv, mods))
    if head_dim == 64 and case == "soft_cap":
        assert found.name == "simple"
        (why,) = found.rejected
        assert why.startswith("overlap: 4 programs without it share a multiprocessor")
    else:
        assert found.name == "overlap"
        assert found.rejected == ()


SCHEDULES = ("overlap", "simple", "triton")
CASES = ("dense", "causal", "sliding_window", "alibi", "soft_cap", "relative_bias")


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("case", CASES)
def test_schedules_agree(case: str, schedule: str) -> None:
    agree(case, BF16, schedule)


@pytest.mark.parametrize("case", ["causal", "relative_bias"])
def test_fp16(case: str) -> None:
    agree(case, torch.float16, "overlap")


def agree(case: str, dtype: torch.dtype, schedule: str) -> None:
    """Check a schedule, whose bits are the same at every run."""
    sizes = Sizes(q_len=700, kv_len=700, head_dim=128, value_dim=128)
    qkv, mods = inputs(sizes, dtype), mods_of(case, sizes)
    got = attend(qkv, mods, schedule)
    check(qkv, mods, got)
    assert got.out.equal(attend(qkv, mods, schedule).out)


LENGTHS = ((1, 1), (1, 300), (63, 64), (65, 127), (129, 1), (257, 1025), (1000, 999))


@pytest.mark.parametrize("case", ["dense", "causal", "some_rows_empty", "documents"])
@pytest.mark.parametrize("schedule", SCHEDULES[:2])
def test_lengths(case: str, schedule: str) -> None:
    """One kernel serves nearly all of them."""
    for q_len, kv_len in LENGTHS:
        sizes = Sizes(q_len=q_len, kv_len=kv_len)
        qkv, mods = inputs(sizes, BF16), mods_of(case, sizes)
        check(qkv, mods, attend(qkv, mods, schedule))


DIMS = ((8, 8), (16, 256), (24, 40), (80, 80), (96, 128), (192, 128), (256, 64))


@pytest.mark.parametrize("dims", DIMS, ids=lambda d: f"{d[0]}x{d[1]}")
def test_head_dims(dims: tuple[int, int]) -> None:
    sizes = Sizes(head_dim=dims[0], value_dim=dims[1])
    qkv, mods = inputs(sizes, BF16), mods_of("alibi", sizes)
    check(qkv, mods, attend(qkv, mods, "overlap"))


@pytest.mark.parametrize("heads", [(1, 1), (6, 3), (8, 1)])
def test_grouped_heads(heads: tuple[int, int]) -> None:
    sizes = Sizes(heads=heads[0], kv_heads=heads[1])
    qkv, mods = inputs(sizes, BF16), mods_of("head_windows", sizes)
    check(qkv, mods, attend(qkv, mods, "overlap"))


def strided(qkv: QKV, how: str) -> QKV:
    """The same query, key and value, at other places in memory."""
    q, k, v = qkv
    match how:
        case "heads-last":
            q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in qkv)
        case "packed":
            rows = [x.transpose(1, 2) for x in (q, k, v)]
            joined = torch.cat([r.flatten(2) for r in rows], 2)
            parts = joined.split([r.flatten(2).size(2) for r in rows], 2)
            q, k, v = (
                p.unflatten(2, (r.size(2), r.size(3))).transpose(1, 2)
                for p, r in zip(parts, rows, strict=True)
            )
        case "expanded":
            q, k, v = q, k[:1].expand(k.shape), v[:, :1].expand(v.shape)
        case "single":
            q, k, v = q[:1, :1], k[:1, :1], v[:1, :1]
        case "far-single":
            k = k[:1, :1].as_strided((1, 1, *k.shape[2:]), (7, 3, k.stride(2), 1))
            q, v = q[:1, :1], v[:1, :1]
        case _:
            raise AssertionError(how)
    return q, k, v


@pytest.mark.parametrize(
    "how", ["heads-last", "packed", "expanded", "single", "far-single"]
)
def test_strides_that_can_be_copied(how: str) -> None:
    sizes = Sizes(q_len=300, kv_len=300)
    qkv, mods = strided(inputs(sizes, BF16), how), mods_of("causal", sizes)
    check(qkv, mods, attend(qkv, mods, "overlap"))


def test_one_batch_of_keys_for_all_queries() -> None:
    sizes = Sizes()
    q, k, v = inputs(sizes, BF16)
    mods = mods_of("causal", sizes)
    wide = (q, k[:1].expand(k.shape), v[:1].expand(v.shape))
    check(wide, mods, attend((q, k[:1], v[:1]), mods, "overlap"))


def unaligned(q: Tensor, how: str) -> Tensor:
    """A tensor of the same shape whose tiles cannot be copied."""
    b, h, n, d = q.shape
    match how:
        case "address":
            return torch.empty(q.numel() + 1, dtype=q.dtype, device=q.device)[1:].view(
                q.shape
            )
        case "rows":
            return torch.empty(b, h, n, d + 4, dtype=q.dtype, device=q.device)[..., :d]
        case _:
            return torch.empty(b, h, n, d, 2, dtype=q.dtype, device=q.device)[..., 0]


@pytest.mark.parametrize("how", ["address", "rows", "elements"])
def test_strides_that_cannot_be_copied(how: str) -> None:
    sizes = Sizes()
    q, k, v = inputs(sizes, BF16)
    key, mods = unaligned(k, how).copy_(k), mods_of("causal", sizes)
    qkv = (q, key, v)
    found = schedule_of(lambda: attend(qkv, mods))
    assert found.name == "triton"
    assert "16 bytes" in found.rejected[0]
    check(qkv, mods, attend(qkv, mods))
    with pytest.raises(ScheduleError, match="16 bytes"):
        attend(qkv, mods, "overlap")


@pytest.mark.parametrize("shape", [(0, 4, 50, 64), (2, 4, 0, 64)], ids=str)
def test_nothing_to_attend_with(shape: tuple[int, ...]) -> None:
    query = torch.zeros(shape, dtype=BF16, device="cuda")
    key = torch.zeros(shape[0], 4, 70, 64, dtype=BF16, device="cuda")
    assert attend((query, key, key), (None, None), "overlap").out.shape == shape


def test_nothing_to_attend_to() -> None:
    query = torch.zeros(2, 4, 50, 64, dtype=BF16, device="cuda")
    key = torch.zeros(2, 4, 0, 64, dtype=BF16, device="cuda")
    got = attend((query, key, key), (None, None), "overlap")
    assert (got.out == 0).all()
    assert (got.lse == -torch.inf).all()


def test_other_lengths_and_strides_compile_nothing() -> None:
    def call(q_len: int, kv_len: int, how: str = "heads-last") -> None:
        sizes = Sizes(q_len=q_len, kv_len=kv_len)
        qkv, mods = strided(inputs(sizes, BF16), how), mods_of("relative_bias", sizes)
        check(qkv, mods, attend(qkv, mods, "overlap"))

    call(200, 333)
    before = counters.copy()
    call(77, 1001)
    call(1, 45)
    call(300, 300, "packed")
    assert counters == before


def test_memory_that_is_used_again() -> None:
    """Maps are kept, tensors are not: another tensor may lie at an old address."""
    sizes, mods = Sizes(), mods_of("causal", Sizes())
    for n in (200, 200, 150, 333, 200):
        qkv = inputs(sizes._replace(q_len=n, kv_len=n), BF16)
        check(qkv, mods, attend(qkv, mods, "overlap"))
        del qkv
        gc.collect()


def test_graphs_of_launches() -> None:
    sizes = Sizes()
    qkv, (score_mod, mask_mod) = inputs(sizes, BF16), mods_of("causal", sizes)

    def call() -> Any:
        with torch.no_grad():
            return flexc.flex_attention(
                *qkv, score_mod, mask_mod=mask_mod, enable_gqa=True
            )

    assert schedule_of(call).name == "overlap"
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    for new, old in zip(inputs(sizes, BF16), qkv, strict=True):
        old.copy_(new)
    graph.replay()
    torch.cuda.synchronize()
    assert out.equal(call())


def test_streams() -> None:
    sizes = Sizes(q_len=1000, kv_len=1000)
    qkv, mods = inputs(sizes, BF16), mods_of("causal", sizes)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        got = attend(qkv, mods, "overlap")
    stream.synchronize()
    assert got.out.equal(attend(qkv, mods, "overlap").out)


def chain(length: int, waits: bool) -> Tensor:
    """Calls that read what the kernel before them wrote, and the reverse."""

    def wait() -> None:
        if waits:
            torch.cuda.synchronize()

    torch.manual_seed(0)
    x, noise = (torch.randn(1, 8, length, 64).to("cuda", BF16) for _ in range(2))
    bias = torch.zeros(8, device="cuda")
    attention: Any = flexc.flex_attention

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return s + bias[h] * (i - j)

    for step in range(40):
        bias.copy_(torch.full_like(bias, (step % 5 - 2) / 50))
        wait()
        x.copy_(attention(x, x, x, score))
        wait()
        x[:, :, :1] = attention(x[:, :, :1], x, x, score)
        wait()
        q = x.clone().requires_grad_()
        options = {"deterministic": True}
        out = attention(q, x, x, score, kernel_options=options)
        wait()
        (grad,) = torch.autograd.grad(out, q, x)
        wait()
        x.add_(grad).add_(noise.roll(step, 2)).clamp_(-3, 3)
        wait()
    return x


@pytest.mark.parametrize("length", [100, 128, 1000, 4096])
def test_kernels_that_start_early_read_what_was_written(length: int) -> None:
    expected = chain(length, waits=True)
    assert expected.isfinite().all()
    assert torch.equal(chain(length, waits=False), expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_devices() -> None:
    sizes = Sizes()
    qkv, mods = inputs(sizes, BF16), (None, lambda b, h, q, k: q >= k)
    here = attend(qkv, mods, "overlap")
    there = tuple(x.to("cuda:1") for x in qkv)
    before = counters.copy()
    got = attend((there[0], there[1], there[2]), mods, "overlap")
    assert counters == before
    assert got.out.device.index == 1
    assert got.out.cpu().equal(here.out.cpu())


def test_gradients_of_what_roles_computed() -> None:
    sizes = Sizes()
    qkv, (score_mod, _) = inputs(sizes, BF16), mods_of("soft_cap", sizes)

    def gradients(schedule: str) -> tuple[Tensor, ...]:
        leaves = [x.clone().requires_grad_() for x in qkv]
        result: Any = flexc.flex_attention(
            *(leaves[0], leaves[1], leaves[2]),
            score_mod,
            enable_gqa=True,
            return_lse=True,
            kernel_options={"schedule": schedule},
        )
        out, lse = result
        loss = out.float().square().sum() + lse.sin().sum()
        return torch.autograd.grad(loss, leaves)

    for a, b in zip(gradients("overlap"), gradients("triton"), strict=True):
        torch.testing.assert_close(a, b, rtol=0.05, atol=0.05)


def test_compiled_functions() -> None:
    sizes = Sizes()
    qkv, (score_mod, mask_mod) = inputs(sizes, BF16), mods_of("alibi", sizes)

    def call(q: Tensor, k: Tensor, v: Tensor) -> Any:
        options = {"schedule": "simple"}
        return flexc.flex_attention(
            q, k, v, score_mod, mask_mod=mask_mod, enable_gqa=True,
            kernel_options=options,
        )  # fmt: skip

    with torch.no_grad():
        compiled = torch.compile(call, fullgraph=True)
        assert compiled(*qkv).equal(call(*qkv))


def test_what_was_asked_for_in_vain() -> None:
    query = torch.randn(1, 2, 100, 64, device="cuda")
    with pytest.raises(ScheduleError, match="16 bits, not float32"):
        attend((query, query, query), (None, None), "simple")
