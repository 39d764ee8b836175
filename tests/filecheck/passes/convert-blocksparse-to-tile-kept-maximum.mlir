// RUN: flexc-opt %s -p 'convert-blocksparse-to-tile{target=cpp}' | filecheck %s
// RUN: flexc-opt %s -p 'convert-blocksparse-to-tile{target=triton}' | filecheck %s --check-prefix=TRITON

!t = tensor<?x?x?x32xf32>
!row = tensor<?x?x?xf32>

// A row keeps its maximum until an exponent is above 8; sums are scaled in a branch.
// CHECK-LABEL: tile.kernel @kept(
// CHECK: scf.for
// CHECK: %row_max = tile.reduce max %s along 1
// CHECK-NEXT: %above = tile.map(%row_max_1 : f32 = %row_max [0] : !tile.tile<64xf32>, %m_i_3 : f32 = %m_i_2 [0] : !tile.tile<64xf32>, %qk_scale_1 : f32 = %qk_scale [] : f32) {
// CHECK-NEXT: arith.subf %row_max_1, %m_i_3 : f32
// CHECK-NEXT: arith.mulf
// CHECK-NEXT: arith.constant 8.000000e+00 : f32
// CHECK-NEXT: arith.cmpf ogt
// CHECK: %m = tile.map(%above_1 : i1 = %above [0] : !tile.tile<64xi1>
// CHECK-NEXT: arith.select %above_1, %row_max_1, %m_i_3 : f32
// CHECK: %row_sum = tile.reduce sum %p along 1
// CHECK-NEXT: {{%[0-9]+}}, [[LENGTH:%[0-9]+]] = tile.live_range %above : !tile.tile<64xi1>
// CHECK: arith.cmpi sgt, [[LENGTH]]
// CHECK-NEXT: scf.if
// CHECK: %alpha = tile.map
// CHECK: %acc_scaled = tile.map
// CHECK: } else {
// CHECK-NEXT: scf.yield %l_i_2, %acc_2
// CHECK: %acc_next = tile.dot %p, %v_1, %acc_3

// What states the largest score of a row scales by it in every block, as GPUs do.
// CHECK-LABEL: tile.kernel @exact(
// CHECK-NOT: tile.live_range
// TRITON-NOT: tile.live_range
func.func @kept(%q : !t, %k : !t, %v : !t, %scale : f32) {
  %out, %lse = blocksparse.attention %q, %k, %v : !t, !t, !t scale(%scale : f32)
      -> out(!t) lse(!row) {block_m = 64 : i32, block_n = 32 : i32, scale_positive}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } segments {
    blocksparse.segment full {inside} bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32) {
      %begin = arith.constant 0 : i32
      %end = arith.constant 3 : i32
      flex.yield %begin, %end : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32,
            %kv_len : i32) {
      %n = arith.constant 32 : i32
      %start = arith.muli %i, %n : i32
      flex.yield %start : i32
    }
  }
  func.return
}

func.func @exact(%q : !t, %k : !t, %v : !t, %scale : f32) {
  %out, %max_scores = blocksparse.attention %q, %k, %v : !t, !t, !t scale(%scale : f32)
      -> out(!t) max_scores(!row) {block_m = 64 : i32, block_n = 32 : i32, scale_positive}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } segments {
    blocksparse.segment full {inside} bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32) {
      %begin = arith.constant 0 : i32
      %end = arith.constant 3 : i32
      flex.yield %begin, %end : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32,
            %kv_len : i32) {
      %n = arith.constant 32 : i32
      %start = arith.muli %i, %n : i32
      flex.yield %start : i32
    }
  }
  func.return
}
