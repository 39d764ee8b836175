// RUN: flexc-opt %s -p 'tile-register-products{machine=avx512}' | filecheck %s
// RUN: flexc-opt %s -p 'tile-register-products{machine=avx2}' | filecheck %s --check-prefix=AVX2
// RUN: flexc-opt %s -p 'tile-register-products{machine=portable}' | filecheck %s --check-prefix=PORTABLE

!k = tensor<?x64xbf16, strided<[?, 1]>>

// Keys and values are read where they lie, as far as they are counted, and those of the
// next block are asked for; zeros that are added to are no accumulator.
// CHECK-LABEL: tile.kernel @attention
// CHECK-SAME: attributes {vector_bytes = 64 : i32}
// CHECK: scf.for
// CHECK-NOT: tile.load_strided
// CHECK: %further = arith.muli %stride, %[[C96:.*]] : i64
// CHECK: %is_full = arith.cmpi eq, %n
// CHECK: %next = arith.select %is_full, %further, %{{.*}} : i64
// CHECK-NEXT: %s = tile.register_product %k[%base] strides[%stride, %one] rows %n next %next, %q_t by <8 x 2> : tensor<?x64xbf16, strided<[?, 1]>>, !tile.tile<64x32xf32> -> !tile.tile<96x32xf32>
// CHECK: %o = tile.register_product %k[%base] strides[%one, %stride] inner %n next %{{.*}}, %s onto %acc by <8 x 2> : tensor<?x64xbf16, strided<[?, 1]>>, !tile.tile<96x32xf32> onto !tile.tile<64x32xf32> -> !tile.tile<64x32xf32>
// AVX2-LABEL: tile.kernel @attention
// AVX2-SAME: attributes {vector_bytes = 32 : i32}
// AVX2: by <6 x 2>
tile.kernel @attention(%k : !k #tile.param<argument 0>, %n : i32 #tile.param<dim 0, 0>,
    %stride : i64 #tile.param<stride 0, 0>, %base : i64 #tile.param<argument 1>,
    %out : memref<?x?xf32> #tile.param<argument 2>)
    grid affine_map<(b, h, q_len) -> (1)> {
  %one = arith.constant 1 : i64
  %c1 = arith.constant 1 : i32
  %c0 = arith.constant 0 : i32
  %c64 = arith.constant 64 : i32
  %zero = arith.constant 0.0 : f32
  %q_t = tile.full %zero : f32 -> !tile.tile<64x32xf32>
  %acc0 = tile.full %zero : f32 -> !tile.tile<64x32xf32>
  %zeros = tile.full %zero : f32 -> !tile.tile<96x32xf32>
  %result = scf.for %i = %c0 to %n step %c1 iter_args(%acc = %acc0) -> (!tile.tile<64x32xf32>) : i32 {
    %key = tile.load_strided %k[%base] strides [%stride, %one] extents [%n, %c64] counted 0 : !k -> !tile.tile<96x64xf32>
    %s = tile.dot %key, %q_t, %zeros : !tile.tile<96x64xf32>, !tile.tile<64x32xf32>, !tile.tile<96x32xf32> -> !tile.tile<96x32xf32>
    %v_t = tile.load_strided %k[%base] strides [%one, %stride] extents [%c64, %n] counted 1 : !k -> !tile.tile<64x96xf32>
    %o = tile.dot %v_t, %s, %acc count %n : !tile.tile<64x96xf32>, !tile.tile<96x32xf32>, !tile.tile<64x32xf32> -> !tile.tile<64x32xf32>
    scf.yield %o : !tile.tile<64x32xf32>
  }
  tile.store_strided %result, %out[%base] strides [%one, %one] extents [%c64, %c64] : !tile.tile<64x32xf32>, memref<?x?xf32>
  tile.return
}

// A tile stays one if it is loaded less often than it is read, if what lies beyond its
// extents is 0, if something else needs it, and if a product sums over more than is read.
// CHECK-LABEL: tile.kernel @tiles
// CHECK: %before = tile.load_strided
// CHECK: scf.for
// CHECK: tile.register_product %before, %r by <8 x 2>
// CHECK: %zero_beyond = tile.load_strided
// CHECK-NEXT: tile.register_product %zero_beyond, %r by <8 x 2>
// CHECK: %needed = tile.load_strided
// CHECK-NEXT: tile.register_product %needed, %needed by <8 x 2>
// CHECK: %fewer = tile.load_strided
// CHECK-NEXT: tile.register_product %fewer inner %m, %r by <8 x 2>
tile.kernel @tiles(%k : !k #tile.param<argument 0>, %n : i32 #tile.param<dim 0, 0>,
    %base : i64 #tile.param<argument 1>, %out : memref<?x?xf32> #tile.param<argument 2>,
    %m : i32 #tile.param<argument 3>)
    grid affine_map<(b, h, q_len) -> (1)> {
  %one = arith.constant 1 : i64
  %c1 = arith.constant 1 : i32
  %c0 = arith.constant 0 : i32
  %c32 = arith.constant 32 : i32
  %zero = arith.constant 0.0 : f32
  %r = tile.full %zero : f32 -> !tile.tile<32x32xf32>
  %zeros = tile.full %zero : f32 -> !tile.tile<32x32xf32>
  %before = tile.load_strided %k[%base] strides [%one, %one] extents [%c32, %c32] : !k -> !tile.tile<32x32xf32>
  scf.for %i = %c0 to %n step %c1 : i32 {
    %d = tile.dot %before, %r, %zeros : !tile.tile<32x32xf32>, !tile.tile<32x32xf32>, !tile.tile<32x32xf32> -> !tile.tile<32x32xf32>
    tile.store_strided %d, %out[%base] strides [%one, %one] extents [%n, %n] : !tile.tile<32x32xf32>, memref<?x?xf32>
  }
  %zero_beyond = tile.load_strided %k[%base] strides [%one, %one] extents [%n, %c32] : !k -> !tile.tile<32x32xf32>
  %e = tile.dot %zero_beyond, %r, %zeros : !tile.tile<32x32xf32>, !tile.tile<32x32xf32>, !tile.tile<32x32xf32> -> !tile.tile<32x32xf32>
  tile.store_strided %e, %out[%base] strides [%one, %one] extents [%n, %n] : !tile.tile<32x32xf32>, memref<?x?xf32>
  %needed = tile.load_strided %k[%base] strides [%one, %one] extents [%c32, %c32] : !k -> !tile.tile<32x32xf32>
  %f = tile.dot %needed, %needed, %zeros : !tile.tile<32x32xf32>, !tile.tile<32x32xf32>, !tile.tile<32x32xf32> -> !tile.tile<32x32xf32>
  tile.store_strided %f, %out[%base] strides [%one, %one] extents [%n, %n] : !tile.tile<32x32xf32>, memref<?x?xf32>
  %fewer = tile.load_strided %k[%base] strides [%one, %one] extents [%c32, %n] counted 1 : !k -> !tile.tile<32x32xf32>
  %g = tile.dot %fewer, %r, %zeros count %m : !tile.tile<32x32xf32>, !tile.tile<32x32xf32>, !tile.tile<32x32xf32> -> !tile.tile<32x32xf32>
  tile.store_strided %g, %out[%base] strides [%one, %one] extents [%n, %n] : !tile.tile<32x32xf32>, memref<?x?xf32>
  tile.return
}

// A branch is no loop: products of both read in place what was loaded before.
// CHECK-LABEL: tile.kernel @branches
// CHECK-NOT: tile.load_strided
// CHECK: scf.if
// CHECK: tile.register_product %k[
// CHECK: tile.register_product %k[
tile.kernel @branches(%k : !k #tile.param<argument 0>, %n : i32 #tile.param<dim 0, 0>,
    %base : i64 #tile.param<argument 1>, %out : memref<?x?xf32> #tile.param<argument 2>,
    %some : i1 #tile.param<argument 3>)
    grid affine_map<(b, h, q_len) -> (1)> {
  %one = arith.constant 1 : i64
  %c32 = arith.constant 32 : i32
  %zero = arith.constant 0.0 : f32
  %r = tile.full %zero : f32 -> !tile.tile<32x32xf32>
  %lhs = tile.load_strided %k[%base] strides [%one, %one] extents [%c32, %c32] : !k -> !tile.tile<32x32xf32>
  %d = scf.if %some -> (!tile.tile<32x32xf32>) {
    %e = tile.dot %lhs, %r, %r : !tile.tile<32x32xf32>, !tile.tile<32x32xf32>, !tile.tile<32x32xf32> -> !tile.tile<32x32xf32>
    scf.yield %e : !tile.tile<32x32xf32>
  } else {
    %f = tile.dot %lhs, %r, %r : !tile.tile<32x32xf32>, !tile.tile<32x32xf32>, !tile.tile<32x32xf32> -> !tile.tile<32x32xf32>
    scf.yield %f : !tile.tile<32x32xf32>
  }
  tile.store_strided %d, %out[%base] strides [%one, %one] extents [%n, %n] : !tile.tile<32x32xf32>, memref<?x?xf32>
  tile.return
}

// Narrow results have more rows in registers; fp16 is read in place where an
// instruction widens it.
// CHECK-LABEL: tile.kernel @narrow
// CHECK: tile.register_product %k[{{.*}} by <16 x 1>
// PORTABLE-LABEL: tile.kernel @narrow
// PORTABLE: %lhs = tile.load_strided
// PORTABLE-NEXT: tile.register_product %lhs, %r by <6 x 2>
tile.kernel @narrow(%k : tensor<?x?xf16> #tile.param<argument 0>,
    %base : i64 #tile.param<argument 1>, %out : memref<?x?xf32> #tile.param<argument 2>)
    grid affine_map<(b, h, q_len) -> (1)> {
  %one = arith.constant 1 : i64
  %c16 = arith.constant 16 : i32
  %zero = arith.constant 0.0 : f32
  %r = tile.full %zero : f32 -> !tile.tile<16x16xf32>
  %lhs = tile.load_strided %k[%base] strides [%one, %one] extents [%c16, %c16] : tensor<?x?xf16> -> !tile.tile<16x16xf32>
  %d = tile.dot %lhs, %r, %r : !tile.tile<16x16xf32>, !tile.tile<16x16xf32>, !tile.tile<16x16xf32> -> !tile.tile<16x16xf32>
  tile.store_strided %d, %out[%base] strides [%one, %one] extents [%c16, %c16] : !tile.tile<16x16xf32>, memref<?x?xf32>
  tile.return
}

// Rows that a loop reads have their number in the last term of the base: threads that
// read them again bring them near, and a program does if it loops over them twice.
// Other bases are read in place, as are rows that are not whole.
// CHECK-LABEL: tile.kernel @near
// CHECK: scf.for
// CHECK: %k_rows, %k_step = tile.near_rows %k[%head] from %i1 stride %stride count %n : tensor<?x64xbf16, strided<[?, 1]>> -> tensor<96x64xbf16, strided<[?, 1]>>
// CHECK: %further = arith.muli %k_step
// CHECK: tile.register_product %k_rows[%{{.*}}] strides[%k_step, %one] rows %n next %{{.*}}, %q_t
// CHECK: scf.for
// CHECK: tile.near_rows %k[%head] from %i1 stride %stride count %n repeated
// CHECK: tile.register_product %k_rows_1[%{{.*}}] strides[%one, %k_step_1] inner %n
// CHECK-NOT: tile.near_rows
// CHECK: tile.register_product %k[%reversed]
// CHECK: tile.register_product %k[%base]
tile.kernel @near(%k : !k #tile.param<argument 0>, %n : i32 #tile.param<dim 0, 0>,
    %stride : i64 #tile.param<stride 0, 0>, %head : i64 #tile.param<argument 1>,
    %out : memref<?x?xf32> #tile.param<argument 2>)
    grid affine_map<(b, h, q_len) -> (1)> {
  %one = arith.constant 1 : i64
  %c1 = arith.constant 1 : i32
  %c0 = arith.constant 0 : i32
  %c32 = arith.constant 32 : i32
  %c64 = arith.constant 64 : i32
  %zero = arith.constant 0.0 : f32
  %q_t = tile.full %zero : f32 -> !tile.tile<64x32xf32>
  %half = tile.full %zero : f32 -> !tile.tile<32x32xf32>
  %p = tile.full %zero : f32 -> !tile.tile<96x32xf32>
  scf.for %i = %c0 to %n step %c1 : i32 {
    %i1 = arith.extsi %i : i32 to i64
    %offset = arith.muli %i1, %stride : i64
    %base = arith.addi %head, %offset : i64
    %key = tile.load_strided %k[%base] strides [%stride, %one] extents [%n, %c64] counted 0 : !k -> !tile.tile<96x64xf32>
    %s = tile.dot %key, %q_t, %p : !tile.tile<96x64xf32>, !tile.tile<64x32xf32>, !tile.tile<96x32xf32> -> !tile.tile<96x32xf32>
    tile.store_strided %s, %out[%base] strides [%one, %one] extents [%c64, %c64] : !tile.tile<96x32xf32>, memref<?x?xf32>
    scf.for %j = %c0 to %n step %c1 : i32 {
      %k_t = tile.load_strided %k[%base] strides [%one, %stride] extents [%c64, %n] counted 1 : !k -> !tile.tile<64x96xf32>
      %o = tile.dot %k_t, %p, %q_t count %n : !tile.tile<64x96xf32>, !tile.tile<96x32xf32>, !tile.tile<64x32xf32> -> !tile.tile<64x32xf32>
      tile.store_strided %o, %out[%base] strides [%one, %one] extents [%c64, %c64] : !tile.tile<64x32xf32>, memref<?x?xf32>
    }
    %reversed = arith.addi %offset, %head : i64
    %other = tile.load_strided %k[%reversed] strides [%stride, %one] extents [%n, %c64] counted 0 : !k -> !tile.tile<96x64xf32>
    %u = tile.dot %other, %q_t, %p : !tile.tile<96x64xf32>, !tile.tile<64x32xf32>, !tile.tile<96x32xf32> -> !tile.tile<96x32xf32>
    tile.store_strided %u, %out[%base] strides [%one, %one] extents [%c64, %c64] : !tile.tile<96x32xf32>, memref<?x?xf32>
    %some = tile.load_strided %k[%base] strides [%stride, %one] extents [%n, %c32] counted 0 : !k -> !tile.tile<96x32xf32>
    %v = tile.dot %some, %half, %p : !tile.tile<96x32xf32>, !tile.tile<32x32xf32>, !tile.tile<96x32xf32> -> !tile.tile<96x32xf32>
    tile.store_strided %v, %out[%base] strides [%one, %one] extents [%c64, %c64] : !tile.tile<96x32xf32>, memref<?x?xf32>
  }
  tile.return
}

// Results of 64 columns have wide register tiles, where a machine has the registers.
// CHECK-LABEL: tile.kernel @wide
// CHECK: tile.register_product %l, %r by <6 x 4>
// AVX2-LABEL: tile.kernel @wide
// AVX2: tile.register_product %l, %r by <6 x 2>
tile.kernel @wide(%base : i64 #tile.param<argument 0>, %out : memref<?x?xf32> #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (1)> {
  %one = arith.constant 1 : i64
  %c64 = arith.constant 64 : i32
  %zero = arith.constant 0.0 : f32
  %l = tile.full %zero : f32 -> !tile.tile<96x64xf32>
  %r = tile.full %zero : f32 -> !tile.tile<64x64xf32>
  %zeros = tile.full %zero : f32 -> !tile.tile<96x64xf32>
  %p = tile.dot %l, %r, %zeros : !tile.tile<96x64xf32>, !tile.tile<64x64xf32>, !tile.tile<96x64xf32> -> !tile.tile<96x64xf32>
  tile.store_strided %p, %out[%base] strides [%one, %one] extents [%c64, %c64] : !tile.tile<96x64xf32>, memref<?x?xf32>
  tile.return
}
