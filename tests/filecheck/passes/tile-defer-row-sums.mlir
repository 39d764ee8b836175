// RUN: flexc-opt %s -p tile-defer-row-sums | filecheck %s

!o = memref<?xf32>
!rows = !tile.tile<64xf32>
!full = !tile.tile<64x32xf32>

// A thread sums its own elements; a row's sum is complete after the loop. The map may
// scale the carried sum, in one op or in two, or not at all.
// CHECK-LABEL: tile.kernel @deferred(
// CHECK-COUNT-3: tile.full %zero : f32 -> !tile.tile<64x8xf32>
// CHECK: scf.for
// CHECK: %s = tile.partial_sums %p : !tile.tile<64x32xf32> -> !tile.tile<64x8xf32>
// CHECK-NEXT: tile.map(%a : f32 = %{{.*}} [0, 1] : !tile.tile<64x8xf32>, %b : f32 = %c [0] : !tile.tile<64xf32>, %d : f32 = %s [0, 1] : !tile.tile<64x8xf32>) {
// CHECK-NEXT: math.fma %a, %b, %d
// CHECK: } -> !tile.tile<64x8xf32>
// CHECK: tile.partial_sums
// CHECK: tile.partial_sums
// CHECK: scf.yield %{{.*}}, %{{.*}}, %{{.*}} : !tile.tile<64x8xf32>, !tile.tile<64x8xf32>, !tile.tile<64x8xf32>
// CHECK-COUNT-3: tile.reduce sum %{{.*}} along 1 : !tile.tile<64x8xf32>
// CHECK: tile.store
tile.kernel @deferred(%n : i32 #tile.param<argument 0>, %y : f32 #tile.param<argument 1>, %out : !o #tile.param<argument 2>)
    grid affine_map<(b, h, m) -> (m)> {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %zero = arith.constant 0.0 : f32
  tile.parts 2 {
  ^bb0(%part : i32):
    %p = tile.full %y : f32 -> !full
    %c = tile.full %y : f32 -> !rows
    %l0 = tile.full %zero : f32 -> !rows
    %l, %m, %o = scf.for %i = %c0 to %n step %c1 iter_args(%l_i = %l0, %m_i = %l0, %o_i = %l0) -> (!rows, !rows, !rows) : i32 {
      %s = tile.reduce sum %p along 1 : !full
      %l1 = tile.map(%a : f32 = %l_i [0] : !rows, %b : f32 = %c [0] : !rows, %d : f32 = %s [0] : !rows) {
        %x = math.fma %a, %b, %d : f32
        flex.yield %x : f32
      } -> !rows
      %t = tile.reduce sum %p along 1 : !full
      %m1 = tile.map(%d : f32 = %t [0] : !rows, %a : f32 = %m_i [0] : !rows, %b : f32 = %y [] : f32) {
        %w = arith.mulf %b, %a : f32
        %x = arith.addf %d, %w : f32
        flex.yield %x : f32
      } -> !rows
      %u = tile.reduce sum %p along 1 : !full
      %o1 = tile.map(%a : f32 = %o_i [0] : !rows, %d : f32 = %u [0] : !rows) {
        %x = arith.addf %a, %d : f32
        flex.yield %x : f32
      } -> !rows
      scf.yield %l1, %m1, %o1 : !rows, !rows, !rows
    }
    tile.store %l : !rows, %out[%c0] : !o, i32
    tile.store %m : !rows, %out[%c0] : !o, i32
    tile.store %o : !rows, %out[%c0] : !o, i32
    tile.end
  }
  tile.return
}

// -----

// The sum starts at another number, is a maximum, is used in the iteration, is scaled by
// itself, or scales the tile's sum.
// CHECK-LABEL: tile.kernel @kept(
// CHECK-NOT: tile.partial_sums
tile.kernel @kept(%n : i32 #tile.param<argument 0>, %y : f32 #tile.param<argument 1>, %out : !o #tile.param<argument 2>)
    grid affine_map<(b, h, m) -> (m)> {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %zero = arith.constant 0.0 : f32
  tile.parts 2 {
  ^bb0(%part : i32):
    %p = tile.full %y : f32 -> !full
    %l0 = tile.full %zero : f32 -> !rows
    %l1 = tile.full %y : f32 -> !rows
    %k, %l, %m, %o, %q = scf.for %i = %c0 to %n step %c1 iter_args(%k_i = %l1, %l_i = %l0, %m_i = %l0, %o_i = %l0, %q_i = %l0) -> (!rows, !rows, !rows, !rows, !rows) : i32 {
      %s = tile.reduce sum %p along 1 : !full
      %k2 = tile.map(%a : f32 = %k_i [0] : !rows, %d : f32 = %s [0] : !rows) {
        %x = arith.addf %a, %d : f32
        flex.yield %x : f32
      } -> !rows
      %t = tile.reduce max %p along 1 : !full
      %l2 = tile.map(%a : f32 = %l_i [0] : !rows, %d : f32 = %t [0] : !rows) {
        %x = arith.addf %a, %d : f32
        flex.yield %x : f32
      } -> !rows
      %u = tile.reduce sum %p along 1 : !full
      tile.store %m_i : !rows, %out[%c0] : !o, i32
      %m2 = tile.map(%a : f32 = %m_i [0] : !rows, %d : f32 = %u [0] : !rows) {
        %x = arith.addf %a, %d : f32
        flex.yield %x : f32
      } -> !rows
      %v = tile.reduce sum %p along 1 : !full
      %o2 = tile.map(%a : f32 = %o_i [0] : !rows, %d : f32 = %v [0] : !rows) {
        %x = math.fma %a, %a, %d : f32
        flex.yield %x : f32
      } -> !rows
      %w = tile.reduce sum %p along 1 : !full
      %q2 = tile.map(%a : f32 = %q_i [0] : !rows, %d : f32 = %w [0] : !rows, %b : f32 = %y [] : f32) {
        %x = math.fma %d, %b, %a : f32
        flex.yield %x : f32
      } -> !rows
      scf.yield %k2, %l2, %m2, %o2, %q2 : !rows, !rows, !rows, !rows, !rows
    }
    tile.store %k : !rows, %out[%c0] : !o, i32
    tile.store %l : !rows, %out[%c0] : !o, i32
    tile.store %m : !rows, %out[%c0] : !o, i32
    tile.store %o : !rows, %out[%c0] : !o, i32
    tile.store %q : !rows, %out[%c0] : !o, i32
    tile.end
  }
  tile.return
}

// -----

// With three parts on a multiprocessor, threads lack the registers.
// CHECK-LABEL: tile.kernel @three_parts(
// CHECK-NOT: tile.partial_sums
tile.kernel @three_parts(%n : i32 #tile.param<argument 0>, %y : f32 #tile.param<argument 1>, %out : !o #tile.param<argument 2>)
    grid affine_map<(b, h, m) -> (m)> {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %zero = arith.constant 0.0 : f32
  tile.parts 3 {
  ^bb0(%part : i32):
    %p = tile.full %y : f32 -> !full
    %l0 = tile.full %zero : f32 -> !rows
    %l = scf.for %i = %c0 to %n step %c1 iter_args(%l_i = %l0) -> (!rows) : i32 {
      %s = tile.reduce sum %p along 1 : !full
      %l1 = tile.map(%a : f32 = %l_i [0] : !rows, %d : f32 = %s [0] : !rows) {
        %x = arith.addf %a, %d : f32
        flex.yield %x : f32
      } -> !rows
      scf.yield %l1 : !rows
    }
    tile.store %l : !rows, %out[%c0] : !o, i32
    tile.end
  }
  tile.return
}
