"""The `tile` dialect: *how* one program computes its tiles.

A `tile.kernel` runs once for every point of its grid. Tiles are immutable values in
registers or fast memory. Global tensors are read as values, and outputs are written
through memrefs. All element-wise work, including the user's mod, is `tile.map`: a
region of scalar code. Each operand of a map spans some of the result's dimensions, so
that nothing is broadcast in memory. After a `legalize-tile-for-*` pass, a printer can
spell each op as one statement.

```mlir
tile.kernel @attention(%q : tensor<?x?x?x64xf32>, ...)
    grid affine_map<(b, h, q_len) -> (q_len ceildiv 64, h, b)> {
  %m = tile.program_id 0
  %q_idx = tile.iota %q_start : !tile.tile<64xi32>
  %s = tile.dot %q_tile, %k_t, %zero : ...
  %p = tile.map(%x : f32 = %s [0, 1], %y : f32 = %m_i [0]) {
    %d = arith.subf %x, %y : f32
    %e = math.exp2 %d : f32
    flex.yield %e : f32
  } -> !tile.tile<64x64xf32>
  %l = tile.reduce sum %p along 1 : !tile.tile<64x64xf32>
```
"""

# Imported names are the package's own.
# ruff: noqa: F401
# pyright: reportUnusedImport=false

from __future__ import annotations

from xdsl.ir import Dialect

from flexc.dialects import attributes_of, ops_of
from flexc.dialects.tile.compute import (
    ConvertLayoutOp,
    DiagonalsOp,
    DotOp,
    FullOp,
    IotaOp,
    KeepColumnsOp,
    LiveRangeOp,
    PartialSumsOp,
    ReduceOp,
    ScanOp,
    TransposeOp,
)
from flexc.dialects.tile.cpu import (
    BUFFERS,
    LOOPS,
    AddStridedOp,
    BufferAttr,
    CollectOp,
    CopyOp,
    LoadStridedOp,
    Loop,
    NearRowsOp,
    StoreStridedOp,
)
from flexc.dialects.tile.cpu_products import (
    TILE_DEPTH,
    VECTOR_BYTES,
    AddRegisterProductOp,
    PackOp,
    RegisterProductOp,
    RegisterTileAttr,
    StreamProductOp,
)
from flexc.dialects.tile.kernel import (
    GRID_OF,
    PROGRESS,
    AwaitKernelsOp,
    AwaitProgressOp,
    DimOp,
    KernelOp,
    ProgramIdOp,
    ReportProgressOp,
    ReturnOp,
    ReturnUnlessOp,
    StrideOp,
)
from flexc.dialects.tile.maps import (
    KEPT,
    PACKED,
    REFERENCE,
    MapOp,
    PackPairsOp,
    PanelMapOp,
    TanhApproxOp,
    UnpackPairsOp,
    WidenBytesOp,
    WidenOp,
)
from flexc.dialects.tile.memory import (
    IDLE_BEYOND,
    AddToOp,
    GatherOp,
    LoadOp,
    ReadDiagonalsOp,
    ReadOp,
    ScatterAddOp,
    ScatterOp,
    StoreOp,
)
from flexc.dialects.tile.schedule import SCHEDULE_OPS, SCHEDULE_TYPES
from flexc.dialects.tile.types import (
    AlongAttr,
    KeptAttr,
    LayoutAttr,
    OperandAttr,
    PairsAttr,
    ParamAttr,
    ParamKind,
    ProductAttr,
    ReduceKind,
    ReduceKindAttr,
    ThreadLayoutAttr,
    TileType,
    element_of,
    is_packed,
    layout_of,
    shape_of,
)

Tile = Dialect(
    "tile",
    [*ops_of("tile", globals()), *SCHEDULE_OPS],
    [*attributes_of("tile", globals()), *SCHEDULE_TYPES],
)
