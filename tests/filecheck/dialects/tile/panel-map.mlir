// RUN: FLEXC_ROUNDTRIP

// CHECK-LABEL: tile.kernel @panels
tile.kernel @panels(%n : i32 #tile.param<dim 0, 0>, %z : f32 #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %s = tile.full %z : f32 -> !tile.tile<96x32xf32>
  %m = tile.full %z : f32 -> !tile.tile<32xf32>
  // CHECK: %p, %sum = tile.panel_map [96, 32] count %n (%x : f32 = %s [0, 1] : !tile.tile<96x32xf32>, %y : f32 = %m [1] : !tile.tile<32xf32>) {
  // CHECK-NEXT: %d = arith.addf %x, %y : f32
  // CHECK-NEXT: flex.yield %d, %d : f32, f32
  // CHECK-NEXT: } as ["tile", "sum"] attributes {tile.buffers = array<i32: 0, 1>} -> !tile.tile<96x32xf32>, !tile.tile<32xf32>
  %p, %sum = tile.panel_map [96, 32] count %n (%x : f32 = %s [0, 1] : !tile.tile<96x32xf32>,
      %y : f32 = %m [1] : !tile.tile<32xf32>) {
    %d = arith.addf %x, %y : f32
    flex.yield %d, %d : f32, f32
  } as ["tile", "sum"] attributes {tile.buffers = array<i32: 0, 1>} -> !tile.tile<96x32xf32>, !tile.tile<32xf32>
  // CHECK: %most = tile.panel_map [96, 32] (%u : f32 = %z [] : f32) {
  // CHECK: } as ["max"] -> !tile.tile<32xf32>
  %most = tile.panel_map [96, 32] (%u : f32 = %z [] : f32) {
    flex.yield %u : f32
  } as ["max"] -> !tile.tile<32xf32>
  tile.return
}
