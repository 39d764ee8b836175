"""Derivatives on a GPU against dense attention in double precision; see `gradients`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flexc
from bench.variants import ANCHORS
from flexc.runtime.autograd import gradient_kernels
from flexc.runtime.autograd.gradient_programs import ProgramLaunch
from flexc.runtime.kernels import kernel
from flexc.runtime.kernels.driver import counters
from tests.gpu.gradients import (
    Call,
    Sizes,
    check_gradients,
    check_jvp,
    check_second,
    corpus_call,
    gradients,
    qkv_of,
)
from tests.support.corpus import CORPUS, Mods
from tests.support.corpus_masks import causal_mask

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
BF16, FP16 = torch.bfloat16, torch.float16
HEAD_DIMS = (16, 20, 80, 128, 200, 256, 512)
LENGTHS = ((1, 1), (1, 300), (127, 129), (128, 128), (300, 1), (513, 257))


def call_of(case: str, s: Sizes, dtype: torch.dtype = BF16, tables: str = "") -> Call:
    return corpus_call(case, s, dtype, DEVICE, tables)


@pytest.mark.parametrize("case", CORPUS)
def test_the_corpus(case: str) -> None:
    check_gradients(call_of(case, Sizes()))


@pytest.mark.parametrize("case", ["causal", "t5_buckets"])
def test_fp16(case: str) -> None:
    check_gradients(call_of(case, Sizes(), FP16))


@pytest.mark.parametrize("anchor", ANCHORS)
def test_anchors(anchor: str) -> None:
    """As they are measured, but for what is captured: that has gradients too."""
    sizes = Sizes(1, 2, 2, 1100, 1100, 128, 128)
    score_mod, mask_mod = ANCHORS[anchor].build(1, 2, 1100, BF16, DEVICE)
    check_gradients(Call(qkv_of(sizes, BF16, DEVICE), lambda: (score_mod, mask_mod)))


TABLED = ("causal", "documents_per_batch", "head_windows", "some_rows_empty")


@pytest.mark.parametrize("case", TABLED)
@pytest.mark.parametrize("tables", ["torch", "flexc"])
def test_tables(case: str, tables: str) -> None:
    check_gradients(call_of(case, Sizes(q_len=500), tables=tables))


def test_tables_of_whole_blocks() -> None:
    sizes = Sizes(q_len=256, kv_len=384)
    check_gradients(call_of("documents_per_batch", sizes, tables="torch"))


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_head_dims(head_dim: int) -> None:
    check_gradients(call_of("alibi", Sizes(head_dim=head_dim, value_dim=head_dim)))


@pytest.mark.parametrize("dims", [(64, 128), (192, 128), (20, 256), (3, 1)])
def test_unequal_head_dims(dims: tuple[int, int]) -> None:
    check_gradients(call_of("gates", Sizes(head_dim=dims[0], value_dim=dims[1])))


@pytest.mark.parametrize("case", ["relative_bias", "documents"])
def test_lengths(case: str) -> None:
    """One set of kernels serves nearly all of them."""
    for q_len, kv_len in LENGTHS:
        check_gradients(call_of(case, Sizes(q_len=q_len, kv_len=kv_len)))


@pytest.mark.parametrize("heads", [(1, 1), (6, 3), (8, 1)])
def test_grouped_heads(heads: tuple[int, int]) -> None:
    check_gradients(call_of("head_windows", Sizes(heads=heads[0], kv_heads=heads[1])))


def test_keys_of_one_batch() -> None:
    query, _, _ = qkv_of(Sizes(), BF16, DEVICE)
    _, key, value = qkv_of(Sizes(batch=1), BF16, DEVICE)
    check_gradients(Call([query, key, value], lambda: (None, causal_mask)))


def test_strides() -> None:
    """Also such that start at no aligned address."""
    query, key, value = qkv_of(Sizes(q_len=96, kv_len=160), BF16, DEVICE)
    interleaved = query.transpose(1, 2).contiguous().transpose(1, 2)
    sliced = torch.stack([key, key], dim=-1)[..., 0]
    shared = value[:1].expand(value.shape)
    shifted = torch.empty(query.numel() + 1, dtype=BF16, device=DEVICE)[1:]
    shifted = shifted.view(query.shape).copy_(query)
    for given in ([interleaved, sliced, shared], [shifted, key, value]):
        check_gradients(Call(given, lambda: (None, causal_mask)))


def test_strides_of_cotangents() -> None:
    call = Call(qkv_of(Sizes(), BF16, DEVICE), lambda: (None, causal_mask))
    leaves = call.leaves()
    out, _ = call.by_flexc(*leaves)
    one = torch.ones((), dtype=BF16, device=DEVICE)
    dense = torch.randn(*out.shape[::-1], device=DEVICE).to(BF16).permute(3, 2, 1, 0)
    for d_out in (one.expand(out.shape), dense):
        found = torch.autograd.grad(out, leaves, d_out, retain_graph=True)
        plain = torch.autograd.grad(out, leaves, d_out.contiguous(), retain_graph=True)
        for a, b in zip(found, plain, strict=True):
            assert torch.equal(a, b)


# Captured tensors, by what their index varies along


def documents(length: int) -> Tensor:
    return (torch.arange(length, device=DEVICE) // 37).to(torch.int32)


S = Sizes()

READS: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Any]]] = {
    "head": ((4,), lambda t: lambda s, b, h, q, k: s + t[h] * (q - k) / 64),
    "row": ((4, 200), lambda t: lambda s, b, h, q, k: s * t[h, q]),
    "column": ((2, 333), lambda t: lambda s, b, h, q, k: s + t[b, k]),
    "diagonal": ((4, 533), lambda t: lambda s, b, h, q, k: s + t[h, q - k + 332]),
    "clipped": (
        (17, 4),
        lambda t: lambda s, b, h, q, k: s + t[(q - k).clamp(-8, 8) + 8, h],
    ),
    "pair": ((4, 200, 333), lambda t: lambda s, b, h, q, k: s + t[h, q, k]),
    "block": ((4, 13, 21), lambda t: lambda s, b, h, q, k: s + t[h, q // 16, k // 16]),
    "several": (
        (533,),
        lambda t: lambda s, b, h, q, k: s * t[q] + t[k] + t[q - k + 332] * t[h],
    ),
}


def reading(name: str, dtype: torch.dtype = torch.float32, **options: Any) -> Call:
    shape, make = READS[name]
    table = (torch.randn(shape, device=DEVICE) / 2).to(dtype)
    tensors = [*qkv_of(S, BF16, DEVICE), table]
    return Call(tensors, lambda t: (make(t), None), {"kernel_options": options})


@pytest.mark.parametrize("name", READS)
def test_captured_tensors(name: str) -> None:
    """Right by the fastest reduction, and the same at every run where that is asked."""
    call = reading(name)
    check_gradients(call, poison=False)
    same = reading(name, deterministic=True)
    cotangents = same.cotangents()
    first, again = (
        gradients(same.by_flexc, same.leaves(), cotangents) for _ in range(2)
    )
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("lengths", [(1000, 1000), (2048, 2048), (300, 2000)])
@pytest.mark.parametrize("case", ["dense", "causal", "sliding_window", "alibi"])
def test_equal_bits_of_one_kernel(
    case: str, lengths: tuple[int, int], head_dim: int, made_progress: list[int]
) -> None:
    """Many more programs than run at once, some without a block of queries."""
    check_equal_bits(call_of(case, Sizes(4, 16, 16, *lengths, head_dim, head_dim)))
    assert made_progress


@pytest.mark.parametrize("key_heads", [1, 4])
@pytest.mark.parametrize("case", ["causal", "sliding_window", "alibi"])
def test_equal_bits_of_shared_keys(
    case: str, key_heads: int, made_progress: list[int]
) -> None:
    check_equal_bits(call_of(case, Sizes(4, 16, key_heads, 1000, 1000, 128, 128)))
    assert made_progress


def test_equal_bits_of_shared_batches(made_progress: list[int]) -> None:
    query, key, value = qkv_of(Sizes(3, 8, 2, 903, 335), BF16, DEVICE)
    check_equal_bits(Call([query, key[:1], value[:1]], lambda: (None, causal_mask)))
    assert made_progress


def check_equal_bits(call: Call) -> None:
    """Check that equal calls give equal bits, in one kernel."""
    call.options["kernel_options"] = {"deterministic": True}
    check_gradients(call, poison=False)
    cotangents = call.cotangents()
    first, *others = (
        gradients(call.by_flexc, call.leaves(), cotangents) for _ in range(5)
    )
    for other in others:
        assert all(map(torch.equal, first, other))


@pytest.fixture
def made_progress(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of programs that report their progress."""
    return notes_of(monkeypatch, kernel, "no_progress", lambda made, *_: made.numel())


@pytest.fixture
def few_programs(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether programs of launches belong to one query head, in small calls too."""
    monkeypatch.setattr(gradient_kernels, "LEAST_WORK", 0)
    return notes_of(
        monkeypatch, ProgramLaunch, "whole", lambda _, of, *__: of.per_query_head
    )


def notes_of(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, note: Callable[..., Any]
) -> list[Any]:
    """Note something of each call of a function, given its result and arguments."""
    function, found = getattr(owner, name), list[Any]()

    def noted(*args: Any) -> Any:
        result = function(*args)
        found.append(note(result, *args))
        return result

    monkeypatch.setattr(owner, name, noted)
    return found


TYPES = [(BF16, 128), (BF16, 256), (FP16, 64), (BF16, 20), (torch.float32, 64)]


@pytest.mark.parametrize(("dtype", "head_dim"), TYPES)
@pytest.mark.parametrize("case", ["causal", "alibi", "documents_per_batch"])
def test_few_programs(
    case: str, dtype: torch.dtype, head_dim: int, few_programs: list[bool]
) -> None:
    """Programs of each query head add to sums, in any order."""
    call = call_of(case, Sizes(2, 8, 2, 201, 334, head_dim, head_dim), dtype)
    # Memory is filled only where gradients are deterministic.
    check_gradients(call, poison=False)
    assert any(few_programs)


def test_few_programs_whose_batches_share_keys(few_programs: list[bool]) -> None:
    query, key, value = qkv_of(Sizes(3, 8, 2, 203, 335), BF16, DEVICE)
    call = Call([query, key[:1], value[:1]], lambda: (None, causal_mask))
    check_gradients(call, poison=False)
    check_second(call)
    assert any(few_programs)


def test_sums_of_heads_are_laid_out_as_keys(few_programs: list[bool]) -> None:
    query, key, value = (
        t.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
        for t in qkv_of(Sizes(2, 8, 2, 205, 337), BF16, DEVICE)
    )
    out: Any = flexc.flex_attention(query, key, value, enable_gqa=True)
    # `backward` would copy a gradient of another layout.
    found = torch.autograd.grad(out.sum(), (key, value))
    assert any(few_programs)
    assert [t.stride() for t in found] == [key.stride(), value.stride()]


def test_captured_tensors_of_half_precision() -> None:
    check_gradients(reading("diagonal", BF16))


def test_documents_of_biases() -> None:
    ids = documents(333)

    def mods(table: Tensor) -> Mods:
        def score_mod(s, b, h, q, k):
            return s + table[ids[q], h] * table[ids[k], h]

        return score_mod, lambda b, h, q, k: q + 133 >= k

    table = torch.randn(9, 4, device=DEVICE)
    check_gradients(Call([*qkv_of(S, BF16, DEVICE), table], mods))


# Scores far from zero


@pytest.mark.parametrize("low", [-1e4, -1e9, -1e30, torch.finfo(torch.float32).min])
def test_low_scores(low: float) -> None:
    def mods(gate: Tensor) -> Mods:
        def score_mod(s, b, h, q, k):
            return torch.where((k <= q - 3) & (k > q - 50), s * gate[k], low)

        return score_mod, None

    gate = torch.rand(333, device=DEVICE)
    d_query, *_ = check_gradients(Call([*qkv_of(S, BF16, DEVICE), gate], mods))
    assert not d_query[:, :, :3].any()


@pytest.mark.parametrize("high", [1e4, 1e30])
def test_high_scores(high: float) -> None:
    def mods(bias: Tensor) -> Mods:
        def score_mod(s, b, h, q, k):
            return torch.where((q + k) % 3 == 0, high, s + bias[k])

        return score_mod, None

    bias = torch.randn(333, device=DEVICE)
    check_gradients(Call([*qkv_of(S, BF16, DEVICE), bias], mods))


def test_large_inputs() -> None:
    query, key, value = qkv_of(S, BF16, DEVICE)
    check_gradients(Call([query * 8, key * 8, value]))


# Second order and forward mode


def learned_bias(table: Tensor, gate: Tensor) -> Mods:
    def score_mod(s, b, h, q, k):
        return 4 * torch.tanh(s * gate[h] / 4) + table[h, (q - k).abs()]

    return score_mod, lambda b, h, q, k: (q % 7 != 3) & (q + 40 >= k)


def small(dtype: torch.dtype) -> Call:
    sizes = Sizes(q_len=70, kv_len=90, head_dim=40, value_dim=32)
    captured = torch.randn(4, 90, device=DEVICE), torch.rand(4, device=DEVICE)
    return Call([*qkv_of(sizes, dtype, DEVICE), *captured], learned_bias)


@pytest.mark.parametrize("dtype", [torch.float32, BF16, FP16], ids=str)
def test_forward_mode(dtype: torch.dtype) -> None:
    check_jvp(small(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, BF16], ids=str)
def test_second_order(dtype: torch.dtype) -> None:
    check_second(small(dtype))


def test_float32() -> None:
    check_gradients(small(torch.float32))


# What surrounds a call


def test_equal_bits() -> None:
    """Those of query, key and value, whatever is asked for."""
    call = call_of("t5_buckets", Sizes(heads=8, kv_heads=2))
    cotangents = call.cotangents()
    runs = [gradients(call.by_flexc, call.leaves(), cotangents) for _ in range(3)]
    for run in runs[1:]:
        for a, b in zip(run[:3], runs[0][:3], strict=True):
            assert torch.equal(a, b)


def test_other_lengths_and_values_compile_nothing() -> None:
    def step(q_len: int, kv_len: int) -> None:
        check_gradients(call_of("relative_bias", Sizes(q_len=q_len, kv_len=kv_len)))

    step(200, 333)
    before = counters.copy()
    step(77, 1001)
    step(1, 45)
    assert counters == before


class Layer(nn.Module):
    """Attention with a bias and sinks that it learns."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(128, 3 * 128)
        self.bias = nn.Parameter(torch.randn(2, 400) / 4)
        self.sinks = nn.Parameter(torch.randn(2))

    def forward(self, x: Tensor) -> Tensor:
        heads = self.project(x).unflatten(-1, (3, 2, 64)).permute(2, 0, 3, 1, 4)
        bias = self.bias

        def score_mod(s, b, h, q, k):
            return s + bias[h, q - k]

        query, key, value = heads.unbind(0)
        result: Any = flexc.flex_attention(
            query, key, value, score_mod, mask_mod=causal_mask, return_lse=True
        )
        out, lse = result
        out = out * torch.sigmoid(lse - self.sinks[:, None])[..., None]
        return x + out.transpose(1, 2).flatten(2)


def test_a_compiled_training_step() -> None:
    layer = Layer().to(DEVICE)
    x = torch.randn(2, 300, 128, device=DEVICE, requires_grad=True)
    compiled = torch.compile(layer, fullgraph=True)
    inputs = [x, *layer.parameters()]
    runs: list[tuple[Tensor, ...]] = []
    for model in (layer, compiled, compiled):
        with torch.autocast(DEVICE, BF16):
            loss = model(x).float().square().mean()
        runs.append(torch.autograd.grad(loss, inputs))
    for a, b, c in zip(*runs, strict=True):
        size = float(a.abs().max())
        torch.testing.assert_close(b, a, rtol=0, atol=2e-2 * size)
        torch.testing.assert_close(c, b, rtol=0, atol=1e-3 * size)
