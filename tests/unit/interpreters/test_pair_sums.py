"""Sums over pairs, and what is done with them, against loops over pairs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from xdsl.utils.exceptions import InterpretationError

from flexc.runtime.interpreters import run_module
from tests.unit.interpreters.ir import parse

M, R, P = (f"tensor<{'?x' * n}f64>" for n in (4, 3, 4))
D = "tensor<?x?x?x3xf64>"
INDICES = "%b : i32, %h : i32, %qi : i32, %ki : i32"
BATCH, HEADS, KV_HEADS, Q_LEN, KV_LEN = 2, 4, 2, 5, 6
ZERO, ENTRIES = 256, 384
"""Which entry of diagonals is that of equal positions, and how many there are."""


def sums_module(
    kind: str, result: str, transposed: bool = False, facts: str = "", first: str = ""
) -> str:
    """w = qk * scale + qk2 + value of the query's row + h; causal."""
    rows, columns = ("%k, %k2", "%q, %q2") if transposed else ("%q, %q2", "%k, %k2")
    side = "column" if transposed else "row"
    flags = f"{', transposed' if transposed else ''}{facts}"
    return f"""
func.func @attention_backward(%q : {D}, %k : {D}, %q2 : {D}, %k2 : {D}, %x : {R},
                              %i : i32, %scale : f64) -> {result} {{
  %r = flex.pair_sums rows({rows} : {D}, {D}) columns({columns} : {D}, {D})
      {side}_values(%x : {R}) {first} scale(%scale : f64) -> {result}
      {{products = [array<i32: 0, 0>, array<i32: 1, 1>], sums = [{kind}]{flags}}}
      pairs(%qk : f64, %qk2 : f64, %s : f64, %v : f64, {INDICES}) {{
    %a = arith.mulf %qk, %s : f64
    %c = arith.addf %a, %qk2 : f64
    %d = arith.addf %c, %v : f64
    %e = arith.sitofp %h : i32 to f64
    %w = arith.addf %d, %e : f64
    flex.yield %w, %qk : f64, f64
  }} mask_mod({INDICES}) {{
    %live = arith.cmpi sge, %qi, %ki : i32
    flex.yield %live : i1
  }}
  func.return %r : {result}
}}
"""


def args(kv_batch: int = BATCH) -> list[Any]:
    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64)

    q, q2 = (normal(BATCH, HEADS, Q_LEN, 3) for _ in range(2))
    k, k2 = (normal(kv_batch, KV_HEADS, KV_LEN, 3) for _ in range(2))
    return [q, k, q2, k2, normal(BATCH, HEADS, Q_LEN), 0, 0.5]


def loops(given: list[Any], add: Callable[..., None]) -> None:
    """Call `add` with b, h, kv_b, kv_h, i, j, w and qk of each live pair."""
    q, k, q2, k2, x, _, scale = given
    for b, h, i, j in product(*map(range, (BATCH, HEADS, Q_LEN, KV_LEN))):
        if i < j:
            continue
        kv_b, kv_h = min(b, len(k) - 1), h // (HEADS // KV_HEADS)
        qk = q[b, h, i] @ k[kv_b, kv_h, j]
        w = qk * scale + q2[b, h, i] @ k2[kv_b, kv_h, j] + x[b, h, i] + h
        add(b, h, kv_b, kv_h, i, j, w, qk)


def run(text: str, given: list[Any]) -> Tensor:
    (result,) = run_module(parse(text), given)
    return result


def test_matrices_of_queries_and_totals():
    given = args()
    matrix = torch.zeros(BATCH, HEADS, Q_LEN, 3, dtype=torch.float64)
    total = torch.zeros(BATCH, HEADS, Q_LEN, dtype=torch.float64)

    def add(b, h, kv_b, kv_h, i, j, w, qk):
        matrix[b, h, i] += 0.5 * (w * given[1][kv_b, kv_h, j])
        matrix[b, h, i] += 0.5 * (qk * given[3][kv_b, kv_h, j])
        total[b, h, i] += w + qk

    loops(given, add)
    text = sums_module("#flex.sum<matrix [[0, 0], [1, 1]] scaled>", D)
    torch.testing.assert_close(run(text, given), matrix)
    text = sums_module("#flex.sum<total [[0], [1]]>", R)
    torch.testing.assert_close(run(text, given), total)


@pytest.mark.parametrize("kv_batch", [1, BATCH])
def test_matrices_of_keys_add_up_over_what_shares_them(kv_batch: int):
    given = args(kv_batch)
    matrix = torch.zeros(kv_batch, KV_HEADS, KV_LEN, 3, dtype=torch.float64)

    def add(b, h, kv_b, kv_h, i, j, w, qk):
        matrix[kv_b, kv_h, j] += w * given[2][b, h, i]

    loops(given, add)
    text = sums_module("#flex.sum<matrix [[0, 1]]>", D, transposed=True)
    torch.testing.assert_close(run(text, given), matrix)


def test_sums_of_keys_are_of_each_query_head():
    given = args()
    total = torch.zeros(BATCH, HEADS, KV_LEN, dtype=torch.float64)
    pairs = torch.zeros(BATCH, HEADS, KV_LEN, Q_LEN, dtype=torch.float64)

    def add(b, h, kv_b, kv_h, i, j, w, qk):
        total[b, h, j] += w
        pairs[b, h, j, i] = w

    loops(given, add)
    text = sums_module("#flex.sum<total [[0]]>", R, transposed=True)
    torch.testing.assert_close(run(text, given), total)
    text = sums_module("#flex.sum<pairs [[0]]>", P, transposed=True)
    torch.testing.assert_close(run(text, given), pairs)


@pytest.mark.parametrize("start", [0, 2])
def test_diagonals_and_pairs_from_a_row_on(start: int):
    given = args()
    given[5] = start
    diagonals = torch.zeros(BATCH, HEADS, 1, ENTRIES, dtype=torch.float64)
    pairs = torch.zeros(BATCH, HEADS, Q_LEN, KV_LEN, dtype=torch.float64)
    # A head or batch to start at would leave others out: those are whole here.
    first = "tile_origin(%zero, %zero, %i : i32, i32, i32)"
    zero = "%zero = arith.constant 0 : i32\n  %r ="

    def add(b, h, kv_b, kv_h, i, j, w, qk):
        pairs[b, h, i, j] = w
        if i >= start:
            diagonals[b, h, 0, i - j + ZERO] += w

    loops(given, add)
    text = sums_module("#flex.sum<pairs [[0]]>", P, first=first)
    got = run(text.replace("%r =", zero, 1), given)
    torch.testing.assert_close(got, pairs[:, :, start:])
    text = sums_module("#flex.sum<diagonal [[0]]>", P, first=first)
    torch.testing.assert_close(run(text.replace("%r =", zero, 1), given), diagonals)


def test_a_sum_of_nothing_is_zero():
    given = args()
    assert (run(sums_module("#flex.sum<matrix []>", D), given) == 0).all()


def test_facts_are_checked():
    text = sums_module("#flex.sum<total [[0]]>", R, facts=", paired_heads")
    with pytest.raises(InterpretationError, match="as many heads on both"):
        run(text, args())
    text = sums_module("#flex.sum<total [[0]]>", R, facts=", kv_len_multiple = 4")
    with pytest.raises(InterpretationError, match="multiple of 4, got 6"):
        run(text, args())


def test_rows_are_mapped():
    text = f"""
func.func @attention_backward(%q : {D}, %k : {D}, %x : {R}, %scale : f64) -> {D} {{
  %d, %z, %r = flex.map_rows lhs(%q, %q : {D}, {D}) rhs(%k, %q : {D}, {D})
      values(%k, %x, %scale : {D}, {R}, f64) -> {R}, tensor<?x?x?x7xf64>, {D}
      code(%dot : f64, %e : f64, %x_ : f64, %s : f64) {{
    %a = arith.mulf %x_, %s : f64
    %b = arith.addf %dot, %a : f64
    %c = arith.subf %b, %e : f64
    %zero = arith.constant 0.0 : f64
    flex.yield %b, %zero, %c : f64, f64, f64
  }}
  func.return %RESULT
}}"""
    q, k = (torch.randn(2, 4, 5, 3, dtype=torch.float64) for _ in range(2))
    x = torch.randn(2, 4, 5, dtype=torch.float64)
    numbers = (q * (k + q)).sum(-1) + 0.5 * x
    zeros = torch.zeros(2, 4, 5, 7, dtype=torch.float64)
    wanted = {
        f"%d : {R}": numbers,
        "%z : tensor<?x?x?x7xf64>": zeros,
        f"%r : {D}": numbers[..., None] - k,
    }
    for result, want in wanted.items():
        type_ = result.partition(" : ")[2]
        module = text.replace(f"-> {D} {{", f"-> {type_} {{", 1)
        got = run(module.replace("%RESULT", result), [q, k, x, 0.5])
        torch.testing.assert_close(got, want)


def scatter_module(by: str, sums: str, index: str, plus: str = "") -> str:
    return f"""
func.func @attention_backward(%q : {D}, %k : {D}, %sums : {sums},
                              %t : tensor<?xf64>) -> tensor<?xf64> {{
  %r = flex.scatter_sums {by} %sums, %t : {sums}, tensor<?xf64>
      captures(%t : tensor<?xf64>) {plus} index({INDICES}, %t_ : tensor<?xf64>) {{
    {index}
    flex.yield %at : i32
  }}
  func.return %r : tensor<?xf64>
}}"""


def matrices() -> list[Tensor]:
    return args()[:2]


def test_sums_go_where_they_were_read():
    sums = torch.randn(BATCH, HEADS, 3, ENTRIES, dtype=torch.float64)
    sums[..., : ZERO - KV_LEN + 1] = sums[..., ZERO + Q_LEN :] = 0
    before = torch.randn(4, dtype=torch.float64)
    want = before.clone()
    for distance in range(4):  # negative ones, and 4, are out of range
        want[distance] += sums[..., ZERO + distance].sum()
    text = scatter_module(
        "distance", P, "%at = arith.subi %qi, %ki : i32", "plus(%t : tensor<?xf64>)"
    )
    torch.testing.assert_close(run(text, [*matrices(), sums, before]), want)


def test_sums_of_no_pair_are_an_error():
    sums = torch.ones(BATCH, HEADS, 1, ENTRIES, dtype=torch.float64)
    text = scatter_module("distance", P, "%at = arith.subi %qi, %ki : i32")
    with pytest.raises(InterpretationError, match="sums of no pair"):
        run(text, [*matrices(), sums, torch.zeros(4, dtype=torch.float64)])


@pytest.mark.parametrize(
    ("by", "index"),
    [
        ("row", "%at = arith.addi %qi, %ki : i32"),
        ("head", "%at = arith.addi %h, %qi : i32"),
    ],
)
def test_an_index_that_varies_within_a_sum_is_an_error(by: str, index: str):
    sums = torch.ones(BATCH, HEADS, Q_LEN, dtype=torch.float64)
    with pytest.raises(InterpretationError, match=f"wherever sums are by {by}"):
        run(
            scatter_module(by, R, index),
            [*matrices(), sums, torch.zeros(4, dtype=torch.float64)],
        )
