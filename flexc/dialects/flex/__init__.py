"""The `flex` dialect: *what* is computed.

`flex.attention` is torch's FlexAttention higher-order operator: attention over query,
key and value, whose scores pass through a `score_mod` region and a `mask_mod` region.
This level does not decide which blocks are visited, in what order, or on which machine.
No op is specific to a variant of attention.

```mlir
%out, %lse = flex.attention %q, %k, %v : tensor<?x?x?x64xf32>,
    tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32> scale(%scale : f32)
    captures(%slopes : tensor<?xf32>)
    -> out(tensor<?x?x?x64xf32>) lse(tensor<?x?x?xf32>)
    score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32,
              %slopes_ : tensor<?xf32>) {
  %m = flex.load_capture %slopes_[%h] : tensor<?xf32>, i32
  %d = arith.subi %ki, %qi : i32
  %f = arith.sitofp %d : i32 to f32
  %p = arith.mulf %m, %f : f32
  %r = arith.addf %s, %p : f32
  flex.yield %r : f32
} mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %slopes_ : tensor<?xf32>) {
  %c = arith.cmpi sge, %qi, %ki : i32
  flex.yield %c : i1
}
```
"""

# Imported names are the package's own.
# ruff: noqa: F401
# pyright: reportUnusedImport=false

from __future__ import annotations

from xdsl.ir import Dialect

from flexc.dialects import attributes_of, ops_of
from flexc.dialects.flex.attention import (
    ATTENTION_FORMAT,
    NARROW,
    RESULTS,
    AttentionLike,
    AttentionOp,
)
from flexc.dialects.flex.derivatives import (
    CAPTURE,
    AttentionBackwardOp,
    AttentionJvpOp,
    DerivativeOp,
)
from flexc.dialects.flex.facts import (
    FACTS,
    LONG_SEQUENCE,
    POSITIVE,
    FloatRangeAttr,
    KeyRangesAttr,
    PairsOp,
    RemainderAttr,
    element_type,
    score_type,
    tensor_shape,
)
from flexc.dialects.flex.host_ops import (
    CenterRowsOp,
    Coordinates,
    CoordinatesAttr,
    LaunchOp,
    ScatterSumsOp,
    SumPartsOp,
    ZerosLikeOp,
)
from flexc.dialects.flex.pair_sums import (
    DIAGONAL_UNIT,
    PAIR_SUMS_FORMAT,
    PairSumsLike,
    PairSumsOp,
    SumAttr,
    SumKind,
    diagonal_entries,
    diagonal_zero,
)
from flexc.dialects.flex.row_ops import (
    CombineSplitsOp,
    MapRowsOp,
    is_matrix,
    is_rows,
)
from flexc.dialects.flex.scalar import DimOp, FmodOp, LoadCaptureOp, YieldOp

WithMods = AttentionOp | DerivativeOp
"""Ops with a score_mod and a mask_mod."""

Flex = Dialect("flex", ops_of("flex", globals()), attributes_of("flex", globals()))
