"""Rows that are split along their keys, and combined, mean what whole ones did."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from flexc.dialects.tile import KernelOp
from flexc.frontend.import_graph import AttentionCall, build_combine_module
from flexc.passes import pipelines
from flexc.passes.flex.convert_flex_to_blocksparse import ConvertFlexToBlocksparsePass
from flexc.runtime.attention.call import Outputs
from flexc.runtime.interpreters import run_module
from tests.support.flex_modules import make_module
from tests.support.reference import Reference
from tests.unit.passes.test_one_loop import SCORES, Call

BLOCK_N = 32

HUGE = {
    "masked": lambda s, b, h, q, k: torch.where(k % 7 == q % 7, s, -1e30),
    "infinite": lambda s, b, h, q, k: torch.where(
        (k == 40 * q) & (q > 0), torch.where(q == 2, torch.nan, torch.inf), s
    ),
}
"""Mods that people mask with: some rows have nothing but that; and without bounds."""


@dataclass(frozen=True)
class Split:
    """A call that is split: how it is lowered, and what it should give."""

    attention: ModuleOp
    combine: ModuleOp
    args: list[Any]
    exact: Reference

    @classmethod
    def of(cls, call: Call) -> Split:
        made, exact = call.made({**SCORES, **HUGE}[call.score], Outputs())
        build = replace(made.build().call, split=True)
        module, args = make_module(made, build)
        return cls(module, build_combine_module(build), args, exact)

    def results(self, splits: int) -> tuple[list[Tensor], list[Tensor]]:
        """Room for the outputs of splits, and for those of the call."""
        query, _, value = self.args[:3]
        b, h, q_len = query.shape[:3]
        shape = (b * splits, h, q_len)
        parts = [filled(*shape, value.size(3)), filled(*shape), filled(*shape)]
        out = filled(b, h, q_len, value.size(3)).to(query.dtype)
        return parts, [out, filled(b, h, q_len)]

    def run(self, splits: int) -> list[Tensor]:
        """What splits give, combined; each as a function or as a kernel."""
        parts, results = self.results(splits)
        found = run_module(self.attention, self.given(self.attention, splits, parts))
        if not self.exact.out.isnan().any():
            assert not any(t.isnan().any() for t in found)
        rows = [by_row(t, splits) for t in found]
        room = results if has_kernel(self.combine) else []
        return run_module(self.combine, [*rows, *room])

    def given(self, module: ModuleOp, splits: int, parts: list[Tensor]) -> list[Any]:
        return [*self.args, splits, *(parts if has_kernel(module) else [])]

    def check(self, splits: int) -> None:
        out, lse = self.run(splits)
        for got, want in ((out, self.exact.out), (lse, self.exact.lse)):
            torch.testing.assert_close(
                got.double(), want, atol=4e-3, rtol=4e-3, equal_nan=True
            )


def has_kernel(module: ModuleOp) -> bool:
    return any(isinstance(op, KernelOp) for op in module.ops)


def by_row(tensor: Tensor, splits: int) -> Tensor:
    """A result of splits as a view (B, H, Sq, N, ...), as it is combined."""
    return tensor.unflatten(0, (-1, splits)).movedim(1, 3)


def filled(*shape: int) -> Tensor:
    return torch.full(shape, torch.nan)


def lowering(target: str) -> tuple[ModulePass, ...]:
    """All passes up to kernels that are interpreted."""
    convert = ConvertFlexToBlocksparsePass(target, block_m=128, block_n=BLOCK_N)
    common = (*pipelines.to_blocksparse(convert), *pipelines.to_tile(target))
    return (*common, *rest(target))


def rest(target: str) -> tuple[ModulePass, ...]:
    return pipelines.to_schedule() if target == "gluon" else pipelines.to_triton()


CALLS = {
    "dense": Call("none"),
    "dense-odd": Call("none", q_len=130, kv_len=333),
    "one-key": Call("none", "cap", q_len=3, kv_len=1),
    "one-query": Call("none", "bias", q_len=1, kv_len=300),
    "causal": Call("causal"),
    "causal-odd": Call("causal", "bias", q_len=200, kv_len=301),
    "causal-tables-odd": Call("causal", "cap", q_len=333, kv_len=333, tables=True),
    "window": Call("window", q_len=384, kv_len=384),
    "sinks": Call("sinks", q_len=384, kv_len=384),
    "documents": Call("documents", q_len=384, kv_len=384, tables=True),
    "captured-tables": Call("captured", q_len=200, kv_len=301, tables=True),
    "lengths": Call("lengths", q_len=200, kv_len=301),
    "empty-rows": Call("empty_rows", q_len=390, kv_len=384),
    "empty-rows-tables": Call("empty_rows", q_len=390, kv_len=399, tables=True),
    "scores-that-mask": Call("none", "masked", q_len=9, kv_len=300),
    "infinite-scores": Call("none", "infinite", q_len=9, kv_len=300),
    "head-dims": Call("causal", head_dim=96, value_dim=64, dtype=torch.bfloat16),
}

LOWERED = (
    "one-query",
    "causal-odd",
    "causal-tables-odd",
    "lengths",
    "empty-rows-tables",
    "infinite-scores",
    "scores-that-mask",
    "head-dims",
)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_before_lowering(call: Call) -> None:
    split = Split.of(call)
    for splits in (1, 2, 7, 40):
        split.check(splits)


@pytest.mark.parametrize("target", ["triton", "gluon"])
@pytest.mark.parametrize("name", LOWERED)
def test_lowered(name: str, target: str) -> None:
    """With more splits than blocks, too: some see none of a row's keys."""
    split = Split.of(CALLS[name])
    for each in lowering(target):
        each.apply(Context(), split.attention)
        split.attention.verify()
        if each.name == "blocksparse-merge-segments":
            split.check(13)
    split.check(7)


@pytest.mark.parametrize("splits", [1, 5, 16, 37])
def test_combining_kernel(splits: int) -> None:
    """Some rows are empty, some splits of others are. A tile holds 16 splits."""
    call = replace(CALLS["empty-rows"], q_len=30, kv_len=300, value_dim=300)
    split = Split.of(call)
    pipelines.run(lowering("triton"), Context(), split.combine)
    split.combine.verify()
    split.check(splits)


def test_splits_without_pairs_weigh_nothing() -> None:
    """Whatever their output and their shift are."""
    call = AttentionCall(torch.float32, 8, 8, split=True)
    outs, shift, log_sum = (
        torch.randn(3, 1, 4, 8),
        torch.randn(3, 1, 4),
        torch.randn(3, 1, 4),
    )
    log_sum[1], outs[1] = -torch.inf, torch.nan
    shift[1, :, :2], shift[1, :, 2:] = -torch.inf, -50.0
    log_sum[:, :, 3] = -torch.inf
    for passes in ((), lowering("triton")):
        module = build_combine_module(call)
        pipelines.run(passes, Context(), module)
        room = [filled(1, 1, 4, 8), filled(1, 1, 4)] if passes else []
        rows = [by_row(t, 3) for t in (outs, shift, log_sum)]
        out, lse = run_module(module, [*rows, *room])
        want = (shift + log_sum)[::2].logsumexp(0, keepdim=True)
        torch.testing.assert_close(lse, want)
        weights = (shift + log_sum - want).exp()[::2, ..., None]
        found = (weights * outs[::2]).sum(0, keepdim=True)
        torch.testing.assert_close(out[:, :, :3], found[:, :, :3])
        assert (out[:, :, 3] == 0).all()
