"""Sums by row and by column of one visit to each pair, in C++: in any number of parts,
and gradients that are made of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

import flexc
from flexc.dialects.flex import SumKind
from flexc.passes import pipelines
from flexc.passes.flex.convert_flex_to_blocksparse import ConvertFlexToBlocksparsePass
from flexc.passes.targets.target import MachineName
from flexc.runtime.autograd import gradient_programs as programs
from flexc.runtime.autograd.captured_places import MAX_BYTES, chunks_for
from flexc.runtime.autograd.gradient_programs import parts_for
from flexc.runtime.interpreters import run_module
from flexc.runtime.kernels.kernel import Kernel
from tests.codegen.cpp_kernels import parse, run_passes
from tests.support.dense_gradients import attention
from tests.support.pairwise import in_turn
from tests.support.threads import torch_threads

DIMS_AND_MACHINES = pytest.mark.parametrize(
    ("dim", "machine"), in_turn([8, 32, 40], ["avx2", "portable"])
)


def text(dim: int) -> str:
    """Pairs with a lower key, and what they are worth: more beyond the last row."""
    matrix, sums = f"tensor<?x?x?x{dim}xf32>", f"tensor<?x?x?x?x{dim}xf32>"
    indices = "%b : i32, %h : i32, %qi : i32, %ki : i32"
    return f"""
func.func @attention_backward(%q : {matrix}, %k : {matrix}, %d : tensor<?x?x?xf32>,
                              %scale : f32) -> ({matrix}, {sums}, tensor<?x?x?xf32>) {{
  %dq, %dk, %rows = flex.pair_sums rows(%q : {matrix}) columns(%k : {matrix})
      row_values(%d : tensor<?x?x?xf32>) scale(%scale : f32)
      -> {matrix}, {sums}, tensor<?x?x?xf32>
      {{products = [array<i32: 0, 0>],
        sums = [#flex.sum<matrix [[0, 0]] scaled>,
                #flex.sum<column_matrix [[0, 0], [1, 0]] scaled>,
                #flex.sum<total [[1]]>]}}
      pairs(%qk : f32, %s : f32, %d_ : f32, {indices}) {{
    %one = arith.constant 1.0 : f32
    %inverse = arith.divf %one, %d_ : f32
    %w = arith.addf %qk, %inverse : f32
    %place = arith.subi %qi, %h : i32
    %x = arith.sitofp %place : i32 to f32
    flex.yield %w, %x : f32, f32
  }} mask_mod({indices}) {{
    %c = arith.cmpi sge, %qi, %ki : i32
    flex.yield %c : i1
  }}
  func.return %dq, %dk, %rows : {matrix}, {sums}, tensor<?x?x?xf32>
}}
"""


def text_of_made_rows(dim: int) -> str:
    """The rows and their values are made of what the function is given."""
    matrix, rows = f"tensor<?x?x?x{dim}xf32>", "tensor<?x?x?xf32>"
    given = text(dim).replace(
        f"%d : {rows},\n", f"%out : {matrix}, %lse : {rows}, %rest : {rows},\n"
    )
    makers = f"""
  %made = flex.map_rows values(%q, %lse, %rest : {matrix}, {rows}, {rows}) -> {matrix}
      code(%x : f32, %l : f32, %r : f32) {{
    %none = arith.constant 0xFF800000 : f32
    %is_empty = arith.cmpf oeq, %l, %none : f32
    %zero = arith.constant 0.0 : f32
    %weight = math.exp2 %r : f32
    %weighed = arith.mulf %x, %weight : f32
    %y = arith.select %is_empty, %zero, %weighed : f32
    flex.yield %y : f32
  }}
  %d = flex.map_rows lhs(%made : {matrix}) rhs(%out : {matrix}) values(%rest : {rows})
      -> {rows} code(%dot : f32, %r : f32) {{
    %y = arith.subf %dot, %r : f32
    flex.yield %y : f32
  }}
  %dq, %dk, %rows = flex.pair_sums rows(%made : {matrix})"""
    given = given.replace(
        f"\n  %dq, %dk, %rows = flex.pair_sums rows(%q : {matrix})", makers
    )
    return given.replace("arith.divf %one", "arith.addf %one")


def kernel_of(text: str, machine: MachineName) -> Kernel:
    ctx, module = parse(text)
    passes = (
        *pipelines.to_blocksparse(ConvertFlexToBlocksparsePass("cpp")),
        *pipelines.to_tile("cpp"),
        *pipelines.to_cpp(machine),
    )
    return Kernel(run_passes(ctx, module, passes))


SIDES = (
    ((1, 1, 70), (1, 1, 75)),
    ((2, 4, 33), (2, 2, 130)),
    ((3, 6, 130), (1, 2, 20)),
)
"""Batches, heads and rows of the query's side and of the key's."""


def whole_numbers(*shape: int) -> Tensor:
    """Whose products and sums are exact."""
    return torch.randint(-2, 3, shape).float()


@DIMS_AND_MACHINES
def test_parts_are_exact_sums(dim: int, machine: MachineName) -> None:
    """Of heads and batches that share keys, ragged blocks, and as many parts as there
    may be. Rows beyond the last would be worth infinity."""
    kernel = kernel_of(text(dim), machine)
    for (batch, heads, q_len), (kv_batch, kv_heads, kv_len) in SIDES:
        q = whole_numbers(batch, heads, q_len, dim)
        k = whole_numbers(kv_batch, kv_heads, kv_len, dim)
        d = 2.0 ** whole_numbers(batch, heads, q_len)
        want = run_module(parse(text(dim))[1], [q, k, d, 0.5])
        for parts in range(1, 6):
            rows, totals = torch.full_like(q, torch.nan), torch.full_like(d, torch.nan)
            sums = torch.zeros(parts, *k.shape)
            kernel.run(parts, kv_batch, kv_heads, [q, k, d, 0.5, rows, sums, totals])
            for got, exact in zip((rows, sums.sum(0), totals), want, strict=True):
                assert torch.equal(got, exact.reshape(got.shape))


@DIMS_AND_MACHINES
def test_programs_make_their_rows(dim: int, machine: MachineName) -> None:
    """Of matrices and vectors, once for each part: no others are stored."""
    kernel = kernel_of(text_of_made_rows(dim), machine)
    for (batch, heads, q_len), (kv_batch, kv_heads, kv_len) in SIDES:
        q, out = (whole_numbers(batch, heads, q_len, dim) for _ in range(2))
        k = whole_numbers(kv_batch, kv_heads, kv_len, dim)
        rest = torch.zeros(batch, heads, q_len)
        # Of a row without pairs nothing counts.
        lse = torch.where(rest.bernoulli(0.3) > 0, -torch.inf, rest)
        given = [q, k, out, lse, rest, 0.5]
        want = run_module(parse(text_of_made_rows(dim))[1], given)
        for parts in (1, 2, 5):
            rows, totals = (
                torch.full_like(q, torch.nan),
                torch.full_like(rest, torch.nan),
            )
            sums = torch.zeros(parts, *k.shape)
            kernel.run(parts, kv_batch, kv_heads, [*given, rows, sums, totals])
            for got, exact in zip((rows, sums.sum(0), totals), want, strict=True):
                assert torch.equal(got, exact.reshape(got.shape))


def test_threads_have_work() -> None:
    """Whatever the heads, and no more parts than that takes."""
    for heads, threads in product(range(1, 70), range(1, 33)):
        parts = parts_for(heads, threads)
        programs = heads * parts
        assert programs >= threads
        assert parts == 1 or programs <= max(3 * threads, heads + threads)
    assert [parts_for(h, 2) for h in (1, 2, 3, 8, 9)] == [2, 1, 2, 1, 1]
    assert parts_for(0, 4) >= 1


@dataclass(frozen=True)
class Call:
    """Inputs of attention, as they are given."""

    heads: int
    kv_heads: int
    kv_batch: int
    q_len: int
    kv_len: int
    dtype: torch.dtype = torch.float32

    def inputs(self) -> list[Tensor]:
        generator = torch.Generator().manual_seed(0)
        shapes = (
            (2, self.heads, self.q_len, 24),
            *[(self.kv_batch, self.kv_heads, self.kv_len, 24)] * 2,
            (2, self.heads, self.q_len, 24),
        )
        drawn = (torch.randn(s, generator=generator) for s in shapes)
        return [t.to(self.dtype) for t in drawn]


CALLS = [
    Call(2, 2, 2, 70, 75),
    Call(4, 2, 2, 130, 33),
    Call(6, 1, 1, 65, 140),
    Call(4, 2, 1, 67, 100, torch.bfloat16),
]
MASKS = {
    "none": None,
    "causal": lambda b, h, q, k: q >= k,
    "window": lambda b, h, q, k: (q >= k) & (q - k < 20),
    "some rows are empty": lambda b, h, q, k: (q % 3 > 0) & (q + h > k),
}


def gradients(call: Call, mask: Any, threads: int) -> list[Tensor]:
    *inputs, d_out = call.inputs()
    inputs = [t.requires_grad_() for t in inputs]
    with torch_threads(threads):
        out = flexc.flex_attention(
            *inputs, score_mod=bias, mask_mod=mask, enable_gqa=True
        )
        assert isinstance(out, Tensor)
        return list(torch.autograd.grad(out, inputs, d_out))


def bias(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return score + 0.1 * (k - q)


def exact(call: Call, mask: Any) -> list[Tensor]:
    *inputs, d_out = (t.double() for t in call.inputs())
    query, key, value = (t.requires_grad_() for t in inputs)
    out = attention(query, key, value, bias, mask).out
    return list(torch.autograd.grad(out, [query, key, value], d_out))


@pytest.mark.parametrize(("call", "mask"), in_turn(CALLS, list(MASKS)))
def test_gradients(call: Call, mask: str) -> None:
    want = exact(call, MASKS[mask])
    for threads in (1, 2, 5):
        got = gradients(call, MASKS[mask], threads)
        for a, b in zip(got, want, strict=True):
            assert a.dtype == call.dtype
            assert (a - b).abs().max() <= TOLERANCE[call.dtype] * b.abs().max()


TOLERANCE = {torch.float32: 2.0**-18, torch.bfloat16: 2.0**-6}


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_bits_are_the_same_at_every_run(threads: int) -> None:
    call = Call(2, 1, 1, 200, 150)
    first = gradients(call, MASKS["causal"], threads)
    for _ in range(3):
        again = gradients(call, MASKS["causal"], threads)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> list[list[SumKind]]:
    """What kernels are launched for."""
    found: list[list[SumKind]] = []
    run = programs.ProgramLaunch.run

    def noting(launch: programs.ProgramLaunch, *args: Any) -> list[Tensor | None]:
        found.append([r.kind for r in launch.results])
        return run(launch, *args)

    monkeypatch.setattr(programs.ProgramLaunch, "run", noting)
    return found


def test_pairs_are_visited_once(kinds: list[list[SumKind]]) -> None:
    """One kernel for query, key and value, and for what these need of rows."""
    gradients(CALLS[0], None, 1)
    by_column = SumKind.COLUMN_MATRIX
    assert kinds == [[SumKind.MATRIX, by_column, by_column]]


@dataclass
class Learned:
    """A bias by distance, by pair and by pair through a table, twice."""

    heads: int
    q_len: int
    kv_len: int

    def __post_init__(self) -> None:
        self.near = torch.randn(self.heads, self.q_len + self.kv_len)
        self.table = torch.randn(7, self.heads)
        self.pair = torch.randn(self.q_len, self.kv_len)
        self.kinds = torch.randint(0, 7, (2, self.q_len, self.kv_len))
        for tensor in self.tensors:
            tensor.requires_grad_()

    @property
    def tensors(self) -> list[Tensor]:
        return [self.near, self.table, self.pair]

    def __call__(self, s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        bias = self.table[self.kinds[0, q, k], h] - self.table[self.kinds[1, q, k], h]
        return s + self.near[h, q - k + self.kv_len] + self.pair[q, k] + bias


def learned_gradients(
    call: Call, bias: Learned, mask: Any, backend: str, wants_keys: bool = True
) -> list[Tensor]:
    *inputs, d_out = call.inputs()
    wanted = inputs if wants_keys else inputs[:1]
    for tensor in wanted:
        tensor.requires_grad_()
    out = flexc.flex_attention(
        *inputs, score_mod=bias, mask_mod=mask, enable_gqa=True, backend=backend
    )
    assert isinstance(out, Tensor)
    return list(torch.autograd.grad(out, [*wanted, *bias.tensors], d_out))


@pytest.mark.parametrize(("mask", "wants_keys"), in_turn(list(MASKS), [True, False]))
def test_captured_reads_take_no_visit_of_their_own(
    mask: str,
    wants_keys: bool,
    kinds: list[list[SumKind]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Equal adjoints are summed once. What is made of some rows at a time adds up."""
    call = Call(4, 2, 2, 300, 140)
    bias = Learned(4, call.q_len, call.kv_len)
    want = learned_gradients(call, bias, MASKS[mask], "eager", wants_keys)
    by_column = [SumKind.COLUMN_MATRIX] * 2 if wants_keys else []
    pairs = [SumKind.PAIRS] * 2  # One is the negative of the other.
    once = [SumKind.MATRIX, *by_column, SumKind.DIAGONAL, *pairs]
    for most in (MAX_BYTES, 1):
        few = partial(chunks_for, max_bytes=most)
        monkeypatch.setattr(programs, "chunks_for", few)
        kinds.clear()
        got = learned_gradients(call, bias, MASKS[mask], "cpp", wants_keys)
        assert [sorted(k) for k in kinds] == [sorted(once)]
        for a, b in zip(got, want, strict=True):
            assert (a - b).abs().max() <= 2.0**-17 * b.abs().max()
