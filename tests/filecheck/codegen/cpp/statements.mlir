// RUN: flexc-opt %s -p tile-assign-loops,tile-insert-copies,tile-assign-buffers -t cpp | filecheck %s
// RUN: not flexc-opt %s -t cpp 2>&1 | filecheck %s --check-prefix=BUFFERS
// BUFFERS: expects buffers: run tile-assign-buffers first

// Products are templates that kernels share. A sum onto a tile updates its buffer;
// a product of a whole tile has its sizes in its type, others are arguments.
// CHECK: // flexc kernel products, target cpp
// CHECK: extern template struct flexc::LoadTransposed<float, 96, 4, float>;
// CHECK-NEXT: extern template struct flexc::Product<false, 4, 1, 64, float, TileResult<float, 64>, TileOperand<float, 4>, Fixed<96>>;
// CHECK-NEXT: extern template struct flexc::Product<true, 4, 2, 64, float, MemoryResult<float>, TileOperand<float, 96>, int32_t>;
// CHECK-NEXT: extern template struct flexc::StreamDots<4, 4, 32, float, 4, 96, 64, bfloat16>;
// CHECK-NEXT: extern template struct flexc::StreamSums<4, 4, 0, float, 4, 64, 96, bfloat16>;
// CHECK: FLEXC_KERNEL void products(
// CHECK: Buffer<float, 4, 64> q;
// CHECK-NEXT: Buffer<float, 4, 96> s;
// CHECK-NEXT: Buffer<float, 96, 4> t;
// CHECK-NEXT: Buffer<float, 96, 64> p;
// CHECK: fill(q, 0.0f);
// CHECK-NEXT: stream_dots<4, 4, 32>(s, q, keys + int64_t(0), stride, n);
// CHECK-NEXT: stream_sums<4, 4, 0>(q, s, keys + int64_t(0), stride, n, true);
// CHECK-NEXT: transpose(t, s);
// CHECK-NEXT: product<4, 1>(p, strided(t), q, fixed<96>, 4);
// CHECK-NEXT: add_product<4, 2>(out + int64_t(0), stride, strided(s), p, n, n);
!k = tensor<?x64xbf16, strided<[?, 1]>>
tile.kernel @products(%keys : !k #tile.param<argument 0>,
                      %out : memref<?x64xf32> #tile.param<argument 1>,
                      %n : i32 #tile.param<dim 0, 0>, %stride : i64 #tile.param<stride 0, 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %base = arith.constant 0 : i64
  %zero = arith.constant 0.000000e+00 : f32
  %row = tile.program_id 0
  %q = tile.full %zero : f32 -> !tile.tile<4x64xf32>
  %s = tile.stream_product %q, %keys[%base] stride %stride count %n transposed ahead 32 by <4 x 4> : !tile.tile<4x64xf32>, !k -> !tile.tile<4x96xf32>
  %o = tile.stream_product %s, %keys[%base] stride %stride count %n onto %q ahead 0 by <4 x 4> : !tile.tile<4x96xf32>, !k onto !tile.tile<4x64xf32> -> !tile.tile<4x64xf32>
  %t = tile.transpose %s : !tile.tile<4x96xf32> -> !tile.tile<96x4xf32>
  %p = tile.register_product %t, %o by <4 x 1> : !tile.tile<96x4xf32>, !tile.tile<4x64xf32> -> !tile.tile<96x64xf32>
  tile.add_register_product %out[%base] stride %stride rows %n, %s inner %n, %p by <4 x 2> : memref<?x64xf32>, !tile.tile<4x96xf32>, !tile.tile<96x64xf32>
  tile.return
}

// Numbers that a loop carries are all read before the first is written; branches
// assign what they yield.
// CHECK: FLEXC_KERNEL void control(
// CHECK: const bool some = h < n;
// CHECK-NEXT: int32_t a = 0;
// CHECK-NEXT: int32_t b = 1;
// CHECK-NEXT: for (int32_t i = 0; i < n; i += 1) {
// CHECK-NEXT: const int32_t next = b;
// CHECK-NEXT: const int32_t next_1 = a;
// CHECK-NEXT: a = next;
// CHECK-NEXT: b = next_1;
// CHECK-NEXT: }
// CHECK-NEXT: int32_t chosen;
// CHECK-NEXT: if (some) {
// CHECK-NEXT: const int32_t next_2 = a;
// CHECK-NEXT: chosen = next_2;
// CHECK-NEXT: }
// CHECK-NEXT: else {
// CHECK: iota(row_1, chosen);
// CHECK-NEXT: copy(copy_1, row_1);
// CHECK-NEXT: store(out + int64_t(0), copy_1, int64_t(1), n);
// CHECK: scan_rows(sums, square);
// CHECK: scatter(out + int64_t(0), sums, square, live);
tile.kernel @control(%out : memref<?xi32> #tile.param<argument 0>,
                     %n : i32 #tile.param<dim 0, 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %s0 = arith.constant 0 : i64
  %s1 = arith.constant 1 : i64
  %h = tile.program_id 1
  %some = arith.cmpi slt, %h, %n : i32
  %first, %second = scf.for %i = %c0 to %n step %c1 iter_args(%a = %c0, %b = %c1) -> (i32, i32) : i32 {
    scf.yield %b, %a : i32, i32
  }
  %chosen = scf.if %some -> (i32) {
    scf.yield %first : i32
  } else {
    scf.yield %second : i32
  }
  %row = tile.iota %chosen : !tile.tile<8xi32>
  %copy = tile.copy %row : !tile.tile<8xi32>
  tile.store_strided %copy, %out[%s0] strides [%s1] extents [%n] : !tile.tile<8xi32>, memref<?xi32>
  %square = tile.full %n : i32 -> !tile.tile<8x8xi32>
  %live = tile.full %some : i1 -> !tile.tile<8x8xi1>
  %sums = tile.scan %square : !tile.tile<8x8xi32>
  tile.scatter %sums, %out[%s0 + %square] if %live : !tile.tile<8x8xi1> : !tile.tile<8x8xi32>, memref<?xi32>, !tile.tile<8x8xi32>
  tile.return
}
