// RUN: flexc-opt %s --split-input-file --verify-diagnostics | filecheck %s

!m = tensor<?x?x?x8xf32>
!r = tensor<?x?x?xf32>

func.func @saved(%q : !m, %scale : f32, %lse : !r) {
  // CHECK: saved expects out, lse and, perhaps, lse_rest, got 1 values
  %dk = flex.attention_backward %q, %q, %q : !m, !m, !m saved(%q : !m)
      cotangents(%q : !m)  scale(%scale : f32) -> !m {wrt = ["key"]}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

!m = tensor<?x?x?x8xf32>
!r = tensor<?x?x?xf32>

func.func @no_cotangent(%q : !m, %scale : f32, %lse : !r) {
  // CHECK: cotangents expects those of out and, perhaps, of lse, got 0
  %dk = flex.attention_backward %q, %q, %q : !m, !m, !m saved(%q, %lse : !m, !r)
        scale(%scale : f32) -> !m {wrt = ["key"]}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

!m = tensor<?x?x?x8xf32>
!r = tensor<?x?x?xf32>

func.func @wrt_count(%q : !m, %scale : f32, %lse : !r) {
  // CHECK: wrt expects 1 names as there are results, got 2
  %dk = flex.attention_backward %q, %q, %q : !m, !m, !m saved(%q, %lse : !m, !r)
      cotangents(%q : !m)  scale(%scale : f32) -> !m {wrt = ["key", "value"]}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

!m = tensor<?x?x?x8xf32>
!r = tensor<?x?x?xf32>

func.func @wrt_names(%q : !m, %scale : f32, %lse : !r) {
  // CHECK: expects names among query, key, value, d_out, d_lse, got 'capture 0'
  %dk = flex.attention_backward %q, %q, %q : !m, !m, !m saved(%q, %lse : !m, !r)
      cotangents(%q : !m)  scale(%scale : f32) -> !m {wrt = ["capture 0"]}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

!m = tensor<?x?x?x8xf32>
!r = tensor<?x?x?xf32>

func.func @along(%q : !m, %scale : f32, %lse : !r) {
  // CHECK: along expects 1 names as there are tangents, got 0
  %dk = flex.attention_backward %q, %q, %q : !m, !m, !m saved(%q, %lse : !m, !r)
      cotangents(%q : !m) tangents(%q : !m) scale(%scale : f32) -> !m {wrt = ["key"]}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

!m = tensor<?x?x?x8xf32>
!r = tensor<?x?x?xf32>

func.func @jvp_results(%q : !m, %scale : f32, %lse : !r) {
  // CHECK: expects tangents of out and lse, and no cotangents
  %t = flex.attention_jvp %q, %q, %q : !m, !m, !m saved(%q, %lse : !m, !r)
       tangents(%q : !m) scale(%scale : f32) -> !m {along = ["key"]}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

!m = tensor<?x?x?x8xf32>
!r = tensor<?x?x?xf32>

func.func @jvp_cotangents(%q : !m, %scale : f32, %lse : !r) {
  // CHECK: expects tangents of out and lse, and no cotangents
  %t, %u = flex.attention_jvp %q, %q, %q : !m, !m, !m saved(%q, %lse : !m, !r)
      cotangents(%q : !m) tangents(%q : !m) scale(%scale : f32) -> !m, !r {along = ["key"]}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

!m = tensor<?x?x?x8xf32>
!r = tensor<?x?x?xf32>

func.func @mask(%q : !m, %scale : f32, %lse : !r) {
  // CHECK: mask_mod expects to yield (i1), got (i32)
  %dk = flex.attention_backward %q, %q, %q : !m, !m, !m saved(%q, %lse : !m, !r)
      cotangents(%q : !m)  scale(%scale : f32) -> !m {wrt = ["key"]}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %b : i32
  }
  func.return
}
