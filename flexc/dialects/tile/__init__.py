"""The `tile` dialect: *how* one program computes its tiles.

A `tile.kernel` is run once for every point of its grid. Tiles are immutable
values in registers or fast memory; global tensors are read as values and
outputs are written through memrefs. All element-wise work, the user's mod
included, is `tile.map` over a region of scalar code, whose operands each span
some of the result's dimensions: nothing is broadcast in memory. Spelling is all
that is left to decide once a `legalize-tile-for-*` pass has run.

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

from __future__ import annotations

from xdsl.ir import Dialect

from flexc.dialects.tile.approx import TanhApproxOp
from flexc.dialects.tile.compute import (
    ConvertLayoutOp,
    DiagonalsOp,
    DotOp,
    FullOp,
    IotaOp,
    MapOp,
    ReduceOp,
    TransposeOp,
    element_of,
    shape_of,
)
from flexc.dialects.tile.cpu import (
    BUFFERS,
    HOST_OPS,
    AddStridedOp,
    BufferAttr,
    CopyOp,
    LoadStridedOp,
    StoreStridedOp,
)
from flexc.dialects.tile.diagonal_reads import IDLE_BEYOND, ReadDiagonalsOp
from flexc.dialects.tile.kernel import (
    GRID_OF,
    DimOp,
    KernelOp,
    ProgramIdOp,
    ReturnOp,
    StrideOp,
)
from flexc.dialects.tile.layouts import (
    AlongAttr,
    LayoutAttr,
    OperandAttr,
    ProductAttr,
)
from flexc.dialects.tile.live import LiveRangeOp
from flexc.dialects.tile.memory import (
    AddToOp,
    GatherOp,
    LoadOp,
    ReadOp,
    ScatterAddOp,
    ScatterOp,
    StoreOp,
)
from flexc.dialects.tile.panels import KEPT, PANEL_OPS, PanelMapOp
from flexc.dialects.tile.register_products import (
    REGISTER_PRODUCT_OPS,
    VECTOR_BYTES,
    AddRegisterProductOp,
    RegisterProductOp,
    RegisterTileAttr,
)
from flexc.dialects.tile.schedule import SCHEDULE_OPS, SCHEDULE_TYPES
from flexc.dialects.tile.streams import STREAM_OPS, StreamProductOp
from flexc.dialects.tile.types import (
    ParamAttr,
    ParamKind,
    ReduceKind,
    ReduceKindAttr,
    TileType,
)

__all__ = [
    "BUFFERS",
    "GRID_OF",
    "IDLE_BEYOND",
    "KEPT",
    "VECTOR_BYTES",
    "AddRegisterProductOp",
    "AddStridedOp",
    "AddToOp",
    "AlongAttr",
    "BufferAttr",
    "ConvertLayoutOp",
    "CopyOp",
    "DiagonalsOp",
    "DimOp",
    "DotOp",
    "FullOp",
    "GatherOp",
    "IotaOp",
    "KernelOp",
    "LayoutAttr",
    "LiveRangeOp",
    "LoadOp",
    "LoadStridedOp",
    "MapOp",
    "OperandAttr",
    "PanelMapOp",
    "ParamAttr",
    "ParamKind",
    "ProductAttr",
    "ProgramIdOp",
    "ReadDiagonalsOp",
    "ReadOp",
    "ReduceKind",
    "ReduceKindAttr",
    "ReduceOp",
    "RegisterProductOp",
    "RegisterTileAttr",
    "ReturnOp",
    "ScatterAddOp",
    "ScatterOp",
    "StoreOp",
    "StoreStridedOp",
    "StreamProductOp",
    "StrideOp",
    "TanhApproxOp",
    "Tile",
    "TileType",
    "TransposeOp",
    "element_of",
    "shape_of",
]

Tile = Dialect(
    "tile",
    [
        KernelOp,
        ReturnOp,
        ProgramIdOp,
        DimOp,
        StrideOp,
        IotaOp,
        FullOp,
        LoadOp,
        StoreOp,
        AddToOp,
        GatherOp,
        ScatterOp,
        ScatterAddOp,
        ReadOp,
        ReadDiagonalsOp,
        MapOp,
        ReduceOp,
        LiveRangeOp,
        DiagonalsOp,
        TransposeOp,
        ConvertLayoutOp,
        DotOp,
        TanhApproxOp,
        *HOST_OPS,
        *PANEL_OPS,
        *REGISTER_PRODUCT_OPS,
        *STREAM_OPS,
        *SCHEDULE_OPS,
    ],
    [
        TileType,
        ProductAttr,
        OperandAttr,
        AlongAttr,
        ParamAttr,
        ReduceKindAttr,
        BufferAttr,
        RegisterTileAttr,
        *SCHEDULE_TYPES,
    ],
)
