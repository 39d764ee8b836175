"""Biases by distance are read along diagonals, and mean what they did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, UnitAttr, i64

from flexc.dialects import tile
from flexc.dialects.flex import AttentionOp
from flexc.passes import pipelines
from flexc.passes.flex.convert_flex_to_blocksparse import ConvertFlexToBlocksparsePass
from flexc.passes.targets.target import LoweringOptions
from flexc.runtime.interpreters import run_module
from tests.support.corpus_masks import causal_mask
from tests.support.flex_modules import make_call, make_module
from tests.support.reference import attention

Mod = Callable[..., Tensor]


@dataclass(frozen=True)
class Call:
    """A call with a bias by distance whose table has just the elements it needs."""

    bias: str
    q_len: int = 200
    kv_len: int = 130
    heads: int = 2
    masked: bool = False
    dtype: torch.dtype = torch.float32
    trusted: bool = True
    whole: bool = False
    """True if the lengths are known to be whole blocks, so that no index is clamped."""

    def score_mod(self) -> Mod:
        draw = torch.Generator().manual_seed(self.q_len)
        distances = self.q_len + self.kv_len - 1
        table = torch.randn(self.heads, distances, generator=draw)
        if self.dtype == torch.int32:
            table = table * 4
        return BIASES[self.bias](table.to(self.dtype), self.q_len, self.kv_len)

    def module(self) -> tuple[ModuleOp, list[Any], Tensor]:
        """The `flex` module, its arguments, and what it computes."""
        draw = torch.Generator().manual_seed(1)
        heads = (self.heads, 1, 1)
        lengths = (self.q_len, self.kv_len, self.kv_len)
        query, key, value = (
            torch.randn(1, h, n, 16, generator=draw).to(torch.float16)
            for h, n in zip(heads, lengths, strict=True)
        )
        score_mod, mask_mod = self.score_mod(), causal_mask if self.masked else None
        call = make_call((query, key, value), score_mod, mask_mod, 0.25)
        module, args = make_module(call)
        op = next(o for o in module.walk() if isinstance(o, AttentionOp))
        if self.trusted:
            op.captures_inside = op.indices_fit = op.has_pairs = UnitAttr()
        if self.whole:
            op.q_len_multiple = op.kv_len_multiple = IntegerAttr(64, i64)
        exact = attention(
            query, key, value, score_mod, mask_mod, scale=0.25, enable_gqa=True
        )
        return module, args, exact.out


def relative(table: Tensor, q_len: int, kv_len: int) -> Mod:
    return lambda s, b, h, q, k: s + table[h, q - k + kv_len - 1]


def backward(table: Tensor, q_len: int, kv_len: int) -> Mod:
    return lambda s, b, h, q, k: s + table[h, k - q + q_len - 1] * 0.5


def shared(table: Tensor, q_len: int, kv_len: int) -> Mod:
    row = table[0].clone()
    return lambda s, b, h, q, k: s + row[(q + kv_len) - (k + 1)]


def absolute(table: Tensor, q_len: int, kv_len: int) -> Mod:
    return lambda s, b, h, q, k: s + table[h, (q - k).abs()]


def halves(table: Tensor, q_len: int, kv_len: int) -> Mod:
    return lambda s, b, h, q, k: s + table[h, (q - k + kv_len - 1) // 2]


def strided(table: Tensor, q_len: int, kv_len: int) -> Mod:
    columns = table.T.contiguous()
    return lambda s, b, h, q, k: s + columns[q - k + kv_len - 1, h]


def pairs(table: Tensor, q_len: int, kv_len: int) -> Mod:
    matrix = torch.randn(q_len, kv_len).to(table.dtype)
    return lambda s, b, h, q, k: s + matrix[q, k]


def wrapped(table: Tensor, q_len: int, kv_len: int) -> Mod:
    """The sum wraps around at key 40; half of the difference says so."""
    large = torch.tensor(2**31 - 40, dtype=torch.int32)

    def mod(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        overflow = ((k.to(torch.int32) + large).to(torch.int64) - k) >> 33
        return s + table[h, q - k + kv_len - 1 - overflow]

    return mod


BIASES = {
    f.__name__: f
    for f in (relative, backward, shared, absolute, halves, strided, pairs, wrapped)
}
DIAGONAL = ("relative", "backward", "shared")


def scheduled(call: Call) -> tuple[ModuleOp, int]:
    """Check a call's kernel before and after its passes; it, and its reads."""
    module, args, exact = call.module()
    convert = replace(ConvertFlexToBlocksparsePass("gluon"), block_m=128, block_n=64)
    passes = (*pipelines.to_blocksparse(convert), *pipelines.to_tile("gluon"))
    pipelines.run(passes, Context(), module)
    close(run_module(module, args)[0], exact)
    found = 0
    for each in pipelines.to_schedule(LoweringOptions(reads="in_place")):
        each.apply(Context(), module)
        if each.name == "tile-read-diagonals":
            module.verify()
            found = reads(module, tile.ReadDiagonalsOp)
            # What does not count is NaN.
            close(run_module(module, args)[0], exact)
    module.verify()
    close(run_module(module, args)[0], exact)
    return module, found


def close(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got.double(), wanted.double(), atol=4e-3, rtol=4e-3)


def reads(module: ModuleOp, kind: type[Any]) -> int:
    return sum(isinstance(op, kind) for op in module.walk())


@pytest.mark.parametrize("bias", BIASES)
def test_which_are_read_along_diagonals(bias: str) -> None:
    _, found = scheduled(Call(bias))
    assert found == (bias in DIAGONAL)


def test_numbers_that_differ_in_their_upper_half() -> None:
    """Their lower half is the same for all columns."""
    _, found = scheduled(Call("wrapped", 256, 192, whole=True))
    assert found == 0


def test_reads_with_guards_stay() -> None:
    """Nothing says that they are inside."""
    _, found = scheduled(Call("relative", trusted=False))
    assert found == 0


def test_what_is_read_before_the_first_block_and_in_the_loop() -> None:
    module, _ = scheduled(Call("relative", masked=True))
    assert reads(module, tile.ReadDiagonalsOp) == 2
    assert reads(module, tile.ReadOp) == 0


@settings(max_examples=settings().max_examples // 2)
@given(
    st.sampled_from(DIAGONAL),
    st.integers(1, 300),
    st.integers(1, 200),
    st.booleans(),
    st.sampled_from((torch.float32, torch.bfloat16, torch.float16, torch.int32)),
)
def test_any_lengths(
    bias: str, q_len: int, kv_len: int, masked: bool, dtype: torch.dtype
) -> None:
    """The interpreter raises where a table is read outside."""
    _, found = scheduled(Call(bias, q_len, kv_len, 2, masked, dtype))
    assert found == 1
