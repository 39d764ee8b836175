"""Random schedules of caches: append, fork, free, prefill, decode.

Attention over pages, over contiguous keys, and dense attention are compared after each
step. The first two have equal bits.
"""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo import utils as dynamo

import flexc
from flexc.errors import CacheError, DtypeError, OptionError, ShapeError
from flexc.runtime.kernels.driver import counters
from tests.support.pairwise import in_turn

HEADS, GROUP, DIM = 2, 2, 16
PAGES, SIZES = 12, (4, 16)
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])


def alibi(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score + SLOPES[h] * (kv_idx - q_idx)


def window(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx - kv_idx < 7


MODS = ((None, None), (alibi, None), (None, window), (alibi, window))


@dataclass
class Model:
    """The tokens of all sequences, as plain tensors, and the two caches of them."""

    size: int
    batch: int
    seed: int
    keys: list[Tensor] = field(default_factory=list[Tensor])
    values: list[Tensor] = field(default_factory=list[Tensor])

    def __post_init__(self) -> None:
        self.random = torch.Generator().manual_seed(self.seed)
        self.paged = flexc.PagedKV(self.batch, HEADS, PAGES, self.size, DIM)
        self.capacity = self.paged.capacity
        self.keys = [torch.zeros(HEADS, 0, DIM) for _ in range(self.batch)]
        self.values = list(self.keys)

    def draw(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.random)

    def contiguous(self, each: list[Tensor]) -> Tensor:
        found = torch.zeros(self.batch, HEADS, self.capacity, DIM)
        for b, tokens in enumerate(each):
            found[b, :, : tokens.size(1)] = tokens
        return found

    def append(self, counts: list[int]) -> bool:
        """Append to both caches; return False if there are too few pages."""
        try:
            self.paged.extend(counts)
        except CacheError:
            return False
        shape = (self.batch, HEADS, max(counts), DIM)
        key, value = self.draw(*shape), self.draw(*shape)
        self.paged.write(key, value)
        for b, n in enumerate(counts):
            self.keys[b] = torch.cat([self.keys[b], key[b, :, :n]], 1)
            self.values[b] = torch.cat([self.values[b], value[b, :, :n]], 1)
        return True

    def fork(self, source: int, target: int) -> None:
        self.paged.fork(source, target)
        self.keys[target], self.values[target] = self.keys[source], self.values[source]

    def free(self, b: int) -> None:
        self.paged.free(b)
        self.keys[b] = self.values[b] = torch.zeros(HEADS, 0, DIM)

    def check(self, counts: list[int], mods: tuple[Any, Any]) -> None:
        query = self.draw(self.batch, HEADS * GROUP, max(counts), DIM)
        found = self.paged.attend(query, *mods, return_lse=True)
        score, mask = (m and shifted(m, self.paged.starts) for m in mods)
        live = self.paged.mask()
        both = live if mask is None else lambda *at: live(*at) & mask(*at)
        key, value = self.contiguous(self.keys), self.contiguous(self.values)
        same: Any = flexc.flex_attention(
            query, key, value, score, mask_mod=both, enable_gqa=True, return_lse=True
        )
        for b, n in enumerate(counts):
            for one, other in zip(found, same, strict=True):
                assert one[b].equal(other[b])
            expected = self.dense(b, query[b, :, :n], mods)
            torch.testing.assert_close(found[0][b, :, :n], expected.float())

    def dense(self, b: int, query: Tensor, mods: tuple[Any, Any]) -> Tensor:
        key = self.keys[b].double().repeat_interleave(GROUP, 0)
        value = self.values[b].double().repeat_interleave(GROUP, 0)
        q_idx = (torch.arange(query.size(1)) + key.size(1) - query.size(1))[:, None]
        kv_idx = torch.arange(key.size(1))
        scores = query.double() @ key.mT / math.sqrt(DIM)
        h = torch.arange(HEADS * GROUP)[:, None, None]
        if mods[0] is not None:
            scores = mods[0](scores, b, h, q_idx, kv_idx)
        live = kv_idx <= q_idx
        if mods[1] is not None:
            live = live & mods[1](b, h, q_idx, kv_idx)
        weights = torch.where(live, scores, -torch.inf).softmax(-1)
        return weights @ value


def shifted(mod: Any, starts: Tensor) -> Any:
    if mod is window:
        return lambda b, h, i, j: window(b, h, i + starts[b], j)
    return lambda s, b, h, i, j: alibi(s, b, h, i + starts[b], j)


def ragged(most: int) -> st.SearchStrategy[list[int]]:
    """Numbers of tokens, of which the largest is always the same: it has a kernel."""
    counts = st.tuples(st.integers(0, most), st.integers(0, most), st.just(most))
    return counts.flatmap(st.permutations)


steps = st.one_of(
    st.tuples(st.just("append"), ragged(4)),
    st.tuples(st.just("prefill"), ragged(20)),
    st.tuples(st.just("decode"), st.just([1, 1, 1])),
    st.tuples(st.just("fork"), st.permutations([0, 1, 2])),
    st.tuples(st.just("free"), st.integers(0, 2)),
)


@pytest.mark.timeout(1800)
@settings(max_examples=max(3, settings().max_examples // 3))
@given(
    st.sampled_from(SIZES),
    st.sampled_from(MODS),
    st.lists(steps, min_size=3, max_size=9),
    st.integers(0, 99),
)
def test_random_schedules(size: int, mods: Any, schedule: Any, seed: int) -> None:
    model = Model(size, 3, seed)
    for step, given_ in schedule:
        match step:
            case "fork":
                source, target, _ = given_
                if not len(model.keys[target][0]):
                    model.fork(source, target)
            case "free":
                model.free(given_)
            case _:
                if model.append(given_) and max(given_):
                    model.check(given_, mods)
    for b in range(3):
        model.free(b)
    assert model.paged.free_pages == PAGES


def test_nothing_is_compiled_as_a_cache_grows() -> None:
    caches = [flexc.KVCache(2, 2, 300, DIM), flexc.PagedKV(2, 2, 40, 16, DIM)]
    for cache in caches:
        seen: list[dict[str, int]] = []
        for _ in range(5):
            key = torch.randn(2, 2, 1, DIM)
            cache.append(key, key, counts=[1, 0])
            query = torch.randn(2, 4, 1, DIM)
            out = cache.attend(query)
            # The second sequence is empty.
            assert out[1].equal(torch.zeros_like(out[1]))
            if cache.known_lengths()[0] == 1:
                torch.testing.assert_close(out[0], key[0].repeat_interleave(2, 0))
            seen.append(dict(counters))
        assert seen[1] == seen[-1]


def test_one_graph_of_torch_compile_serves_all_steps() -> None:
    caches = [flexc.KVCache(2, HEADS, 32, DIM, layers=2) for _ in range(2)]

    def step(cache: flexc.KVCache, query: Tensor, new: Tensor) -> list[Tensor]:
        found: list[Tensor] = []
        for layer in range(2):
            cache.write(new * (layer + 1), new, layer=layer)
            found.append(cache.attend(query, layer=layer))
        return found

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    torch._dynamo.reset()
    dynamo.counters.clear()
    with torch.no_grad():
        for _ in range(10):
            query = torch.randn(2, HEADS * GROUP, 1, DIM)
            new = torch.randn(2, HEADS, 1, DIM)
            for cache in caches:
                cache.extend(1)
            found = compiled(caches[0], query, new)
            wanted = step(caches[1], query, new)
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    assert dynamo.counters["stats"]["unique_graphs"] == 1


def test_a_prompt_in_parts_is_the_prompt() -> None:
    query, key, value = (torch.randn(2, 2, 50, DIM) for _ in range(3))
    whole = flexc.KVCache(2, 2, 64, DIM)
    whole.append(key, value)
    expected = whole.attend(query)
    for cache in (flexc.KVCache(2, 2, 64, DIM), flexc.PagedKV(2, 2, 20, 8, DIM)):
        found: list[Tensor] = []
        for q, k, v in zip(*(t.split(13, 2) for t in (query, key, value)), strict=True):
            cache.append(k, v)
            found.append(cache.attend(q))
        torch.testing.assert_close(torch.cat(found, 2), expected)


@pytest.mark.parametrize(("mods", "count"), in_turn(MODS, [1, 3]))
def test_a_shared_prefix_is_merged(mods: Any, count: int) -> None:
    cache = flexc.PagedKV(3, HEADS, 30, 8, DIM, layers=2)
    prompt = torch.randn(2, 3, HEADS, 21, DIM)
    cache.extend([21, 0, 0])
    for layer in range(2):
        cache.write(*prompt[layer, None].expand(2, -1, -1, -1, -1), layer=layer)
    cache.fork(0, 1)
    cache.fork(0, 2)
    new = torch.randn(2, 3, HEADS, count, DIM)
    cache.extend(count)
    for layer in range(2):
        cache.write(new[layer], new[layer], layer=layer)
        query = torch.randn(3, HEADS * GROUP, count, DIM)
        found = cache.attend(query, *mods, layer=layer, prefix=16, return_lse=True)
        expected = cache.attend(query, *mods, layer=layer, return_lse=True)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)


def test_what_a_page_held_before_does_not_matter() -> None:
    cache = flexc.PagedKV(1, 1, 2, 16, DIM)
    bad = torch.full((1, 1, 20, DIM), math.nan)
    cache.append(bad, bad)
    cache.free(0)
    good = torch.randn(1, 1, 3, DIM)
    cache.append(good, good)
    assert cache.attend(good).isfinite().all()


def test_what_a_cache_held_before_does_not_matter() -> None:
    cache = flexc.KVCache(1, 1, 32, DIM)
    bad = torch.full((1, 1, 20, DIM), math.nan)
    cache.append(bad, bad)
    cache.reset()
    good = torch.randn(1, 1, 3, DIM)
    cache.append(good, good)
    assert cache.attend(good, backend="eager").isfinite().all()


LAYERED: Any = [
    lambda layers: flexc.KVCache(2, 1, 32, DIM, layers=layers),
    lambda layers: flexc.PagedKV(2, 1, 8, 16, DIM, layers=layers),
]


@pytest.mark.parametrize("make", LAYERED)
@pytest.mark.parametrize("count", [1, 3])
def test_padding_is_stored_nowhere(make: Any, count: int) -> None:
    cache = make(1)
    given = torch.randn(2, 1, count, DIM)
    given[1] = math.nan
    cache.append(given, given, counts=[count, 0])
    cache.append(given, given, counts=[count, 0])
    cache.extend([0, 1])
    good = torch.randn(2, 1, 1, DIM)
    cache.write(good, good)
    torch.testing.assert_close(cache.attend(good)[1], good[1])


@pytest.mark.parametrize("make", LAYERED)
def test_layers_share_the_places_of_a_step(make: Any) -> None:
    cache = make(2)
    first, second, query = torch.randn(3, 2, 1, 1, DIM)
    for new in (first, second):
        cache.extend()
        for layer in range(2):
            cache.write(new, new, layer=layer)
    one, other = (cache.attend(query, layer=layer) for layer in range(2))
    assert torch.equal(one, other)
    both = torch.cat([first, second], 2)
    torch.testing.assert_close(one, flexc.flex_attention(query, both, both))
    assert torch.equal(cache.key[0], cache.key[1])


@pytest.mark.parametrize("make", [flexc.KVCache, flexc.PagedKV])
@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.float8_e4m3fn, torch.float8_e5m2], ids=str
)
def test_narrow_keys(make: Any, dtype: torch.dtype) -> None:
    size: Any = {} if make is flexc.KVCache else {"page_size": 4}
    cache = make(2, HEADS, 16, head_dim=DIM, dtype=dtype, **size)
    key = torch.randn(2, HEADS, 3, DIM).mul(2).to(dtype)
    cache.append(key, key, counts=[3, 1])
    cache.append(key[:, :, :1], key[:, :, :1])
    query = torch.randn(2, HEADS, 1, DIM)
    first = torch.cat([key, key[:, :, :1]], 2)[:1]
    second = key[1:, :, :1].expand(-1, -1, 2, -1)
    for b, held in enumerate((first, second)):
        wide = held.to(query.dtype)
        expected = flexc.flex_attention(query[b, None], wide, wide)
        torch.testing.assert_close(cache.attend(query)[b, None], expected)


def test_pages_of_torch() -> None:
    experimental: Any = pytest.importorskip(
        "torch.nn.attention.experimental._paged_attention"
    )
    paged = experimental.PagedAttention(12, 16, 2, device="cpu")
    caches = [torch.zeros(1, 2, 12 * 16, DIM) for _ in range(2)]
    key, value = torch.randn(2, 2, 40, DIM), torch.randn(2, 2, 40, DIM)
    for b in (1, 0):
        paged.reserve(torch.tensor(b), torch.tensor(40))
    at = torch.arange(40).repeat(2, 1)
    paged.assign(torch.tensor([0, 1]), at, key, value, *caches)
    pages = flexc.pages_of_torch(paged, *caches)
    query = torch.randn(2, 2, 5, DIM)
    lengths = torch.tensor([40, 33])
    mask = flexc.causal_lower_right(5, lengths)
    found = flexc.flex_attention(
        query, pages.key, pages.value, mask_mod=mask, page_table=pages.table
    )
    expected = flexc.flex_attention(query, key, value, mask_mod=mask)
    torch.testing.assert_close(found, expected)


CACHES: list[Any] = [
    lambda: flexc.KVCache(2, 2, 32, DIM),
    lambda: flexc.PagedKV(2, 2, 16, 4, DIM),
]


@pytest.mark.parametrize("make", CACHES)
def test_copies_work_as_caches(make: Any) -> None:
    cache = make()
    for count in (5, 3):
        key, value = torch.randn(2, 2, 2, count, DIM)
        query = torch.randn(2, 4, count, DIM)
        cache = pickle.loads(pickle.dumps(copy.deepcopy(cache)))
        cache.append(key, value)
        expected = cache.attend(query)
        found = pickle.loads(pickle.dumps(cache)).attend(query)
        assert found.equal(expected)
        assert cache.key.any()


@pytest.mark.parametrize("make", CACHES)
@pytest.mark.parametrize(
    "counts", [1.5, None, "12", [1.5, 1], [-1, 1], [1], torch.tensor([0.5, 1])]
)
def test_counts_are_whole_numbers(make: Any, counts: Any) -> None:
    cache = make()
    with pytest.raises(OptionError, match="number of tokens"):
        cache.extend(counts)
    cache.extend(torch.tensor([2, 1]))
    assert [type(n) for n in cache.known_lengths()] == [int, int]


@pytest.mark.parametrize("make", CACHES)
def test_bad_arguments_of_caches(make: Any) -> None:
    cache = make()
    token = torch.randn(2, 2, 1, DIM)
    with pytest.raises(OptionError, match="no gradient"):
        cache.append(token.clone().requires_grad_(), token)
    for bad in (token[:, :1], token.double(), token[..., 1:], token[0], token[:1]):
        for pair in ((bad, token), (token, bad)):
            with pytest.raises((ShapeError, DtypeError)):
                cache.append(*pair)
    with pytest.raises(ShapeError, match="tokens"):
        cache.append(token, token, 2)
    assert cache.known_lengths() == (0, 0)
    assert not cache.lengths.any()
    cache.append(token, token)
    with pytest.raises(ShapeError, match="expects a tensor"):
        cache.write(None, token)
    for query in (torch.tensor(1.0), torch.randn(2)):
        with pytest.raises(ShapeError, match="4 dimensions"):
            cache.attend(query)
    with pytest.raises(OptionError, match="no page_table"):
        cache.attend(token, page_table=torch.zeros(2, 8, dtype=torch.int32))
    with pytest.raises(OptionError, match="layer expects"):
        cache.attend(token, layer=torch.tensor(0))
    for bad in ({"value_dim": 0}, {"head_dim": -1}, {"capacity": 0}, {"heads": 1.5}):
        given: Any = {"batch": 2, "heads": 2, "capacity": 8, "head_dim": 8, **bad}
        is_paged = isinstance(cache, flexc.PagedKV)
        pages: Any = {"pages": 4, "page_size": 4} if is_paged else {}
        with pytest.raises(OptionError, match=f"{next(iter(bad))} expects"):
            type(cache)(**given, **pages)
        make_like: Any = type(cache)
        with pytest.raises(DtypeError, match="dtype"):
            make_like(**{**given, **pages, **dict.fromkeys(bad, 8)}, dtype=torch.bool)


def test_no_room_is_an_error_that_changes_nothing() -> None:
    cache = flexc.PagedKV(2, 1, 3, 4, DIM)
    key = torch.randn(2, 1, 4, DIM)
    cache.append(key, key)
    with pytest.raises(CacheError, match="free a sequence"):
        cache.extend(4)
    assert cache.known_lengths() == (4, 4)
    assert cache.free_pages == 1
    with pytest.raises(CacheError, match="its most are 12"):
        cache.extend([9, 0])
    for wrong in (2, -1, 1.0, "a"):
        with pytest.raises(OptionError, match="a number below 2"):
            cache.free(wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(CacheError, match="empty sequence"):
        cache.fork(0, 1)
    small = flexc.KVCache(1, 1, 3, DIM)
    with pytest.raises(CacheError, match="larger cache"):
        small.append(key[:1], key[:1])


@pytest.mark.parametrize("make", LAYERED)
def test_a_cache_made_in_inference_mode_is_used_outside(make: Any) -> None:
    with torch.inference_mode():
        cache = make(1)
    new = torch.randn(2, 1, 1, DIM)
    cache.append(new, new)
    cache.extend(torch.ones(2, dtype=torch.int32)[0])  # Any integer is a number.
    cache.write(new, new)
    assert cache.known_lengths() == (2, 2)


@pytest.mark.parametrize("prefix", [2.0, "a"])
def test_a_prefix_is_an_integer(prefix: Any) -> None:
    cache, new = LAYERED[1](1), torch.randn(2, 1, 1, DIM)
    cache.append(new, new)
    with pytest.raises(OptionError, match="prefix expects a number of tokens"):
        cache.attend(new, prefix=prefix)
