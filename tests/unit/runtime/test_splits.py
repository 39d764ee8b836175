"""Which calls are split along their keys, into how many splits, and who is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from flexc.runtime import explain as explain_calls
from flexc.runtime.attention.call import (
    Attention,
    Outputs,
    read_signature,
)
from flexc.runtime.attention.run import (
    MAX_BYTES,
    MIN_BLOCKS,
    Gpu,
    choose_splits,
    cost,
    count_splits,
)
from flexc.runtime.explain import explain_mask
from flexc.runtime.inputs.arguments import Tables
from flexc.runtime.inputs.options import NO_CHOICES, Choices, TileOptions
from flexc.runtime.interface import flex_attention
from tests.support import reference
from tests.support.pairwise import in_turn
from tests.support.threads import torch_threads

H100 = Gpu(132)
CPU = torch.device("cpu")
SPLIT = Choices(tiles=TileOptions(split_keys=True))


def splits(tiles: int, blocks: int, bytes_each: int = 1) -> int:
    return choose_splits(tiles, H100, blocks, bytes_each)


def test_calls_that_fill_the_gpu_are_left_alone() -> None:
    for tiles in (132, 133, 1320):
        assert splits(tiles, 1 << 20) == 1


def test_few_tiles_of_many_blocks_are_shared_out() -> None:
    assert splits(32, 1024) == 4
    assert splits(8, 1024) == 16
    assert 33 <= splits(1, 1024) <= 132


def test_more_rounds_may_leave_less_idle() -> None:
    """70 tiles in two rounds of three splits, of which only the last has room."""
    found = splits(70, 1024)
    assert found > 2
    assert cost(70, H100, 1024, found) < cost(70, H100, 1024, 2)


def test_programs_that_share_a_multiprocessor() -> None:
    """They are as many as have room; one for each is enough not to be split."""
    assert choose_splits(32, Gpu(132, residents=4), 1024, 1) == 16
    assert choose_splits(132, Gpu(132, residents=4), 1024, 1) == 1


@pytest.mark.parametrize("blocks", [0, 1, 4, 7, 8, 12])
def test_few_blocks_are_not_worth_a_second_kernel(blocks: int) -> None:
    assert splits(4, blocks) == 1


@pytest.mark.parametrize("tiles", [1, 5, 60, 131])
@pytest.mark.parametrize("blocks", [8, 50, 333, 5000])
def test_the_best_that_is_allowed(tiles: int, blocks: int) -> None:
    found = splits(tiles, blocks)
    assert found == 1 or blocks // found >= MIN_BLOCKS
    assert cost(tiles, H100, blocks, found) <= cost(tiles, H100, blocks, 1)


def test_memory_is_bounded() -> None:
    assert splits(8, 1024, MAX_BYTES // 3) <= 3
    assert splits(8, 1024, 2 * MAX_BYTES) == 1


def call(
    q_len: int = 1, kv_len: int = 8192, heads: int = 32, **changes: Any
) -> Attention:
    """A call of the Triton backend, of zeros that take no memory."""

    def zeros(length: int) -> torch.Tensor:
        zero = torch.zeros(1, 1, 1, 128, dtype=torch.bfloat16)
        return zero.expand(1, heads, length, 128)

    key = zeros(kv_len)
    made = Attention(
        zeros(q_len), key, key, 0.1, None, read_signature(None, None, CPU), Outputs(),
        "triton", SPLIT,
    )  # fmt: skip
    return replace(made, **changes)


def splits_of(made: Attention) -> int:
    return count_splits(made, made.proved_in(made.compiled()))


def test_decoding_is_split() -> None:
    assert splits_of(call()) == 4
    assert splits_of(call(heads=8)) > 4
    assert splits_of(call(outputs=Outputs(lse=True))) == 4


def test_few_queries_are_split_regardless_of_their_batch() -> None:
    made = call(heads=8, few_rows=(4, 1), choices=NO_CHOICES)
    alone = splits_of(made)
    assert alone == 16
    many = made.query.expand(200, -1, -1, -1), made.key.expand(200, -1, -1, -1)
    assert splits_of(replace(made, query=many[0], key=many[1], value=many[1])) == alone
    never = Choices(tiles=TileOptions(split_keys=False))
    assert splits_of(replace(made, choices=never)) == 1


def test_what_is_not_split() -> None:
    assert splits_of(call(heads=132)) == 1
    assert splits_of(call(q_len=8192)) == 1
    assert splits_of(call(kv_len=512)) == 1
    assert splits_of(call(backend="cpp")) == 1
    assert splits_of(call(choices=NO_CHOICES)) == 1
    assert splits_of(call(outputs=Outputs(max_scores=True))) == 1
    assert splits_of(call(outputs=Outputs(lse=True, lse_rest=True))) == 1


def test_rows_that_see_few_keys_are_not_split() -> None:
    """Of a band; and of tables that have no room for more."""

    def window(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (kv_idx >= q_idx + 8000) & (kv_idx <= q_idx + 8100)

    assert splits_of(call(signature=read_signature(None, window, CPU))) == 1
    num, wide = torch.ones(1, 32, 1).int(), torch.zeros(1, 32, 1, 64).int()
    for columns, splits in ((1, 1), (64, 4)):
        tables = Tables((num, wide[..., :columns]), (128, 128))
        assert splits_of(call(tables=tables)) == splits


def test_one_kernel_serves_any_number_of_splits() -> None:
    """And calls that ask for log-sum-exp, which the second kernel writes."""
    few, many = call(), call(q_len=3, kv_len=131_072, heads=4)
    assert few.compiled().split.build == many.compiled().split.build
    asking = call(outputs=Outputs(lse=True))
    assert asking.compiled().split.build == few.compiled().split.build


@pytest.mark.skipif(torch.cuda.is_available(), reason="explains an absent GPU")
def test_explain_tells_of_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain_calls, "NO_CHOICES", SPLIT)

    def everything(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return kv_idx >= 0

    sizes: dict[str, Any] = {"H": 8, "device": "cuda", "head_dim": 128}
    few = explain_mask(everything, Q_LEN=1, KV_LEN=65_536, **sizes)
    assert few.schedule is not None
    assert few.schedule.splits == 16
    assert "shared out among 16 programs" in str(few).replace("\n", " ")
    many = explain_mask(everything, Q_LEN=8192, KV_LEN=8192, **sizes)
    assert many.schedule is not None
    assert many.schedule.splits == 1
    assert "shared out" not in str(many)


@pytest.mark.parametrize("threads", [1, 2, 64])
def test_a_cpu_splits_by_heads_and_lengths_alone(threads: int) -> None:
    made = call(backend="cpp", heads=8, few_rows=(1, 1), choices=NO_CHOICES)
    with torch_threads(threads):
        assert splits_of(made) == 8
        assert splits_of(call(backend="cpp", heads=1, few_rows=(1, 1))) == 8
    short = call(kv_len=2047, backend="cpp", heads=1, few_rows=(1, 1))
    assert splits_of(short) == 1
    assert splits_of(call(backend="cpp", heads=33, few_rows=(1, 1))) == 1
    never = Choices(tiles=TileOptions(split_keys=False))
    assert splits_of(replace(made, choices=never)) == 1


LENGTHS = torch.tensor([3000, 0, 1, 2500], dtype=torch.int32)

MASKS: dict[str, Any] = {
    "none": None,
    "lengths": lambda b, h, q, k: k < LENGTHS[b],
    "causal": lambda b, h, q, k: k <= q + LENGTHS[b] - 1,
    "by_head": lambda b, h, q, k: (k % 3 == h % 3) & (k < LENGTHS[b]),
}


@pytest.mark.parametrize(
    ("mask", "sizes"), in_turn(list(MASKS), [(1, 1), (8, 2), (34, 1), (48, 2)])
)
def test_split_on_a_cpu_with_any_threads_and_any_batch(
    mask: str, sizes: tuple[int, int]
) -> None:
    """And with groups of more heads than a program has rows."""
    heads, kv_heads = sizes
    query = torch.randn(4, heads, 1, 16)
    key, value = (torch.randn(4, kv_heads, 3000, 16) for _ in range(2))

    def score(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s + (h + 1) * k / 3000

    def attend(query: torch.Tensor) -> Any:
        n = len(query)
        return flex_attention(
            query, key[:n], value[:n], score, mask_mod=MASKS[mask],
            enable_gqa=True, return_lse=True,
        )  # fmt: skip

    with torch_threads(1):
        out, lse = attend(query)
    with torch_threads(3):
        for found, kept in zip(attend(query), (out, lse), strict=True):
            assert torch.equal(found, kept)
        assert torch.equal(attend(query[:1])[0], out[:1])
    exact = reference.attention(
        query.double(), key.double(), value.double(), score, MASKS[mask],
        enable_gqa=True,
    )  # fmt: skip
    torch.testing.assert_close(out.double(), exact.out, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(lse.double(), exact.lse, atol=1e-5, rtol=1e-5)
