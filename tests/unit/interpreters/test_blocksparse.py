"""`blocksparse.attention`: which pairs its segments visit."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from xdsl.utils.exceptions import InterpretationError

from flexc.runtime.interpreters import run_module
from tests.support.reference import attention
from tests.unit.interpreters.ir import parse

DATA, ROW = "tensor<?x?x?x?xf32>", "tensor<?x?x?xf32>"
NUM, INDEX = "tensor<?x?x?xi32>", "tensor<?x?x?x?xi32>"
CAUSAL = """mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c = arith.cmpi sge, %qi, %ki : i32
    flex.yield %c : i1
}"""
TABLES_ = f", %num_ : {NUM}, %idx_ : {INDEX}"
BLOCK_M, BLOCK_N = 4, 8


def segment(
    kind: str,
    begin: int | None = 0,
    end: int | None = 0,
    mask: str = "",
    start: str = "%start = arith.muli %i, %n : i32",
    inside: bool = False,
    tables: str = "",
    code: str = "",
) -> str:
    """A segment of iterations begin..end, which `code` may define instead."""
    bounds = "".join(
        f"%{name} = arith.constant {value} : i32\n"
        for name, value in (("begin", begin), ("end", end))
        if value is not None
    )
    facts = " {inside}" if inside else ""
    return f"""
    blocksparse.segment {kind}{facts}
        bounds(%b : i32, %h : i32, %q_start : i32, %q_len : i32, %kv_len : i32{tables})
    {{
      %n = arith.constant {BLOCK_N} : i32
      {bounds}
      {code}
      flex.yield %begin, %end : i32, i32
    }} block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32,
             %kv_len : i32{tables}) {{
      %n = arith.constant {BLOCK_N} : i32
      {start}
      flex.yield %start : i32
    }} {mask}"""


def run(segments: list[str], args: list[Tensor], tables: bool = False) -> list[Tensor]:
    params = f", %num : {NUM}, %idx : {INDEX}" if tables else ""
    group = f"tables(%num, %idx : {NUM}, {INDEX})" if tables else ""
    text = f"""
    func.func @attention(%q : {DATA}, %k : {DATA}, %v : {DATA}, %scale : f32{params})
        -> ({DATA}, {ROW}) {{
      %out, %lse = blocksparse.attention %q, %k, %v : {DATA}, {DATA}, {DATA}
          scale(%scale : f32) {group} -> out({DATA}) lse({ROW})
          {{block_m = {BLOCK_M} : i32, block_n = {BLOCK_N} : i32}}
          score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {{
        flex.yield %s : f32
      }} segments {{
        {"".join(segments)}
      }}
      func.return %out, %lse : {DATA}, {ROW}
    }}"""
    q, k, v, *rest = args
    return run_module(parse(text), [q, k, v, 0.3, *rest])


def inputs(q_len: int = 11, kv_len: int = 20) -> list[Tensor]:
    q = torch.randn(2, 4, q_len, 8)
    return [q, torch.randn(2, 2, kv_len, 8), torch.randn(2, 2, kv_len, 8)]


def visible(mask: Tensor, args: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Dense attention under a mask of (h, q_idx, kv_idx)."""

    def mask_mod(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return mask[h, q_idx, kv_idx]

    q, k, v = args
    expected = attention(q, k, v, None, mask_mod, scale=0.3, enable_gqa=True)
    return expected.out, expected.lse


def close(got: list[Tensor], expected: tuple[Tensor, ...]) -> None:
    for g, e in zip(got, expected, strict=True):
        torch.testing.assert_close(g.double(), e, rtol=1e-5, atol=1e-5)


def causal(q_len: int = 11, kv_len: int = 20) -> Tensor:
    return torch.ones(4, q_len, kv_len).tril().bool()


def test_one_masked_segment_over_all_keys():
    args = inputs()
    close(run([segment("partial", 0, 3, CAUSAL)], args), visible(causal(), args))


def test_a_block_that_sticks_out_is_cut_whatever_its_kind():
    args = inputs()
    everything = torch.ones(4, 11, 20).bool()
    close(run([segment("full", 0, 3)], args), visible(everything, args))
    close(run([segment("partial", 0, 4)], args), visible(everything, args))


def test_full_and_partial_segments_of_a_causal_mask():
    args = inputs()
    whole = segment(
        "full", 0, None, inside=True, code="%end = arith.divsi %q_start, %n : i32"
    )
    diagonal = segment(
        "partial",
        None,
        None,
        CAUSAL,
        code="""%begin = arith.divsi %q_start, %n : i32
        %m = arith.constant 11 : i32
        %last = arith.addi %q_start, %m : i32
        %end = arith.divsi %last, %n : i32""",
    )
    close(run([whole, diagonal], args), visible(causal(), args))


def test_bounds_per_head_and_nothing_at_all():
    # Heads 0 and 1 visit so many blocks; the end of head 3 lies before its begin.
    args = inputs()
    code = "%one = arith.constant 1 : i32\n%two = arith.constant 2 : i32\n"
    code += "%x = arith.subi %two, %h : i32\n%end = arith.muli %x, %one : i32"
    out, lse = run([segment("full", 0, None, code=code)], args)
    mask = torch.zeros(4, 11, 20).bool()
    mask[0, :, :16] = True
    mask[1, :, :8] = True
    close([out, lse], visible(mask, args))
    assert (lse[:, 2:] == -math.inf).all()


def test_blocks_from_tables():
    args = inputs()
    num = torch.tensor([2, 0, 1], dtype=torch.int32).view(1, 1, 3).expand(2, 4, 3)
    idx = torch.tensor([[2, 0], [9, 9], [1, 9]], dtype=torch.int32)
    row = f"""%m = arith.constant {BLOCK_M} : i32
        %row = arith.divsi %q_start, %m : i32"""
    types = f"{INDEX}, i32, i32, i32, i32"
    listed = segment(
        "full",
        0,
        None,
        tables=TABLES_,
        code=f"""{row}
        %end = flex.load_capture %num_[%b, %h, %row] : {NUM}, i32, i32, i32""",
        start=f"""{row}
        %entry = flex.load_capture %idx_[%b, %h, %row, %i] : {types}
        %start = arith.muli %entry, %n : i32""",
    )
    got = run([listed], [*args, num, idx.expand(2, 4, 3, 2)], tables=True)
    mask = torch.zeros(4, 11, 20).bool()
    mask[:, :4, :8] = mask[:, :4, 16:] = mask[:, 8:, 8:16] = True
    close(got, visible(mask, args))


@pytest.mark.parametrize(("q_len", "kv_len"), [(0, 4), (4, 0)])
def test_empty_lengths(q_len: int, kv_len: int):
    args = inputs(q_len, kv_len)
    out, lse = run([segment("full", 0, 1)], args)
    assert (out == 0).all()
    assert (lse == -math.inf).all()


def test_visiting_a_pair_twice_is_an_error():
    segments = [segment("full", 0, 2), segment("partial", 1, 3, CAUSAL)]
    with pytest.raises(InterpretationError, match=r"got 2 visits of .* kv_idx = 8"):
        run(segments, inputs())


def test_overlapping_blocks_of_one_segment_are_an_error():
    start = "%m = arith.constant 4 : i32\n%start = arith.muli %i, %m : i32"
    with pytest.raises(InterpretationError, match="at most once"):
        run([segment("full", 0, 2, start=start)], inputs())


def test_a_block_before_the_first_key_is_an_error():
    start = "%start = arith.subi %i, %n : i32"
    with pytest.raises(InterpretationError, match="no column before 0"):
        run([segment("full", 0, 1, start=start)], inputs())


def test_a_block_said_to_be_inside_may_not_stick_out():
    run([segment("full", 0, 2, inside=True)], inputs())
    with pytest.raises(InterpretationError, match="inside 20 columns"):
        run([segment("full", 0, 3, inside=True)], inputs())
