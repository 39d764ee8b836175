// RUN: flexc-opt %s -p legalize-tile-for-cpp | filecheck %s

// A checked dimension extends as far as the tensor does; others hold the tile.
// CHECK-LABEL: tile.kernel @loads_and_stores
// CHECK: %key_offset = arith.muli %{{.*}}, %key_stride0 : i64
// CHECK: %key_base = arith.addi %key_offset, %{{.*}} : i64
// CHECK: %key_size1 = tile.dim %key, 1
// CHECK-NEXT: %key_left = arith.subi %key_size1, %n : i32
// CHECK: %k = tile.load_strided %key[%key_base] strides[%{{.*}}, %{{.*}}] extents[%key_left, %{{.*}}] : tensor<?x?x64xbf16, strided<[?, ?, 1]>> -> !tile.tile<32x64xbf16>
// CHECK: tile.store_strided %k, %out[%{{.*}}] strides[%out_stride1{{.*}}, %{{.*}}] extents[%{{.*}}, %{{.*}}] : !tile.tile<32x64xbf16>
tile.kernel @loads_and_stores(
    %key : tensor<?x?x64xbf16, strided<[?, ?, 1]>> #tile.param<argument 0>,
    %out : memref<?x?x64xbf16, strided<[?, ?, 1]>> #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %n = tile.program_id 0
  %c0 = arith.constant 0 : i32
  %k = tile.load %key[%n, %n, %c0] checked [0] : tensor<?x?x64xbf16, strided<[?, ?, 1]>>, i32, i32, i32 -> !tile.tile<32x64xbf16>
  tile.store %k : !tile.tile<32x64xbf16>, %out[%n, %n, %c0] : memref<?x?x64xbf16, strided<[?, ?, 1]>>, i32, i32, i32
  tile.return
}

// CHECK-LABEL: tile.kernel @transposed_load
// CHECK: %k_t = tile.load_strided %key[%{{.*}}] strides[%[[S1:.*]], %[[S0:.*]]] extents[%[[E1:.*]], %[[E0:.*]]] : tensor<?x64xf32, strided<[64, 1]>> -> !tile.tile<64x32xf32>
// CHECK-NOT: tile.transpose
tile.kernel @transposed_load(
    %key : tensor<?x64xf32, strided<[64, 1]>> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %c0 = arith.constant 0 : i32
  %k = tile.load %key[%c0, %c0] checked [0] : tensor<?x64xf32, strided<[64, 1]>>, i32, i32 -> !tile.tile<32x64xf32>
  %k_t = tile.transpose %k : !tile.tile<32x64xf32> -> !tile.tile<64x32xf32>
  tile.store %k_t : !tile.tile<64x32xf32>, %out[%c0, %c0] : memref<?x?xf32>, i32, i32
  tile.return
}

// Elements beyond a count are unspecified, also of the transpose.
// CHECK-LABEL: tile.kernel @counted_loads
// CHECK: %k = tile.load_strided %key[%{{.*}}] strides[%[[S0:.*]], %[[S1:.*]]] extents[%n, %[[C64:.*]]] counted 0 : tensor<?x64xf32, strided<[64, 1]>> -> !tile.tile<32x64xf32>
// CHECK: %k_t = tile.load_strided %key[%{{.*}}] strides[%{{.*}}, %{{.*}}] extents[%{{.*}}, %n] counted 1 : tensor<?x64xf32, strided<[64, 1]>> -> !tile.tile<64x32xf32>
tile.kernel @counted_loads(
    %key : tensor<?x64xf32, strided<[64, 1]>> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %n = tile.program_id 0
  %c0 = arith.constant 0 : i32
  %k = tile.load %key[%c0, %c0] count %n : tensor<?x64xf32, strided<[64, 1]>>, i32, i32 -> !tile.tile<32x64xf32>
  %k_t = tile.transpose %k : !tile.tile<32x64xf32> -> !tile.tile<64x32xf32>
  tile.store %k : !tile.tile<32x64xf32>, %out[%c0, %c0] : memref<?x?xf32>, i32, i32
  tile.store %k_t : !tile.tile<64x32xf32>, %out[%c0, %c0] : memref<?x?xf32>, i32, i32
  tile.return
}

// Of the last dimension as many elements are stored as a count says, wherever it goes.
// CHECK-LABEL: tile.kernel @counted_stores
// CHECK: tile.store_strided %x, %out[%{{.*}}] strides[%{{.*}}, %{{.*}}] extents[%{{.*}}, %n] counted 1 : !tile.tile<32x64xf32>
// CHECK: tile.store_strided %y, %out[%{{.*}}] strides[%{{.*}}, %{{.*}}] extents[%n, %out_left] counted 0 : !tile.tile<64x32xf32>
tile.kernel @counted_stores(%z : f32 #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %n = tile.program_id 0
  %x = tile.full %z : f32 -> !tile.tile<32x64xf32>
  tile.store %x : !tile.tile<32x64xf32>, %out[%n, %n] count %n : memref<?x?xf32>, i32, i32
  %y = tile.full %z : f32 -> !tile.tile<64x32xf32>
  %y_t = tile.transpose %y : !tile.tile<64x32xf32> -> !tile.tile<32x64xf32>
  tile.store %y_t : !tile.tile<32x64xf32>, %out[%n, %n] checked [0] count %n : memref<?x?xf32>, i32, i32
  tile.return
}

// What is added to is all there.
// CHECK-LABEL: tile.kernel @adds
// CHECK: %sums_stride0 = tile.stride %sums, 0
// CHECK: %sums_base = arith.addi
// CHECK: tile.add_strided %x, %sums[%sums_base] strides[%{{.*}}] : !tile.tile<8xf32>, memref<?x?xf32, strided<[?, 1]>>
tile.kernel @adds(%sums : memref<?x?xf32, strided<[?, 1]>> #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %n = tile.program_id 0
  %one = arith.constant 1.0 : f32
  %x = tile.full %one : f32 -> !tile.tile<8xf32>
  tile.add_to %x, %sums[%n, %n] : !tile.tile<8xf32>, memref<?x?xf32, strided<[?, 1]>>
  tile.return
}

// Transposes are stored and added to with strides exchanged.
// CHECK-LABEL: tile.kernel @transposed_stores
// CHECK: tile.store_strided %x, %out[%{{.*}}] strides[%[[S1:.*]], %[[S0:.*]]] extents[%[[E1:.*]], %[[E0:.*]]] : !tile.tile<16x8xf32>
// CHECK: tile.add_strided %x, %out[%{{.*}}] strides[%{{.*}}, %{{.*}}] : !tile.tile<16x8xf32>
tile.kernel @transposed_stores(
    %out : memref<?x16xf32, strided<[16, 1]>> #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %n = tile.program_id 0
  %c0 = arith.constant 0 : i32
  %one = arith.constant 1.0 : f32
  %x = tile.full %one : f32 -> !tile.tile<16x8xf32>
  %y = tile.transpose %x : !tile.tile<16x8xf32> -> !tile.tile<8x16xf32>
  tile.store %y : !tile.tile<8x16xf32>, %out[%n, %c0] checked [0] : memref<?x16xf32, strided<[16, 1]>>, i32, i32
  tile.add_to %y, %out[%c0, %c0] : !tile.tile<8x16xf32>, memref<?x16xf32, strided<[16, 1]>>
  tile.return
}
