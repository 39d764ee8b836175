// RUN: flexc-opt %s -p tile-split-functions | filecheck %s

!s = !tile.tile<96x32xf32>
!r = !tile.tile<32xf32>
!k = memref<?xf32>

// The result of the first function is a tile; the reduction of scores stays with them.
// Each map counts the same rows.
// CHECK-LABEL: tile.kernel @soft_cap
// CHECK: %tanh, %largest = tile.panel_map [96, 32] count %n (%x : f32 = %s [0, 1] : !tile.tile<96x32xf32>, %f : f32 = %z [] : f32) {
// CHECK-NEXT: %scaled = arith.mulf %x, %f : f32
// CHECK-NEXT: %tanh_1 = math.tanh %scaled : f32
// CHECK-NEXT: flex.yield %tanh_1, %x : f32, f32
// CHECK-NEXT: } as ["tile", "max"] -> !tile.tile<96x32xf32>, !tile.tile<32xf32>
// CHECK-NEXT: %p, %sum = tile.panel_map [96, 32] count %n (%m : f32 = %r [1] : !tile.tile<32xf32>, %tanh_1 : f32 = %tanh [0, 1] : !tile.tile<96x32xf32>) {
// CHECK-NEXT: %d = arith.subf %tanh_1, %m : f32
// CHECK-NEXT: %e = math.exp2 %d : f32
// CHECK-NEXT: flex.yield %e, %e : f32, f32
// CHECK-NEXT: } as ["pairs", "sum"] -> !tile.tile<96x32xbf16, #tile.pairs>, !tile.tile<32xf32>
tile.kernel @soft_cap(%z : f32 #tile.param<argument 0>, %n : i32 #tile.param<dim 0, 0>,
    %sums : !k #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (1)> {
  %s = tile.full %z : f32 -> !s
  %r = tile.full %z : f32 -> !r
  %p, %sum, %largest = tile.panel_map [96, 32] count %n (%x : f32 = %s [0, 1] : !s, %m : f32 = %r [1] : !r, %f : f32 = %z [] : f32) {
    %scaled = arith.mulf %x, %f : f32
    %tanh = math.tanh %scaled : f32
    %d = arith.subf %tanh, %m : f32
    %e = math.exp2 %d : f32
    flex.yield %e, %e, %x : f32, f32, f32
  } as ["pairs", "sum", "max"] -> !tile.tile<96x32xbf16, #tile.pairs>, !r, !r
  tile.return
}

// Three functions in a row are three maps. A test of rows and columns is repeated.
// CHECK-LABEL: tile.kernel @three
// CHECK: arith.cmpi
// CHECK: math.sin
// CHECK: as ["tile"]
// CHECK: math.tanh
// CHECK: as ["tile"]
// CHECK: arith.cmpi
// CHECK: math.exp2
// CHECK: as ["tile"]
tile.kernel @three(%z : f32 #tile.param<argument 0>, %i : i32 #tile.param<dim 0, 0>)
    grid affine_map<(b, h, q_len) -> (1)> {
  %s = tile.full %z : f32 -> !s
  %rows = tile.full %i : i32 -> !tile.tile<96xi32>
  %columns = tile.full %i : i32 -> !tile.tile<32xi32>
  %p = tile.panel_map [96, 32] (%x : f32 = %s [0, 1] : !s, %a : i32 = %rows [0] : !tile.tile<96xi32>, %b : i32 = %columns [1] : !tile.tile<32xi32>) {
    %live = arith.cmpi sge, %b, %a : i32
    %none = arith.constant 0.0 : f32
    %y = arith.select %live, %x, %none : f32
    %sin = math.sin %y : f32
    %tanh = math.tanh %sin : f32
    %e = math.exp2 %tanh : f32
    %w = arith.select %live, %e, %none : f32
    flex.yield %w : f32
  } as ["tile"] -> !s
  tile.return
}

// Not split: both parts would read the same tile; the first function is one of columns;
// it is one of positions, whose result would be one more tile; its result is kept as it
// is; it is wider than the tile.
// CHECK-LABEL: tile.kernel @kept
// CHECK: tile.panel_map
// CHECK: as ["tile"]
// CHECK-NEXT: tile.panel_map
// CHECK: as ["tile"]
// CHECK-NEXT: tile.panel_map
// CHECK: as ["tile"]
// CHECK-NEXT: tile.panel_map
// CHECK: as ["tile", "tile"]
// CHECK-NEXT: tile.panel_map
// CHECK: as ["tile"]
// CHECK-NEXT: tile.return
tile.kernel @kept(%z : f32 #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (1)> {
  %s = tile.full %z : f32 -> !s
  %r = tile.full %z : f32 -> !r
  %rows = tile.full %z : f32 -> !tile.tile<96xf32>
  %both = tile.panel_map [96, 32] (%x : f32 = %s [0, 1] : !s) {
    %t = math.tanh %x : f32
    %u = arith.mulf %t, %x : f32
    %e = math.exp2 %u : f32
    flex.yield %e : f32
  } as ["tile"] -> !s
  %one = tile.panel_map [96, 32] (%x : f32 = %s [0, 1] : !s, %y : f32 = %r [1] : !r) {
    %t = math.tanh %y : f32
    %u = arith.mulf %t, %x : f32
    %e = math.exp2 %u : f32
    flex.yield %e : f32
  } as ["tile"] -> !s
  %positions = tile.panel_map [96, 32] (%x : f32 = %s [0, 1] : !s, %y : f32 = %r [1] : !r, %a : f32 = %rows [0] : !tile.tile<96xf32>) {
    %u = arith.subf %y, %a : f32
    %t = math.log %u : f32
    %v = arith.mulf %t, %x : f32
    %e = math.exp2 %v : f32
    flex.yield %e : f32
  } as ["tile"] -> !s
  %cap, %weights = tile.panel_map [96, 32] (%x : f32 = %s [0, 1] : !s) {
    %t = math.tanh %x : f32
    %e = math.exp2 %t : f32
    flex.yield %t, %e : f32, f32
  } as ["tile", "tile"] -> !s, !s
  %wide = tile.panel_map [96, 32] (%x : f32 = %s [0, 1] : !s) {
    %d = arith.extf %x : f32 to f64
    %t = math.tanh %d : f64
    %e = math.exp2 %t : f64
    %f = arith.truncf %e : f64 to f32
    flex.yield %f : f32
  } as ["tile"] -> !s
  tile.return
}

// A function of columns is repeated.
// CHECK-LABEL: tile.kernel @columns
// CHECK: math.log
// CHECK: math.tanh
// CHECK: as ["tile"]
// CHECK: math.log
// CHECK: math.exp2
// CHECK: as ["tile"]
tile.kernel @columns(%z : f32 #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (1)> {
  %s = tile.full %z : f32 -> !s
  %r = tile.full %z : f32 -> !r
  %p = tile.panel_map [96, 32] (%x : f32 = %s [0, 1] : !s, %y : f32 = %r [1] : !r) {
    %l = math.log %y : f32
    %u = arith.mulf %x, %l : f32
    %t = math.tanh %u : f32
    %v = arith.addf %t, %l : f32
    %e = math.exp2 %v : f32
    flex.yield %e : f32
  } as ["tile"] -> !s
  tile.return
}
