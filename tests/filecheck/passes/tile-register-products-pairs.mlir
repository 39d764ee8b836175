// RUN: flexc-opt %s -p 'tile-register-products{machine=avx512_bf16}' | filecheck %s --check-prefix=PAIRS
// RUN: flexc-opt %s -p 'tile-register-products{machine=amx}' | filecheck %s --check-prefix=AMX
// RUN: not flexc-opt %s -p 'tile-register-products{machine=avx512}' 2>&1 | filecheck %s --check-prefix=NONE

!k = tensor<?x64xbf16, strided<[?, 1]>>

// NONE: tile.dot: avx512 has no products of packed operands
// A packed rhs has register tiles of its own. Its lhs is read in place where the elements
// of each row are adjacent; another one is copied.
// PAIRS-LABEL: tile.kernel @pairs
// PAIRS: tile.register_product %k[%base] strides[%stride, %one] rows %n, %q by <8 x 2 x 2> : tensor<?x64xbf16, strided<[?, 1]>>, !tile.tile<64x32xbf16, #tile.pairs> -> !tile.tile<96x32xf32>
// PAIRS: %v_t = tile.load_strided
// PAIRS-NEXT: tile.register_product %v_t inner %n, %p by <8 x 2 x 2>
// AMX-LABEL: tile.kernel @pairs
// AMX: tile.register_product %k[%base] strides[%stride, %one] rows %n, %q by <32 x 2 x 32>
// AMX: tile.register_product %v_t inner %n, %p by <32 x 2 x 32>
tile.kernel @pairs(%k : !k #tile.param<argument 0>, %n : i32 #tile.param<dim 0, 0>,
    %stride : i64 #tile.param<stride 0, 0>, %base : i64 #tile.param<argument 1>,
    %out : memref<?x?xf32> #tile.param<argument 2>, %z : bf16 #tile.param<argument 3>)
    grid affine_map<(b, h, q_len) -> (1)> {
  %one = arith.constant 1 : i64
  %c64 = arith.constant 64 : i32
  %zero = arith.constant 0.0 : f32
  %plain_q = tile.full %z : bf16 -> !tile.tile<64x32xbf16>
  %plain_p = tile.full %z : bf16 -> !tile.tile<96x32xbf16>
  %q = tile.pack %plain_q : !tile.tile<64x32xbf16> -> !tile.tile<64x32xbf16, #tile.pairs>
  %p = tile.pack %plain_p : !tile.tile<96x32xbf16> -> !tile.tile<96x32xbf16, #tile.pairs>
  %zeros = tile.full %zero : f32 -> !tile.tile<96x32xf32>
  %none = tile.full %zero : f32 -> !tile.tile<64x32xf32>
  %key = tile.load_strided %k[%base] strides [%stride, %one] extents [%n, %c64] counted 0 : !k -> !tile.tile<96x64xbf16>
  %s = tile.dot %key, %q, %zeros : !tile.tile<96x64xbf16>, !tile.tile<64x32xbf16, #tile.pairs>, !tile.tile<96x32xf32> -> !tile.tile<96x32xf32>
  %v_t = tile.load_strided %k[%base] strides [%one, %stride] extents [%c64, %n] counted 1 : !k -> !tile.tile<64x96xbf16>
  %o = tile.dot %v_t, %p, %none count %n : !tile.tile<64x96xbf16>, !tile.tile<96x32xbf16, #tile.pairs>, !tile.tile<64x32xf32> -> !tile.tile<64x32xf32>
  tile.store_strided %s, %out[%base] strides [%one, %one] extents [%c64, %c64] : !tile.tile<96x32xf32>, memref<?x?xf32>
  tile.store_strided %o, %out[%base] strides [%one, %one] extents [%c64, %c64] : !tile.tile<64x32xf32>, memref<?x?xf32>
  tile.return
}

// An lhs that each iteration transposes is kept for later programs.
// PAIRS-LABEL: tile.kernel @kept
// PAIRS: tile.register_product %v_t inner %n, %p onto %acc by <8 x 2 x 2> : !tile.tile<64x96xbf16, #tile.kept>
// AMX-LABEL: tile.kernel @kept
// AMX: %v_t = tile.load_strided {{.*}} -> !tile.tile<64x96xbf16, #tile.kept>
// AMX-NEXT: tile.register_product %v_t inner %n, %p onto %acc by <32 x 2 x 32> : !tile.tile<64x96xbf16, #tile.kept>
tile.kernel @kept(%k : !k #tile.param<argument 0>, %n : i32 #tile.param<dim 0, 0>,
    %stride : i64 #tile.param<stride 0, 0>, %base : i64 #tile.param<argument 1>,
    %out : memref<?x?xf32> #tile.param<argument 2>, %z : bf16 #tile.param<argument 3>)
    grid affine_map<(b, h, q_len) -> (1)> {
  %one = arith.constant 1 : i64
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %c64 = arith.constant 64 : i32
  %zero = arith.constant 0.0 : f32
  %plain = tile.full %z : bf16 -> !tile.tile<96x32xbf16>
  %p = tile.pack %plain : !tile.tile<96x32xbf16> -> !tile.tile<96x32xbf16, #tile.pairs>
  %first = tile.full %zero : f32 -> !tile.tile<64x32xf32>
  %sum = scf.for %i = %c0 to %n step %c1 iter_args(%acc = %first) -> (!tile.tile<64x32xf32>) : i32 {
    %v_t = tile.load_strided %k[%base] strides [%one, %stride] extents [%c64, %n] counted 1 : !k -> !tile.tile<64x96xbf16>
    %o = tile.dot %v_t, %p, %acc count %n : !tile.tile<64x96xbf16>, !tile.tile<96x32xbf16, #tile.pairs>, !tile.tile<64x32xf32> -> !tile.tile<64x32xf32>
    scf.yield %o : !tile.tile<64x32xf32>
  }
  tile.store_strided %sum, %out[%base] strides [%one, %one] extents [%c64, %c64] : !tile.tile<64x32xf32>, memref<?x?xf32>
  tile.return
}

// A matrix unit clears rows of rhs beyond the counted terms, which the other product reads.
// AMX-LABEL: tile.kernel @two_sums
// AMX: tile.register_product %lhs inner %n, %p by <8 x 2 x 2>
// AMX: tile.register_product %lhs, %p by <32 x 2 x 32>
tile.kernel @two_sums(%n : i32 #tile.param<dim 0, 0>, %base : i64 #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %z : bf16 #tile.param<argument 2>)
    grid affine_map<(b, h, q_len) -> (1)> {
  %one = arith.constant 1 : i64
  %c64 = arith.constant 64 : i32
  %zero = arith.constant 0.0 : f32
  %plain = tile.full %z : bf16 -> !tile.tile<96x32xbf16>
  %p = tile.pack %plain : !tile.tile<96x32xbf16> -> !tile.tile<96x32xbf16, #tile.pairs>
  %lhs = tile.full %z : bf16 -> !tile.tile<64x96xbf16>
  %none = tile.full %zero : f32 -> !tile.tile<64x32xf32>
  %some = tile.dot %lhs, %p, %none count %n : !tile.tile<64x96xbf16>, !tile.tile<96x32xbf16, #tile.pairs>, !tile.tile<64x32xf32> -> !tile.tile<64x32xf32>
  %all = tile.dot %lhs, %p, %none : !tile.tile<64x96xbf16>, !tile.tile<96x32xbf16, #tile.pairs>, !tile.tile<64x32xf32> -> !tile.tile<64x32xf32>
  tile.store_strided %some, %out[%base] strides [%one, %one] extents [%c64, %c64] : !tile.tile<64x32xf32>, memref<?x?xf32>
  tile.store_strided %all, %out[%base] strides [%one, %one] extents [%c64, %c64] : !tile.tile<64x32xf32>, memref<?x?xf32>
  tile.return
}

// A wide register tile of a matrix unit reads each row of lhs once for 64 columns. An rhs
// of two steps stays in registers instead.
// PAIRS-LABEL: tile.kernel @wide
// PAIRS-COUNT-2: by <8 x 2 x 2>
// AMX-LABEL: tile.kernel @wide
// AMX: tile.register_product %l, %r by <16 x 4 x 32>
// AMX: tile.register_product %short, %stays onto %p by <32 x 2 x 32>
tile.kernel @wide(%base : i64 #tile.param<argument 0>, %out : memref<?x?xf32> #tile.param<argument 1>,
    %z : bf16 #tile.param<argument 2>) grid affine_map<(b, h, q_len) -> (1)> {
  %one = arith.constant 1 : i64
  %c64 = arith.constant 64 : i32
  %zero = arith.constant 0.0 : f32
  %l = tile.full %z : bf16 -> !tile.tile<96x128xbf16>
  %short = tile.full %z : bf16 -> !tile.tile<96x64xbf16>
  %plain = tile.full %z : bf16 -> !tile.tile<128x64xbf16>
  %few = tile.full %z : bf16 -> !tile.tile<64x64xbf16>
  %r = tile.pack %plain : !tile.tile<128x64xbf16> -> !tile.tile<128x64xbf16, #tile.pairs>
  %stays = tile.pack %few : !tile.tile<64x64xbf16> -> !tile.tile<64x64xbf16, #tile.pairs>
  %zeros = tile.full %zero : f32 -> !tile.tile<96x64xf32>
  %p = tile.dot %l, %r, %zeros : !tile.tile<96x128xbf16>, !tile.tile<128x64xbf16, #tile.pairs>, !tile.tile<96x64xf32> -> !tile.tile<96x64xf32>
  %s = tile.dot %short, %stays, %p : !tile.tile<96x64xbf16>, !tile.tile<64x64xbf16, #tile.pairs>, !tile.tile<96x64xf32> -> !tile.tile<96x64xf32>
  tile.store_strided %s, %out[%base] strides [%one, %one] extents [%c64, %c64] : !tile.tile<96x64xf32>, memref<?x?xf32>
  tile.return
}
