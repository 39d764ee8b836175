// RUN: flexc-opt %s -p tile-widen-floats | filecheck %s

// The round trip of %p through bf16 is gone; operands are loaded as f32; the
// store rounds. A tile that no product needs stays narrow.
// CHECK-LABEL: tile.kernel @widen
// CHECK: %v = tile.load_strided %{{.*}} : tensor<?x?xbf16> -> !tile.tile<8x8xf32>
// CHECK-NEXT: %p = tile.full
// CHECK: %zeros = tile.full
// CHECK-NEXT: %s = tile.dot %p, %v, %zeros : !tile.tile<8x8xf32>, !tile.tile<8x8xf32>, !tile.tile<8x8xf32> -> !tile.tile<8x8xf32>
// CHECK-NEXT: %bias = tile.load_strided %{{.*}} : tensor<?x?xbf16> -> !tile.tile<8x8xbf16>
// CHECK-NEXT: %o = tile.map(
// CHECK: arith.extf %y : bf16 to f32
// CHECK: -> !tile.tile<8x8xf32>
// CHECK-NEXT: tile.store_strided %o, %{{.*}} : !tile.tile<8x8xf32>, memref<?x?xbf16>
tile.kernel @widen(%x : tensor<?x?xbf16> #tile.param<argument 0>,
                   %out : memref<?x?xbf16> #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %s0 = arith.constant 0 : i64
  %s1 = arith.constant 1 : i64
  %c8 = arith.constant 8 : i32
  %one = arith.constant 1.0 : f32
  %v = tile.load_strided %x[%s0] strides [%s1, %s1] extents [%c8, %c8] : tensor<?x?xbf16> -> !tile.tile<8x8xbf16>
  %p = tile.full %one : f32 -> !tile.tile<8x8xf32>
  %p_bf16 = tile.map(%a : f32 = %p [0, 1] : !tile.tile<8x8xf32>) {
    %r = arith.truncf %a : f32 to bf16
    flex.yield %r : bf16
  } -> !tile.tile<8x8xbf16>
  %zero = arith.constant 0.0 : f32
  %zeros = tile.full %zero : f32 -> !tile.tile<8x8xf32>
  %s = tile.dot %p_bf16, %v, %zeros : !tile.tile<8x8xbf16>, !tile.tile<8x8xbf16>, !tile.tile<8x8xf32> -> !tile.tile<8x8xf32>
  %bias = tile.load_strided %x[%s0] strides [%s1, %s1] extents [%c8, %c8] : tensor<?x?xbf16> -> !tile.tile<8x8xbf16>
  %o = tile.map(%a : f32 = %s [0, 1] : !tile.tile<8x8xf32>, %y : bf16 = %bias [0, 1] : !tile.tile<8x8xbf16>) {
    %e = arith.extf %y : bf16 to f32
    %t = arith.addf %a, %e : f32
    flex.yield %t : f32
  } -> !tile.tile<8x8xf32>
  %o_bf16 = tile.map(%a : f32 = %o [0, 1] : !tile.tile<8x8xf32>) {
    %r = arith.truncf %a : f32 to bf16
    flex.yield %r : bf16
  } -> !tile.tile<8x8xbf16>
  tile.store_strided %o_bf16, %out[%s0] strides [%s1, %s1] extents [%c8, %c8] : !tile.tile<8x8xbf16>, memref<?x?xbf16>
  tile.return
}

// A narrow operand that is neither loaded nor rounded is widened by a map.
// CHECK-LABEL: tile.kernel @widen_others
// CHECK: %x_f32 = tile.map(
// CHECK-NEXT: arith.extf %{{.*}} : f16 to f32
// CHECK: tile.dot %x_f32, %x_f32, %zeros
tile.kernel @widen_others(%out : memref<?x?xf32> #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %s0 = arith.constant 0 : i64
  %c8 = arith.constant 8 : i32
  %one = arith.constant 1.0 : f16
  %x = tile.full %one : f16 -> !tile.tile<8x8xf16>
  %zero = arith.constant 0.0 : f32
  %zeros = tile.full %zero : f32 -> !tile.tile<8x8xf32>
  %s = tile.dot %x, %x, %zeros : !tile.tile<8x8xf16>, !tile.tile<8x8xf16>, !tile.tile<8x8xf32> -> !tile.tile<8x8xf32>
  tile.store_strided %s, %out[%s0] strides [%s0, %s0] extents [%c8, %c8] : !tile.tile<8x8xf32>, memref<?x?xf32>
  tile.return
}
