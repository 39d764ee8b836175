// RUN: FLEXC_ROUNDTRIP
// RUN: FLEXC_GENERIC_ROUNDTRIP

!h = tensor<?x?x?x8xbf16>
!m = tensor<?x?x?x8xf32>
!r = tensor<?x?x?xf32>
!s = tensor<?x?x?x?xf32>

// CHECK-LABEL: @split
// CHECK-GENERIC-LABEL: "split"
func.func @split(%q : !h, %scale : f32, %splits : i32) -> (!m, !r, !r) {
  // CHECK: %outs, %shift, %sum = flex.attention %q, %q, %q : {{.*}} scale(%scale : f32) splits(%splits : i32) -> out(tensor<?x?x?x8xf32>) row_shift(tensor<?x?x?xf32>) log_sum(tensor<?x?x?xf32>)
  // CHECK-GENERIC: "flex.attention"(%q, %q, %q, %scale, %splits) <{
  // CHECK-GENERIC-SAME: operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0, 0, 1>
  %outs, %shift, %sum = flex.attention %q, %q, %q : !h, !h, !h scale(%scale : f32)
      splits(%splits : i32) -> out(!m) row_shift(!r) log_sum(!r)
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %true = arith.constant true
    flex.yield %true : i1
  }
  func.return %outs, %shift, %sum : !m, !r, !r
}

// CHECK-LABEL: @combine
// CHECK-GENERIC-LABEL: "combine"
func.func @combine(%outs : tensor<?x?x?x?x8xf32>, %shift : !s, %sum : !s) -> (!h, !r) {
  // CHECK: %out, %lse = flex.combine_splits %outs, %shift, %sum : tensor<?x?x?x?x8xf32>, tensor<?x?x?x?xf32>, tensor<?x?x?x?xf32> -> tensor<?x?x?x8xbf16>, tensor<?x?x?xf32>
  %out, %lse = flex.combine_splits %outs, %shift, %sum
      : tensor<?x?x?x?x8xf32>, !s, !s -> !h, !r
  func.return %out, %lse : !h, !r
}
