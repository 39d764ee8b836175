// RUN: not flexc-opt %s -p legalize-tile-for-cpp 2>&1 | filecheck %s

// Without atomics, additions of other programs would be lost.
// CHECK: tile.add_to: is atomic or checked, which a CPU's kernels cannot do
tile.kernel @added(%sums : memref<?x?x64x64xf32> #tile.param<argument 0>, %z : f32 #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %c0 = arith.constant 0 : i32
  %x = tile.full %z : f32 -> !tile.tile<64x64xf32>
  tile.add_to atomic %x, %sums[%c0, %c0, %c0, %c0] : !tile.tile<64x64xf32>, memref<?x?x64x64xf32>
  tile.return
}
