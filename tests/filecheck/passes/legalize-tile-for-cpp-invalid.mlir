// RUN: not flexc-opt %s -p legalize-tile-for-cpp 2>&1 | filecheck %s

// C++ kernels hold tiles in memory or in registers, whichever the passes choose.
// CHECK: tile.iota: is part of an explicit schedule, which C++ kernels have none of
tile.kernel @placed(%n : i32 #tile.param<dim 0, 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %rows = tile.iota %n : !tile.tile<64xi32, #tile.along<0, #tile.product<32>>>
  tile.return
}
