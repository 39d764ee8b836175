"""`tile-read-ahead`: what a loop may compute an iteration ahead."""

from __future__ import annotations

import pytest
from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import Builtin
from xdsl.parser import Parser

from flexc.passes.tile.tile_split_maps import slice_of

BODIES = {
    "of the induction variable": (
        "%x = arith.muli %i, %i : i32 %read = arith.addi %x, %lb : i32",
        2,
    ),
    "of what the loop carries": ("%read = arith.addi %i, %carried : i32", None),
    "of it within a region": (
        """%x = scf.if %flag -> (i32) { scf.yield %carried : i32 }
           else { scf.yield %i : i32 } %read = arith.addi %x, %i : i32""",
        None,
    ),
    "of an op of unknown effects": (
        '%x = "other.op"(%i) : (i32) -> i32 %read = arith.addi %x, %i : i32',
        None,
    ),
}


@pytest.mark.parametrize("case", BODIES)
def test_slices(case: str) -> None:
    body, count = BODIES[case]
    ctx = Context(allow_unregistered=True)
    for dialect in (Builtin, arith.Arith, scf.Scf):
        ctx.load_dialect(dialect)
    text = f"""
      %lb, %ub, %step, %flag = "other.values"() : () -> (i32, i32, i32, i1)
      %sum = scf.for %i = %lb to %ub step %step
          iter_args(%carried = %lb) -> (i32) : i32 {{
        {body}
        scf.yield %read : i32
      }}"""
    module = Parser(ctx, text).parse_module()
    (loop,) = (op for op in module.walk() if isinstance(op, scf.ForOp))
    read = list(loop.body.block.ops)[-2]
    found = slice_of(read, loop)
    assert (found and len(found)) == count
