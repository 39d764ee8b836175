"""Tidying leaves what xDSL's passes leave."""

from __future__ import annotations

from typing import Any

import pytest
from xdsl.context import Context
from xdsl.transforms.canonicalize import CanonicalizePass
from xdsl.transforms.common_subexpression_elimination import (
    CommonSubexpressionElimination,
)

from flexc.codegen.cpp.target import CppTarget
from flexc.codegen.gluon.target import GluonTarget
from flexc.frontend.capture import capture_mods
from flexc.frontend.closures import read_mods
from flexc.frontend.import_graph import AttentionCall, build_attention_module
from flexc.passes import pipelines
from flexc.passes.flex.convert_flex_to_blocksparse import ConvertFlexToBlocksparsePass
from tests.support.corpus import CORPUS

CASES = ("alibi", "documents_per_batch", "t5_buckets", "neighbourhood_2d", "soft_cap")


def kernels(name: str, target: str) -> list[str]:
    """The sources of a case's forward kernels."""
    import torch

    mods = capture_mods(read_mods(*CORPUS[name].factory(1, 2, 2, 64, 64)))
    call = AttentionCall(torch.float16, 64, 64, alignment=16)
    module = build_attention_module(mods.score, mods.mask, call).module
    convert: Any = ConvertFlexToBlocksparsePass(target)  # pyright: ignore
    rest = pipelines.to_cpp() if target == "cpp" else pipelines.to_gluon()
    passes = (*pipelines.to_blocksparse(convert), *pipelines.to_tile(convert.target))
    pipelines.run((*passes, *rest), Context(), module)
    module.verify()
    emit = (CppTarget() if target == "cpp" else GluonTarget()).print_kernels
    return [spec.source for spec in emit(module)]


@pytest.mark.parametrize("target", ["cpp", "gluon"])
@pytest.mark.parametrize("name", CASES)
def test_kernels_are_the_same(
    name: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = kernels(name, target)
    theirs = (_Folding(), CommonSubexpressionElimination())
    monkeypatch.setattr(pipelines, "TIDY", theirs)
    assert kernels(name, target) == found


class _Folding(CanonicalizePass):
    def apply(self, ctx: Context, op: Any) -> None:
        from xdsl.dialects import arith

        if ctx.get_optional_dialect(arith.Arith.name) is None:
            ctx.load_dialect(arith.Arith)
        super().apply(ctx, op)
