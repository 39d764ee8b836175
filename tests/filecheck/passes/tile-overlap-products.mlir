// RUN: flexc-opt %s -p tile-early-weights,tile-panel-maps,tile-overlap-products | filecheck %s

!k = tensor<?x64xbf16, strided<[?, 1]>>

// The loop carries the product. One map reads it, and combines its rows.
// CHECK-LABEL: tile.kernel @weights
// CHECK: %[[runs:.*]] = arith.cmpi slt, %c0, %blocks : i32
// CHECK-NEXT: %s = scf.if %[[runs]]
// CHECK: tile.register_product %k[%base] strides[%stride, %one] rows %n, %q by <32 x 2 x 32> :
// CHECK: } else {
// CHECK: scf.for %i = %c0 to %blocks step %c1 iter_args(%{{.*}}, %{{.*}}, %[[s:.*]] = %s)
// CHECK-NOT: tile.register_product %k
// CHECK: %[[next:.*]] = arith.addi %i, %c1
// CHECK-NEXT: %[[follows:.*]] = arith.cmpi slt, %[[next]], %blocks
// CHECK-NEXT: %[[index:.*]] = arith.select %[[follows]], %[[next]], %i
// CHECK-NEXT: %[[at:.*]] = arith.extsi %[[index]] : i32 to i64
// CHECK-NEXT: %[[base:.*]] = arith.muli %[[at]], %stride
// CHECK: %[[more:.*]] = arith.cmpi slt, %{{.*}}, %blocks
// CHECK: %rows = arith.select %[[more]], %n, %{{.*}} : i32
// CHECK-NEXT: %s_next = tile.register_product %k[%[[base]]] strides[%stride, %one] rows %rows, %q by <32 x 2 x 32> beside :
// CHECK-NEXT: %{{.*}} = tile.panel_map [96, 32] count %n ({{.*}} = %[[s]] [0, 1]
// CHECK: as ["max", "pairs"]
// CHECK: scf.yield %{{.*}}, %{{.*}}, %s_next
tile.kernel @weights(%k : !k #tile.param<argument 0>, %n : i32 #tile.param<dim 0, 0>,
    %stride : i64 #tile.param<stride 0, 0>, %blocks : i32 #tile.param<argument 1>,
    %out : memref<?x?xf32> #tile.param<argument 2>, %z : bf16 #tile.param<argument 3>)
    grid affine_map<(b, h, q_len) -> (1)> {
  %one = arith.constant 1 : i64
  %factor = arith.constant 1.5 : f32
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %c32 = arith.constant 32 : i32
  %zero = arith.constant 0.0 : f32
  %none = arith.constant 0xff800000 : f32
  %plain = tile.full %z : bf16 -> !tile.tile<64x32xbf16>
  %q = tile.pack %plain : !tile.tile<64x32xbf16> -> !tile.tile<64x32xbf16, #tile.pairs>
  %packed_lhs = tile.full %z : bf16 -> !tile.tile<32x96xbf16>
  %m_0 = tile.full %none : f32 -> !tile.tile<32xf32>
  %l_0 = tile.full %zero : f32 -> !tile.tile<32x32xf32>
  %m_n, %l_n = scf.for %i = %c0 to %blocks step %c1 iter_args(%m_i = %m_0, %l_i = %l_0) -> (!tile.tile<32xf32>, !tile.tile<32x32xf32>) : i32 {
    %wide = arith.extsi %i : i32 to i64
    %base = arith.muli %wide, %stride : i64
    %s = tile.register_product %k[%base] strides[%stride, %one] rows %n, %q by <32 x 2 x 32> : !k, !tile.tile<64x32xbf16, #tile.pairs> -> !tile.tile<96x32xf32>
    %row_max = tile.reduce max %s along 0 count %n : !tile.tile<96x32xf32>
    %above = tile.map(%a : f32 = %row_max [0] : !tile.tile<32xf32>, %b : f32 = %m_i [0] : !tile.tile<32xf32>, %f : f32 = %factor [] : f32) {
      %d = arith.subf %a, %b : f32
      %e = arith.mulf %d, %f : f32
      %c = arith.cmpf ogt, %e, %f : f32
      flex.yield %c : i1
    } -> !tile.tile<32xi1>
    %m = tile.map(%c : i1 = %above [0] : !tile.tile<32xi1>, %a : f32 = %row_max [0] : !tile.tile<32xf32>, %b : f32 = %m_i [0] : !tile.tile<32xf32>) {
      %d = arith.select %c, %a, %b : f32
      flex.yield %d : f32
    } attributes {tile.reference} -> !tile.tile<32xf32>
    %p = tile.map(%x : f32 = %s [0, 1] : !tile.tile<96x32xf32>, %b : f32 = %m [1] : !tile.tile<32xf32>) {
      %d = arith.subf %x, %b : f32
      %e = math.exp2 %d : f32
      flex.yield %e : f32
    } -> !tile.tile<96x32xf32>
    %first, %length = tile.live_range %above : !tile.tile<32xi1>
    %moved = arith.cmpi sgt, %length, %c0 : i32
    %l = scf.if %moved -> (!tile.tile<32x32xf32>) {
      %alpha = tile.map(%a : f32 = %m_i [0] : !tile.tile<32xf32>, %b : f32 = %m [0] : !tile.tile<32xf32>) {
        %d = arith.subf %a, %b : f32
        flex.yield %d : f32
      } -> !tile.tile<32xf32>
      %scaled = tile.map(%x : f32 = %l_i [0, 1] : !tile.tile<32x32xf32>, %a : f32 = %alpha [1] : !tile.tile<32xf32>) {
        %d = arith.mulf %x, %a : f32
        flex.yield %d : f32
      } -> !tile.tile<32x32xf32>
      scf.yield %scaled : !tile.tile<32x32xf32>
    } else {
      scf.yield %l_i : !tile.tile<32x32xf32>
    }
    %packed = tile.pack %p count %n : !tile.tile<96x32xf32> -> !tile.tile<96x32xbf16, #tile.pairs>
    %l_next = tile.register_product %packed_lhs, %packed onto %l by <32 x 2 x 32> : !tile.tile<32x96xbf16>, !tile.tile<96x32xbf16, #tile.pairs> onto !tile.tile<32x32xf32> -> !tile.tile<32x32xf32>
    scf.yield %m, %l_next : !tile.tile<32xf32>, !tile.tile<32x32xf32>
  }
  %wide = arith.extsi %c0 : i32 to i64
  tile.store_strided %l_n, %out[%wide] strides [%one, %one] extents [%c32, %c32] : !tile.tile<32x32xf32>, memref<?x?xf32>
  tile.return
}

// A product by vectors, of a carried place, of two tiles that have no room, or whose map
// computes more than one function or keeps a tile stays where it is.
// CHECK-LABEL: tile.kernel @stays
// CHECK-NOT: beside
tile.kernel @stays(%k : !k #tile.param<argument 0>, %n : i32 #tile.param<dim 0, 0>,
    %stride : i64 #tile.param<stride 0, 0>, %blocks : i32 #tile.param<argument 1>,
    %out : memref<?x?xf32> #tile.param<argument 2>, %z : bf16 #tile.param<argument 3>,
    %sums : memref<?xf32> #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (1)> {
  %one = arith.constant 1 : i64
  %none = arith.constant 0 : i64
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %c96 = arith.constant 96 : i32
  %plain = tile.full %z : bf16 -> !tile.tile<64x32xbf16>
  %q = tile.pack %plain : !tile.tile<64x32xbf16> -> !tile.tile<64x32xbf16, #tile.pairs>
  %wider = tile.full %z : bf16 -> !tile.tile<64x128xbf16>
  %q_4 = tile.pack %wider : !tile.tile<64x128xbf16> -> !tile.tile<64x128xbf16, #tile.pairs>
  %end = scf.for %i = %c0 to %blocks step %c1 iter_args(%at = %none) -> (i64) : i32 {
    %wide = arith.extsi %i : i32 to i64
    %s = tile.register_product %k[%wide] strides[%stride, %one] rows %n, %q by <8 x 2 x 2> : !k, !tile.tile<64x32xbf16, #tile.pairs> -> !tile.tile<96x32xf32>
    %t = tile.register_product %k[%at] strides[%stride, %one] rows %n, %q by <32 x 2 x 32> : !k, !tile.tile<64x32xbf16, #tile.pairs> -> !tile.tile<96x32xf32>
    %u = tile.register_product %k[%wide] strides[%stride, %one] rows %n, %q_4 by <32 x 2 x 32> : !k, !tile.tile<64x128xbf16, #tile.pairs> -> !tile.tile<96x128xf32>
    %v = tile.register_product %k[%wide] strides[%stride, %one] rows %n, %q by <32 x 2 x 32> : !k, !tile.tile<64x32xbf16, #tile.pairs> -> !tile.tile<96x32xf32>
    %w = tile.register_product %k[%wide] strides[%stride, %one] rows %n, %q by <32 x 2 x 32> : !k, !tile.tile<64x32xbf16, #tile.pairs> -> !tile.tile<96x32xf32>
    %s_p = tile.map(%x : f32 = %s [0, 1] : !tile.tile<96x32xf32>) {
      %e = math.exp2 %x : f32
      flex.yield %e : f32
    } -> !tile.tile<96x32xf32>
    %t_p = tile.map(%x : f32 = %t [0, 1] : !tile.tile<96x32xf32>) {
      %e = math.exp2 %x : f32
      flex.yield %e : f32
    } -> !tile.tile<96x32xf32>
    %u_p = tile.map(%x : f32 = %u [0, 1] : !tile.tile<96x128xf32>) {
      %e = math.exp2 %x : f32
      flex.yield %e : f32
    } -> !tile.tile<96x128xf32>
    %v_p = tile.map(%x : f32 = %v [0, 1] : !tile.tile<96x32xf32>) {
      %d = math.tanh %x : f32
      %e = math.exp2 %d : f32
      flex.yield %e : f32
    } -> !tile.tile<96x32xf32>
    %w_p = tile.map(%x : f32 = %w [0, 1] : !tile.tile<96x32xf32>) {
      %e = math.exp2 %x : f32
      flex.yield %e : f32
    } -> !tile.tile<96x32xf32>
    %s_sum = tile.reduce sum %s_p along 0 count %n : !tile.tile<96x32xf32>
    tile.store_strided %s_sum, %sums[%at] strides [%one] extents [%c96] : !tile.tile<32xf32>, memref<?xf32>
    %t_sum = tile.reduce sum %t_p along 0 count %n : !tile.tile<96x32xf32>
    tile.store_strided %t_sum, %sums[%at] strides [%one] extents [%c96] : !tile.tile<32xf32>, memref<?xf32>
    %u_sum = tile.reduce sum %u_p along 0 count %n : !tile.tile<96x128xf32>
    tile.store_strided %u_sum, %sums[%at] strides [%one] extents [%c96] : !tile.tile<128xf32>, memref<?xf32>
    %v_sum = tile.reduce sum %v_p along 0 count %n : !tile.tile<96x32xf32>
    tile.store_strided %v_sum, %sums[%at] strides [%one] extents [%c96] : !tile.tile<32xf32>, memref<?xf32>
    tile.store_strided %w_p, %out[%at] strides [%one, %one] extents [%n, %c96] counted 0 : !tile.tile<96x32xf32>, memref<?x?xf32>
    %next = arith.addi %at, %stride : i64
    scf.yield %next : i64
  }
  tile.return
}
