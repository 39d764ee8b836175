"""Kernels whose padded columns are split compute what they did."""

from __future__ import annotations

import pytest
from torch.testing import assert_close
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from flexc.dialects.tile import LoadOp, shape_of
from flexc.passes import pipelines
from flexc.passes.flex.convert_flex_to_blocksparse import ConvertFlexToBlocksparsePass
from flexc.passes.targets.triton import column_parts
from flexc.runtime.interpreters import run_module
from tests.unit.passes.test_backward_schedule import backward
from tests.unit.passes.test_schedule import attention_module


@pytest.mark.parametrize(
    ("dim", "parts"),
    [
        *((1, (16,)), (40, (64,)), (64, (64,)), (65, (64, 16)), (80, (64, 16))),
        *((96, (64, 32)), (97, (128,)), (130, (128, 16)), (192, (128, 64))),
        *((256, (256,)), (576, (512, 64)), (900, (1024,))),
    ],
)
def test_parts(dim: int, parts: tuple[int, ...]) -> None:
    assert column_parts(dim, 32) == parts


def test_short_rows_are_whole() -> None:
    assert column_parts(96, 16) == (128,)
    assert column_parts(192, 16) == (128, 64)


def lowered(module: ModuleOp) -> tuple[ModuleOp, list[int]]:
    """Return a module for Triton, and the columns of the tiles that it loads."""
    module = module.clone()
    convert = ConvertFlexToBlocksparsePass("triton")
    passes = (*pipelines.to_blocksparse(convert), *pipelines.to_tile("triton"))
    pipelines.run((*passes, pipelines.TileSplitColumnsPass()), Context(), module)
    module.verify()
    loads = [op.result.type for op in module.walk() if isinstance(op, LoadOp)]
    columns = {shape_of(t)[1] for t in loads if len(shape_of(t)) == 2}
    pipelines.run(pipelines.to_triton()[1:], Context(), module)
    return module, sorted(columns)


@pytest.mark.parametrize("case", ["causal", "alibi", "documents", "some_rows_empty"])
@pytest.mark.parametrize(
    ("dims", "columns"),
    [
        ((192, 192), [64, 128]),
        ((160, 264), [16, 32, 128, 256]),
        ((136, 64), [16, 64, 128]),
    ],
)
def test_attention(case: str, dims: tuple[int, int], columns: list[int]) -> None:
    module, args, exact = attention_module(case, dims)
    wanted = run_module(module, args)
    kernel, found = lowered(module)
    assert found == columns
    out, lse = run_module(kernel, args)
    assert_close(lse, wanted[1], atol=1e-4, rtol=1e-4)
    assert_close(out.double(), exact.double(), atol=5e-2, rtol=5e-2)


@pytest.mark.parametrize("case", ["causal", "soft_cap", "pair_bias"])
@pytest.mark.parametrize(("dim", "columns"), [(136, [16, 128]), (192, [64, 128])])
def test_gradients(case: str, dim: int, columns: list[int]) -> None:
    module, args, wanted = backward(case, dim=dim, one_pass="none")
    kernels, found = lowered(module)
    assert set(columns) <= set(found)
    for got, exact in zip(run_module(kernels, args), wanted, strict=True):
        scale = float(exact.double().abs().max())
        assert_close(got.double() / scale, exact.double() / scale, atol=2e-2, rtol=0)
