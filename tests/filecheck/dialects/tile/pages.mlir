// RUN: FLEXC_ROUNDTRIP

// CHECK-LABEL: tile.kernel @pages
tile.kernel @pages(%key : tensor<?x?x16x64xbf16> #tile.param<argument 0>,
    %table : tensor<?x?xi32> #tile.param<argument 1>,
    %i : i32 #tile.param<dim 0, 0>, %s : i64 #tile.param<argument 2>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: %k = tile.load %key[%i, %i, %i, %i] pages %table : tensor<?x?xi32> : tensor<?x?x16x64xbf16>, i32, i32, i32, i32 -> !tile.tile<32x64xf32>
  %k = tile.load %key[%i, %i, %i, %i] pages %table : tensor<?x?xi32> : tensor<?x?x16x64xbf16>, i32, i32, i32, i32 -> !tile.tile<32x64xf32>
  // CHECK: %rows, %step = tile.collect %key[%s] strides[%s, %s, %s] pages %table[%s] of %i from %i count %i : tensor<?x?x16x64xbf16>, tensor<?x?xi32> -> tensor<32x64xbf16, strided<[?, 1]>>
  %rows, %step = tile.collect %key[%s] strides [%s, %s, %s] pages %table[%s] of %i from %i count %i : tensor<?x?x16x64xbf16>, tensor<?x?xi32> -> tensor<32x64xbf16, strided<[?, 1]>>
  tile.return
}
