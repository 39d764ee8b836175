// RUN: flexc-opt %s -p 'flexc-to-gluon{block-m=128 block-n=64 reads=in_place}' -t gluon | filecheck %s

// A bias by distance: one call, between the issue of the scores' product and its wait.
// Lengths of keys are multiples of a block's here, those of queries are not.
// CHECK: barriers, copy_in, copy_out, partial_sums, pass_turn, read_diagonals, take_turn,
// CHECK-NEXT: tile_of
// CHECK: rows = {{.*}} + 1
// CHECK: for i in range(
// CHECK: s_issued_1 = warpgroup_mma(
// CHECK: acc_next_issued = warpgroup_mma(
// CHECK: {{.*}} = read_diagonals(table, first_1, rows, None, 1, PRODUCT_64)
// CHECK-NEXT: s_1 = warpgroup_mma_wait(1, [s_issued_1])
// CHECK-NOT: read_bf16
!t = tensor<?x?x?x128xbf16, strided<[?, ?, ?, 1]>>
!table = tensor<?x?xbf16, strided<[?, 1]>>

func.func @attention(%query : !t, %key : !t, %value : !t, %scale : f32, %table : !table) -> !t {
  %out = flex.attention %query, %key, %value : !t, !t, !t scale(%scale : f32)
      captures(%table : !table)
      -> out(!t) {scale_positive, alignment = 16, kv_len_multiple = 128, captures_inside, indices_fit, has_pairs, index_width = 32}
      score_mod(%score : f32, %b : i32, %h : i32, %q_idx : i32, %kv_idx : i32, %t : !table) {
    %d = arith.subi %q_idx, %kv_idx : i32
    %n = arith.constant 4096 : i32
    %index = arith.addi %d, %n : i32
    %x = flex.load_capture %t[%h, %index] : !table, i32, i32
    %bias = arith.extf %x : bf16 to f32
    %sum = arith.addf %score, %bias : f32
    flex.yield %sum : f32
  } mask_mod(%b : i32, %h : i32, %q_idx : i32, %kv_idx : i32, %t : !table) {
    %true = arith.constant true
    flex.yield %true : i1
  }
  func.return %out : !t
}
