"""What ops over rows make is part of programs that own these rows, and of no others."""

from __future__ import annotations

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from flexc.dialects import tile
from flexc.errors import UnsupportedOpError
from flexc.passes.blocksparse.convert_blocksparse_to_tile import (
    ConvertBlocksparseToTilePass,
)
from tests.unit.interpreters.ir import parse

MATRIX, ROWS = "tensor<?x?x?x64xf32>", "tensor<?x?x?xf32>"
WEIGHED = f"""%w = flex.map_rows values(%a, %lse, %rest : {MATRIX}, {ROWS}, {ROWS})
      -> {MATRIX} code(%x : f32, %l : f32, %r : f32) {{
    %f = arith.addf %l, %r : f32
    %y = arith.mulf %x, %f : f32
    flex.yield %y : f32
  }}"""


def lowered(rows: str, columns: str, more: str = "", before: str = "") -> ModuleOp:
    """A function of sums over pairs, and of what is made of its argument %a."""
    text = f"""
func.func @sums(%a : {MATRIX}, %b : {MATRIX}, %lse : {ROWS}, %rest : {ROWS},
                %scale : f32) -> {MATRIX} {{
  {before}
  {WEIGHED}
  %sums = blocksparse.pair_sums rows({rows} : {MATRIX}) columns({columns} : {MATRIX})
      scale(%scale : f32) -> {MATRIX}
      {{block_m = 64 : i32, block_n = 32 : i32, products = [array<i32: 0, 0>],
       sums = [#flex.sum<matrix [[0, 0]]>]{more}}}
      pairs(%qk : f32, %s : f32, %h : i32, %i : i32, %qi : i32, %ki : i32) {{
    flex.yield %qk : f32
  }} segments {{
  ^bb0:
  }}
  func.return %sums : {MATRIX}
}}
"""
    module = parse(text)
    ConvertBlocksparseToTilePass("cpp").apply(Context(), module)
    return module


def test_what_is_made_is_no_kernel() -> None:
    kernels = list(lowered("%w", "%b").ops)
    assert [type(k) for k in kernels] == [tile.KernelOp]
    names = [arg.name_hint for arg in kernels[0].regions[0].block.args]
    assert names == ["a", "b", "lse", "rest", "scale", "sums"]


def test_columns_are_not_made() -> None:
    with pytest.raises(UnsupportedOpError, match=r"no result of flex\.map_rows"):
        lowered("%b", "%w")
    with pytest.raises(UnsupportedOpError, match=r"no result of flex\.map_rows"):
        lowered("%w", "%w")


def test_rows_of_keys_are_not_made() -> None:
    with pytest.raises(UnsupportedOpError, match=r"no result of flex\.map_rows"):
        lowered("%w", "%b", more=", transposed")


def test_all_else_is_given() -> None:
    again = WEIGHED.replace("%w", "%again", 1).replace("(%a,", "(%z,")
    zeros = f"%z = flex.zeros_like %a : {MATRIX} -> {MATRIX}"
    with pytest.raises(UnsupportedOpError, match="expects arguments"):
        lowered("%again", "%b", before=f"{zeros}\n  {again}")
