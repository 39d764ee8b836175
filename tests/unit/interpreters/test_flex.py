"""`flex.attention` against dense attention written by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from xdsl.utils.exceptions import InterpretationError

from flexc.runtime.interpreters import run_module
from tests.support.corpus_masks import causal_mask
from tests.support.reference import attention
from tests.unit.interpreters.ir import parse

CAUSAL = "%c = arith.cmpi sge, %qi, %ki : i32"
NOTHING = "%c = arith.constant false"
EVERYTHING = "%c = arith.constant true"
IDENTITY = "%r = arith.addf %s, %zero : f32"
ALIBI = """
    %m = flex.load_capture %slopes_[%h] : tensor<?xf32>, i32
    %d = arith.subi %ki, %qi : i32
    %f = arith.sitofp %d : i32 to f32
    %p = arith.mulf %m, %f : f32
    %r = arith.addf %s, %p : f32"""

TABLE_TYPES = ("tensor<?x?x?xi32>", "tensor<?x?x?x?xi32>") * 2


def module_text(
    score: str = IDENTITY,
    mask: str = EVERYTHING,
    tables: int = 0,
    facts: str = "",
    element: str = "f32",
) -> str:
    """Attention over one capture, with lse and max_scores."""
    types = TABLE_TYPES[:tables]
    params = "".join(f", %t{i} : {t}" for i, t in enumerate(types))
    group = ", ".join(f"%t{i}" for i in range(tables))
    group = f"tables({group} : {', '.join(types)})" if tables else ""
    if tables:
        facts = "sparse_block = array<i64: 4, 4>"
    data, row = f"tensor<?x?x?x?x{element}>", "tensor<?x?x?xf32>"
    return f"""
    func.func @attention(%q : {data}, %k : {data}, %v : {data}, %scale : f32,
                         %slopes : tensor<?xf32>{params}) -> ({data}, {row}, {row}) {{
      %out, %lse, %max = flex.attention %q, %k, %v : {data}, {data}, {data}
          scale(%scale : f32) captures(%slopes : tensor<?xf32>) {group}
          -> out({data}) lse({row}) max_scores({row}) {{{facts}}}
          score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32,
                    %slopes_ : tensor<?xf32>) {{
        %zero = arith.constant 0.0 : f32
        {score}
        flex.yield %r : f32
      }} mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %slopes_ : tensor<?xf32>) {{
        {mask}
        flex.yield %c : i1
      }}
      func.return %out, %lse, %max : {data}, {row}, {row}
    }}"""


def inputs(
    heads: int = 2,
    kv_heads: int = 2,
    q_len: int = 7,
    kv_len: int = 9,
    value_dim: int = 5,
) -> list[Tensor]:
    query = torch.randn(2, heads, q_len, 8)
    key = torch.randn(2, kv_heads, kv_len, 8)
    return [query, key, torch.randn(2, kv_heads, kv_len, value_dim), torch.rand(heads)]


def run(
    text: str, *args: object, compute_dtype: torch.dtype | None = None
) -> list[Tensor]:
    return run_module(parse(text), args, compute_dtype=compute_dtype)


def close(got: list[Tensor], expected: tuple[Tensor, ...]) -> None:
    for g, e in zip(got, expected, strict=True):
        torch.testing.assert_close(g.double(), e, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_causal_with_grouped_heads(kv_heads: int):
    q, k, v, slopes = inputs(heads=4, kv_heads=kv_heads)
    got = run(module_text(mask=CAUSAL), q, k, v, 0.3, slopes)
    close(got, attention(q, k, v, None, causal_mask, scale=0.3, enable_gqa=True))


def test_alibi():
    q, k, v, slopes = inputs()
    got = run(module_text(ALIBI), q, k, v, torch.tensor(0.3), slopes)

    def score_mod(s: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor):
        return s + slopes[h] * (kv_idx - q_idx)

    close(got, attention(q, k, v, score_mod, scale=0.3))


def test_rows_with_nothing():
    q, k, v, slopes = inputs()
    out, lse, maximum = run(module_text(mask=NOTHING), q, k, v, 1.0, slopes)
    assert (out == 0).all()
    assert (lse == -math.inf).all()
    assert (maximum == -math.inf).all()


def test_rows_whose_scores_are_all_minus_infinity():
    score = "%r = arith.constant 0xff800000 : f32"
    q, k, v, slopes = inputs()
    out, lse, _ = run(module_text(score), q, k, v, 1.0, slopes)
    assert (out == 0).all()
    assert (lse == -math.inf).all()


@pytest.mark.parametrize(
    ("q_len", "kv_len"), [(0, 5), (5, 0), (1, 1)], ids=["no-rows", "no-keys", "one"]
)
def test_small_lengths(q_len: int, kv_len: int):
    q, k, v, slopes = inputs(q_len=q_len, kv_len=kv_len)
    close(run(module_text(), q, k, v, 0.3, slopes), attention(q, k, v, scale=0.3))


def test_results_have_their_types_and_scores_are_wide():
    q, k, v = (a.bfloat16() for a in inputs()[:3])
    slopes = torch.rand(2)
    out, lse, maximum = run(module_text(element="bf16"), q, k, v, 0.3, slopes)
    assert [t.dtype for t in (out, lse, maximum)] == [torch.bfloat16] + [
        torch.float32
    ] * 2
    expected = attention(q, k, v, scale=0.3)
    torch.testing.assert_close(lse.double(), expected.lse, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out, expected.out.bfloat16())


def test_compute_dtype_is_what_products_are_summed_in():
    q, k, v, slopes = inputs(kv_len=64)
    got = run(module_text(), q, k, v, 0.3, slopes, compute_dtype=torch.float64)
    expected = attention(q, k, v, scale=0.3).out
    torch.testing.assert_close(got[0].double(), expected, rtol=1e-6, atol=1e-7)


def by_block(*rows: list[int]) -> tuple[Tensor, Tensor]:
    """Tables of one batch and head; entries that do not count are nonsense."""
    counts = torch.tensor([len(r) for r in rows], dtype=torch.int32)
    indices = torch.tensor(
        [[*r, *[77] * (3 - len(r))] for r in rows], dtype=torch.int32
    )
    return counts[None, None], indices[None, None]


def test_tables_of_partial_blocks():
    q, k, v, slopes = inputs(q_len=11, kv_len=10)
    tables = by_block([0], [2, 0], [])
    got = run(module_text(mask=CAUSAL, tables=2), q, k, v, 0.3, slopes, *tables)
    visible = torch.tensor([[1, 0, 0], [1, 0, 1], [0, 0, 0]]).bool()

    def mask_mod(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return visible[q_idx // 4, kv_idx // 4] & (q_idx >= kv_idx)

    close(got, attention(q, k, v, None, mask_mod, scale=0.3))


def test_full_blocks_are_not_masked():
    q, k, v, slopes = inputs(q_len=8, kv_len=12)
    tables = (*by_block([0], [1]), *by_block([1], []))
    got = run(module_text(mask=CAUSAL, tables=4), q, k, v, 0.3, slopes, *tables)

    def mask_mod(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        same_block = q_idx // 4 == kv_idx // 4
        full = (q_idx // 4 == 0) & (kv_idx // 4 == 1)
        return same_block & (q_idx >= kv_idx) | full

    close(got, attention(q, k, v, None, mask_mod, scale=0.3))


def test_tables_per_batch_and_head():
    q, k, v, slopes = inputs(q_len=4, kv_len=8)
    counts = torch.ones(2, 2, 1, dtype=torch.int32)
    indices = torch.tensor([[0, 1], [1, 0]], dtype=torch.int32).view(2, 2, 1, 1)
    got = run(module_text(tables=2), q, k, v, 0.3, slopes, counts, indices)

    def mask_mod(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return kv_idx // 4 == indices[b, h, 0, 0]

    close(got, attention(q, k, v, None, mask_mod, scale=0.3))


def test_rows_beyond_the_tables_have_nothing():
    q, k, v, slopes = inputs(q_len=8)
    tables = by_block([0, 1, 2])
    out, lse, _ = run(module_text(tables=2), q, k, v, 0.3, slopes, *tables)
    assert lse[:, :, :4].isfinite().all()
    assert (out[:, :, 4:] == 0).all()


def test_a_false_fact_is_an_error():
    q, k, v, slopes = inputs(q_len=7)
    text = module_text(facts="q_len_multiple = 4 : i32")
    with pytest.raises(InterpretationError, match="expects a multiple of 4, got 7"):
        run(text, q, k, v, 0.3, slopes)


@pytest.mark.parametrize(
    ("position", "wrong", "message"),
    [
        (0, torch.randn(2, 2, 7), "expected a tensor of type"),
        (1, torch.randn(2, 2, 9, 8, dtype=torch.float64), "got one of torch.float64"),
        (3, torch.ones(3), "expected a number"),
    ],
)
def test_arguments_of_the_wrong_type(position: int, wrong: Tensor, message: str):
    q, k, v, slopes = inputs()
    args: list[object] = [q, k, v, 0.3, slopes]
    args[position] = wrong
    with pytest.raises(InterpretationError, match=message):
        run(module_text(), *args)


def test_arguments_missing():
    with pytest.raises(InterpretationError, match="expected 5 arguments, got 3"):
        run(module_text(), *inputs()[:3])
