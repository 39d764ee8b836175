// RUN: FLEXC_ROUNDTRIP
// RUN: FLEXC_GENERIC_ROUNDTRIP

!m = tensor<?x?x?x8xf32>

// The segments of keys' rows receive a key's place first.
// CHECK-LABEL: @transposed
// CHECK-GENERIC-LABEL: "transposed"
func.func @transposed(%q : !m, %k : !m, %lse : tensor<?x?x?xf32>, %scale : f32) {
  // CHECK: %dk = blocksparse.pair_sums rows(%k : tensor<?x?x?x8xf32>) columns(%q : tensor<?x?x?x8xf32>) column_values(%lse : tensor<?x?x?xf32>) scale(%scale : f32) -> tensor<?x?x?x8xf32>
  // CHECK-SAME: block_m = 64 : i32, block_n = 32 : i32
  // CHECK-SAME: transposed
  // CHECK-SAME: pairs(%qk: f32, %s: f32, %lse_: f32, %b: i32, %h: i32, %qi: i32, %ki: i32) {
  // CHECK: } segments {
  // CHECK-NEXT: blocksparse.segment partial bounds(%{{.*}}, %{{.*}}, %kv_start: i32, %kv_len: i32, %q_len: i32) {
  // CHECK-GENERIC: "blocksparse.pair_sums"(%k, %q, %lse, %scale) <{
  // CHECK-GENERIC-SAME: operandSegmentSizes = array<i32: 1, 1, 0, 1, 0, 1, 0, 0>
  %dk = blocksparse.pair_sums rows(%k : !m) columns(%q : !m)
      column_values(%lse : tensor<?x?x?xf32>) scale(%scale : f32) -> !m
      {block_m = 64 : i32, block_n = 32 : i32, products = [array<i32: 0, 0>],
       sums = [#flex.sum<matrix [[0, 0]]>], transposed}
      pairs(%qk : f32, %s : f32, %lse_ : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %qk : f32
  } segments {
    blocksparse.segment partial bounds(%b : i32, %h : i32, %kv_start : i32,
        %kv_len : i32, %q_len : i32) {
      %zero = arith.constant 0 : i32
      flex.yield %zero, %q_len : i32, i32
    } block(%b : i32, %h : i32, %kv_start : i32, %i : i32, %kv_len : i32,
            %q_len : i32) {
      flex.yield %i : i32
    } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
      %c = arith.cmpi sge, %qi, %ki : i32
      flex.yield %c : i1
    }
  }
  func.return
}
