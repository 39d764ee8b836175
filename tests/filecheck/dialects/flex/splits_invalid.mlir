// RUN: flexc-opt %s --split-input-file --verify-diagnostics | filecheck %s

!m = tensor<?x?x?x8xf32>
!r = tensor<?x?x?xf32>

func.func @rows(%q : !m, %scale : f32, %n : i32) {
  // CHECK: splits expects row_shift and log_sum among results
  %out = flex.attention %q, %q, %q : !m, !m, !m scale(%scale : f32) splits(%n : i32)
      -> out(!m) score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %true = arith.constant true
    flex.yield %true : i1
  }
  func.return
}

// -----

!m = tensor<?x?x?x8xf32>
!r = tensor<?x?x?xf32>

func.func @lse(%q : !m, %scale : f32, %n : i32) {
  // CHECK: splits expects no lse among results
  %out, %lse, %shift, %sum = flex.attention %q, %q, %q : !m, !m, !m
      scale(%scale : f32) splits(%n : i32)
      -> out(!m) lse(!r) row_shift(!r) log_sum(!r)
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %true = arith.constant true
    flex.yield %true : i1
  }
  func.return
}

// -----

!h = tensor<?x?x?x8xbf16>
!r = tensor<?x?x?xf32>

func.func @out(%q : !h, %scale : f32, %n : i32) {
  // CHECK: out expects elements of f32 with splits, got bf16
  %out, %shift, %sum = flex.attention %q, %q, %q : !h, !h, !h
      scale(%scale : f32) splits(%n : i32) -> out(!h) row_shift(!r) log_sum(!r)
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %true = arith.constant true
    flex.yield %true : i1
  }
  func.return
}

// -----

func.func @dims(%o : tensor<?x?x?x?x8xf32>, %r : tensor<?x?x?x?xf32>) {
  // CHECK: out expects head dim 8 as outs have, got 4
  %out, %lse = flex.combine_splits %o, %r, %r
      : tensor<?x?x?x?x8xf32>, tensor<?x?x?x?xf32>, tensor<?x?x?x?xf32>
      -> tensor<?x?x?x4xf32>, tensor<?x?x?xf32>
  func.return
}
