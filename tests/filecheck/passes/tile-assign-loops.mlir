// RUN: flexc-opt %s -p tile-assign-loops | filecheck %s
// RUN: flexc-opt %s -p tile-assign-loops,tile-assign-loops | filecheck %s

!s = !tile.tile<96x32xf32>
!r = !tile.tile<32xf32>
!c = !tile.tile<96xf32>

// The entries are those of the arguments %x, %m, %a, %z, then those of the ops. A
// comparison that is false for all operands is computed once.
// CHECK-LABEL: tile.kernel @levels
// CHECK: flex.yield %sum, %u : f32, f32
// CHECK-NEXT: } as ["tile", "max"] attributes {tile.loops = ["elements", "columns", "rows", "none", "none", "columns", "rows", "elements", "none", "elements"]}
tile.kernel @levels(%n : f32 #tile.param<argument 0>, %out : memref<?xf32> #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (1)> {
  %s = tile.full %n : f32 -> !s
  %r = tile.full %n : f32 -> !r
  %c = tile.full %n : f32 -> !c
  %t, %max = tile.panel_map [96, 32] (%x : f32 = %s [0, 1] : !s, %m : f32 = %r [1] : !r,
                                      %a : f32 = %c [0] : !c, %z : f32 = %n [] : f32) {
    %twice = arith.addf %z, %z : f32
    %b = arith.subf %m, %twice : f32
    %d = arith.mulf %a, %twice : f32
    %sum = arith.addf %x, %b : f32
    %never = arith.cmpf false, %x, %m : f32
    %u = arith.select %never, %sum, %x : f32
    flex.yield %sum, %u : f32, f32
  } as ["tile", "max"] -> !s, !r
  tile.return
}

// A map of one dimension has one loop; a map of numbers has none, and no attribute.
// CHECK-LABEL: tile.kernel @vector
// CHECK: attributes {tile.loops = ["elements", "none", "none", "elements"]} -> !tile.tile<32xf32>
// CHECK: %k = tile.map(
// CHECK-NOT: tile.loops
tile.kernel @vector(%n : f32 #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (1)> {
  %r = tile.full %n : f32 -> !r
  %v = tile.map(%m : f32 = %r [0] : !r, %z : f32 = %n [] : f32) {
    %twice = arith.addf %z, %z : f32
    %b = arith.subf %m, %twice : f32
    flex.yield %b : f32
  } -> !r
  %k = tile.map(%z : f32 = %n [] : f32) {
    %twice = arith.addf %z, %z : f32
    flex.yield %twice : f32
  } -> f32
  tile.return
}
