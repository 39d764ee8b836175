// RUN: FLEXC_ROUNDTRIP

// CHECK-LABEL: tile.kernel @live
tile.kernel @live(%n : i32 #tile.param<dim 0, 0>, %z : i1 #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %flags = tile.full %z : i1 -> !tile.tile<96xi1>
  // CHECK: %all, %all_length = tile.live_range %flags : !tile.tile<96xi1>
  %all, %all_length = tile.live_range %flags : !tile.tile<96xi1>
  // CHECK: %first, %length = tile.live_range %flags count %n : !tile.tile<96xi1>
  %first, %length = tile.live_range %flags count %n : !tile.tile<96xi1>
  tile.return
}
