// RUN: flexc-opt %s -p tile-split-columns | filecheck %s
// RUN: flexc-opt %s -p tile-split-columns | flexc-opt | filecheck %s

!t = tensor<?x?x?x96xf32>
!o = memref<?x?x?x96xf32>
!r = memref<?x?x?xf32>

// Rows of 96 numbers are tiles of 64 and 32 columns: what was padded is not read. The
// sums over them are added, and loops and branches carry both.
// CHECK-LABEL: tile.kernel @attend(
// CHECK: %x = tile.load %q[%c, %c, %m, %c] checked [0] : {{.*}} -> !tile.tile<64x64xf32>
// CHECK: %[[AT:.*]] = arith.constant 64 : i32
// CHECK-NEXT: %x_rest = tile.load %q[%c, %c, %m, %[[AT]]] checked [0] : {{.*}} -> !tile.tile<64x32xf32>
// CHECK: %[[A:.*]], %[[B:.*]], %other = scf.for {{.*}} iter_args(%acc_1 = %acc, %acc_rest_1 = %acc_rest, %count = %c)
// CHECK-SAME: -> (!tile.tile<64x64xf32>, !tile.tile<64x32xf32>, i32)
// CHECK: %[[T:.*]] = tile.transpose %y : !tile.tile<16x64xf32> -> !tile.tile<64x16xf32>
// CHECK-NEXT: %[[U:.*]] = tile.transpose %y_rest : !tile.tile<16x32xf32> -> !tile.tile<32x16xf32>
// CHECK: %s = tile.dot %x, %[[T]], %zeros :
// CHECK-NEXT: %[[S:.*]] = tile.dot %x_rest, %[[U]], %s :
// CHECK: tile.map(%{{.*}} : f32 = %[[S]] [0, 1]
// CHECK: %v = tile.dot %p, %y, %acc_1 : {{.*}} -> !tile.tile<64x64xf32>
// CHECK-NEXT: %v_rest = tile.dot %p, %y_rest, %acc_rest_1 : {{.*}} -> !tile.tile<64x32xf32>
// CHECK: %w, %w_rest = scf.if %on -> (!tile.tile<64x64xf32>, !tile.tile<64x32xf32>) {
// CHECK-NEXT: scf.yield %v, %v_rest
// CHECK: scf.yield %acc_1, %acc_rest_1
// CHECK: scf.yield %w, %w_rest, %count
// CHECK: tile.store %{{.*}} : !tile.tile<64x64xf32>, %out[%c, %c, %m, %c] checked [0]
// CHECK: tile.store %{{.*}} : !tile.tile<64x32xf32>, %out[%c, %c, %m, %{{.*}}] checked [0]
// CHECK-NEXT: tile.return
tile.kernel @attend(%q : !t #tile.param<argument 0>, %k : !t #tile.param<argument 1>,
    %out : !o #tile.param<argument 2>, %on : i1 #tile.param<argument 3>)
    grid affine_map<(b, h, m) -> (m ceildiv 64, h, b)> attributes {alignment = 16 : i64} {
  %c = arith.constant 0 : i32
  %c16 = arith.constant 16 : i32
  %zero = arith.constant 0.0 : f32
  %m = tile.program_id 0
  %x = tile.load %q[%c, %c, %m, %c] checked [0, 1] : !t, i32, i32, i32, i32
      -> !tile.tile<64x128xf32>
  %zeros = tile.full %zero : f32 -> !tile.tile<64x16xf32>
  %acc = tile.full %zero : f32 -> !tile.tile<64x128xf32>
  %sum, %other = scf.for %i = %c to %c16 step %c16
      iter_args(%acc_1 = %acc, %count = %c) -> (!tile.tile<64x128xf32>, i32) : i32 {
    %y = tile.load %k[%c, %c, %i, %c] checked [1] : !t, i32, i32, i32, i32
        -> !tile.tile<16x128xf32>
    %t = tile.transpose %y : !tile.tile<16x128xf32> -> !tile.tile<128x16xf32>
    %s = tile.dot %x, %t, %zeros : !tile.tile<64x128xf32>, !tile.tile<128x16xf32>,
        !tile.tile<64x16xf32> -> !tile.tile<64x16xf32>
    %p = tile.map(%z : f32 = %s [0, 1] : !tile.tile<64x16xf32>) {
      %n = arith.addf %z, %z : f32
      flex.yield %n : f32
    } -> !tile.tile<64x16xf32>
    %v = tile.dot %p, %y, %acc_1 : !tile.tile<64x16xf32>, !tile.tile<16x128xf32>,
        !tile.tile<64x128xf32> -> !tile.tile<64x128xf32>
    %w = scf.if %on -> (!tile.tile<64x128xf32>) {
      scf.yield %v : !tile.tile<64x128xf32>
    } else {
      scf.yield %acc_1 : !tile.tile<64x128xf32>
    }
    scf.yield %w, %count : !tile.tile<64x128xf32>, i32
  }
  %o = tile.map(%z : f32 = %sum [0, 1] : !tile.tile<64x128xf32>) {
    %n = arith.addf %z, %z : f32
    flex.yield %n : f32
  } -> !tile.tile<64x128xf32>
  tile.store %o : !tile.tile<64x128xf32>, %out[%c, %c, %m, %c] checked [0, 1]
      : !o, i32, i32, i32, i32
  tile.return
}

// A reduction goes over all columns at once, and rows that are not aligned stay whole.
// CHECK-LABEL: tile.kernel @reduced(
// CHECK: -> !tile.tile<64x128xf32>
// CHECK-LABEL: tile.kernel @unaligned(
// CHECK: -> !tile.tile<64x128xf32>
tile.kernel @reduced(%q : !t #tile.param<argument 0>, %out : !r #tile.param<argument 1>)
    grid affine_map<(b, h, m) -> (m ceildiv 64, h, b)> attributes {alignment = 16 : i64} {
  %c = arith.constant 0 : i32
  %x = tile.load %q[%c, %c, %c, %c] checked [1] : !t, i32, i32, i32, i32
      -> !tile.tile<64x128xf32>
  %w = tile.map(%z : f32 = %x [0, 1] : !tile.tile<64x128xf32>) {
    %n = arith.extf %z : f32 to f32
    flex.yield %n : f32
  } -> !tile.tile<64x128xf32>
  %r = tile.reduce sum %w along 1 : !tile.tile<64x128xf32>
  tile.store %r : !tile.tile<64xf32>, %out[%c, %c, %c] : !r, i32, i32, i32
  tile.return
}
tile.kernel @unaligned(%q : !t #tile.param<argument 0>, %out : !o #tile.param<argument 1>)
    grid affine_map<(b, h, m) -> (m ceildiv 64, h, b)> {
  %c = arith.constant 0 : i32
  %x = tile.load %q[%c, %c, %c, %c] checked [1] : !t, i32, i32, i32, i32
      -> !tile.tile<64x128xf32>
  tile.store %x : !tile.tile<64x128xf32>, %out[%c, %c, %c, %c] checked [1]
      : !o, i32, i32, i32, i32
  tile.return
}
