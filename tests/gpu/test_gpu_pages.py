"""Caches of keys on a GPU: pages, captured lengths, and graphs that serve all steps."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import flexc
from flexc.errors import CacheError
from flexc.runtime.kernels.driver import counters
from tests.gpu.gradients import Sizes
from tests.gpu.test_gpu_numerics import inputs, mods_of
from tests.gpu.test_gpu_splits import QKV, check
from tests.support.corpus import Mods
from tests.support.filled_memory import poisoned
from tests.support.pages import in_pages

pytestmark = pytest.mark.gpu

CASES = ("dense", "alibi", "soft_cap", "causal", "head_windows", "some_rows_empty")


class Drawn(NamedTuple):
    """One call over keys in pages."""

    case: str
    sizes: Sizes
    page_size: int
    dtype: torch.dtype


def drawn(seed: int) -> Drawn:
    made = random.Random(seed)
    page_size = made.choice((1, 4, 16, 48, 64, 128))
    kv_heads, dim = made.choice((1, 2, 4)), made.choice((16, 24, 64, 128))
    sizes = Sizes(
        batch=made.choice((1, 3)),
        heads=kv_heads * made.choice((1, 3, 4)),
        kv_heads=kv_heads,
        q_len=made.choice((1, 1, 2, 5, 16, 17, 130)),
        kv_len=page_size * made.randint(1, 1500 // page_size),
        head_dim=dim,
        value_dim=made.choice((dim, 64)),
    )
    dtype = made.choice((torch.bfloat16, torch.float16))
    return Drawn(made.choice(CASES), sizes, page_size, dtype)


def attend(qkv: QKV, mods: Mods, **options: Any) -> Any:
    """Output and log-sum-exp."""
    options = {"enable_gqa": True, "return_lse": True, "mask_mod": mods[1]} | options
    with torch.no_grad(), poisoned():
        return flexc.flex_attention(*qkv, mods[0], **options)


@pytest.mark.parametrize("seed", range(24))
def test_drawn_pages_have_the_bits_of_contiguous_keys(seed: int) -> None:
    case = drawn(seed)
    qkv, mods = inputs(case.sizes, case.dtype), mods_of(case.case, case.sizes)
    pages = in_pages(qkv[1], qkv[2], case.page_size, seed)
    table = pages.table.cuda()
    options: Any = {"kernel_options": {"schedule": "triton"}}
    paged = qkv[0], pages.key, pages.value
    found = attend(paged, mods, page_table=table, **options)
    check(qkv, mods, found)
    check(qkv, mods, attend(paged, mods, page_table=table))
    same = attend(qkv, mods, **options)
    for one, other in zip(found, same, strict=True):
        assert one.equal(other), case


@pytest.mark.parametrize("page_size", [16, 128])
def test_only_own_pages_are_read(page_size: int) -> None:
    """Entries beyond a sequence's keys may be any numbers; other pages may be NaN."""
    sizes = Sizes(batch=2, heads=8, kv_heads=2, q_len=1, kv_len=2048, head_dim=128)
    qkv, (lengths, mask) = inputs(sizes, torch.bfloat16), bounded([700, 2048])
    pages = in_pages(qkv[1], qkv[2], page_size)
    table = pages.table.cuda()
    expected = attend((qkv[0], *pages[:2]), (None, mask), page_table=table)
    check(qkv, (None, mask), expected)
    first = -(-700 // page_size)
    for tensor in pages[:2]:
        tensor[table[0, first:].long()] = torch.nan
    table[0, first:] = torch.tensor([-1, 1 << 30], device="cuda").repeat(table.size(1))[
        : table.size(1) - first
    ]
    found = attend((qkv[0], *pages[:2]), (None, mask), page_table=table)
    for one, other in zip(found, expected, strict=True):
        assert one.equal(other)
    assert lengths.tolist() == [700, 2048]


def bounded(each: list[int]) -> tuple[Tensor, Callable[..., Any]]:
    lengths = torch.tensor(each, dtype=torch.int32, device="cuda")
    return lengths, lambda b, h, q_idx, kv_idx: kv_idx < lengths[b]


@pytest.mark.parametrize("mods", ["dense", "alibi", "soft_cap"])
def test_captured_lengths(mods: str) -> None:
    """Lengths bound loops: what lies beyond is not read, or does not matter."""
    sizes = Sizes(batch=5, heads=8, kv_heads=2, q_len=1, kv_len=3000, head_dim=128)
    qkv, score = inputs(sizes, torch.bfloat16), mods_of(mods, sizes)[0]
    lengths, mask = bounded([0, 1, 128, 1777, 3000])
    check(qkv, (score, mask), attend(qkv, (score, mask)))
    before = counters.copy()
    lengths.copy_(torch.tensor([5, 3000, 0, 64, 2999]))
    check(qkv, (score, mask), attend(qkv, (score, mask)))
    assert counters == before


KINDS: dict[str, Callable[..., Any]] = {
    "contiguous": lambda **more: flexc.KVCache(3, 2, 640, 64, **more),
    "pages": lambda **more: flexc.PagedKV(3, 2, 130, 16, 64, capacity=640, **more),
}


@pytest.mark.parametrize("kind", KINDS)
def test_one_graph_serves_growing_lengths(kind: str) -> None:
    cache = KINDS[kind](dtype=torch.bfloat16, device="cuda")
    query, key, value = (
        torch.randn(3, heads, 1, 64, device="cuda").bfloat16() for heads in (8, 2, 2)
    )
    prompt = torch.randn(2, 3, 2, 600, 64, device="cuda").bfloat16()
    keys, values = [p.clone() for p in prompt]
    lengths = [600, 0, 211]
    cache.append(prompt[0], prompt[1], counts=lengths)
    alibi: Any = mods_of("alibi", Sizes(heads=8))[0]

    def step() -> Any:
        cache.write(key, value)
        return cache.attend(query, alibi, return_lse=True)

    def held() -> QKV:
        """What the cache holds, from the tokens that were given to it."""
        shape = (3, 2, max(lengths), 64)
        whole = [query.new_zeros(shape) for _ in range(2)]
        for to, given in zip(whole, (keys, values), strict=True):
            for b, n in enumerate(lengths):
                to[b, :, :n] = given[b, :, :n]
        return query, whole[0], whole[1]

    def append() -> None:
        nonlocal keys, values
        cache.extend(1)
        grown = [keys.new_zeros(3, 2, 640, 64) for _ in range(2)]
        for to, old, new in zip(grown, (keys, values), (key, value), strict=True):
            to[:, :, : old.size(2)] = old
            for b, n in enumerate(lengths):
                to[b, :, n] = new[b, :, 0]
        keys, values = grown
        lengths[:] = [n + 1 for n in lengths]

    def checked(found: Any) -> None:
        starts = cache.starts.clone()
        known = torch.tensor(lengths, device="cuda")
        score = lambda s, b, h, i, j: alibi(s, b, h, i + starts[b], j)  # noqa: E731
        check(held(), (score, lambda b, h, i, j: j < known[b]), found)

    with torch.no_grad():
        append()
        checked(step())
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = step()
        before = counters.copy()
        for _ in range(20):
            for tensor in (query, key, value):
                tensor.copy_(torch.randn_like(tensor))
            append()
            graph.replay()
            checked(found)
            assert all(a.equal(b) for a, b in zip(found, step(), strict=True))
        assert counters == before


@pytest.mark.parametrize("seed", range(4))
def test_drawn_schedules(seed: int) -> None:
    """Prompts in parts, forks and ends: pages and contiguous keys have equal bits."""
    made = random.Random(seed)
    dim, heads = made.choice((64, 128)), 2
    options: Any = {"dtype": torch.bfloat16, "device": "cuda"}
    cache = flexc.PagedKV(3, heads, 60, 16, dim, capacity=512, **options)
    whole = torch.zeros(2, 3, heads, cache.capacity, dim, **options)
    for _ in range(12):
        source, target, _ = made.sample(range(3), 3)
        if made.random() < 0.3:
            cache.free(target)
            cache.fork(source, target)
            whole[:, target] = whole[:, source]
        most = made.choice((1, 1, 16, 70))
        counts = [most, made.choice((0, most)), made.randint(0, most)]
        starts = cache.known_lengths()
        new = torch.randn(2, 3, heads, most, dim, device="cuda").bfloat16()
        try:
            cache.append(new[0], new[1], counts=counts)
        except CacheError:
            cache.free(made.randrange(3))
            continue
        for b, (start, count) in enumerate(zip(starts, counts, strict=True)):
            whole[:, b, :, start : start + count] = new[:, b, :, :count]
        query = torch.randn(3, heads * 4, most, dim, device="cuda").bfloat16()
        schedule = {"schedule": "triton"}
        found = cache.attend(query, return_lse=True, kernel_options=schedule)
        mask, qkv = cache.mask(), (query, whole[0], whole[1])
        same = attend(qkv, (None, mask), kernel_options=schedule)
        assert all(a.equal(b) for a, b in zip(found, same, strict=True))
        check(qkv, (None, mask), found)


def test_a_shared_prefix() -> None:
    cache = flexc.PagedKV(4, 2, 60, 16, 64, dtype=torch.bfloat16, device="cuda")
    prompt = torch.randn(2, 4, 2, 320, 64, device="cuda").bfloat16()
    cache.append(prompt[0], prompt[1], counts=[320, 0, 0, 0])
    for b in (1, 2, 3):
        cache.fork(0, b)
    new = torch.randn(2, 4, 2, 1, 64, device="cuda").bfloat16()
    cache.append(new[0], new[1])
    held = torch.cat([prompt[:, :1].expand(-1, 4, -1, -1, -1), new], 3)
    query = torch.randn(4, 8, 1, 64, device="cuda").bfloat16()
    found = cache.attend(query, prefix=320, return_lse=True)
    check((query, held[0], held[1]), (None, None), found)
