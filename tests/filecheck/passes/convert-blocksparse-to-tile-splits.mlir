// RUN: flexc-opt %s -p "blocksparse-merge-segments{into_one=true},convert-blocksparse-to-tile{target=gluon},canonicalize,cse" | filecheck %s

!h = tensor<?x?x?x64xbf16>
!m = tensor<?x?x?x64xf32>
!r = tensor<?x?x?xf32>
!s = tensor<?x?x?x?xf32>

// Programs share out the iterations of their rows. Though every row sees a key, a split
// of it may not: its loop is padded, and what it visits in place of nothing is masked.
// CHECK-LABEL: tile.kernel @split
// CHECK-SAME: %splits : i32 #tile.param<argument 4>
// CHECK-SAME: grid affine_map<(d0, d1, d2) -> ((d2 ceildiv 128), d1, d0)>
// CHECK-SAME: grid_of = array<i32: 5, 5, 5>
// CHECK: %result_b = tile.program_id 2
// CHECK-NEXT: %b = arith.divsi %result_b, %splits
// CHECK-NEXT: %[[BEFORE:.*]] = arith.muli %b, %splits
// CHECK-NEXT: %split = arith.subi %result_b, %[[BEFORE]]
// CHECK: tile.load {{.*}}[%b, %h, %q_start
// CHECK: %[[SIZE:.*]] = arith.divsi %[[LENGTH:.*]], %splits
// CHECK-NEXT: %[[DONE:.*]] = arith.muli %[[SIZE]], %splits
// CHECK-NEXT: %[[LEFT:.*]] = arith.subi %[[LENGTH]], %[[DONE]]
// CHECK-NEXT: %[[FEWER:.*]] = arith.subi %splits, %[[LEFT]]
// CHECK-NEXT: %[[EXTRA:.*]] = arith.subi %split, %[[FEWER]]
// CHECK: %[[SOME:.*]] = arith.cmpi slt, %first, %end
// CHECK: scf.for {{.*}} = %first to
// CHECK: arith.xori %[[SOME]]
// CHECK: scf.if
// CHECK: } {segment = #blocksparse<kind full>, nonempty}
// CHECK: tile.store {{.*}}, %outs[%result_b, %h, %q_start
// CHECK: tile.store {{.*}}, %shift[%result_b, %h, %q_start
// CHECK: tile.store {{.*}}, %sum[%result_b, %h, %q_start
func.func @split(%q : !h, %scale : f32, %splits : i32) -> (!m, !r, !r) {
  %outs, %shift, %sum = blocksparse.attention %q, %q, %q : !h, !h, !h
      scale(%scale : f32) splits(%splits : i32)
      -> out(!m) row_shift(!r) log_sum(!r)
      {block_m = 128 : i32, block_n = 64 : i32, rows_per_part = 64 : i32, has_pairs,
       rows_never_empty, scores_finite}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } segments {
    blocksparse.segment full {inside} bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32) {
      %zero = arith.constant 0 : i32
      flex.yield %zero, %kv_len : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32, %kv_len : i32) {
      flex.yield %i : i32
    }
  }
  func.return %outs, %shift, %sum : !m, !r, !r
}

// A program owns a row. The splits of a tile are read before any is used. Of those beyond
// the last both numbers are -inf, and of one that weighs nothing not even NaN counts.
// CHECK-LABEL: tile.kernel @combine
// CHECK-SAME: grid affine_map<(d0, d1, d2) -> ((d2 ceildiv 1), d1, d0)>
// CHECK-SAME: grid_of = array<i32: 3, 3, 3>
// CHECK: %splits = tile.dim %outs, 3
// CHECK: scf.for
// CHECK: tile.load %shift[{{.*}}, %first] checked [1] {{.*}} -> !tile.tile<1x64xf32>
// CHECK: arith.select {{.*}} : f32
// CHECK: tile.load %sum[
// CHECK: tile.load %outs[{{.*}} -> !tile.tile<64x64xf32>
// CHECK: tile.reduce max
// CHECK: math.exp
// CHECK: arith.cmpf oeq
// CHECK: arith.truncf
// CHECK: tile.store {{.*}}, %out[
// CHECK: tile.store {{.*}}, %lse[
func.func @combine(%outs : tensor<?x?x?x?x64xf32>, %shift : !s, %sum : !s) -> (!h, !r) {
  %out, %lse = flex.combine_splits %outs, %shift, %sum
      : tensor<?x?x?x?x64xf32>, !s, !s -> !h, !r
  func.return %out, %lse : !h, !r
}
