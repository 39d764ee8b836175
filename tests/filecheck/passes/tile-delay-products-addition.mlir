// RUN: flexc-opt %s -p tile-delay-products | filecheck %s

!t = tensor<?x16xf16>
!o = memref<?x16xf32>

// A product that is added to memory follows the first product of the next iteration. The
// addition stands before the first use of the second product.
// CHECK-LABEL: tile.kernel @addition(
// CHECK: %s = tile.dot %rows, %{{.*}}, %zeros {comment = "the first block"}
// CHECK-NEXT: %p = tile.map
// CHECK: %d = tile.dot
// CHECK-NOT: tile.add_to
// CHECK: scf.for %i_1 = %{{.*}} to %n step %c16 iter_args(%acc_i = %e, %p_2 = %p, %i_2 = %c0)
// CHECK: %s_1 = tile.dot %rows
// CHECK-NEXT: %w = tile.dot %p_2, %rows, %zeros
// CHECK-NEXT: %p_3 = tile.map
// CHECK: %d_1 = tile.dot
// CHECK-NEXT: tile.add_to atomic %w, %out[%i{{.*}}, %c0]
// CHECK-NEXT: %e_2 = tile.map
// CHECK: scf.yield
// CHECK-NEXT: } {peeled}
// CHECK: %w_1 = tile.dot %p_{{.*}}, %rows, %zeros {comment = "the last block's values"}
// CHECK-NEXT: tile.add_to atomic %w_1, %out[%i{{.*}}, %c0]
tile.kernel @addition(%q : !t #tile.param<argument 0>, %k : !t #tile.param<argument 1>,
    %n : i32 #tile.param<argument 2>, %out : !o #tile.param<argument 3>)
    grid affine_map<(b, h, m) -> (m)> {
  %c0 = arith.constant 0 : i32
  %c16 = arith.constant 16 : i32
  %zero = arith.constant 0.0 : f32
  %rows = tile.load %q[%c0, %c0] : !t, i32, i32 -> !tile.tile<16x16xf16>
  %zeros = tile.full %zero : f32 -> !tile.tile<16x16xf32>
  %acc = scf.for %i = %c0 to %n step %c16 iter_args(%acc_i = %zeros) -> (!tile.tile<16x16xf32>) : i32 {
    %kt = tile.load %k[%i, %c0] : !t, i32, i32 -> !tile.tile<16x16xf16>
    %s = tile.dot %rows, %kt, %zeros : !tile.tile<16x16xf16>, !tile.tile<16x16xf16>, !tile.tile<16x16xf32> -> !tile.tile<16x16xf32>
    %p = tile.map(%a : f32 = %s [0, 1] : !tile.tile<16x16xf32>) {
      %y = arith.truncf %a : f32 to f16
      flex.yield %y : f16
    } -> !tile.tile<16x16xf16>
    %d = tile.dot %p, %kt, %zeros : !tile.tile<16x16xf16>, !tile.tile<16x16xf16>, !tile.tile<16x16xf32> -> !tile.tile<16x16xf32>
    %e = tile.map(%a : f32 = %d [0, 1] : !tile.tile<16x16xf32>, %b : f32 = %acc_i [0, 1] : !tile.tile<16x16xf32>) {
      %y = arith.addf %a, %b : f32
      flex.yield %y : f32
    } -> !tile.tile<16x16xf32>
    %w = tile.dot %p, %rows, %zeros : !tile.tile<16x16xf16>, !tile.tile<16x16xf16>, !tile.tile<16x16xf32> -> !tile.tile<16x16xf32>
    tile.add_to atomic %w, %out[%i, %c0] : !tile.tile<16x16xf32>, !o
    scf.yield %e : !tile.tile<16x16xf32>
  } {nonempty}
  tile.store %acc : !tile.tile<16x16xf32>, %out[%c0, %c0] : !o, i32, i32
  tile.return
}
