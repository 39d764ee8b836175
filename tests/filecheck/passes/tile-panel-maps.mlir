// RUN: flexc-opt %s -p tile-panel-maps | filecheck %s

!s = !tile.tile<96x32xf32>
!r = !tile.tile<32xf32>
!v = tensor<?x64xf32, strided<[?, 1]>>

// The scores' maximum is found as they are made, and what is summed as it is; a count
// says how many rows of all of it are needed, those of the product too.
// CHECK-LABEL: tile.kernel @softmax
// CHECK: %s = tile.register_product %v[%zero] strides[%s1, %s1] rows %n next %zero, %q_t by <8 x 2>
// CHECK-NEXT: %scores, %max = tile.panel_map [96, 32] count %n (%x : f32 = %s [0, 1] : !tile.tile<96x32xf32>) {
// CHECK-NEXT: %t = math.tanh %x : f32
// CHECK-NEXT: flex.yield %t, %t : f32, f32
// CHECK-NEXT: } as ["tile", "max"] -> !tile.tile<96x32xf32>, !tile.tile<32xf32>
// CHECK-NEXT: %p, %sum = tile.panel_map [96, 32] count %n (
// CHECK: } as ["tile", "sum"] -> !tile.tile<96x32xf32>, !tile.tile<32xf32>
// CHECK-NEXT: %o = tile.register_product
tile.kernel @softmax(%v : !v #tile.param<argument 0>, %q : f32 #tile.param<argument 1>,
    %n : i32 #tile.param<dim 0, 0>, %out : memref<?x?xf32> #tile.param<argument 2>,
    %sums : memref<?xf32> #tile.param<argument 3>)
    grid affine_map<(b, h, q_len) -> (1)> {
  %zero = arith.constant 0 : i64
  %s1 = arith.constant 1 : i64
  %c64 = arith.constant 64 : i32
  %q_t = tile.full %q : f32 -> !tile.tile<64x32xf32>
  %s = tile.register_product %v[%zero] strides [%s1, %s1] next %zero, %q_t by <8 x 2> : !v, !tile.tile<64x32xf32> -> !s
  %scores = tile.map(%x : f32 = %s [0, 1] : !s) {
    %t = math.tanh %x : f32
    flex.yield %t : f32
  } -> !s
  %max = tile.reduce max %scores along 0 count %n : !s
  %p = tile.map(%x : f32 = %scores [0, 1] : !s, %m : f32 = %max [1] : !r) {
    %d = arith.subf %x, %m : f32
    %e = math.exp2 %d : f32
    flex.yield %e : f32
  } -> !s
  %sum = tile.reduce sum %p along 0 count %n : !s
  %o = tile.register_product %v[%zero] strides [%s1, %s1] inner %n, %p by <8 x 2> : !v, !s -> !tile.tile<64x32xf32>
  tile.store_strided %o, %out[%zero] strides [%s1, %s1] extents [%c64, %c64] : !tile.tile<64x32xf32>, memref<?x?xf32>
  tile.store_strided %sum, %sums[%zero] strides [%s1] extents [%c64] : !r, memref<?xf32>
  tile.return
}

// A map becomes a part of the only map that reads it; a tile that is only combined is
// not kept.
// CHECK-LABEL: tile.kernel @chain
// CHECK: %sum = tile.panel_map [96, 32] (%x : f32 = %s [0, 1] : !tile.tile<96x32xf32>, %m : f32 = %r [1] : !tile.tile<32xf32>) {
// CHECK-NEXT: %t = math.tanh %x : f32
// CHECK-NEXT: %d = arith.subf %t, %m : f32
// CHECK-NEXT: flex.yield %d : f32
// CHECK-NEXT: } as ["sum"] -> !tile.tile<32xf32>
tile.kernel @chain(%z : f32 #tile.param<argument 0>, %sums : memref<?xf32> #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (1)> {
  %zero = arith.constant 0 : i64
  %s1 = arith.constant 1 : i64
  %c32 = arith.constant 32 : i32
  %s = tile.full %z : f32 -> !s
  %r = tile.full %z : f32 -> !r
  %a = tile.map(%x : f32 = %s [0, 1] : !s) {
    %t = math.tanh %x : f32
    flex.yield %t : f32
  } -> !s
  %b = tile.map(%x : f32 = %a [0, 1] : !s, %m : f32 = %r [1] : !r) {
    %d = arith.subf %x, %m : f32
    flex.yield %d : f32
  } -> !s
  %sum = tile.reduce sum %b along 0 : !s
  tile.store_strided %sum, %sums[%zero] strides [%s1] extents [%c32] : !r, memref<?xf32>
  tile.return
}

// What others read too is computed once, by one map with several results. The rows that
// a product adds to memory are counted.
// CHECK-LABEL: tile.kernel @several
// CHECK: %a, %b = tile.panel_map [96, 32] count %n (%x : f32 = %s [0, 1] : !tile.tile<96x32xf32>) {
// CHECK-NEXT: %t = math.tanh %x : f32
// CHECK-NEXT: %d = arith.addf %t, %t : f32
// CHECK-NEXT: flex.yield %t, %d : f32, f32
// CHECK-NEXT: } as ["tile", "tile"] -> !tile.tile<96x32xf32>, !tile.tile<96x32xf32>
// CHECK-NEXT: tile.add_register_product %sums[%zero] stride %s1 rows %n, %a, %q by <8 x 2>
tile.kernel @several(%z : f32 #tile.param<argument 0>, %n : i32 #tile.param<dim 0, 0>,
    %sums : memref<?xf32> #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (1)> {
  %zero = arith.constant 0 : i64
  %s1 = arith.constant 1 : i64
  %s = tile.full %z : f32 -> !s
  %q = tile.full %z : f32 -> !tile.tile<32x32xf32>
  %a = tile.map(%x : f32 = %s [0, 1] : !s) {
    %t = math.tanh %x : f32
    flex.yield %t : f32
  } -> !s
  tile.add_register_product %sums[%zero] stride %s1 rows %n, %a, %q by <8 x 2> : memref<?xf32>, !s, !tile.tile<32x32xf32>
  %b = tile.map(%x : f32 = %a [0, 1] : !s) {
    %d = arith.addf %x, %x : f32
    flex.yield %d : f32
  } -> !s
  tile.add_register_product %sums[%zero] stride %s1 rows %n, %b, %q by <8 x 2> : memref<?xf32>, !s, !tile.tile<32x32xf32>
  tile.return
}

// What a loop carries is needed as a whole, and so are rows that two counts tell apart:
// such a reduction looks at fewer rows than the map has, and stays.
// CHECK-LABEL: tile.kernel @whole
// CHECK: scf.for
// CHECK-NEXT: %b = tile.panel_map [96, 32] (%x : f32 = %a [0, 1] : !tile.tile<96x32xf32>) {
// CHECK: } as ["tile"] -> !tile.tile<96x32xf32>
// CHECK-NEXT: scf.yield
// CHECK: %c = tile.panel_map [96, 32] (
// CHECK: } as ["tile"] -> !tile.tile<96x32xf32>
// CHECK-NEXT: %sum = tile.reduce sum %c along 0 count %n : !tile.tile<96x32xf32>
// CHECK-NEXT: %min = tile.reduce min %c along 0 count %k : !tile.tile<96x32xf32>
tile.kernel @whole(%z : f32 #tile.param<argument 0>, %n : i32 #tile.param<dim 0, 0>,
    %k : i32 #tile.param<dim 0, 1>, %sums : memref<?xf32> #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (1)> {
  %zero = arith.constant 0 : i64
  %s1 = arith.constant 1 : i64
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %c32 = arith.constant 32 : i32
  %s = tile.full %z : f32 -> !s
  %last = scf.for %i = %c0 to %n step %c1 iter_args(%a = %s) -> (!s) : i32 {
    %b = tile.map(%x : f32 = %a [0, 1] : !s) {
      %t = math.tanh %x : f32
      flex.yield %t : f32
    } -> !s
    scf.yield %b : !s
  }
  %c = tile.map(%x : f32 = %last [0, 1] : !s) {
    %t = math.tanh %x : f32
    flex.yield %t : f32
  } -> !s
  %sum = tile.reduce sum %c along 0 count %n : !s
  %min = tile.reduce min %c along 0 count %k : !s
  tile.store_strided %sum, %sums[%zero] strides [%s1] extents [%c32] : !r, memref<?xf32>
  tile.store_strided %min, %sums[%zero] strides [%s1] extents [%c32] : !r, memref<?xf32>
  tile.return
}

// Vectors of 64-bit numbers have fewer lanes: such maps stay apart from others. Rows of
// a tile that was read along the other dimension stay as well.
// CHECK-LABEL: tile.kernel @apart
// CHECK: %a = tile.panel_map
// CHECK: } as ["tile"] -> !tile.tile<96x32xf32>
// CHECK-NEXT: %b = tile.panel_map
// CHECK: } as ["tile"] -> !tile.tile<96x32xf32>
// CHECK-NEXT: tile.reduce sum %b along 1
tile.kernel @apart(%z : f32 #tile.param<argument 0>, %sums : memref<?xf32> #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (1)> {
  %zero = arith.constant 0 : i64
  %s1 = arith.constant 1 : i64
  %c32 = arith.constant 32 : i32
  %s = tile.full %z : f32 -> !s
  %a = tile.map(%x : f32 = %s [0, 1] : !s) {
    %w = arith.extf %x : f32 to f64
    %t = math.sqrt %w : f64
    %u = arith.truncf %t : f64 to f32
    flex.yield %u : f32
  } -> !s
  %b = tile.map(%x : f32 = %a [0, 1] : !s) {
    %t = math.tanh %x : f32
    flex.yield %t : f32
  } -> !s
  %sum = tile.reduce sum %b along 1 : !s
  tile.store_strided %sum, %sums[%zero] strides [%s1] extents [%c32] : !tile.tile<96xf32>, memref<?xf32>
  tile.return
}

// What is stored of the first rows, or summed along their diagonals, is computed of
// these; of a tile whose columns are counted all rows are looked at.
// CHECK-LABEL: tile.kernel @stored
// CHECK: %a = tile.panel_map [96, 32] count %n (
// CHECK: %b = tile.panel_map [96, 32] (
tile.kernel @stored(%z : f32 #tile.param<argument 0>, %n : i32 #tile.param<dim 0, 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>,
    %sums : memref<?xf32> #tile.param<argument 2>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %c0 = arith.constant 0 : i64
  %at = arith.constant 0 : i32
  %s = tile.full %z : f32 -> !s
  %a = tile.map(%x : f32 = %s [0, 1] : !s) {
    %y = arith.addf %x, %x : f32
    flex.yield %y : f32
  } -> !s
  tile.store_strided %a, %out[%c0] strides [%c0, %c0] extents [%n, %n] counted 0 : !s, memref<?x?xf32>
  %d = tile.diagonals %a count %n transposed : !s -> !tile.tile<128xf32>
  tile.add_to %d, %sums[%at] : !tile.tile<128xf32>, memref<?xf32>
  %b = tile.map(%x : f32 = %s [0, 1] : !s) {
    %y = arith.mulf %x, %x : f32
    flex.yield %y : f32
  } -> !s
  tile.store_strided %b, %out[%c0] strides [%c0, %c0] extents [%n, %n] counted 1 : !s, memref<?x?xf32>
  %e = tile.diagonals %b count %n : !s -> !tile.tile<128xf32>
  tile.add_to %e, %sums[%at] : !tile.tile<128xf32>, memref<?xf32>
  tile.return
}

// Weights are summed unrounded, and rounded and packed where they are computed. A tile
// that is packed with another count, or read too, is kept.
// CHECK-LABEL: tile.kernel @packed
// CHECK: tile.panel_map [96, 32] count %n (
// CHECK: } as ["sum", "pairs"] -> !tile.tile<32xf32>, !tile.tile<96x32xbf16, #tile.pairs>
// CHECK: tile.panel_map [96, 32] (
// CHECK: } as ["tile"] -> !tile.tile<96x32xf32>
// CHECK-NEXT: tile.pack %{{.*}} count %n
tile.kernel @packed(%z : f32 #tile.param<argument 0>, %n : i32 #tile.param<dim 0, 0>,
    %k : tensor<?x?xbf16> #tile.param<argument 1>,
    %base : i64 #tile.param<argument 2>, %sums : memref<?xf32> #tile.param<argument 3>,
    %out : memref<?x?xf32> #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (1)> {
  %one = arith.constant 1 : i64
  %c32 = arith.constant 32 : i32
  %s = tile.full %z : f32 -> !s
  %p = tile.map(%x : f32 = %s [0, 1] : !s) {
    %e = math.exp2 %x : f32
    flex.yield %e : f32
  } -> !s
  %sum = tile.reduce sum %p along 0 count %n : !s
  %pairs = tile.pack %p count %n : !s -> !tile.tile<96x32xbf16, #tile.pairs>
  %o = tile.register_product %k[%base] strides [%base, %one] inner %n, %pairs by <8 x 2 x 2> : tensor<?x?xbf16>, !tile.tile<96x32xbf16, #tile.pairs> -> !tile.tile<64x32xf32>
  %q = tile.map(%x : f32 = %s [0, 1] : !s) {
    %e = math.tanh %x : f32
    flex.yield %e : f32
  } -> !s
  %others = tile.pack %q count %n : !s -> !tile.tile<96x32xbf16, #tile.pairs>
  %r = tile.register_product %k[%base] strides [%base, %one] inner %n, %others onto %o by <8 x 2 x 2> : tensor<?x?xbf16>, !tile.tile<96x32xbf16, #tile.pairs> onto !tile.tile<64x32xf32> -> !tile.tile<64x32xf32>
  tile.store_strided %sum, %sums[%base] strides [%one] extents [%c32] : !tile.tile<32xf32>, memref<?xf32>
  tile.store_strided %q, %out[%base] strides [%one, %one] extents [%c32, %c32] : !s, memref<?x?xf32>
  tile.store_strided %r, %out[%base] strides [%one, %one] extents [%c32, %c32] : !tile.tile<64x32xf32>, memref<?x?xf32>
  tile.return
}
