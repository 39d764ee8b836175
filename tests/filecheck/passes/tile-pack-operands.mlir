// RUN: flexc-opt %s -p 'tile-pack-operands{machine=avx512_bf16}' | filecheck %s
// RUN: flexc-opt %s -p 'tile-pack-operands{machine=avx512}' | filecheck %s --check-prefix=NONE

// NONE-NOT: tile.pack
// NONE-NOT: #tile.pairs

// What is loaded is loaded in pairs. What was rounded for the product is packed as it was
// before, as far as the product reads it.
// CHECK-LABEL: tile.kernel @attention
// CHECK: %q = tile.load_strided %{{.*}} : tensor<?x?xbf16> -> !tile.tile<64x32xbf16, #tile.pairs>
// CHECK: tile.dot %k, %q, %zeros : !tile.tile<96x64xbf16>, !tile.tile<64x32xbf16, #tile.pairs>, !tile.tile<96x32xf32>
// CHECK: %[[P:.*]] = tile.pack %s count %n : !tile.tile<96x32xf32> -> !tile.tile<96x32xbf16, #tile.pairs>
// CHECK-NEXT: tile.dot %v, %[[P]], %acc count %n
tile.kernel @attention(%x : tensor<?x?xbf16> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %n : i32 #tile.param<argument 2>,
    %s0 : i64 #tile.param<argument 3>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %s1 = arith.constant 1 : i64
  %c64 = arith.constant 64 : i32
  %zero = arith.constant 0.0 : f32
  %zeros = tile.full %zero : f32 -> !tile.tile<96x32xf32>
  %acc = tile.full %zero : f32 -> !tile.tile<64x32xf32>
  %q = tile.load_strided %x[%s0] strides [%s1, %s0] extents [%c64, %n] : tensor<?x?xbf16> -> !tile.tile<64x32xbf16>
  %k = tile.load_strided %x[%s0] strides [%s0, %s1] extents [%n, %c64] counted 0 : tensor<?x?xbf16> -> !tile.tile<96x64xbf16>
  %v = tile.load_strided %x[%s0] strides [%s1, %s0] extents [%c64, %n] counted 1 : tensor<?x?xbf16> -> !tile.tile<64x96xbf16>
  %s = tile.dot %k, %q, %zeros : !tile.tile<96x64xbf16>, !tile.tile<64x32xbf16>, !tile.tile<96x32xf32> -> !tile.tile<96x32xf32>
  %s_bf16 = tile.map(%a : f32 = %s [0, 1] : !tile.tile<96x32xf32>) {
    %r = arith.truncf %a : f32 to bf16
    flex.yield %r : bf16
  } -> !tile.tile<96x32xbf16>
  %o = tile.dot %v, %s_bf16, %acc count %n : !tile.tile<64x96xbf16>, !tile.tile<96x32xbf16>, !tile.tile<64x32xf32> -> !tile.tile<64x32xf32>
  tile.store_strided %o, %out[%s0] strides [%s0, %s1] extents [%n, %n] : !tile.tile<64x32xf32>, memref<?x?xf32>
  tile.return
}

// Products of few rows, of an odd inner dimension, and of other types stay.
// CHECK-LABEL: tile.kernel @others
// CHECK-NOT: #tile.pairs
tile.kernel @others(%out : memref<?x?xf32> #tile.param<argument 0>, %s : i64 #tile.param<argument 1>,
    %b : bf16 #tile.param<argument 2>, %h : f16 #tile.param<argument 3>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %c64 = arith.constant 64 : i32
  %zero = arith.constant 0.0 : f32
  %acc = tile.full %zero : f32 -> !tile.tile<16x32xf32>
  %few = tile.full %zero : f32 -> !tile.tile<4x32xf32>
  %x = tile.full %b : bf16 -> !tile.tile<16x17xbf16>
  %y = tile.full %b : bf16 -> !tile.tile<17x32xbf16>
  %odd = tile.dot %x, %y, %acc : !tile.tile<16x17xbf16>, !tile.tile<17x32xbf16>, !tile.tile<16x32xf32> -> !tile.tile<16x32xf32>
  %u = tile.full %b : bf16 -> !tile.tile<4x16xbf16>
  %v = tile.full %b : bf16 -> !tile.tile<16x32xbf16>
  %fewer = tile.dot %u, %v, %few : !tile.tile<4x16xbf16>, !tile.tile<16x32xbf16>, !tile.tile<4x32xf32> -> !tile.tile<4x32xf32>
  %p = tile.full %h : f16 -> !tile.tile<16x16xf16>
  %q = tile.full %h : f16 -> !tile.tile<16x32xf16>
  %half = tile.dot %p, %q, %acc : !tile.tile<16x16xf16>, !tile.tile<16x32xf16>, !tile.tile<16x32xf32> -> !tile.tile<16x32xf32>
  tile.store_strided %odd, %out[%s] strides [%s, %s] extents [%c64, %c64] : !tile.tile<16x32xf32>, memref<?x?xf32>
  tile.store_strided %fewer, %out[%s] strides [%s, %s] extents [%c64, %c64] : !tile.tile<4x32xf32>, memref<?x?xf32>
  tile.store_strided %half, %out[%s] strides [%s, %s] extents [%c64, %c64] : !tile.tile<16x32xf32>, memref<?x?xf32>
  tile.return
}
