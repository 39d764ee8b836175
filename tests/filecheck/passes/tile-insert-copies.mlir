// RUN: flexc-opt %s -p tile-insert-copies | filecheck %s

// CHECK-LABEL: tile.kernel @in_place
// CHECK-NOT: tile.copy
// CHECK: tile.return
tile.kernel @in_place(%n : i32 #tile.param<argument 0>) grid affine_map<(b, h, q_len) -> (1)> {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %zero = arith.constant 0.0 : f32
  %acc = tile.full %zero : f32 -> !tile.tile<8x8xf32>
  %a = tile.full %zero : f32 -> !tile.tile<8x8xf32>
  %r = scf.for %i = %c0 to %n step %c1 iter_args(%acc_i = %acc) -> (!tile.tile<8x8xf32>) : i32 {
    %scaled = tile.map(%x : f32 = %acc_i [0, 1] : !tile.tile<8x8xf32>) {
      %y = arith.addf %x, %x : f32
      flex.yield %y : f32
    } -> !tile.tile<8x8xf32>
    %next = tile.register_product %a, %a onto %scaled by <6 x 2> : !tile.tile<8x8xf32>, !tile.tile<8x8xf32> onto !tile.tile<8x8xf32> -> !tile.tile<8x8xf32>
    scf.yield %next : !tile.tile<8x8xf32>
  }
  tile.return
}

// %m_i is still needed after %m is computed; %zeros starts two loops.
// CHECK-LABEL: tile.kernel @copies
// CHECK: %zeros = tile.full
// CHECK: %zeros_1 = tile.full
// CHECK-NEXT: scf.for %{{.*}} iter_args(%m_i = %zeros_1)
// CHECK: %m = tile.map
// CHECK: %late = tile.map
// CHECK: %m_1 = tile.copy %m
// CHECK-NEXT: scf.yield %m_1
// CHECK: scf.for %{{.*}} iter_args(%{{.*}} = %zeros)
tile.kernel @copies(%n : i32 #tile.param<argument 0>) grid affine_map<(b, h, q_len) -> (1)> {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %zero = arith.constant 0.0 : f32
  %zeros = tile.full %zero : f32 -> !tile.tile<8xf32>
  %r = scf.for %i = %c0 to %n step %c1 iter_args(%m_i = %zeros) -> (!tile.tile<8xf32>) : i32 {
    %m = tile.map(%x : f32 = %m_i [0] : !tile.tile<8xf32>) {
      %y = arith.addf %x, %x : f32
      flex.yield %y : f32
    } -> !tile.tile<8xf32>
    %late = tile.map(%x : f32 = %m_i [0] : !tile.tile<8xf32>, %z : f32 = %m [0] : !tile.tile<8xf32>) {
      %y = arith.addf %x, %z : f32
      flex.yield %y : f32
    } -> !tile.tile<8xf32>
    scf.yield %m : !tile.tile<8xf32>
  }
  %q = scf.for %i = %c0 to %n step %c1 iter_args(%s = %zeros) -> (!tile.tile<8xf32>) : i32 {
    scf.yield %s : !tile.tile<8xf32>
  }
  tile.return
}
