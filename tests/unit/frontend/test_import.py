"""The modules that are built."""

from __future__ import annotations

from typing import Any

import torch
from xdsl.context import Context
from xdsl.dialects.builtin import FileLineColLoc
from xdsl.parser import Parser

from flexc import universe
from flexc.frontend.import_graph import AttentionCall
from flexc.runtime.interpreters import run_module
from tests.support.corpus_masks import causal_mask
from tests.support.reference import attention
from tests.unit.frontend.evaluate import attention_of, import_mods

SLOPES = torch.rand(4)


def alibi(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s + SLOPES[h] * (k - q)


def test_causal_alibi() -> None:
    built, captures = import_mods(alibi, causal_mask)
    assert captures == [SLOPES]
    text = str(built.module)
    for line in (
        "%index = flex.load_capture %SLOPES_1[%h] : tensor<?xf32, strided<[1]>>, i32",
        "%sub = arith.subi %kv_idx, %q_idx : i32",
        "%mul = arith.mulf %index, %0 : f32",
        "%ge = arith.cmpi sge, %q_idx_1, %kv_idx_1 : i32",
    ):
        assert line in text


def test_absent_mods() -> None:
    built, captures = import_mods()
    op = attention_of(built)
    assert captures == []
    assert [o.name for o in op.score_mod.block.ops] == ["flex.yield"]
    assert [o.name for o in op.mask_mod.block.ops] == ["arith.constant", "flex.yield"]


def test_everything_of_a_call_round_trips() -> None:
    call = AttentionCall(
        torch.bfloat16, 64, 32, lse=True, max_scores=True,
        unit_strides=(True, False, True), sparse_block=(128, 64), full_tables=True,
        scale_positive=True, kv_len_multiple=16, alignment=16, index_width=32,
    )  # fmt: skip
    width = 3
    built, captures = import_mods(alibi, lambda b, h, q, k: q - k < width, call)
    assert captures == [SLOPES, 3]
    op = attention_of(built)
    assert [v.name_hint for v in op.operands] == [
        "query", "key", "value", "scale", "SLOPES", "width",
        "kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices",
    ]  # fmt: skip
    assert (op.fact("kv_len_multiple"), op.fact("index_width")) == (16, 32)
    text = str(built.module)
    context = Context()
    for name in ("builtin", "func", "arith"):
        context.load_dialect(_upstream(name))
    context.load_dialect(universe.DIALECTS["flex"]())
    assert str(Parser(context, text).parse_module()) == text


def _upstream(name: str) -> Any:
    from xdsl.dialects import get_all_dialects

    return get_all_dialects()[name]()


def test_ops_know_the_users_line() -> None:
    built, _ = import_mods(alibi)
    load = attention_of(built).score_mod.block.first_op
    assert load is not None
    assert isinstance(load.location, FileLineColLoc)
    assert load.location.filename.data == __file__
    assert load.location.line.data == alibi.__code__.co_firstlineno + 1


def test_a_module_runs() -> None:
    query, key, value = (torch.randn(2, 4, n, 16) for n in (9, 7, 7))
    call = AttentionCall(torch.float32, 16, 16)
    built, captures = import_mods(alibi, causal_mask, call)
    (out,) = run_module(built.module, [query, key, value, 0.25, *captures])
    expected = attention(query, key, value, alibi, causal_mask)
    torch.testing.assert_close(out.double(), expected.out, rtol=1e-5, atol=1e-5)
