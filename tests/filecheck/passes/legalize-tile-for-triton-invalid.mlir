// RUN: not flexc-opt %s -p legalize-tile-for-triton 2>&1 | filecheck %s

// What is beyond a count would be computed with.
// CHECK: tile.reduce has a count, but tiles of Triton have none: segments that are trimmed are for C++
tile.kernel @counted(%n : i32 #tile.param<dim 0, 0>, %z : f32 #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<64x64xf32>
  %max = tile.reduce max %x along 1 count %n : !tile.tile<64x64xf32>
  tile.return
}
