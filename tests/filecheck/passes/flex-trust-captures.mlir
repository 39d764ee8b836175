// RUN: flexc-opt %s -p flex-trust-captures | filecheck %s

!t = tensor<?x?x?x64xf32>

// Known to be in range: no test, and negative indices are not wrapped.
// CHECK-LABEL: func.func @trusted(
func.func @trusted(%q : !t, %k : !t, %v : !t, %scale : f32, %table : tensor<?xf32>) {
  %out = flex.attention %q, %k, %v : !t, !t, !t scale(%scale : f32)
      captures(%table : tensor<?xf32>) -> out(!t) {captures_inside}
  score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32, %t : tensor<?xf32>) {
    %d = arith.subi %qi, %ki : i32
    %n = flex.dim %t, 0 : tensor<?xf32> -> i32
    %zero = arith.constant 0 : i32
    %negative = arith.cmpi slt, %d, %zero : i32
    %wrapped = arith.addi %d, %n : i32
    %i = arith.select %negative, %wrapped, %d : i32
    // CHECK: flex.load_capture %t[%d] inside : tensor<?xf32>, i32
    %x = flex.load_capture %t[%i] : tensor<?xf32>, i32
    flex.yield %x : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %t : tensor<?xf32>) {
    %true = arith.constant true
    flex.yield %true : i1
  }
  func.return
}

// Not known: nothing changes.
// CHECK-LABEL: func.func @guarded(
func.func @guarded(%q : !t, %k : !t, %v : !t, %scale : f32, %table : tensor<?xf32>) {
  %out = flex.attention %q, %k, %v : !t, !t, !t scale(%scale : f32)
      captures(%table : tensor<?xf32>) -> out(!t)
  score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32, %t : tensor<?xf32>) {
    // CHECK: flex.load_capture %{{.*}}[%{{.*}}] : tensor<?xf32>, i32
    %x = flex.load_capture %t[%h] : tensor<?xf32>, i32
    flex.yield %x : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %t : tensor<?xf32>) {
    %true = arith.constant true
    flex.yield %true : i1
  }
  func.return
}
