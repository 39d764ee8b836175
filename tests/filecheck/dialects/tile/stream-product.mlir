// RUN: FLEXC_ROUNDTRIP

!k = tensor<?x64xbf16, strided<[?, 1]>>

// CHECK-LABEL: tile.kernel @streams
// CHECK: %s = tile.stream_product %q, %k[%base] stride %stride count %n transposed ahead 32 by <4 x 4> : !tile.tile<4x64xf32>, tensor<?x64xbf16, strided<[?, 1]>> -> !tile.tile<4x96xf32>
// CHECK-NEXT: %o = tile.stream_product %s, %k[%base] stride %stride count %n onto %q ahead 0 by <4 x 4> : !tile.tile<4x96xf32>, tensor<?x64xbf16, strided<[?, 1]>> onto !tile.tile<4x64xf32> -> !tile.tile<4x64xf32>
tile.kernel @streams(%k : !k #tile.param<argument 0>, %n : i32 #tile.param<dim 0, 0>,
    %stride : i64 #tile.param<stride 0, 0>, %base : i64 #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (1)> {
  %zero = arith.constant 0.0 : f32
  %q = tile.full %zero : f32 -> !tile.tile<4x64xf32>
  %s = tile.stream_product %q, %k[%base] stride %stride count %n transposed ahead 32 by <4 x 4> : !tile.tile<4x64xf32>, !k -> !tile.tile<4x96xf32>
  %o = tile.stream_product %s, %k[%base] stride %stride count %n onto %q ahead 0 by <4 x 4> : !tile.tile<4x96xf32>, !k onto !tile.tile<4x64xf32> -> !tile.tile<4x64xf32>
  tile.return
}
