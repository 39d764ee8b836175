// RUN: flexc-opt %s -p 'flex-fold-heads{group=4 queries=1}' | filecheck %s
// RUN: flexc-opt %s -p 'flex-fold-heads{group=2 queries=3}' | filecheck %s --check-prefix=MORE
// RUN: flexc-opt %s -p 'flex-fold-heads{group=1 queries=5}' | filecheck %s --check-prefix=ONE

!t = tensor<?x?x?x64xf32, strided<[?, ?, ?, 1]>>
!r = tensor<?x?x?xf32>

// Query and results have the rows of a group; mods are told of heads and queries.
// CHECK: func.func @attention(%q: tensor<?x?x4x64xf32, strided<[?, ?, ?, 1]>>, %k: tensor<?x?x?x64xf32
// CHECK-SAME: -> (tensor<?x?x4x64xf32, strided<[?, ?, ?, 1]>>, tensor<?x?x4xf32>)
// CHECK: -> out(tensor<?x?x4x64xf32, strided<[?, ?, ?, 1]>>) lse(tensor<?x?x4xf32>) {q_len_multiple = 4 : i64}
// CHECK-SAME: score_mod
// CHECK: %[[ZERO:.*]] = arith.constant 0 : i32
// CHECK-NEXT: %[[FOUR:.*]] = arith.constant 4 : i32
// CHECK-NEXT: %[[FIRST:.*]] = arith.muli %h, %[[FOUR]] : i32
// CHECK-NEXT: %query_head = arith.addi %[[FIRST]], %qi : i32
// CHECK-NEXT: flex.load_capture %s_[%query_head]
// CHECK-NEXT: arith.subi %ki, %[[ZERO]] : i32
// A mask that depends on neither stays as it is.
// CHECK: mask_mod
// CHECK-NEXT: arith.constant 7 : i32
// CHECK-NEXT: arith.cmpi

// MORE: %q: tensor<?x?x6x64xf32
// MORE: %[[ZERO:.*]] = arith.constant 0 : i32
// MORE-NEXT: %[[THREE:.*]] = arith.constant 3 : i32
// MORE-NEXT: %place = arith.divsi %qi, %[[THREE]] : i32
// MORE-NEXT: %query = arith.remsi %qi, %[[THREE]] : i32
// MORE-NEXT: %[[TWO:.*]] = arith.constant 2 : i32
// MORE-NEXT: %[[FIRST:.*]] = arith.muli %h, %[[TWO]] : i32
// MORE-NEXT: %query_head = arith.addi %[[FIRST]], %place : i32
// MORE-NEXT: flex.load_capture %s_[%query_head]
// MORE-NEXT: arith.subi %ki, %query : i32

// Of a single head nothing but the number of rows is new.
// ONE: %q: tensor<?x?x5x64xf32
// ONE: q_len_multiple = 5
// ONE-SAME: score_mod
// ONE-NEXT: flex.load_capture %s_[%h]
// ONE-NEXT: arith.subi %ki, %qi : i32
func.func @attention(%q : !t, %k : !t, %v : !t, %scale : f32, %slopes : tensor<?xf32>)
    -> (!t, !r) {
  %out, %lse = flex.attention %q, %k, %v : !t, !t, !t scale(%scale : f32)
      captures(%slopes : tensor<?xf32>) -> out(!t) lse(!r)
  score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32, %s_ : tensor<?xf32>) {
    %slope = flex.load_capture %s_[%h] : tensor<?xf32>, i32
    %d = arith.subi %ki, %qi : i32
    %f = arith.sitofp %d : i32 to f32
    %p = arith.mulf %slope, %f : f32
    %r = arith.addf %s, %p : f32
    flex.yield %r : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %s_ : tensor<?xf32>) {
    %seven = arith.constant 7 : i32
    %c = arith.cmpi sge, %ki, %seven : i32
    flex.yield %c : i1
  }
  func.return %out, %lse : !t, !r
}
