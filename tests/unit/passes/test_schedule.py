"""Kernels of roles compute what their programs did, in whatever order roles go on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from flexc.dialects.tile.schedule import AwaitDotOp, RoleOp
from flexc.errors import ScheduleError
from flexc.passes import pipelines
from flexc.passes.flex.convert_flex_to_blocksparse import ConvertFlexToBlocksparsePass
from flexc.passes.targets.target import LoweringOptions
from flexc.runtime.interpreters import run_module
from tests.support.corpus import CORPUS
from tests.support.flex_modules import make_call, make_module
from tests.support.reference import attention

QUERIES, KEYS = 200, 700
"""Two blocks of rows of two or three parts, more keys than slots, edges in both."""

REFUSED = {"nothing"}
"""There is nothing to load where nothing is seen."""


def programs(
    case: str, dims: tuple[int, int], tables: bool = False, heads: int = 1
) -> tuple[ModuleOp, list[object], Tensor]:
    """A case's tile programs for Hopper, their arguments, and what they compute."""
    module, args, exact = attention_module(case, dims, tables, heads)
    convert = ConvertFlexToBlocksparsePass("gluon")
    passes = (*pipelines.to_blocksparse(convert), *pipelines.to_tile("gluon"))
    pipelines.run(passes, Context(), module)
    return module, args, exact


def attention_module(
    case: str, dims: tuple[int, int], tables: bool = False, heads: int = 1
) -> tuple[ModuleOp, list[object], Tensor]:
    """A case as a `flex` module, its arguments, and what it computes."""
    sizes = (1, heads, 1, QUERIES, KEYS)
    score_mod, mask_mod = CORPUS[case].factory(*sizes)
    draw = torch.Generator().manual_seed(0)
    shapes = [(heads, QUERIES, dims[0]), (1, KEYS, dims[0]), (1, KEYS, dims[1])]
    query, key, value = (
        torch.randn(1, *shape, generator=draw).to(torch.bfloat16) for shape in shapes
    )
    mask: Any = mask_mod
    if tables:
        assert mask_mod is not None
        mask = create_block_mask(mask_mod, 1, heads, QUERIES, KEYS, "cpu")
    module, args = make_module(make_call((query, key, value), score_mod, mask, 0.125))
    exact = attention(
        query, key, value, score_mod, mask_mod, scale=0.125, enable_gqa=True
    )
    return module, args, exact.out


def check(
    case: str,
    dims: tuple[int, int] = (64, 64),
    overlap: bool = True,
    tables: bool = False,
    heads: int = 1,
) -> ModuleOp:
    """Run a case's kernel with roles beside its programs without; the kernel."""
    module, args, exact = programs(case, dims, tables, heads)
    wanted = run_module(module, args)
    passes = pipelines.to_schedule(LoweringOptions(overlap=overlap))
    pipelines.run(passes, Context(), module)
    module.verify()
    assert sum(isinstance(op, RoleOp) for op in module.walk()) == 2
    for interleaving in (None, 1):
        out, lse = run_module(module, args, interleaving=interleaving)
        close(out, wanted[0], 2e-2)
        close(lse, wanted[1], 1e-4)
        close(out, exact, 5e-2)
    return module


def close(got: Tensor, wanted: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(
        got.double(), wanted.double(), atol=tolerance, rtol=tolerance, equal_nan=True
    )


@pytest.mark.parametrize("case", [c for c in CORPUS if c not in REFUSED])
def test_the_corpus(case: str) -> None:
    check(case)


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "simple"])
@pytest.mark.parametrize(
    "dims", [(128, 128), (256, 256), (96, 32), (16, 128)], ids="{0[0]}x{0[1]}".format
)
def test_head_dims(dims: tuple[int, int], overlap: bool) -> None:
    check("sliding_window", dims, overlap, heads=2)


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "simple"])
@pytest.mark.parametrize("case", ["causal", "documents", "some_rows_empty"])
def test_tables(case: str, overlap: bool) -> None:
    check(case, (64, 64), overlap, tables=True)


def test_products_overlap() -> None:
    """One is in flight while another's result is used, if that is asked for."""
    for overlap in (True, False):
        module = check("causal", overlap=overlap)
        waits = [o for o in module.walk() if isinstance(o, AwaitDotOp)]
        assert any(o.outstanding.value.data for o in waits) == overlap


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_nothing_to_load(case: str) -> None:
    module, _, _ = programs(case, (64, 64))
    with pytest.raises(ScheduleError, match="nothing to copy"):
        pipelines.run(pipelines.to_schedule(), Context(), module)
