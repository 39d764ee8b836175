// RUN: flexc-opt %s -p legalize-tile-for-triton | filecheck %s

// CHECK-LABEL: tile.kernel @added
// CHECK: tile.scatter_add atomic %x, %sums[{{.*}}] if %sums_inside : !tile.tile<64x64xi1> : !tile.tile<64x64xf32>
tile.kernel @added(%sums : memref<?x?x64x64xf32> #tile.param<argument 0>, %z : f32 #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %c0 = arith.constant 0 : i32
  %x = tile.full %z : f32 -> !tile.tile<64x64xf32>
  tile.add_to atomic %x, %sums[%c0, %c0, %c0, %c0] checked [0] : !tile.tile<64x64xf32>, memref<?x?x64x64xf32>
  tile.return
}
