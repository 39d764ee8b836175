// RUN: flexc-opt %s -p 'convert-flex-to-blocksparse{target=cpp}' | filecheck %s
// RUN: flexc-opt %s -p convert-flex-to-blocksparse | filecheck %s --check-prefix=TRITON

!m = tensor<?x?x?x64xbf16>
!r = tensor<?x?x?xf32>
!p = tensor<?x?x?x?xf32>

// Queries see the keys up to their own, the last of them most.
// CHECK-LABEL: @causal
// CHECK: %dq, %total = blocksparse.pair_sums rows(%q : {{[^)]*}}) columns(%k : {{[^)]*}}) row_values(%lse : {{[^)]*}}) scale(%scale : f32)
// CHECK-SAME: {scale_positive, products = [array<i32: 0, 0>], sums = [#flex.sum<matrix {{\[\[}}0, 0]] scaled>, #flex.sum<total {{\[\[}}0]]>], block_m = 16 : i32, block_n = 96 : i32, order = #blocksparse<order descending>}
// CHECK-SAME: pairs(%qk: f32
// CHECK: segments {
// CHECK-NEXT: blocksparse.segment partial {inside} bounds(%{{.*}}, %{{.*}}, %q_start: i32, %q_len: i32, %kv_len: i32) {
// CHECK: } mask_mod(
// CHECK: blocksparse.segment full {inside} bounds(
// TRITON-LABEL: @causal
// TRITON: block_m = 128 : i32, block_n = 64 : i32, num_warps = 4 : i32, num_stages = 3 : i32
func.func @causal(%q : !m, %k : !m, %lse : !r, %scale : f32) -> (!m, !r) {
  %dq, %total = flex.pair_sums rows(%q : !m) columns(%k : !m) row_values(%lse : !r)
      scale(%scale : f32) -> !m, !r
      {products = [array<i32: 0, 0>], scale_positive,
       sums = [#flex.sum<matrix [[0, 0]] scaled>, #flex.sum<total [[0]]>]}
      pairs(%qk : f32, %s : f32, %l : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    %w = arith.subf %qk, %l : f32
    flex.yield %w : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c = arith.cmpi sge, %qi, %ki : i32
    flex.yield %c : i1
  }
  func.return %dq, %total : !m, !r
}

// Keys are seen by the queries from their own on, the first of them by most.
// CHECK-LABEL: @transposed
// CHECK: %dk = blocksparse.pair_sums rows(%k : {{[^)]*}}) columns(%q : {{[^)]*}}) column_values(%lse : {{[^)]*}})
// CHECK-SAME: transposed, block_m = 16 : i32, block_n = 96 : i32, order = #blocksparse<order ascending>
// CHECK: blocksparse.segment partial {inside} bounds(%{{.*}}, %{{.*}}, %kv_start: i32, %kv_len: i32, %q_len: i32) {
// CHECK: } block(%{{.*}}, %{{.*}}, %{{.*}}, %i: i32, %{{.*}}, %{{.*}}) {
// CHECK: %q_start = arith.addi
// CHECK: %count = arith.minsi
// CHECK: flex.yield %q_start, %count : i32, i32
// CHECK: } mask_mod(
// CHECK-NEXT: %c = arith.cmpi sge, %qi_1, %ki_1 : i32
// CHECK: blocksparse.segment full {inside} bounds(
func.func @transposed(%q : !m, %k : !m, %lse : !r, %scale : f32) -> !m {
  %dk = flex.pair_sums rows(%k : !m) columns(%q : !m) column_values(%lse : !r)
      scale(%scale : f32) -> !m
      {products = [array<i32: 0, 0>], sums = [#flex.sum<matrix [[0, 0]]>], transposed}
      pairs(%qk : f32, %s : f32, %l : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    %w = arith.subf %qk, %l : f32
    flex.yield %w : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c = arith.cmpi sge, %qi, %ki : i32
    flex.yield %c : i1
  }
  func.return %dk : !m
}

// Tables list blocks of columns for the op's own rows: of queries for those of keys.
// CHECK-LABEL: @tables
// CHECK: blocksparse.pair_sums {{.*}} tables(%num, %idx : {{[^)]*}})
// CHECK-SAME: order = #blocksparse<order ascending>
// CHECK: blocksparse.segment partial {inside, narrowed} bounds(%{{.*}}, %{{.*}}, %kv_start: i32, %kv_len: i32, %q_len: i32, %num_1: {{.*}}, %idx_1: {{.*}}) {
// CHECK: %kv_block = arith.divsi %kv_start, %{{.*}} : i32
// CHECK-NEXT: %num_blocks = flex.load_capture %num_1[%b_1, %h_1, %kv_block] inside
// CHECK: %q_block = flex.load_capture
func.func @tables(%q : !m, %k : !m, %scale : f32, %num : tensor<?x?x?xi32>,
                  %idx : tensor<?x?x?x?xi32>) -> !m {
  %dk = flex.pair_sums rows(%k : !m) columns(%q : !m) scale(%scale : f32)
      tables(%num, %idx : tensor<?x?x?xi32>, tensor<?x?x?x?xi32>) -> !m
      {products = [array<i32: 0, 0>], sums = [#flex.sum<matrix [[0, 0]]>], transposed,
       sparse_block = array<i64: 128, 128>}
      pairs(%qk : f32, %s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %qk : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c = arith.cmpi sge, %qi, %ki : i32
    flex.yield %c : i1
  }
  func.return %dk : !m
}

// Tiles whose diagonals are summed are square.
// CHECK-LABEL: @diagonals
// CHECK: tile_origin(%i, %i, %i : i32, i32, i32)
// TRITON-LABEL: @diagonals
// TRITON: block_m = 64 : i32, block_n = 64 : i32
func.func @diagonals(%q : !m, %k : !m, %scale : f32, %i : i32) -> !p {
  %d = flex.pair_sums rows(%q : !m) columns(%k : !m) tile_origin(%i, %i, %i : i32, i32, i32)
      scale(%scale : f32) -> !p
      {products = [array<i32: 0, 0>], sums = [#flex.sum<diagonal [[0]]>]}
      pairs(%qk : f32, %s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %qk : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return %d : !p
}
