// RUN: flexc-opt %s -p tile-early-weights | filecheck %s
// RUN: flexc-opt %s -p tile-early-weights,tile-panel-maps | filecheck %s --check-prefix=FUSED

!k = tensor<?x64xbf16, strided<[?, 1]>>

// References are kept ones, or new ones ahead of the first scores. A branch computes
// weights again, and says that sums need scaling.
// CHECK-LABEL: tile.kernel @weights
// CHECK: %[[far:.*]] = arith.divf %{{.*}}, %factor : f32
// CHECK: %ahead = arith.minnumf %[[far]]
// CHECK: scf.for
// CHECK: %s = tile.register_product
// CHECK: %[[one:.*]] = arith.constant 1 : i32
// CHECK-NEXT: %first = tile.reduce max %s along 0 count %[[one]]
// CHECK-NEXT: %[[m:.*]] = tile.map({{.*}} = %first [0] {{.*}} = %m_i [0] {{.*}} = %ahead []
// CHECK: %[[near:.*]] = arith.addf
// CHECK-NEXT: %[[grows:.*]] = arith.cmpf ogt, %{{.*}}, %[[near]]
// CHECK-NEXT: %[[new:.*]] = arith.addf
// CHECK-NEXT: arith.select %[[grows]], %[[new]]
// CHECK: %moves = tile.map({{.*}} = %[[m]] [0] {{.*}} = %m_i [0]
// CHECK: %{{.*}}, %[[moving:.*]] = tile.live_range %moves
// CHECK: %[[scales:.*]] = arith.cmpi sgt, %[[moving]]
// CHECK-NEXT: %p = tile.map(%{{.*}} = %s [0, 1] : {{.*}} = %[[m]] [1]
// CHECK: %packed = tile.pack %p
// CHECK: %row_max = tile.reduce max %s along 0 count %n
// CHECK: %above = tile.map({{.*}} = %row_max [0] {{.*}} = %[[m]] [0] {{.*}} = %factor []
// CHECK: tile.live_range %above
// CHECK: %[[found:.*]], %[[weights:.*]], %moved = scf.if
// CHECK: %[[again:.*]] = tile.map({{.*}} = %row_max [0] {{.*}} = %m_i [0] {{.*}} = %ahead []
// CHECK: tile.map(%{{.*}} = %s [0, 1] : {{.*}} = %[[again]] [1]
// CHECK: %[[packed:.*]] = tile.pack
// CHECK-NEXT: %[[true:.*]] = arith.constant true
// CHECK-NEXT: scf.yield %[[again]], %[[packed]], %[[true]]
// CHECK-NEXT: } else {
// CHECK-NEXT: scf.yield %[[m]], %packed, %[[scales]]
// CHECK: scf.if %moved
// CHECK-NEXT: tile.map({{.*}} = %m_i [0] {{.*}} = %[[found]] [0]
// CHECK: tile.register_product %packed_lhs, %[[weights]] onto
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

// The mod of the first product at the first and at the last column is a guess, which
// may be above all scores. The map of the mod lies after it, so that one map computes
// scores, their maxima and weights. The branch computes scores again.
// CHECK-LABEL: tile.kernel @mod
// CHECK: %first = tile.reduce max %s
// CHECK-NEXT: %[[last:.*]] = arith.subi %n
// CHECK-NEXT: %end = tile.map({{.*}} = %first [0] {{.*}} = %at [] {{.*}} = %rows [0]
// CHECK: %[[index:.*]] = arith.addi %at, %[[last]]
// CHECK-NEXT: %[[end:.*]] = tile.map({{.*}} = %first [0] {{.*}} = %[[index]] [] {{.*}} = %rows [0]
// CHECK: %guess = tile.map({{.*}} = %end [0] {{.*}} = %[[end]] [0]
// CHECK: %[[m:.*]] = tile.map({{.*}} = %guess [0] {{.*}} = %m_i [0]
// CHECK: %scores = tile.map
// CHECK: %p = tile.map(%{{.*}} = %scores [0, 1] : {{.*}} = %[[m]] [1]
// CHECK: %row_max = tile.reduce max %scores
// CHECK: %least = tile.map({{.*}} = %[[m]] [0] {{.*}} = %m_i [0]
// CHECK: tile.map({{.*}} = %least [0] {{.*}} = %row_max [0] {{.*}} = %factor []
// CHECK: %wrong = tile.map
// CHECK: scf.if
// CHECK: %[[again:.*]] = tile.map({{.*}} = %s [0, 1] {{.*}} = %columns [0] {{.*}} = %rows [1]
// CHECK: tile.map(%{{.*}} = %[[again]] [0, 1]
// FUSED-LABEL: tile.kernel @mod
// FUSED: tile.panel_map [96, 32] count %n ({{.*}} = %s [0, 1]
// FUSED: as ["max", "pairs"]
// FUSED: scf.if
tile.kernel @mod(%k : !k #tile.param<argument 0>, %n : i32 #tile.param<dim 0, 0>,
    %stride : i64 #tile.param<stride 0, 0>, %blocks : i32 #tile.param<argument 1>,
    %out : memref<?x?xf32> #tile.param<argument 2>, %z : bf16 #tile.param<argument 3>)
    grid affine_map<(b, h, q_len) -> (1)> {
  %one = arith.constant 1 : i64
  %factor = arith.constant 1.5 : f32
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %c32 = arith.constant 32 : i32
  %c96 = arith.constant 96 : i32
  %rows = tile.iota %c0 : !tile.tile<32xi32>
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
    %at = arith.muli %i, %c96 : i32
    %columns = tile.iota %at : !tile.tile<96xi32>
    %scores = tile.map(%x : f32 = %s [0, 1] : !tile.tile<96x32xf32>, %c : i32 = %columns [0] : !tile.tile<96xi32>, %r : i32 = %rows [1] : !tile.tile<32xi32>) {
      %d = arith.subi %c, %r : i32
      %f = arith.sitofp %d : i32 to f32
      %y = arith.addf %x, %f : f32
      flex.yield %y : f32
    } -> !tile.tile<96x32xf32>
    %row_max = tile.reduce max %scores along 0 count %n : !tile.tile<96x32xf32>
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
    %p = tile.map(%x : f32 = %scores [0, 1] : !tile.tile<96x32xf32>, %b : f32 = %m [1] : !tile.tile<32xf32>) {
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
