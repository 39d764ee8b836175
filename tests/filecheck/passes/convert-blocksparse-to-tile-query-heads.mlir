// RUN: flexc-opt %s -p 'convert-flex-to-blocksparse,convert-blocksparse-to-tile' | filecheck %s

// Programs of keys belong to one query head. The first query heads of all heads of keys
// start first. They add to the sums of the head of keys.

!m = tensor<?x?x?x64xbf16>
!s = tensor<?x?x?x64xf32>

// CHECK: tile.kernel @dk(%k : {{.*}}, %q : {{.*}}, %scale : f32 {{.*}}, %dk : memref<?x?x?x64xf32>
// CHECK-SAME: grid_of = array<i32: 1, 1, 0>
// CHECK: %own_heads = tile.dim %q, 1
// CHECK: %kv_heads = tile.dim %k, 1
// CHECK: %group = arith.divsi %own_heads, %kv_heads
// CHECK: %[[FIRST:.*]] = arith.remsi %{{.*}}, %kv_heads
// CHECK: arith.muli %[[FIRST]], %group
// CHECK: arith.divsi %{{.*}}, %kv_heads
// CHECK: tile.load %k[%kv_b, %kv_h, %row_start,
// CHECK: tile.load %q[%b, %{{h.*}}, %
// CHECK: tile.add_to atomic %{{.*}}, %dk[%kv_b, %kv_h, %row_start, %{{.*}}] checked [0]
func.func @dk(%k : !m, %q : !m, %scale : f32) -> !s {
  %dk = flex.pair_sums rows(%k : !m) columns(%q : !m) scale(%scale : f32) -> !s
      {products = [array<i32: 0, 0>], sums = [#flex.sum<matrix [[0, 0]]>], transposed,
       per_query_head}
      pairs(%qk : f32, %s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %qk : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return %dk : !s
}
