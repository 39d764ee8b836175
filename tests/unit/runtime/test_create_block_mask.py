"""`flexc.create_block_mask` makes what torch's makes, without looking at all pairs."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention.experimental._paged_attention import PagedAttention
from torch.nn.attention.flex_attention import BlockMask, noop_mask
from torch.nn.attention.flex_attention import create_block_mask as torch_block_mask

import flexc
from flexc.errors import (
    DataDependentControlFlowError,
    DeviceError,
    FlexcError,
    ModSignatureError,
    OptionError,
    ShapeError,
)
from flexc.runtime.inputs.notes import (
    TABLES,
    Notes,
    origin_of,
)
from flexc.runtime.kernels.driver import counters
from tests.support.block_tables import dense_blocks, differences
from tests.support.corpus import CORPUS
from tests.support.corpus_masks import causal_mask
from tests.support.pairwise import in_turn

HEADS = 3

MASKS = [
    name
    for name, case in CORPUS.items()
    if case.factory(1, 1, 1, 16, 16)[1] not in (None, causal_mask)
]

SIZES: list[tuple[int, int, Any]] = [
    (200, 330, 16),
    (257, 256, 64),
    (384, 384, 128),
    (130, 520, (64, 128)),
]


def mask_of(name: str, q_len: int, kv_len: int) -> Any:
    return CORPUS[name].factory(2, HEADS, HEADS, q_len, kv_len)[1]


@pytest.mark.parametrize(
    ("name", "sizes"),
    in_turn(MASKS, [SIZES[::2], SIZES[1::2]]),
)
def test_equals_torch(name: str, sizes: list[tuple[int, int, Any]]) -> None:
    for q_len, kv_len, block in sizes:
        mask = mask_of(name, q_len, kv_len)
        ours = flexc.create_block_mask(mask, 2, HEADS, q_len, kv_len, "cpu", block)
        torchs = torch_block_mask(mask, 2, HEADS, q_len, kv_len, "cpu", block)
        assert differences(ours, torchs) == [], (q_len, kv_len, block)


@pytest.mark.parametrize("name", MASKS)
def test_unrefined_is_sound(name: str) -> None:
    for q_len, kv_len, block in SIZES[:2]:
        mask = mask_of(name, q_len, kv_len)
        sizes = (2, HEADS, q_len, kv_len)
        ours = flexc.create_block_mask(mask, *sizes, "cpu", block, refine=False)
        live, full = dense_blocks(ours)
        torchs_live, torchs_full = dense_blocks(
            torch_block_mask(mask, *sizes, "cpu", block)
        )
        assert not (torchs_live & ~live).any()
        assert not (full & ~torchs_full).any()


@pytest.mark.parametrize("name", ["causal", "documents", "chunked", "sliding_window"])
def test_common_masks_need_no_refinement(name: str) -> None:
    mask = mask_of(name, 500, 500)
    ours = flexc.create_block_mask(mask, None, None, 500, 500, "cpu", 32, refine=False)
    torchs = torch_block_mask(mask, None, None, 500, 500, "cpu", 32)
    assert differences(ours, torchs) == []


@pytest.mark.parametrize(("b", "h"), [(None, None), (2, None), (None, 3), (1, 1)])
def test_batch_and_heads_may_be_left_out(b: int | None, h: int | None) -> None:
    mask = mask_of("causal", 300, 300)
    ours = flexc.create_block_mask(mask, b, h, 300, 300, "cpu")
    assert type(ours) is BlockMask
    assert differences(ours, torch_block_mask(mask, b, h, 300, 300, "cpu")) == []
    assert ours.BLOCK_SIZE == (128, 128)
    assert ours.seq_lengths == (300, 300)
    assert ours.mask_mod is mask


def test_longer_than_a_tile_of_blocks() -> None:
    ids = torch.arange(4500) // 171

    def documents(b, h, q_idx, kv_idx):
        return (ids[q_idx] == ids[kv_idx]) & (q_idx >= kv_idx)

    ours = flexc.create_block_mask(documents, 1, 1, 4500, 4500, "cpu", 16)
    torchs = torch_block_mask(documents, 1, 1, 4500, 4500, "cpu", 16)
    assert differences(ours, torchs) == []


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.int64, torch.float16])
def test_captured_dtypes(dtype: torch.dtype) -> None:
    values = torch.randint(0, 2, (40,)).repeat_interleave(8).to(dtype)

    def same(b, h, q_idx, kv_idx):
        return values[q_idx] == values[kv_idx]

    ours = flexc.create_block_mask(same, 1, 1, 320, 320, "cpu", 16)
    torchs = torch_block_mask(same, 1, 1, 320, 320, "cpu", 16)
    assert differences(ours, torchs) == []


def test_values_that_are_no_numbers() -> None:
    values = torch.arange(128.0)
    values[5], values[40], values[100] = torch.nan, torch.inf, -torch.inf

    def below(b, h, q_idx, kv_idx):
        return values[q_idx] >= values[kv_idx]

    ours = flexc.create_block_mask(below, 1, 1, 128, 128, "cpu", 16)
    torchs = torch_block_mask(below, 1, 1, 128, 128, "cpu", 16)
    assert differences(ours, torchs) == []


def test_second_call_compiles_nothing() -> None:
    def make(window: int, size: int, block: int) -> BlockMask:
        ids = torch.arange(size) // 50

        def mask(b, h, q_idx, kv_idx):
            near = (q_idx - kv_idx).abs() <= window
            return near & (ids[q_idx] <= ids[kv_idx])

        return flexc.create_block_mask(mask, None, None, size, size, "cpu", block)

    make(17, 300, 16)
    make(2, 400, 16)
    before = dict(counters)
    make(40, 900, 64)
    assert dict(counters) == before


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_torch_attends_with_it() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    q = torch.randn(2, HEADS, 200, 16)
    mask = mask_of("documents", 200, 200)
    ours = flexc.create_block_mask(mask, 2, HEADS, 200, 200, "cpu", 64)
    torchs = torch_block_mask(mask, 2, HEADS, 200, 200, "cpu", 64)
    expected = flex_attention(q, q, q, block_mask=torchs)
    torch.testing.assert_close(flex_attention(q, q, q, block_mask=ours), expected)
    torch.testing.assert_close(flexc.flex_attention(q, q, q, block_mask=ours), expected)


def test_origin_is_remembered_until_something_changes() -> None:
    mask = mask_of("causal", 300, 300)
    ours = flexc.create_block_mask(mask, None, None, 300, 300, "cpu")
    assert origin_of(ours) is not None
    assert origin_of(torch_block_mask(mask, None, None, 300, 300, "cpu")) is None
    ours.mask_mod = noop_mask
    assert origin_of(ours) is None


def test_a_mask_that_keeps_all_pairs_has_no_tables() -> None:
    query = torch.randn(1, 2, 2048, 16)
    plain = flexc.flex_attention(query, query, query)
    mask = flexc.create_block_mask(noop_mask, None, None, 2048, 2048, "cpu")
    before = counters.total()
    found = flexc.flex_attention(query, query, query, block_mask=mask)
    assert counters.total() == before
    torch.testing.assert_close(found, plain, rtol=0, atol=0)


def test_copies_know_nothing_of_what_was_made() -> None:
    """What is kept with a mask would be much to copy, and names its own tables."""
    attend: Any = flexc.flex_attention
    ours = flexc.create_block_mask(causal_mask, None, None, 96, 96, "cpu", 32)
    query = torch.randn(1, 2, 96, 16)
    for _ in range(2):
        attend(query, query, query, block_mask=ours)
    expected = attend(query, query, query, block_mask=ours)
    copies = copy.copy(ours), copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))
    assert [bool(Notes.of(mask).kept) for mask in copies] == [True, False, False]
    for copied in copies:
        found = attend(query, query, query, block_mask=copied)
        torch.testing.assert_close(found, expected)


def bad_five(score, b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def bad_branch(b, h, q_idx, kv_idx):
    return True if q_idx > 3 else kv_idx > 0


def good(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


ERRORS: list[tuple[type[FlexcError], str, dict[str, Any]]] = [
    (ModSignatureError, "mask_mod expects a function", {"mask_mod": 3}),
    (
        ModSignatureError,
        r"pass mask_mod=lambda .*: mask\[q_idx, kv_idx\]",
        {"mask_mod": torch.ones(9, 9, dtype=torch.bool)},
    ),
    (ModSignatureError, "is called with", {"mask_mod": bad_five}),
    (DataDependentControlFlowError, "torch.where", {"mask_mod": bad_branch}),
    (ShapeError, "Q_LEN expects", {"Q_LEN": 0}),
    (ShapeError, "B expects", {"B": -1}),
    (OptionError, "BLOCK_SIZE expects", {"BLOCK_SIZE": 0}),
    (OptionError, "BLOCK_SIZE expects", {"BLOCK_SIZE": (1, 2, 3)}),
    (DeviceError, "backends for cpu and cuda", {"device": "meta"}),
    (DeviceError, 'expects a name such as "cpu"', {"device": "foo"}),
    (DeviceError, "expects a torch.device or a name, got 3", {"device": 3}),
]


@pytest.mark.parametrize(("error", "message", "given"), ERRORS)
def test_errors_say_what_to_do(
    error: type[FlexcError], message: str, given: dict[str, Any]
) -> None:
    arguments: dict[str, Any] = {
        "mask_mod": good, "B": 1, "H": 1, "Q_LEN": 64, "KV_LEN": 64, "device": "cpu",
    }  # fmt: skip
    with pytest.raises(error, match=message):
        flexc.create_block_mask(**(arguments | given))


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="where torch sees no GPU, got cuda"):
        flexc.create_block_mask(good, 1, 1, 64, 64, device="cuda")


def test_tables_that_were_written_to_are_kept_to() -> None:
    """A closed form would take the place of the tables, were they the mask's."""
    query = torch.randn(1, 1, 256, 16)
    block_mask = flexc.create_block_mask(
        causal_mask, None, None, 256, 256, device="cpu"
    )
    out: Any = flexc.flex_attention(query, query, query, block_mask=block_mask)
    assert out.any()
    block_mask.kv_num_blocks.zero_()
    assert block_mask.full_kv_num_blocks is not None
    block_mask.full_kv_num_blocks.zero_()
    out = flexc.flex_attention(query, query, query, block_mask=block_mask)
    assert not out.any()


@pytest.mark.parametrize("batch", [None, 2])
@pytest.mark.parametrize("heads", [None, 3])
def test_tables_lie_in_memory_as_torchs_do(
    batch: int | None, heads: int | None
) -> None:
    """Some users take views of them."""
    sizes = (batch, heads, 300, 300)
    own = flexc.create_block_mask(causal_mask, *sizes, "cpu")
    theirs = torch_block_mask(causal_mask, *sizes, "cpu")
    for name in TABLES:
        found, expected = getattr(own, name), getattr(theirs, name)
        assert found.is_contiguous()
        assert found.stride() == expected.stride()


def test_pages_of_a_cache() -> None:
    """torch's PagedAttention takes views of the tables."""
    paged = PagedAttention(8, 128, 2, device="cpu")
    for batch in range(2):
        paged.reserve(torch.tensor(batch), torch.tensor(256))
    masks = [
        make(causal_mask, 2, 1, 256, 256, "cpu")
        for make in (flexc.create_block_mask, torch_block_mask)
    ]
    own, theirs = (paged.convert_logical_block_mask(mask) for mask in masks)
    assert torch.equal(own.kv_num_blocks, theirs.kv_num_blocks)
    assert torch.equal(own.kv_indices, theirs.kv_indices)


def test_the_cpu_may_have_an_index() -> None:
    blocks = flexc.create_block_mask(good, 1, 1, 64, 64, device="cpu:0")
    assert blocks.kv_num_blocks.device == torch.device("cpu")


@pytest.mark.parametrize("block", [16, 128, (8, 40)])
def test_full_blocks_may_be_partial(block: Any) -> None:
    def mask(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & (q - k < 50) | (k < 5)

    sizes: Any = (mask, None, None, 100, 90, "cpu", block)
    options: Any = {"separate_full_blocks": False, "compute_dq_write_order": True}
    found = flexc.create_block_mask(*sizes, **options)
    expected = torch_block_mask(*sizes, separate_full_blocks=False)
    assert found.full_kv_num_blocks is None
    assert torch.equal(found.to_dense(), expected.to_dense())
    torch.testing.assert_close(found.q_num_blocks, expected.q_num_blocks)
    q, k = torch.randn(1, 2, 100, 8), torch.randn(1, 2, 90, 8)
    whole = flexc.flex_attention(q, k, k, mask_mod=mask)
    torch.testing.assert_close(flexc.flex_attention(q, k, k, block_mask=found), whole)


def test_tracers_see_ops_of_torch() -> None:
    """A kernel would write to tables without data."""

    def attend(q: Tensor) -> Any:
        n = q.size(2)
        blocks = flexc.create_block_mask(good, None, None, n, n, "cpu", BLOCK_SIZE=16)
        return flexc.flex_attention(q, q, q, block_mask=blocks)

    q = torch.randn(1, 2, 40, 8)
    expected = flexc.flex_attention(q, q, q, mask_mod=good)
    for mode in ("real", "fake"):
        torch.testing.assert_close(make_fx(attend, tracing_mode=mode)(q)(q), expected)
    with FakeTensorMode():
        made = flexc.create_block_mask(good, None, None, 40, 40, "cpu")
    assert isinstance(made.kv_indices, FakeTensor)
