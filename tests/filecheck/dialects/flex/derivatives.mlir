// RUN: FLEXC_ROUNDTRIP
// RUN: FLEXC_GENERIC_ROUNDTRIP

!m = tensor<?x?x?x8xf32>
!r = tensor<?x?x?xf32>

// CHECK-LABEL: @backward
// CHECK-GENERIC-LABEL: "backward"
func.func @backward(%q : !m, %scale : f32, %bias : tensor<?xf32>, %lse : !r,
                    %num : tensor<?x?x?xi32>, %idx : tensor<?x?x?x?xi32>) {
  // CHECK: %dq, %db = flex.attention_backward %q, %q, %q : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>
  // CHECK-SAME: saved(%q, %lse : tensor<?x?x?x8xf32>, tensor<?x?x?xf32>) cotangents(%q, %lse : tensor<?x?x?x8xf32>, tensor<?x?x?xf32>)
  // CHECK-SAME: tangents(%bias, %q : tensor<?xf32>, tensor<?x?x?x8xf32>) scale(%scale : f32) captures(%bias : tensor<?xf32>)
  // CHECK-SAME: tables(%num, %idx : tensor<?x?x?xi32>, tensor<?x?x?x?xi32>) column_tables(%num, %idx : tensor<?x?x?xi32>, tensor<?x?x?x?xi32>) -> tensor<?x?x?x8xf32>, tensor<?xf32>
  // CHECK-SAME: {wrt = ["query", "capture 0"], along = ["capture 0", "d_out"], sparse_block = array<i64: 128, 64>, column_block = array<i64: 64, 128>}
  // CHECK-SAME: score_mod(%s: f32, %b: i32, %h: i32, %qi: i32, %ki: i32, %bias_: tensor<?xf32>) {
  // CHECK: } mask_mod(
  // CHECK-GENERIC: "flex.attention_backward"({{.*}}) <{
  // CHECK-GENERIC-SAME: operandSegmentSizes = array<i32: 2, 2, 2, 2, 1, 1, 1, 1, 1, 2>
  %dq, %db = flex.attention_backward %q, %q, %q : !m, !m, !m saved(%q, %lse : !m, !r)
      cotangents(%q, %lse : !m, !r) tangents(%bias, %q : tensor<?xf32>, !m)
      scale(%scale : f32) captures(%bias : tensor<?xf32>)
      tables(%num, %idx : tensor<?x?x?xi32>, tensor<?x?x?x?xi32>)
      column_tables(%num, %idx : tensor<?x?x?xi32>, tensor<?x?x?x?xi32>)
      -> !m, tensor<?xf32>
      {wrt = ["query", "capture 0"], along = ["capture 0", "d_out"],
       sparse_block = array<i64: 128, 64>, column_block = array<i64: 64, 128>}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32,
                %bias_ : tensor<?xf32>) {
    %m = flex.load_capture %bias_[%h] : tensor<?xf32>, i32
    %x = arith.addf %s, %m : f32
    flex.yield %x : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %bias_ : tensor<?xf32>) {
    %c = arith.cmpi sge, %qi, %ki : i32
    flex.yield %c : i1
  }
  func.return
}

// What lse lost may be saved too.
// CHECK-LABEL: @jvp
func.func @jvp(%q : !m, %scale : f32, %lse : !r) {
  // CHECK: %t_out, %t_lse = flex.attention_jvp %q, %q, %q : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>
  // CHECK-SAME: saved(%q, %lse, %lse : tensor<?x?x?x8xf32>, tensor<?x?x?xf32>, tensor<?x?x?xf32>) tangents(%q : tensor<?x?x?x8xf32>) scale(%scale : f32) -> tensor<?x?x?x8xf32>, tensor<?x?x?xf32> {along = ["value"]} score_mod(
  %t_out, %t_lse = flex.attention_jvp %q, %q, %q : !m, !m, !m
      saved(%q, %lse, %lse : !m, !r, !r) tangents(%q : !m) scale(%scale : f32)
      -> !m, !r {along = ["value"]}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}
