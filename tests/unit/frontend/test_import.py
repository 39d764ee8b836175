"""The modules that are built."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention.flex_attention import flex_attention
from xdsl.context import Context
from xdsl.dialects.builtin import FileLineColLoc, TensorType, f32
from xdsl.parser import Parser

from flexc import universe
from flexc.frontend.import_graph import AttentionCall, import_subgraph
from flexc.runtime.interpreters import run_module, run_region
from tests.support.reference import attention
from tests.unit.frontend.evaluate import attention_of, import_mods

SLOPES = torch.rand(4)


def alibi(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s + SLOPES[h] * (k - q)


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def test_causal_alibi() -> None:
    built, captures = import_mods(alibi, causal)
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
    built, captures = import_mods(alibi, causal, call)
    (out,) = run_module(built.module, [query, key, value, 0.25, *captures])
    expected = attention(query, key, value, alibi, causal)
    torch.testing.assert_close(out.double(), expected.out, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_a_subgraph_of_torchs_operator() -> None:
    def fn(query: Tensor, key: Tensor, value: Tensor, slopes: Tensor) -> Any:
        return flex_attention(
            query, key, value, lambda s, b, h, q, k: s + slopes[h] * (k - q)
        )

    qkv = [torch.randn(1, 4, 128, 16) for _ in range(3)]
    gm = make_fx(fn, tracing_mode="fake")(*qkv, SLOPES)
    (node,) = gm.graph.find_nodes(
        op="call_function", target=torch.ops.higher_order.flex_attention
    )
    subgraph = getattr(gm, node.args[3].target)
    region = import_subgraph("score_mod", subgraph, [TensorType(f32, [4])], f32)
    h, q, k = (torch.tensor(x, dtype=torch.int32) for x in (2, 5, 9))
    (got,) = run_region(region, [torch.tensor(1.0), h, h, q, k, SLOPES])
    assert got == 1.0 + SLOPES[2] * 4
