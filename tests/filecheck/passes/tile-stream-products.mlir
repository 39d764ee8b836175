// RUN: flexc-opt %s -p 'tile-stream-products{machine=avx512}' | filecheck %s
// RUN: flexc-opt %s -p 'tile-stream-products{machine=avx2}' | filecheck %s --check-prefix=AVX2

!k = tensor<?x64xbf16, strided<[?, 1]>>

// Rows of memory are read where they lie, as far as they are counted: a transposed
// block as what it is the transpose of, and zeros that are added to are no accumulator.
// CHECK-LABEL: tile.kernel @decode
// CHECK: scf.for
// CHECK-NOT: tile.load_strided
// CHECK: %s = tile.stream_product %q, %k[%base] stride %stride count %n transposed ahead 64 by <4 x 4> : !tile.tile<3x64xf32>, tensor<?x64xbf16, strided<[?, 1]>> -> !tile.tile<3x96xf32>
// CHECK-NEXT: %o = tile.stream_product %s, %k[%base] stride %stride count %n onto %acc ahead 64 by <4 x 4> : !tile.tile<3x96xf32>, tensor<?x64xbf16, strided<[?, 1]>> onto !tile.tile<3x64xf32> -> !tile.tile<3x64xf32>
// AVX2-LABEL: tile.kernel @decode
// AVX2: transposed ahead 64 by <4 x 2>
// AVX2: onto %acc ahead 64 by <4 x 2>
tile.kernel @decode(%k : !k #tile.param<argument 0>, %n : i32 #tile.param<dim 0, 0>,
    %stride : i64 #tile.param<stride 0, 0>, %base : i64 #tile.param<argument 1>,
    %out : memref<?x?xf32> #tile.param<argument 2>)
    grid affine_map<(b, h, q_len) -> (1)> {
  %one = arith.constant 1 : i64
  %c1 = arith.constant 1 : i32
  %c0 = arith.constant 0 : i32
  %c3 = arith.constant 3 : i32
  %c64 = arith.constant 64 : i32
  %zero = arith.constant 0.0 : f32
  %q = tile.full %zero : f32 -> !tile.tile<3x64xf32>
  %acc0 = tile.full %zero : f32 -> !tile.tile<3x64xf32>
  %zeros = tile.full %zero : f32 -> !tile.tile<3x96xf32>
  %result = scf.for %i = %c0 to %n step %c1 iter_args(%acc = %acc0) -> (!tile.tile<3x64xf32>) : i32 {
    %k_t = tile.load_strided %k[%base] strides [%one, %stride] extents [%c64, %n] counted 1 : !k -> !tile.tile<64x96xf32>
    %s = tile.dot %q, %k_t, %zeros : !tile.tile<3x64xf32>, !tile.tile<64x96xf32>, !tile.tile<3x96xf32> -> !tile.tile<3x96xf32>
    %v = tile.load_strided %k[%base] strides [%stride, %one] extents [%n, %c64] counted 0 : !k -> !tile.tile<96x64xf32>
    %o = tile.dot %s, %v, %acc count %n : !tile.tile<3x96xf32>, !tile.tile<96x64xf32>, !tile.tile<3x64xf32> -> !tile.tile<3x64xf32>
    scf.yield %o : !tile.tile<3x64xf32>
  }
  tile.store_strided %result, %out[%base] strides [%one, %one] extents [%c3, %c64] : !tile.tile<3x64xf32>, memref<?x?xf32>
  tile.return
}

// A product stays if its rows fill a vector, if no elements of what it reads lie side by
// side, and if what is beyond the extents is 0.
// CHECK-LABEL: tile.kernel @others
// CHECK-NOT: tile.stream_product
// CHECK: tile.return
tile.kernel @others(%k : !k #tile.param<argument 0>, %n : i32 #tile.param<dim 0, 0>,
    %stride : i64 #tile.param<stride 0, 0>, %base : i64 #tile.param<argument 1>,
    %out : memref<?x?xf32> #tile.param<argument 2>)
    grid affine_map<(b, h, q_len) -> (1)> {
  %one = arith.constant 1 : i64
  %c64 = arith.constant 64 : i32
  %c96 = arith.constant 96 : i32
  %zero = arith.constant 0.0 : f32
  %many = tile.full %zero : f32 -> !tile.tile<16x96xf32>
  %few = tile.full %zero : f32 -> !tile.tile<3x96xf32>
  %acc = tile.full %zero : f32 -> !tile.tile<16x64xf32>
  %few_acc = tile.full %zero : f32 -> !tile.tile<3x64xf32>
  %v = tile.load_strided %k[%base] strides [%stride, %one] extents [%c96, %c64] : !k -> !tile.tile<96x64xf32>
  %a = tile.dot %many, %v, %acc : !tile.tile<16x96xf32>, !tile.tile<96x64xf32>, !tile.tile<16x64xf32> -> !tile.tile<16x64xf32>
  %apart = tile.load_strided %k[%base] strides [%stride, %stride] extents [%c96, %c64] : !k -> !tile.tile<96x64xf32>
  %b = tile.dot %few, %apart, %few_acc : !tile.tile<3x96xf32>, !tile.tile<96x64xf32>, !tile.tile<3x64xf32> -> !tile.tile<3x64xf32>
  %zeros = tile.load_strided %k[%base] strides [%stride, %one] extents [%n, %c64] : !k -> !tile.tile<96x64xf32>
  %c = tile.dot %few, %zeros, %b : !tile.tile<3x96xf32>, !tile.tile<96x64xf32>, !tile.tile<3x64xf32> -> !tile.tile<3x64xf32>
  tile.store_strided %a, %out[%base] strides [%one, %one] extents [%c64, %c64] : !tile.tile<16x64xf32>, memref<?x?xf32>
  tile.store_strided %c, %out[%base] strides [%one, %one] extents [%c64, %c64] : !tile.tile<3x64xf32>, memref<?x?xf32>
  tile.return
}
