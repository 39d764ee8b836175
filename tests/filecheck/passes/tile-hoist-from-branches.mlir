// RUN: flexc-opt %s -p tile-hoist-from-branches,licm | filecheck %s

// What no iteration changes leaves the branch, and then the loop; the rest stays.
// CHECK-LABEL: @invariant
func.func @invariant(%n : i32, %a : i32, %c : i1) -> i32 {
  // CHECK: %[[TWICE:.*]] = arith.addi %a, %a
  // CHECK-NEXT: scf.for
  // CHECK-NEXT: scf.if
  // CHECK-NEXT: arith.muli %{{.*}}, %[[TWICE]]
  %zero = arith.constant 0 : i32
  %one = arith.constant 1 : i32
  %r = scf.for %i = %zero to %n step %one iter_args(%s = %zero) -> (i32) : i32 {
    %x = scf.if %c -> (i32) {
      %twice = arith.addi %a, %a : i32
      %y = arith.muli %i, %twice : i32
      scf.yield %y : i32
    } else {
      scf.yield %s : i32
    }
    scf.yield %x : i32
  }
  func.return %r : i32
}

// A branch outside of loops keeps its ops.
// CHECK-LABEL: @no_loop
func.func @no_loop(%a : i32, %c : i1) -> i32 {
  // CHECK-NEXT: scf.if
  // CHECK-NEXT: arith.addi
  %x = scf.if %c -> (i32) {
    %twice = arith.addi %a, %a : i32
    scf.yield %twice : i32
  } else {
    scf.yield %a : i32
  }
  func.return %x : i32
}
