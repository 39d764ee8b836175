"""What `tile-split-rows` refuses: parts would not compute what the whole does."""

from __future__ import annotations

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from flexc.errors import ScheduleError
from flexc.passes.hopper.tile_split_rows import TileSplitRowsPass
from tests.property.lowering import context

KERNEL = """
tile.kernel @k(%q : tensor<?x?x?x128xf32> #tile.param<argument 0>,
    %out : memref<?x?x?x128xf32> #tile.param<argument 1>,
    %sum : memref<?x?x?xf32> #tile.param<argument 2>)
    grid affine_map<(b, h, m) -> (m ceildiv 128, h, b)> {{
  %c = arith.constant 0 : i32
  %x = tile.load %q[%c, %c, %c, %c] : tensor<?x?x?x128xf32>, i32, i32, i32, i32
      -> !tile.tile<128x128xf32>
  {body}
  tile.store %x : !tile.tile<128x128xf32>, %out[%c, %c, %c, %c]
      : memref<?x?x?x128xf32>, i32, i32, i32, i32
  tile.return
}}
"""

STORE = """tile.store %{0} : !tile.tile<128xf32>, %sum[%c, %c, %c]
    : memref<?x?x?xf32>, i32, i32, i32"""

PRODUCT = """%t = tile.transpose %x : !tile.tile<128x128xf32> -> !tile.tile<128x128xf32>
  %s = tile.dot %x, %{0}, %x : !tile.tile<128x128xf32>, !tile.tile<128x128xf32>,
      !tile.tile<128x128xf32> -> !tile.tile<128x128xf32>
"""

REFUSED = {
    "sum-over-rows": (
        "%r = tile.reduce sum %x along 0 : !tile.tile<128x128xf32>",
        "tile.reduce goes over all rows at once",
    ),
    "count": (
        "%r = tile.reduce sum %x along 1 count %c : !tile.tile<128x128xf32>",
        "tile.reduce has a count",
    ),
    "sum-of-products-over-rows": (
        PRODUCT.format("x"),
        "pairs rows with rows",
    ),
    "rows-by-rows": (PRODUCT.format("t"), "pairs rows with rows"),
    "columns-stored": (
        "%r = tile.reduce sum %x along 0 : !tile.tile<128x128xf32>\n"
        + STORE.format("r"),
        "its stores go along 2 kinds of rows",
    ),
    "diagonals": (
        "%d = tile.diagonals %x : !tile.tile<128x128xf32> -> !tile.tile<256xf32>",
        "tile.diagonals goes over all rows at once",
    ),
}


def kernel(body: str) -> ModuleOp:
    module = Parser(context(), KERNEL.format(body=body)).parse_module()
    module.verify()
    return module


@pytest.mark.parametrize(("body", "why"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_stays_whole(body: str, why: str) -> None:
    module = kernel(body)
    before = str(module)
    with pytest.raises(ScheduleError, match=why):
        TileSplitRowsPass(rows=64).apply(Context(), module)
    assert str(module) == before


def test_rows_are_whole_parts() -> None:
    with pytest.raises(ScheduleError, match="128 rows are not parts of 48"):
        TileSplitRowsPass(rows=48).apply(Context(), kernel(""))
