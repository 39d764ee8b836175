// RUN: flexc-opt %s -p tile-assign-buffers | filecheck %s

// The loop updates its accumulator in place, and so does the map before its end;
// the product's operand may not be overwritten, so %p gets a buffer of its own.
// CHECK-LABEL: tile.kernel @loop
// CHECK-SAME: attributes {tile.buffers = [#tile.buffer<"a", !tile.tile<8x8xf32>>, #tile.buffer<"acc", !tile.tile<8x8xf32>>, #tile.buffer<"p", !tile.tile<8x8xf32>>, #tile.buffer<"row", !tile.tile<8xf32>>]}
// CHECK: %a = tile.full %zero {tile.buffers = array<i32: 0>}
// CHECK: %acc = tile.full %zero {tile.buffers = array<i32: 1>}
// CHECK: %p = tile.register_product %a, %a by <6 x 2> {tile.buffers = array<i32: 2>}
// CHECK: %e = tile.map
// CHECK: attributes {tile.buffers = array<i32: 2>}
// CHECK: %scaled = tile.map
// CHECK: attributes {tile.buffers = array<i32: 1>}
// CHECK: %next = tile.register_product %e, %a onto %scaled by <6 x 2> {tile.buffers = array<i32: 1>}
// CHECK: %row = tile.reduce sum %r along 1 {tile.buffers = array<i32: 3>}
tile.kernel @loop(%n : i32 #tile.param<argument 0>) grid affine_map<(b, h, q_len) -> (1)> {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %zero = arith.constant 0.0 : f32
  %a = tile.full %zero : f32 -> !tile.tile<8x8xf32>
  %acc = tile.full %zero : f32 -> !tile.tile<8x8xf32>
  %r = scf.for %i = %c0 to %n step %c1 iter_args(%acc_i = %acc) -> (!tile.tile<8x8xf32>) : i32 {
    %p = tile.register_product %a, %a by <6 x 2> : !tile.tile<8x8xf32>, !tile.tile<8x8xf32> -> !tile.tile<8x8xf32>
    %e = tile.map(%x : f32 = %p [0, 1] : !tile.tile<8x8xf32>) {
      %y = math.exp2 %x : f32
      flex.yield %y : f32
    } -> !tile.tile<8x8xf32>
    %scaled = tile.map(%x : f32 = %acc_i [0, 1] : !tile.tile<8x8xf32>) {
      %y = arith.addf %x, %x : f32
      flex.yield %y : f32
    } -> !tile.tile<8x8xf32>
    %next = tile.register_product %e, %a onto %scaled by <6 x 2> : !tile.tile<8x8xf32>, !tile.tile<8x8xf32> onto !tile.tile<8x8xf32> -> !tile.tile<8x8xf32>
    scf.yield %next : !tile.tile<8x8xf32>
  }
  %row = tile.reduce sum %r along 1 : !tile.tile<8x8xf32>
  tile.return
}

// A map that spreads a row over columns may not write over it.
// CHECK-LABEL: tile.kernel @outer
// CHECK-SAME: attributes {tile.buffers = [#tile.buffer<"x", !tile.tile<8xf32>>, #tile.buffer<"y", !tile.tile<8x8xf32>>]}
tile.kernel @outer() grid affine_map<(b, h, q_len) -> (1)> {
  %zero = arith.constant 0.0 : f32
  %x = tile.full %zero : f32 -> !tile.tile<8xf32>
  %y = tile.map(%r : f32 = %x [0] : !tile.tile<8xf32>, %c : f32 = %x [1] : !tile.tile<8xf32>) {
    %z = arith.addf %r, %c : f32
    flex.yield %z : f32
  } -> !tile.tile<8x8xf32>
  tile.return
}
