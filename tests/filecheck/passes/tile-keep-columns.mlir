// RUN: flexc-opt %s -p tile-keep-columns | filecheck %s

!o = memref<?x?xf32>
!rows = !tile.tile<64xi32>
!columns = !tile.tile<32xi32>
!full = !tile.tile<64x32xf32>

// A band of columns: its ends are computed for each row, in 64 bits, and lie in the
// tile. A condition that is the same for all columns empties the row.
// CHECK-LABEL: tile.kernel @band(
// CHECK: %first_column = tile.map({{.*}} : i32 = %row [0] : !tile.tile<64xi32>, {{.*}} : i32 = %k [] : i32) {
// CHECK-NEXT: %[[Q:.*]] = arith.extsi
// CHECK-NEXT: %[[K:.*]] = arith.extsi
// CHECK: %[[C:.*]] = arith.constant -16 : i64
// CHECK-NEXT: %[[A:.*]] = arith.addi %[[C]], %[[Q]]
// CHECK-NEXT: arith.subi %[[A]], %[[K]]
// CHECK: } -> !tile.tile<64xi32>
// CHECK: %end_column = tile.map({{.*}}, %[[F:.*]] : i1 = %flag [] : i1) {
// CHECK: arith.select %[[F]]
// CHECK: } -> !tile.tile<64xi32>
// CHECK: %[[X:.*]] = tile.keep_columns %s from %first_column to %end_column else 0xff800000 : f32 : !tile.tile<64x32xf32>, !tile.tile<64xi32>, !tile.tile<64xi32>
// CHECK: tile.store %[[X]]
tile.kernel @band(%q : i32 #tile.param<argument 0>, %k : i32 #tile.param<argument 1>, %flag : i1 #tile.param<argument 2>, %y : f32 #tile.param<argument 3>, %out : !o #tile.param<argument 4>)
    grid affine_map<(b, h, m) -> (m)> {
  tile.roles {
    tile.role "consumer" copies 1 warps 4 registers 240 {
    ^bb0(%part : i32):
      %c0 = arith.constant 0 : i32
      %row = tile.iota %q : !rows
      %column = tile.iota %k : !columns
      %s = tile.full %y : f32 -> !full
      %x = tile.map(%i : i32 = %row [0] : !rows, %j : i32 = %column [1] : !columns, %v : f32 = %s [0, 1] : !full, %f : i1 = %flag [] : i1) {
        %least = arith.constant 0xff800000 : f32
        %w = arith.constant 16 : i32
        %a = arith.cmpi sge, %i, %j : i32
        %d = arith.subi %i, %j : i32
        %b = arith.cmpi sle, %d, %w : i32
        %c = arith.andi %a, %b : i1
        %e = arith.andi %c, %f : i1
        %z = arith.select %e, %v, %least : f32
        flex.yield %z : f32
      } -> !full
      tile.store %x : !full, %out[%c0, %c0] : !o, i32, i32
      tile.end
    }
  }
  tile.return
}

// -----

// What is not linear in the column stays: here a multiple of it. A limit of 64 bits is
// compared, but not added to.
// CHECK-LABEL: tile.kernel @partly(
// CHECK: tile.map({{.*}} : i32 = %k [] : i32, {{.*}} : i64 = %n [] : i64) {
// CHECK: arith.constant -4611686018427387904 : i64
// CHECK: %z{{.*}} = tile.map(
// CHECK: arith.muli
// CHECK: arith.select
// CHECK: %[[X:.*]] = tile.keep_columns %z from
// CHECK: tile.store %[[X]]
tile.kernel @partly(%k : i32 #tile.param<argument 0>, %n : i64 #tile.param<argument 1>, %y : f32 #tile.param<argument 2>, %out : !o #tile.param<argument 3>)
    grid affine_map<(b, h, m) -> (m)> {
  tile.roles {
    tile.role "consumer" copies 1 warps 4 registers 240 {
    ^bb0(%part : i32):
      %c0 = arith.constant 0 : i32
      %column = tile.iota %k : !columns
      %s = tile.full %y : f32 -> !full
      %z = tile.map(%j : i32 = %column [1] : !columns, %v : f32 = %s [0, 1] : !full, %m : i64 = %n [] : i64) {
        %zero = arith.constant 0.0 : f32
        %j_64 = arith.extsi %j : i32 to i64
        %a = arith.cmpi slt, %j_64, %m : i64
        %w = arith.muli %j, %j : i32
        %b = arith.cmpi sgt, %w, %j : i32
        %c = arith.andi %a, %b : i1
        %u = arith.mulf %v, %v : f32
        %z = arith.select %c, %u, %zero : f32
        flex.yield %z : f32
      } -> !full
      tile.store %z : !full, %out[%c0, %c0] : !o, i32, i32
      tile.end
    }
  }
  tile.return
}

// -----

// A sum with a 64-bit number may wrap around; an alternative is no bound; the tile may
// have another number in its place only if that is a constant.
// CHECK-LABEL: tile.kernel @kept(
// CHECK-NOT: tile.keep_columns
tile.kernel @kept(%k : i32 #tile.param<argument 0>, %n : i64 #tile.param<argument 1>, %y : f32 #tile.param<argument 2>, %out : !o #tile.param<argument 3>)
    grid affine_map<(b, h, m) -> (m)> {
  tile.roles {
    tile.role "consumer" copies 1 warps 4 registers 240 {
    ^bb0(%part : i32):
      %c0 = arith.constant 0 : i32
      %column = tile.iota %k : !columns
      %s = tile.full %y : f32 -> !full
      %p, %q, %r = tile.map(%j : i32 = %column [1] : !columns, %v : f32 = %s [0, 1] : !full, %m : i64 = %n [] : i64, %t : f32 = %y [] : f32) {
        %zero = arith.constant 0.0 : f32
        %one = arith.constant 1 : i32
        %none = arith.constant 0 : i64
        %j_64 = arith.extsi %j : i32 to i64
        %sum = arith.addi %j_64, %m : i64
        %a = arith.cmpi slt, %sum, %none : i64
        %b = arith.cmpi sgt, %j, %one : i32
        %c = arith.ori %a, %b : i1
        %x = arith.select %a, %v, %zero : f32
        %z = arith.select %c, %v, %zero : f32
        %w = arith.select %b, %v, %t : f32
        flex.yield %x, %z, %w : f32, f32, f32
      } -> !full, !full, !full
      tile.store %p : !full, %out[%c0, %c0] : !o, i32, i32
      tile.store %q : !full, %out[%c0, %c0] : !o, i32, i32
      tile.store %r : !full, %out[%c0, %c0] : !o, i32, i32
      tile.end
    }
  }
  tile.return
}
