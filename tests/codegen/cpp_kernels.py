"""Building and running C++ kernels from IR text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from xdsl.context import Context
from xdsl.dialects import get_all_dialects
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser
from xdsl.passes import ModulePass

from flexc import universe
from flexc.codegen.cpp.target import CppSourceTarget
from flexc.codegen.kernel_spec import KernelSpec
from flexc.passes import pipelines
from flexc.passes.cpu.tile_assign_buffers import (
    TileAssignBuffersPass,
    TileInsertCopiesPass,
)
from flexc.passes.cpu.tile_panel_maps import TileAssignLoopsPass
from flexc.passes.flex.convert_flex_to_blocksparse import ConvertFlexToBlocksparsePass
from flexc.runtime.kernels.kernel import Kernel

ELEMENTS = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
}
PREPARE: tuple[ModulePass, ...] = (
    TileAssignLoopsPass(),
    TileInsertCopiesPass(),
    TileAssignBuffersPass(),
)


def lower(
    text: str, block_m: int | None = None, block_n: int | None = None
) -> KernelSpec:
    """The kernel of a module with one flex.attention."""
    ctx, module = parse(text)
    convert = ConvertFlexToBlocksparsePass("cpp", block_m, block_n)
    passes = (
        *pipelines.to_blocksparse(convert),
        *pipelines.to_tile("cpp"),
        *pipelines.to_cpp(),
    )
    return run_passes(ctx, module, passes)


def parse(text: str) -> tuple[Context, ModuleOp]:
    ctx = Context()
    for name, factory in (get_all_dialects() | universe.DIALECTS).items():
        ctx.register_dialect(name, factory)
    module = Parser(ctx, text).parse_module()
    module.verify()
    return ctx, module


def run_passes(
    ctx: Context, module: ModuleOp, passes: Sequence[ModulePass]
) -> KernelSpec:
    for each in passes:
        each.apply(ctx, module)
        module.verify()
    (spec,) = CppSourceTarget().print_kernels(module)
    return spec


def attention_text(
    dtype: torch.dtype,
    head_dim: int,
    value_dim: int,
    *,
    score_mod: str = "",
    mask_mod: str = "",
    captures: Sequence[tuple[str, str]] = (),
) -> str:
    """A module with one attention; mods are bodies over %s, %b, %h, %qi, %ki."""
    element = ELEMENTS[dtype]
    score = "f64" if dtype == torch.float64 else "f32"
    q, v = (
        f"tensor<?x?x?x{n}x{element}, strided<[?, ?, ?, 1]>>"
        for n in (head_dim, value_dim)
    )
    rows = f"tensor<?x?x?x{score}>"
    names = ", ".join(f"%{n}" for n, _ in captures)
    types = ", ".join(t for _, t in captures)
    args = "".join(f", %{n} : {t}" for n, t in captures)
    inner = "".join(f", %{n}_ : {t}" for n, t in captures)
    uses = f"captures({names} : {types})" if captures else ""
    score_mod = score_mod or f"flex.yield %s : {score}"
    mask_mod = mask_mod or "%t = arith.constant true\nflex.yield %t : i1"
    indices = "%b : i32, %h : i32, %qi : i32, %ki : i32"
    return f"""
func.func @attention(%query : {q}, %key : {q}, %value : {v}, %scale : {score}{args})
    -> ({v}, {rows}) {{
  %out, %lse = flex.attention %query, %key, %value : {q}, {q}, {v}
      scale(%scale : {score}) {uses} -> out({v}) lse({rows}) {{scale_positive}}
  score_mod(%s : {score}, {indices}{inner}) {{
    {re.sub("SCORE", score, score_mod)}
  }} mask_mod({indices}{inner}) {{
    {mask_mod}
  }}
  func.return %out, %lse : {v}, {rows}
}}
"""


def run_attention(
    spec: KernelSpec,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    captures: Sequence[Any] = (),
) -> tuple[Tensor, Tensor]:
    """The kernel's output and logsumexp."""
    shape = query.shape[:3]
    out = query.new_full((*shape, value.shape[3]), torch.nan)
    rows = torch.float64 if query.dtype == torch.float64 else torch.float32
    lse = query.new_full(shape, torch.nan, dtype=rows)
    Kernel(spec)(query, (query, key, value, scale, *captures, out, lse))
    return out, lse
