// RUN: flexc-opt %s -p 'flex-infer-facts{explain=true}' | filecheck %s

!t = tensor<?x?x?x64xf32>
!keys = tensor<?x?x32x64xf32>

// Soft-capping bounds any score; NaN stays NaN, and does not count.
// CHECK-LABEL: func.func @soft_cap(
func.func @soft_cap(%q : !t, %k : !t, %v : !t, %scale : f32) {
  // CHECK: no_rows_never_empty = "kv_len may be 0"
  // CHECK-SAME: score_range = #flex.float_range<-20.0, 20.0>, scores_finite
  %out = flex.attention %q, %k, %v : !t, !t, !t scale(%scale : f32) -> out(!t)
  score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c = arith.constant 2.0e+01 : f32
    %d = arith.divf %s, %c : f32
    %t = math.tanh %d : f32
    %r = arith.mulf %t, %c : f32
    flex.yield %r : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %true = arith.constant true
    flex.yield %true : i1
  }
  func.return
}

// A mod that masks: what counts is bounded, but scores may be infinite.
// CHECK-LABEL: func.func @masked_by_score(
func.func @masked_by_score(%q : !t, %k : !t, %v : !t, %scale : f32) {
  // CHECK: no_scores_finite = "a constant is not finite"
  // CHECK-SAME: no_rows_never_empty = "kv_len may be 0"
  // CHECK-SAME: score_range = #flex.float_range<-1.0, 5.0>
  %out = flex.attention %q, %k, %v : !t, !t, !t scale(%scale : f32) -> out(!t)
  score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    %lo = arith.constant -1.0 : f32
    %hi = arith.constant 4.0 : f32
    %one = arith.constant 1.0 : f32
    %none = arith.constant 0.0 : f32
    %inf = arith.constant 0xff800000 : f32
    %x = arith.maximumf %s, %lo : f32
    %y = arith.minimumf %x, %hi : f32
    %c = arith.cmpi sge, %qi, %ki : i32
    %d = arith.cmpi eq, %qi, %ki : i32
    %bias = arith.select %d, %one, %none : f32
    %mask = arith.select %c, %bias, %inf : f32
    %r = arith.addf %y, %mask : f32
    flex.yield %r : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c = arith.cmpi sge, %qi, %ki : i32
    flex.yield %c : i1
  }
  func.return
}

// A bias by distance is bounded by the greatest length, and sigmoid by 0 and 1.
// CHECK-LABEL: func.func @positions(
func.func @positions(%q : !t, %k : !t, %v : !t, %scale : f32) {
  // CHECK: score_range = #flex.float_range<-1023.0, {{1024.0.*}}>, scores_finite
  %out = flex.attention %q, %k, %v : !t, !t, !t scale(%scale : f32) -> out(!t)
      {max_length = 1024 : i64}
  score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    %one = arith.constant 1.0 : f32
    %n = arith.negf %s : f32
    %e = math.exp %n : f32
    %p = arith.addf %e, %one : f32
    %g = arith.divf %one, %p : f32
    %d = arith.subi %ki, %qi : i32
    %f = arith.sitofp %d : i32 to f32
    %r = arith.addf %g, %f : f32
    flex.yield %r : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c = arith.cmpi sge, %qi, %ki : i32
    flex.yield %c : i1
  }
  func.return
}

// The score itself has no bounds, nor has a captured number.
// CHECK-LABEL: func.func @unbounded(
func.func @unbounded(%q : !t, %k : !t, %v : !t, %scale : f32, %cap : f32) {
  // CHECK: {no_score_range = "nothing bounds s, an argument", no_scores_finite = "nothing bounds s, an argument", no_rows_never_empty
  %out = flex.attention %q, %k, %v : !t, !t, !t scale(%scale : f32) -> out(!t)
  score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    %one = arith.constant 1.0 : f32
    %r = arith.addf %s, %one : f32
    flex.yield %r : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %true = arith.constant true
    flex.yield %true : i1
  }
  // CHECK: no_score_range = "nothing bounds c, an argument"
  %out2 = flex.attention %q, %k, %v : !t, !t, !t scale(%scale : f32)
      captures(%cap : f32) -> out(!t)
  score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32, %c : f32) {
    %t = math.tanh %s : f32
    %r = arith.mulf %t, %c : f32
    flex.yield %r : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %c : f32) {
    %true = arith.constant true
    flex.yield %true : i1
  }
  func.return
}

// Without a mask all rows see all keys, if there are any.
// CHECK-LABEL: func.func @dense(
func.func @dense(%q : !t, %k : !keys, %v : !keys, %scale : f32) {
  // CHECK: no_scores_finite = "nothing bounds s, an argument", rows_never_empty}
  %out = flex.attention %q, %k, %v : !t, !keys, !keys scale(%scale : f32) -> out(!t)
  score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %true = arith.constant true
    flex.yield %true : i1
  }
  func.return
}

// What a caller states stays as it is.
// CHECK-LABEL: func.func @stated(
func.func @stated(%q : !t, %k : !t, %v : !t, %scale : f32) {
  // CHECK: score_range = #flex.float_range<-0.5, 0.5>
  %out = flex.attention %q, %k, %v : !t, !t, !t scale(%scale : f32) -> out(!t)
      {score_range = #flex.float_range<-0.5, 0.5>}
  score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = math.tanh %s : f32
    flex.yield %t : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %true = arith.constant true
    flex.yield %true : i1
  }
  func.return
}

// Causal: all rows see the first key, where there is one.
// CHECK-LABEL: func.func @first_key_is_seen(
func.func @first_key_is_seen(%q : !t, %k : !t, %v : !t, %scale : f32) {
  // CHECK: has_pairs, rows_never_empty}
  %out = flex.attention %q, %k, %v : !t, !t, !t scale(%scale : f32) -> out(!t)
      {has_pairs}
  score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c = arith.cmpi sge, %qi, %ki : i32
    flex.yield %c : i1
  }
  func.return
}

// A row's own key may be beyond the last one.
// CHECK-LABEL: func.func @only_the_diagonal(
func.func @only_the_diagonal(%q : !t, %k : !t, %v : !t, %scale : f32) {
  // CHECK: no_rows_never_empty = "no part of the mask is seen to be true of key 0
  %out = flex.attention %q, %k, %v : !t, !t, !t scale(%scale : f32) -> out(!t)
      {has_pairs}
  score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c = arith.cmpi eq, %qi, %ki : i32
    flex.yield %c : i1
  }
  func.return
}
