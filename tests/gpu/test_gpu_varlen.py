"""Packed sequences on a GPU, each against dense attention over it alone.

An error may be twice that of torch's unfused code with products of the same precision,
and what rounding takes besides.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import flexc
from flexc.errors import ShapeError
from flexc.runtime.kernels.driver import counters
from tests.gpu.gradients import close, largest
from tests.support.dense_gradients import attention
from tests.support.filled_memory import poisoned

pytestmark = pytest.mark.gpu

attend: Any = flexc.flex_attention_varlen

Mod = Callable[..., Any]
Lengths = Sequence[int]

HEADS, KV_HEADS = 4, 2


def mods_of(name: str) -> tuple[Mod | None, Mod | None]:
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625], device="cuda")
    windows = torch.tensor([3, 70, 0, 9, 200, 1, 7, 30, 500, 2], device="cuda")
    causal: Mod = lambda b, h, q, k: q >= k  # noqa: E731
    found: dict[str, tuple[Mod | None, Mod | None]] = {
        "plain": (None, None),
        "causal": (None, causal),
        "alibi": (lambda s, b, h, q, k: s + slopes[h] * (k - q), causal),
        "windows": (None, lambda b, h, q, k: causal(b, h, q, k) & (q - k < windows[b])),
        "soft_cap": (lambda s, b, h, q, k: 20 * torch.tanh(s / 20), causal),
    }
    return found[name]


def cu_seqlens(lengths: Lengths) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device="cuda")


def alone(
    given: Sequence[Tensor], q_lens: Lengths, k_lens: Lengths, mods: Any
) -> tuple[Tensor, Tensor]:
    """Dense attention of each sequence, with products of the dtype of the inputs."""
    query, key, value = (t.transpose(0, 1)[None] for t in given)
    ends = [list(pairwise([0, *accumulate(n)])) for n in (q_lens, k_lens)]
    out, lse = [query[0, :, :0, : value.size(3)].transpose(0, 1)], [query[0, :, :0, 0]]
    for n, ((a, b), (c, d)) in enumerate(zip(*ends, strict=True)):
        index = torch.tensor(n, device="cuda")
        score, mask = (of_sequence(mod, index, kind) for kind, mod in enumerate(mods))
        found = attention(
            query[:, :, a:b], key[:, :, c:d], value[:, :, c:d], score, mask
        )
        out.append(found.out[0].transpose(0, 1))
        lse.append(found.lse[0])
    return torch.cat(out), torch.cat([t.to(lse[-1].dtype) for t in lse], 1)


def of_sequence(mod: Mod | None, n: Tensor, kind: int) -> Mod | None:
    """A mod whose batch is n."""
    if mod is None:
        return None
    if kind == 0:
        return lambda s, b, h, q, k: mod(s, n, h, q, k)
    return lambda b, h, q, k: mod(n, h, q, k)


def operands(q_lens: Lengths, k_lens: Lengths, dim: int, dtype: torch.dtype) -> Any:
    shapes = (sum(q_lens), HEADS), (sum(k_lens), KV_HEADS), (sum(k_lens), KV_HEADS)
    return [torch.randn(*s, dim, device="cuda").to(dtype) for s in shapes]


def results(run: Mod, given: Sequence[Tensor], along: Tensor) -> list[Tensor]:
    """The output, lse, and gradients of query, key and value."""
    leaves = [t.detach().requires_grad_() for t in given]
    out, lse = run(*leaves)
    found = torch.autograd.grad(out, leaves, along.to(out.dtype), allow_unused=True)
    return [out.detach(), lse.detach(), *(
        torch.zeros_like(t) if g is None else g
        for g, t in zip(found, leaves, strict=True)
    )]  # fmt: skip


def check(
    given: Sequence[Tensor], q_lens: Lengths, k_lens: Lengths, name: str, **more: Any
) -> list[Tensor]:
    mods, dtype = mods_of(name), given[0].dtype
    cu_k = None if k_lens is q_lens else cu_seqlens(k_lens)
    along = torch.randn(given[0].shape, device="cuda")

    def run(*leaves: Tensor) -> Any:
        with poisoned():
            return attend(
                *leaves, cu_seqlens(q_lens), cu_k, score_mod=mods[0], mask_mod=mods[1],
                return_lse=True, **more,
            )  # fmt: skip

    def densely(*leaves: Tensor) -> Any:
        return alone(leaves, q_lens, k_lens, mods)

    with poisoned():
        found = results(run, given, along)
    exact = results(densely, [t.double() for t in given], along)
    rough = results(densely, given, along)
    if max(k_lens) <= 1:
        # Weights are 1: the gradients of scores, 0, are a difference of equal sums.
        terms = [largest(t) for t in (*given, along)]
        slack = (
            2 * given[0].size(-1) * torch.finfo(torch.float32).eps * math.prod(terms)
        )
        for got in found[2:4]:
            assert largest(got) <= slack
            got.zero_()
    finite = exact[1].isfinite()
    assert found[1][~finite].double().equal(exact[1][~finite])
    for part in (found, exact, rough):
        part[1] = part[1][finite]
    names = ("out", "lse", "d_query", "d_key", "d_value")
    for label, got, best, other in zip(names, found, exact, rough, strict=True):
        kept = torch.float32 if label == "lse" else dtype
        close(label, got, best, other, dtype=kept)
    return found


def drawn_lengths(made: random.Random, count: int) -> list[int]:
    return [made.choice((0, 1, made.randint(2, 90), 128, 300)) for _ in range(count)]


@pytest.mark.parametrize("seed", range(20))
def test_drawn_sequences(seed: int) -> None:
    made = random.Random(seed)
    q_lens = [*drawn_lengths(made, made.choice((1, 3, 9))), made.randint(1, 200)]
    k_lens = q_lens if made.random() < 0.6 else drawn_lengths(made, len(q_lens))
    if not sum(k_lens):
        k_lens = q_lens
    dim = made.choice((16, 64, 64, 128, 128))
    dtype = made.choice((torch.bfloat16, torch.bfloat16, torch.float16))
    name = made.choice(("plain", "causal", "alibi", "windows", "soft_cap"))
    check(operands(q_lens, k_lens, dim, dtype), q_lens, k_lens, name)


LENGTHS = {
    "ones": [1] * 200,
    "short": [5, 0, 1, 17, 30, 0, 64, 65, 3],
    "long": [1000, 0, 130],
    "one": [513],
    "long on average": [2000, 0, 1, 3000, 127, 128, 1913],
    "all long": [1024, 2049],
}


@pytest.mark.parametrize("schedule", [None, "triton"])
@pytest.mark.parametrize("name", ["causal", "plain", "alibi"])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_lengths(lengths: str, name: str, schedule: str | None) -> None:
    each = LENGTHS[lengths]
    if name != "causal" and schedule is not None:
        each = each[:2]
    given = operands(each, each, 128, torch.bfloat16)
    more: Any = {} if schedule is None else {"kernel_options": {"schedule": schedule}}
    check(given, each, each, name, **more)


def test_float32() -> None:
    each = LENGTHS["short"]
    check(operands(each, each, 64, torch.float32), each, each, "alibi")


def test_other_lengths_compile_nothing() -> None:
    def run(*lengths: int) -> None:
        given = operands(lengths, lengths, 64, torch.bfloat16)
        check(given, lengths, lengths, "causal")

    run(100, 30)
    before = counters.copy()
    run(3, 300)
    run(64, 1)
    assert counters == before


def test_a_sequence_has_the_bits_that_it_has_beside_others() -> None:
    given = operands([256, 100], [256, 100], 128, torch.bfloat16)
    both: Any = attend(*given, cu_seqlens([256, 100]))
    few: Any = [t[:256] for t in given]
    assert both[:256].equal(attend(*few, cu_seqlens([256])))


def test_nested() -> None:
    lengths = [30, 1, 100, 257]
    given = operands(lengths, lengths, 64, torch.bfloat16)
    offsets = cu_seqlens(lengths).long()
    nested: Any = [torch.nested.nested_tensor_from_jagged(t, offsets) for t in given]
    out: Any = attend(*nested, mask_mod=mods_of("causal")[1])
    plain = attend(*given, offsets, mask_mod=mods_of("causal")[1])
    assert out.is_nested
    assert out.values().equal(plain)


def test_a_graph_runs_with_other_numbers() -> None:
    given, cu = operands([300], [300], 64, torch.bfloat16), cu_seqlens([100, 200])
    mask = mods_of("causal")[1]

    def run(numbers: Tensor) -> Any:
        with torch.no_grad():
            return attend(*given, numbers, mask_mod=mask)

    run(cu)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run(cu)
    for each in ([1, 299], [300, 0], [0, 300]):
        cu.copy_(cu_seqlens(each))
        graph.replay()
        assert out.equal(run(cu_seqlens(each)))


def test_wrong_numbers_are_reported_by_a_later_call() -> None:
    given = operands([30], [30], 64, torch.bfloat16)
    attend(*given, cu_seqlens([20, 30]))
    torch.cuda.synchronize()
    with pytest.raises(ShapeError, match="an earlier call"):
        attend(*given, cu_seqlens([20, 10]))
