"""The `blocksparse` dialect: *which* pairs of blocks are visited.

`blocksparse.attention` computes `block_m` query rows at a time and visits the keys in
*segments*. For each block of rows a segment states, in scalar code, how many blocks of
`block_n` keys the program visits and the first key of each block. Block tables, ranges
and closed-form bounds therefore look the same to all later passes. Tile sizes and warps
are decided at this level; memory, layouts and instructions are not.

```mlir
%out = blocksparse.attention %q, %k, %v : ... scale(%scale : f32)
    captures(%slopes : tensor<?xf32>) tables(%num : ..., %idx : ...)
    -> out : tensor<?x?x?x64xf32> {block_m = 64 : i32, block_n = 64 : i32}
    score_mod(...) {...} segments {
  blocksparse.segment partial bounds(%b : i32, %h : i32, %q_start : i32,
      %q_len : i32, %kv_len : i32, %slopes_ : ..., %num_ : ..., %idx_ : ...) {
    ...
    flex.yield %begin, %end : i32, i32
  } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32, ...) {
    ...
    flex.yield %kv_start : i32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %slopes_ : ...) {...}
}
```
"""

from __future__ import annotations

from xdsl.ir import Dialect

from flexc.dialects.blocksparse.attention import AttentionOp
from flexc.dialects.blocksparse.pair_sums import PairSumsOp
from flexc.dialects.blocksparse.segment import (
    BLOCK_ARGS,
    BOUNDS_ARGS,
    SegmentKind,
    SegmentKindAttr,
    SegmentOp,
    TileOrder,
    TileOrderAttr,
)

__all__ = [
    "BLOCK_ARGS",
    "BOUNDS_ARGS",
    "AttentionOp",
    "BlockSparse",
    "PairSumsOp",
    "SegmentKind",
    "SegmentKindAttr",
    "SegmentOp",
    "TileOrder",
    "TileOrderAttr",
]

BlockSparse = Dialect(
    "blocksparse",
    [AttentionOp, PairSumsOp, SegmentOp],
    [SegmentKindAttr, TileOrderAttr],
)
