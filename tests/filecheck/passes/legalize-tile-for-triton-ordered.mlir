// RUN: not flexc-opt %s -p legalize-tile-for-triton 2>&1 | filecheck %s

// CHECK: tile.add_to: has an order, which needs a schedule with roles
tile.kernel @ordered(%sums : memref<?x?x64x64xf32> #tile.param<argument 0>, %z : f32 #tile.param<argument 1>,
    %progress : memref<?xi32> #tile.param<progress 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %c0 = arith.constant 0 : i32
  %x = tile.full %z : f32 -> !tile.tile<64x64xf32>
  tile.add_to atomic %x, %sums[%c0, %c0, %c0, %c0] progress %progress[%c0, %c0, %c0, %c0] : memref<?xi32> : !tile.tile<64x64xf32>, memref<?x?x64x64xf32>
  tile.return
}
