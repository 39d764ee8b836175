// RUN: FLEXC_ROUNDTRIP

// CHECK-LABEL: tile.kernel @strided
tile.kernel @strided(%k : tensor<?x?xbf16> #tile.param<argument 0>,
                     %out : memref<?x?xbf16> #tile.param<argument 1>,
                     %base : i64 #tile.param<argument 2>,
                     %sums : memref<?xf32> #tile.param<argument 3>,
                     %n : i32 #tile.param<dim 0, 0>)
    grid affine_map<(b, h, q_len) -> (q_len)>
    attributes {tile.buffers = [#tile.buffer<"k", !tile.tile<8x4xf32>>]} {
  %one = arith.constant 1 : i64
  %c4 = arith.constant 4 : i32
  // CHECK: %tile = tile.load_strided %k[%base] strides[%base, %one] extents[%n, %c4] {tile.buffers = array<i32: 0>} : tensor<?x?xbf16> -> !tile.tile<8x4xf32>
  %tile = tile.load_strided %k[%base] strides [%base, %one] extents [%n, %c4] {tile.buffers = array<i32: 0>} : tensor<?x?xbf16> -> !tile.tile<8x4xf32>
  // CHECK: %copy = tile.copy %tile : !tile.tile<8x4xf32>
  %copy = tile.copy %tile : !tile.tile<8x4xf32>
  // CHECK: %moved = tile.copy %tile moves : !tile.tile<8x4xf32>
  %moved = tile.copy %tile moves : !tile.tile<8x4xf32>
  %t = tile.transpose %copy : !tile.tile<8x4xf32> -> !tile.tile<4x8xf32>
  // CHECK: %p = tile.register_product %tile, %t by <6 x 2> : !tile.tile<8x4xf32>, !tile.tile<4x8xf32> -> !tile.tile<8x8xf32>
  %p = tile.register_product %tile, %t by <6 x 2> : !tile.tile<8x4xf32>, !tile.tile<4x8xf32> -> !tile.tile<8x8xf32>
  // CHECK: %q = tile.register_product %k[%base] strides[%base, %one] rows %n inner %c4 next %base, %t onto %p by <8 x 2> : tensor<?x?xbf16>, !tile.tile<4x8xf32> onto !tile.tile<8x8xf32> -> !tile.tile<8x8xf32>
  %q = tile.register_product %k[%base] strides [%base, %one] rows %n inner %c4 next %base, %t onto %p by <8 x 2> : tensor<?x?xbf16>, !tile.tile<4x8xf32> onto !tile.tile<8x8xf32> -> !tile.tile<8x8xf32>
  // CHECK: %packed = tile.pack %tile count %n : !tile.tile<8x4xf32> -> !tile.tile<8x4xbf16, #tile.pairs>
  %packed = tile.pack %tile count %n : !tile.tile<8x4xf32> -> !tile.tile<8x4xbf16, #tile.pairs>
  // CHECK: %{{.*}} = tile.register_product %k[%base] strides[%base, %one], %packed by <8 x 2 x 2> : tensor<?x?xbf16>, !tile.tile<8x4xbf16, #tile.pairs> -> !tile.tile<8x4xf32>
  %pp = tile.register_product %k[%base] strides [%base, %one], %packed by <8 x 2 x 2> : tensor<?x?xbf16>, !tile.tile<8x4xbf16, #tile.pairs> -> !tile.tile<8x4xf32>
  // CHECK: by <32 x 2 x 32> beside : tensor<?x?xbf16>
  %beside = tile.register_product %k[%base] strides [%base, %one], %packed by <32 x 2 x 32> beside : tensor<?x?xbf16>, !tile.tile<8x4xbf16, #tile.pairs> -> !tile.tile<8x4xf32>
  // CHECK: %some = tile.load_strided %k[%base] strides[%base, %one] extents[%n, %c4] counted 0 : tensor<?x?xbf16> -> !tile.tile<8x4xf32>
  %some = tile.load_strided %k[%base] strides [%base, %one] extents [%n, %c4] counted 0 : tensor<?x?xbf16> -> !tile.tile<8x4xf32>
  // CHECK: tile.store_strided %p, %out[%base] strides[%base, %one] extents[%n, %n] : !tile.tile<8x8xf32>, memref<?x?xbf16>
  tile.store_strided %p, %out[%base] strides [%base, %one] extents [%n, %n] : !tile.tile<8x8xf32>, memref<?x?xbf16>
  // CHECK: tile.store_strided %p, %out[%base] strides[%base, %one] extents[%n, %n] counted 1 : !tile.tile<8x8xf32>, memref<?x?xbf16>
  tile.store_strided %p, %out[%base] strides [%base, %one] extents [%n, %n] counted 1 : !tile.tile<8x8xf32>, memref<?x?xbf16>
  %r = tile.reduce sum %tile along 1 : !tile.tile<8x4xf32>
  // CHECK: tile.add_strided %r, %sums[%base] strides[%one] : !tile.tile<8xf32>, memref<?xf32>
  tile.add_strided %r, %sums[%base] strides [%one] : !tile.tile<8xf32>, memref<?xf32>
  // CHECK: tile.add_strided %r, %sums[%base] strides[%one] count %n : !tile.tile<8xf32>, memref<?xf32>
  tile.add_strided %r, %sums[%base] strides [%one] count %n : !tile.tile<8xf32>, memref<?xf32>
  // CHECK: tile.add_register_product %sums[%base] stride %one rows %n, %tile inner %n, %t by <8 x 2> : memref<?xf32>, !tile.tile<8x4xf32>, !tile.tile<4x8xf32>
  tile.add_register_product %sums[%base] stride %one rows %n, %tile inner %n, %t by <8 x 2> : memref<?xf32>, !tile.tile<8x4xf32>, !tile.tile<4x8xf32>
  // CHECK: tile.add_register_product %sums[%base] stride %one, %tile, %t by <8 x 2>
  tile.add_register_product %sums[%base] stride %one, %tile, %t by <8 x 2> : memref<?xf32>, !tile.tile<8x4xf32>, !tile.tile<4x8xf32>
  tile.return
}

// CHECK-LABEL: tile.kernel @near_rows
tile.kernel @near_rows(%k : tensor<?x64xbf16> #tile.param<argument 0>,
                       %at : i64 #tile.param<argument 1>, %n : i32 #tile.param<dim 0, 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: %rows, %step = tile.near_rows %k[%at] from %at stride %at count %n : tensor<?x64xbf16> -> tensor<32x64xbf16, strided<[?, 1]>>
  %rows, %step = tile.near_rows %k[%at] from %at stride %at count %n : tensor<?x64xbf16> -> tensor<32x64xbf16, strided<[?, 1]>>
  // CHECK: %{{.*}}, %{{.*}} = tile.near_rows %k[%at] from %at stride %at count %n repeated : tensor<?x64xbf16> -> tensor<32x64xbf16, strided<[?, 1]>>
  %again, %step1 = tile.near_rows %k[%at] from %at stride %at count %n repeated : tensor<?x64xbf16> -> tensor<32x64xbf16, strided<[?, 1]>>
  tile.return
}
