"""Kernels of few queries, whose rows are heads, compile for GPUs without one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from flexc.codegen.kernel_spec import KernelSpec
from flexc.runtime.attention.call import Attention, Outputs, read_signature
from flexc.runtime.attention.few_rows import few_rows, fold
from flexc.runtime.inputs.arguments import Pages, Scales
from flexc.runtime.inputs.options import NO_CHOICES, Choices, TileOptions
from flexc.runtime.kernels import driver
from flexc.runtime.kernels.schedules import TRITON, candidates
from tests.codegen import triton_kernels
from tests.codegen.triton_kernels import DTYPES, spilled_bytes
from tests.support.pairwise import in_turn

SLOPES = torch.rand(32)


def alibi(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return s + SLOPES[h] * (j - i)


def by_head(b: Any, h: Any, i: Any, j: Any) -> Any:
    return j >= h


def decoding(
    q_len: int = 1,
    score_mod: Any = None,
    mask_mod: Any = None,
    dtype: str = "bf16",
    dim: int = 128,
    **options: Any,
) -> Attention:
    """A call of 32 heads, of which four share a key head."""
    query = torch.zeros(1, 32, q_len, dim, dtype=DTYPES[dtype])
    key = torch.zeros(1, 8, 8192, dim, dtype=DTYPES[dtype])
    signature = read_signature(score_mod, mask_mod, query.device)
    choices = Choices(tiles=TileOptions(**options)) if options else NO_CHOICES
    return Attention(
        *(query, key, key.clone(), 0.1, None),
        *(signature, Outputs(), "triton", choices),
    )


def latent(dim: int = 576, value_dim: int = 512) -> Attention:
    """A call of 16 heads that share one key head, whose values are a view of keys."""
    call = decoding()
    query = torch.zeros(1, 16, 1, dim, dtype=torch.bfloat16)
    key = torch.zeros(1, 1, 8192, dim, dtype=torch.bfloat16)
    return replace(call, query=query, key=key, value=key[..., :value_dim])


def in_pages(size: int, **options: Any) -> Attention:
    """The same call with keys in pages, and a length for each sequence."""
    lengths = torch.zeros(1, dtype=torch.int32)
    call = decoding(mask_mod=lambda b, h, i, j: j < lengths[b], **options)
    pool = call.key.unflatten(2, (-1, size))[0].transpose(0, 1).contiguous()
    pages = Pages(pool, pool.clone(), torch.zeros(1, len(pool), dtype=torch.int32))
    key, value = pages.in_sequence()
    return replace(call, key=key, value=value, pages=pages)


def stored(kept: torch.dtype, per: str, **options: Any) -> Attention:
    """The same call with keys and values of 8 bits."""
    call = decoding(**options)
    scale = torch.ones((1, 8, 8192) if per == "key" else (1, 8))
    key = call.key.to(kept)
    value = key.clone()
    return replace(call, key=key, value=value, scales=Scales(scale, scale))


def lower(call: Attention, target: str = "sm90") -> KernelSpec:
    rows = few_rows(call)
    assert rows is not None
    proved = call.proved_in(fold(call, rows, ())[0].compiled().split)
    build = replace(proved.build, capability=triton_kernels.CAPABILITY[target])
    with triton_kernels.vendor_of(target):
        return driver.lower(proved.module.clone(), build, TRITON)


CALLS = {
    "plain": decoding(),
    "queries": decoding(4, mask_mod=lambda b, h, i, j: j <= i + 8188),
    "many-queries": decoding(16, alibi),
    "alibi": decoding(score_mod=alibi),
    "fp32": decoding(score_mod=alibi, dtype="fp32"),
    "wide": decoding(dim=512),
    "narrow": decoding(dim=24),
    "latent": latent(),
    **{f"pages-{n}": in_pages(n) for n in (16, 64, 128)},
    "narrow-pages": in_pages(16, dim=24),
    "two-tiles-pages": in_pages(16, dim=96),
    "int8": stored(torch.int8, "head", score_mod=alibi),
    "int8-by-key": stored(torch.int8, "key", dtype="fp16"),
    "fp8": stored(torch.float8_e4m3fn, "head"),
    "fp8-by-key": stored(torch.float8_e4m3fn, "key", q_len=4),
    "e5m2": stored(torch.float8_e5m2, "head", dim=24),
}


MOST_SPILLED = {"e5m2": 16, "int8-by-key": 8, "latent": 32}
"""The bytes that calls may spill; but for "latent" only the code of Triton 3.6 does.

Triton loads rows of 24 bytes byte by byte. Wide tiles of 512 values, or with a scale
for each key, use all registers. These tiles were the fastest (docs/measurements).
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CALLS)
def test_compiles_for_sm90(name: str, tmp_path: Path) -> None:
    compiled = triton_kernels.compile_spec(lower(CALLS[name]), "sm90")
    most = MOST_SPILLED.get(name, 0)
    assert spilled_bytes(compiled.asm["ptx"], tmp_path) <= most


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "target"),
    in_turn([n for n in CALLS if not n.startswith("fp8")], ["sm80", "gfx942"]),
)
def test_compiles(name: str, target: str) -> None:
    """For GPUs that have no float8_e4m3fn."""
    assert triton_kernels.compile_spec(lower(CALLS[name], target), target).asm


@pytest.mark.parametrize(("q_len", "rows"), [(1, 16), (4, 16), (8, 32), (16, 64)])
def test_a_program_has_the_rows_of_a_group(q_len: int, rows: int) -> None:
    source = lower(decoding(q_len)).source
    assert f"tl.full([{rows}, 128], 0.0" in source
    assert source.count("tl.load(key") == 1


def test_values_in_keys_are_read_once() -> None:
    call = latent()
    source = lower(call).source
    assert source.count("tl.load(key") == 2  # 512 columns, and the remaining 64
    assert "tl.load(value" not in source
    copied = lower(replace(call, value=call.value.clone())).source
    assert copied.count("tl.load(value") == 1


@pytest.mark.parametrize("dims", [(256, 128), (576, 544)])
def test_values_that_are_no_tile_of_keys_are_read_apart(dims: tuple[int, int]) -> None:
    """The kernel is that of values elsewhere, whose tiles fit shared memory."""
    call = latent(*dims)
    source = lower(call).source
    assert source == lower(replace(call, value=call.value.clone())).source


def test_pages_of_whole_blocks_are_found_once() -> None:
    assert "tl.load(page_table + page_table_b_offset" in lower(in_pages(16)).source
    assert "tl.load(page_table + page_table_b_offset" not in lower(in_pages(64)).source


def test_which_calls_are_folded() -> None:
    assert few_rows(decoding()) == (4, 1)
    assert few_rows(decoding(16)) == (4, 16)
    assert few_rows(decoding(17)) is None
    assert few_rows(decoding(mask_mod=by_head)) == (1, 1)
    assert few_rows(decoding(schedule="triton")) == (4, 1)
    assert few_rows(decoding(schedule="overlap")) is None
    assert few_rows(decoding(block_m=64)) is None


def test_no_roles() -> None:
    found = candidates(fold(decoding(), (4, 1), ())[0].build())
    assert found.schedules == (TRITON,)
    assert "few rows wait for keys" in found.rejected[0]
