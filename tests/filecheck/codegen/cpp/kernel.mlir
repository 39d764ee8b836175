// RUN: flexc-opt %s -p tile-assign-loops,tile-insert-copies,tile-assign-buffers -t cpp | filecheck %s
// RUN: not flexc-opt %s -p tile-insert-copies,tile-assign-buffers -t cpp 2>&1 | filecheck %s --check-prefix=LOOPS
// LOOPS: expects loops of its values: run tile-assign-loops first

// CHECK: // flexc kernel attention, target cpp
// CHECK-NEXT: // mask: q_idx >= kv_idx
// CHECK-NEXT: #include "flexc_support.h"
// CHECK: FLEXC_KERNEL void attention(
// CHECK-NEXT: const bfloat16* query,
// CHECK-NEXT: const float scale,
// CHECK-NEXT: const int8_t* keep,
// CHECK-NEXT: bfloat16* out,
// CHECK-NEXT: const int32_t n,
// CHECK-NEXT: int64_t grid_0, int64_t grid_1, int64_t grid_2, int32_t threads)
// CHECK-NEXT: {
// CHECK-NEXT: #pragma omp parallel num_threads(threads)
// CHECK-NEXT: {
// CHECK-NEXT: const FlushSubnormals flush;
// CHECK-NEXT: Buffer<float, 8, 4> q;
// CHECK-NEXT: Buffer<float, 8> m_i;
// CHECK-NEXT: Buffer<int32_t, 4> col_1;
// CHECK-NEXT: #pragma omp for schedule(dynamic)
// CHECK-NEXT: for (int64_t program = 0; program < grid_0 * grid_1 * grid_2; ++program) {
// CHECK-NEXT: const int32_t h = static_cast<int32_t>(program / grid_0 % grid_1);
// CHECK-NEXT: load(q, query + int64_t(0), int64_t(1), int64_t(1), n, n);
// CHECK-NEXT: fill(m_i, -inf_f32);
// CHECK-NEXT: iota(col_1, h);
// CHECK-NEXT: // full blocks
// CHECK-NEXT: for (int32_t i = 0; i < n; i += 1) {
// CHECK-NEXT: for (int col = 0; col < 4; col += columns_at_once<4, lanes<float>>) {
// CHECK-NEXT: Vec<int32_t> k[vectors_at_once<4, lanes<float>>];
// CHECK-NEXT: Vec<bool> valid[vectors_at_once<4, lanes<float>>];
// CHECK-NEXT: Vec<bool> b[vectors_at_once<4, lanes<float>>];
// CHECK-NEXT: #pragma GCC unroll 4
// CHECK-NEXT: for (int v = 0, at = col; v < vectors_at_once<4, lanes<float>>; ++v, at += lanes<float>) {
// CHECK-NEXT: k[v] = load_vector(col_1.data + at);
// CHECK-NEXT: valid[v] = mask(k[v] < n);
// CHECK-NEXT: b[v] = mask(read_if(valid[v], keep, k[v], 4 - at) != 0);
// CHECK-NEXT: }
// CHECK-NEXT: for (int row = 0; row < 8; ++row) {
// CHECK-NEXT: const float m = m_i[row];
// CHECK-NEXT: #pragma GCC unroll 4
// CHECK-NEXT: for (int v = 0, at = col; v < vectors_at_once<4, lanes<float>>; ++v, at += lanes<float>) {
// CHECK-NEXT: const Vec<float> x = load_vector(q[row] + at);
// CHECK-NEXT: const Vec<float> d = x - m;
// CHECK-NEXT: const Vec<float> e = exp2(d);
// CHECK-NEXT: const Vec<float> s = select(b[v], e, splat(-inf_f32));
// CHECK-NEXT: store_vector(q[row] + at, s);
// CHECK-NEXT: }
// CHECK-NEXT: }
// CHECK-NEXT: }
// CHECK-NEXT: }
// CHECK-NEXT: reduce_rows<Max>(m_i, q);
// CHECK-NEXT: #pragma GCC unroll 4
// CHECK-NEXT: for (int at = 0; at < 8; at += lanes<float>) {
// CHECK-NEXT: const Vec<float> y = load_vector(m_i.data + at);
// CHECK-NEXT: const Vec<float> z = y * scale;
// CHECK-NEXT: store_vector(m_i.data + at, z);
// CHECK-NEXT: }
// CHECK-NEXT: store(out + int64_t(0), q, int64_t(1), int64_t(1), n, n);
tile.kernel @attention(
    %query : tensor<?x?xbf16> #tile.param<argument 0>, %scale : f32 #tile.param<argument 1>,
    %keep : tensor<?xi1> #tile.param<argument 2>,
    %out : memref<?x?xbf16> #tile.param<argument 3>, %n : i32 #tile.param<dim 0, 1>)
    grid affine_map<(b, h, q_len) -> (q_len ceildiv 8, h, b)>
    attributes {mask = "q_idx >= kv_idx"} {
  %h = tile.program_id 1
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %s0 = arith.constant 0 : i64
  %s1 = arith.constant 1 : i64
  %inf = arith.constant 0xff800000 : f32
  %q = tile.load_strided %query[%s0] strides [%s1, %s1] extents [%n, %n] : tensor<?x?xbf16> -> !tile.tile<8x4xf32>
  %m_i = tile.full %inf : f32 -> !tile.tile<8xf32>
  %col = tile.iota %h : !tile.tile<4xi32>
  %p = scf.for %i = %c0 to %n step %c1 iter_args(%q_i = %q) -> (!tile.tile<8x4xf32>) : i32 {
    %p = tile.map(%x : f32 = %q_i [0, 1] : !tile.tile<8x4xf32>, %m : f32 = %m_i [0] : !tile.tile<8xf32>,
                  %k : i32 = %col [1] : !tile.tile<4xi32>, %n_ : i32 = %n [] : i32,
                  %t : tensor<?xi1> = %keep [] : tensor<?xi1>) {
      %low = arith.constant 0xff800000 : f32
      %valid = arith.cmpi slt, %k, %n_ : i32
      %b = tile.read %t[%k] if %valid : tensor<?xi1>, i32 -> i1
      %d = arith.subf %x, %m : f32
      %e = math.exp2 %d : f32
      %s = arith.select %b, %e, %low : f32
      flex.yield %s : f32
    } -> !tile.tile<8x4xf32>
    scf.yield %p : !tile.tile<8x4xf32>
  } {segment = #blocksparse<kind full>}
  %r = tile.reduce max %p along 1 : !tile.tile<8x4xf32>
  %u = tile.map(%y : f32 = %r [0] : !tile.tile<8xf32>, %c : f32 = %scale [] : f32) {
    %z = arith.mulf %y, %c : f32
    flex.yield %z : f32
  } -> !tile.tile<8xf32>
  tile.store_strided %p, %out[%s0] strides [%s1, %s1] extents [%n, %n] : !tile.tile<8x4xf32>, memref<?x?xbf16>
  tile.return
}

// A tile's diagonals have a buffer of their own, in which they are summed.
// CHECK: FLEXC_KERNEL void sums(
// CHECK: Buffer<float, 8, 8> x;
// CHECK-NEXT: Buffer<float, 16> diagonals_1;
// CHECK: fill(x, z);
// CHECK-NEXT: diagonals(diagonals_1, x);
// CHECK-NEXT: add_to(out + int64_t(0), diagonals_1, int64_t(1));
tile.kernel @sums(%z : f32 #tile.param<argument 0>,
                  %out : memref<?xf32> #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %s0 = arith.constant 0 : i64
  %s1 = arith.constant 1 : i64
  %x = tile.full %z : f32 -> !tile.tile<8x8xf32>
  %diagonals = tile.diagonals %x : !tile.tile<8x8xf32> -> !tile.tile<16xf32>
  tile.add_strided %diagonals, %out[%s0] strides [%s1] : !tile.tile<16xf32>, memref<?xf32>
  tile.return
}

// A map of panels combines rows in registers; numbers of 64 bits have vectors of their own.
// CHECK: #define FLEXC_VECTOR_BYTES 32
// CHECK: FLEXC_KERNEL void panels(
// CHECK: for (int col = 0; col < 16; col += columns_at_once<16, lanes<float>>) {
// CHECK-NEXT: Vec<float> sums_1[vectors_at_once<16, lanes<float>>];
// CHECK-NEXT: #pragma GCC unroll 4
// CHECK-NEXT: for (int v = 0, at = col;
// CHECK-NEXT: sums_1[v] = splat(Sum::identity<float>);
// CHECK-NEXT: }
// CHECK-NEXT: for (int row = 0; row < n; ++row) {
// CHECK-NEXT: #pragma GCC unroll 4
// CHECK-NEXT: for (int v = 0, at = col;
// CHECK-NEXT: const Vec<float> a = load_vector(x[row] + at);
// CHECK-NEXT: const Vec<float> e = exp2(a);
// CHECK-NEXT: store_vector(x[row] + at, e);
// CHECK-NEXT: sums_1[v] = Sum::combine(sums_1[v], e);
// CHECK-NEXT: }
// CHECK-NEXT: }
// CHECK-NEXT: #pragma GCC unroll 4
// CHECK-NEXT: for (int v = 0, at = col;
// CHECK-NEXT: store_vector(sums.data + at, sums_1[v]);
// CHECK: for (int at = 0; at < 16; at += lanes<double>) {
// CHECK-NEXT: const Vec<float, lanes<double>> f = load_vector<lanes<double>>(sums.data + at);
// CHECK-NEXT: const Vec<double, lanes<double>> g = convert<double>(f);
// CHECK-NEXT: const Vec<bool, lanes<double>> h = mask(g < 0.5);
// CHECK-NEXT: const Vec<float, lanes<double>> w = select(h, f, splat<lanes<double>>(1.0f));
tile.kernel @panels(%z : f32 #tile.param<argument 0>, %n : i32 #tile.param<argument 1>,
                    %out : memref<?xf32> #tile.param<argument 2>)
    grid affine_map<(b, h, q_len) -> (q_len)> attributes {vector_bytes = 32 : i32} {
  %s0 = arith.constant 0 : i64
  %s1 = arith.constant 1 : i64
  %x = tile.full %z : f32 -> !tile.tile<8x16xf32>
  %p, %sums = tile.panel_map [8, 16] count %n (%a : f32 = %x [0, 1] : !tile.tile<8x16xf32>) {
    %e = math.exp2 %a : f32
    flex.yield %e, %e : f32, f32
  } as ["tile", "sum"] -> !tile.tile<8x16xf32>, !tile.tile<16xf32>
  %y = tile.map(%f : f32 = %sums [0] : !tile.tile<16xf32>) {
    %one = arith.constant 1.0 : f32
    %half = arith.constant 0.5 : f64
    %g = arith.extf %f : f32 to f64
    %h = arith.cmpf olt, %g, %half : f64
    %w = arith.select %h, %f, %one : f32
    flex.yield %w : f32
  } -> !tile.tile<16xf32>
  tile.add_strided %y, %out[%s0] strides [%s1] : !tile.tile<16xf32>, memref<?xf32>
  tile.return
}
