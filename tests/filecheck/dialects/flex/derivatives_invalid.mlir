// RUN: flexc-opt %s --split-input-file --verify-diagnostics | filecheck %s

!m = tensor<?x?x?x8xf32>
!r = tensor<?x?x?xf32>

func.func @saved(%q : !m, %scale : f32, %lse : !r) {
  // CHECK: saved expects out, lse and optionally lse_rest, got 1 values
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
  // CHECK: cotangents expects those of out and optionally of lse, got 0
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
  // CHECK: wrt expects 1 names, one for each of the results, got 2
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
  // CHECK: wrt expects names among query, key, value, got 'capture 0'
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
  // CHECK: along expects 1 names, one for each of the tangents, got 0
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
  // CHECK: expects two results, the tangents of out and lse, and no cotangents
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
  // CHECK: expects two results, the tangents of out and lse, and no cotangents
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

// -----

!m = tensor<?x?x?x8xf32>
!r = tensor<?x?x?xf32>
!t = tensor<?x?x?xi32>
!u = tensor<?x?x?x?xi32>

func.func @wrt_cotangent(%q : !m, %scale : f32, %lse : !r) {
  // CHECK: wrt expects names among query, key, value, got 'd_out'
  %dk = flex.attention_backward %q, %q, %q : !m, !m, !m saved(%q, %lse : !m, !r)
      cotangents(%q : !m) scale(%scale : f32) -> !m {wrt = ["d_out"]}
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
!t = tensor<?x?x?xi32>
!u = tensor<?x?x?x?xi32>

func.func @wrt_integers(%q : !m, %scale : f32, %lse : !r, %num : !t) {
  // CHECK: wrt expects names among query, key, value, got 'capture 0'
  %dk = flex.attention_backward %q, %q, %q : !m, !m, !m saved(%q, %lse : !m, !r)
      cotangents(%q : !m) scale(%scale : f32) captures(%num : !t) -> !t {wrt = ["capture 0"]}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32, %num_ : !t) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %num_ : !t) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

!m = tensor<?x?x?x8xf32>
!r = tensor<?x?x?xf32>
!t = tensor<?x?x?xi32>
!u = tensor<?x?x?x?xi32>

func.func @wrt_twice(%q : !m, %scale : f32, %lse : !r) {
  // CHECK: wrt expects each name once, got 'key' again
  %dk, %dl = flex.attention_backward %q, %q, %q : !m, !m, !m saved(%q, %lse : !m, !r)
      cotangents(%q : !m) scale(%scale : f32) -> !m, !m {wrt = ["key", "key"]}
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
!t = tensor<?x?x?xi32>
!u = tensor<?x?x?x?xi32>

func.func @wrt_type(%q : !m, %scale : f32, %lse : !r) {
  // CHECK: wrt 'key' expects a tensor like tensor<?x?x?x8xf32>, got tensor<?x?x?xf32>
  %dk = flex.attention_backward %q, %q, %q : !m, !m, !m saved(%q, %lse : !m, !r)
      cotangents(%q : !m) scale(%scale : f32) -> !r {wrt = ["key"]}
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
!t = tensor<?x?x?xi32>
!u = tensor<?x?x?x?xi32>

func.func @along_type(%q : !m, %scale : f32, %lse : !r, %w : tensor<?x?x?x4xf32>) {
  // CHECK: along 'd_out' expects a tensor like tensor<?x?x?x8xf32>, got tensor<?x?x?x4xf32>
  %dk = flex.attention_backward %q, %q, %q : !m, !m, !m saved(%q, %lse : !m, !r)
      cotangents(%q : !m) tangents(%w : tensor<?x?x?x4xf32>) scale(%scale : f32) -> !m
      {wrt = ["key"], along = ["d_out"]}
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
!t = tensor<?x?x?xi32>
!u = tensor<?x?x?x?xi32>

func.func @jvp_along(%q : !m, %scale : f32, %lse : !r) {
  // CHECK: along expects names among query, key, value, got 'd_out'
  %t, %u = flex.attention_jvp %q, %q, %q : !m, !m, !m saved(%q, %lse : !m, !r)
      tangents(%q : !m) scale(%scale : f32) -> !m, !r {along = ["d_out"]}
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
!t = tensor<?x?x?xi32>
!u = tensor<?x?x?x?xi32>

func.func @jvp_types(%q : !m, %scale : f32, %lse : !r) {
  // CHECK: the tangent of lse expects a tensor like tensor<?x?x?xf32>, got tensor<?x?x?x8xf32>
  %t, %u = flex.attention_jvp %q, %q, %q : !m, !m, !m saved(%q, %lse : !m, !r)
      tangents(%q : !m) scale(%scale : f32) -> !m, !m {along = ["key"]}
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
!t = tensor<?x?x?xi32>
!u = tensor<?x?x?x?xi32>

func.func @saved_types(%q : !m, %scale : f32, %lse : !r) {
  // CHECK: lse expects 3 dimensions, got tensor<?x?x?x8xf32>
  %dk = flex.attention_backward %q, %q, %q : !m, !m, !m saved(%q, %q : !m, !m)
      cotangents(%q : !m) scale(%scale : f32) -> !m {wrt = ["key"]}
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
!t = tensor<?x?x?xi32>
!u = tensor<?x?x?x?xi32>

func.func @saved_elements(%q : !m, %scale : f32, %lse : !r, %num : !t) {
  // CHECK: lse expects f32, got tensor<?x?x?xi32>
  %dk = flex.attention_backward %q, %q, %q : !m, !m, !m saved(%q, %num : !m, !t)
      cotangents(%q : !m) scale(%scale : f32) -> !m {wrt = ["key"]}
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
!t = tensor<?x?x?xi32>
!u = tensor<?x?x?x?xi32>

func.func @cotangent_types(%q : !m, %scale : f32, %lse : !r) {
  // CHECK: d_lse expects a tensor like tensor<?x?x?xf32>, got tensor<?x?x?x8xf32>
  %dk = flex.attention_backward %q, %q, %q : !m, !m, !m saved(%q, %lse : !m, !r)
      cotangents(%q, %q : !m, !m) scale(%scale : f32) -> !m {wrt = ["key"]}
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
!t = tensor<?x?x?xi32>
!u = tensor<?x?x?x?xi32>

func.func @head_dims(%q : !m, %scale : f32, %lse : !r, %w : tensor<?x?x?x4xf32>) {
  // CHECK: key expects head dim 8 as the query has, got 4
  %dk = flex.attention_backward %q, %w, %q : !m, tensor<?x?x?x4xf32>, !m
      saved(%q, %lse : !m, !r) cotangents(%q : !m) scale(%scale : f32) -> !m
      {wrt = ["value"]}
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
!t = tensor<?x?x?xi32>
!u = tensor<?x?x?x?xi32>

func.func @rows_alone(%q : !m, %scale : f32, %lse : !r, %num : !t, %idx : !u) {
  // CHECK: tables expect column_tables, which list the same blocks
  %dk = flex.attention_backward %q, %q, %q : !m, !m, !m saved(%q, %lse : !m, !r)
      cotangents(%q : !m) scale(%scale : f32) tables(%num, %idx : !t, !u) -> !m
      {wrt = ["key"], sparse_block = array<i64: 128, 64>}
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
!t = tensor<?x?x?xi32>
!u = tensor<?x?x?x?xi32>

func.func @column_block(%q : !m, %scale : f32, %lse : !r) {
  // CHECK: column_block expects column_tables, and column_tables expect it
  %dk = flex.attention_backward %q, %q, %q : !m, !m, !m saved(%q, %lse : !m, !r)
      cotangents(%q : !m) scale(%scale : f32) -> !m
      {wrt = ["key"], column_block = array<i64: 128, 64>}
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
!t = tensor<?x?x?xi32>
!u = tensor<?x?x?x?xi32>

func.func @column_tables(%q : !m, %scale : f32, %lse : !r, %num : !t, %idx : !u) {
  // CHECK: column_tables expects none or 2 tensors as there are tables, got 1
  %dk = flex.attention_backward %q, %q, %q : !m, !m, !m saved(%q, %lse : !m, !r)
      cotangents(%q : !m) scale(%scale : f32) tables(%num, %idx : !t, !u)
      column_tables(%num : !t) -> !m {wrt = ["key"], sparse_block = array<i64: 128, 64>}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}
