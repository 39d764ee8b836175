// RUN: flexc-opt %s -p tile-split-loops | filecheck %s

!o = memref<?xf32>

// The first iterations take the branch, the others do not: two loops.
// CHECK-LABEL: tile.kernel @mixed(
// CHECK: %[[FIRST:.*]] = arith.minsi %bound, %n : i32
// CHECK-NEXT: %[[REST:.*]] = arith.maxsi %c0, %bound : i32
// CHECK-NEXT: %[[S:.*]] = scf.for %{{.*}} = %c0 to %[[FIRST]] step %c1 iter_args(%[[A:.*]] = %y) -> (f32) : i32 {
// CHECK-NOT: scf.if
// CHECK: %[[B:.*]] = arith.addf %[[A]], %y
// CHECK: scf.yield %[[B]]
// CHECK: } {segment = #blocksparse<kind partial>}
// CHECK: scf.for %{{.*}} = %[[REST]] to %n step %c1 iter_args(%[[C:.*]] = %[[S]]) -> (f32) : i32 {
// CHECK-NOT: scf.if
// CHECK: scf.yield %[[C]]
// CHECK: } {segment = #blocksparse<kind full>}
tile.kernel @mixed(%bound : i32 #tile.param<argument 0>, %n : i32 #tile.param<argument 1>, %y : f32 #tile.param<argument 2>, %out : !o #tile.param<argument 3>)
    grid affine_map<(b, h, m) -> (m)> {
  tile.roles {
    tile.role "consumer" copies 1 warps 4 registers 240 {
    ^bb0(%part : i32):
      %c0 = arith.constant 0 : i32
      %c1 = arith.constant 1 : i32
      %sum = scf.for %i = %c0 to %n step %c1 iter_args(%a = %y) -> (f32) : i32 {
        %is_partial = arith.cmpi slt, %i, %bound : i32
        %b = scf.if %is_partial -> (f32) {
          %c = arith.addf %a, %y : f32
          scf.yield %c : f32
        } else {
          scf.yield %a : f32
        }
        scf.yield %b : f32
      } {segment = #blocksparse<kind mixed>}
      tile.end
    }
  }
  tile.return
}

// All iterations take the branch if a condition holds from outside the loop. Other
// iterations have passed the bound too.
// CHECK-LABEL: tile.kernel @always(
// CHECK: %[[BOUND:.*]] = arith.select %always, %n, %bound : i32
// CHECK: %[[FIRST:.*]] = arith.minsi %[[BOUND]], %n : i32
// CHECK-NEXT: %[[REST:.*]] = arith.maxsi %c0, %[[BOUND]] : i32
// CHECK-NEXT: scf.for %{{.*}} = %c0 to %[[FIRST]] step
// CHECK-NOT: scf.if
// CHECK: arith.cmpi sge, %{{.*}}, %bound : i32
// CHECK: } {segment = #blocksparse<kind partial>}
// CHECK: scf.for %{{.*}} = %[[REST]] to %n step
// CHECK-NOT: scf.if
// CHECK: %[[FULL:.*]] = arith.constant true
// CHECK-NEXT: arith.select %[[FULL]], %{{.*}}, %y : f32
// CHECK: } {segment = #blocksparse<kind full>}
tile.kernel @always(%bound : i32 #tile.param<argument 0>, %n : i32 #tile.param<argument 1>, %y : f32 #tile.param<argument 2>, %out : !o #tile.param<argument 3>, %length : i32 #tile.param<argument 4>)
    grid affine_map<(b, h, m) -> (m)> {
  tile.roles {
    tile.role "consumer" copies 1 warps 4 registers 240 {
    ^bb0(%part : i32):
      %c0 = arith.constant 0 : i32
      %c1 = arith.constant 1 : i32
      %always = arith.cmpi slt, %length, %bound : i32
      %sum = scf.for %i = %c0 to %n step %c1 iter_args(%a = %y) -> (f32) : i32 {
        %is_partial = arith.cmpi slt, %i, %bound : i32
        %any = arith.ori %always, %is_partial : i1
        %b = scf.if %any -> (f32) {
          %c = arith.addf %a, %y : f32
          scf.yield %c : f32
        } else {
          scf.yield %a : f32
        }
        %is_full = arith.cmpi sge, %i, %bound : i32
        %d = arith.select %is_full, %b, %y : f32
        scf.yield %d : f32
      } {segment = #blocksparse<kind mixed>}
      tile.end
    }
  }
  tile.return
}

// Both ends, a condition that the loop computes, or the last iterations: one loop.
// CHECK-LABEL: tile.kernel @not_moved(
// CHECK: scf.for
// CHECK: scf.if
// CHECK: scf.for
// CHECK: scf.if
// CHECK: scf.for
// CHECK: scf.if
// CHECK-NOT: scf.for
tile.kernel @not_moved(%bound : i32 #tile.param<argument 0>, %n : i32 #tile.param<argument 1>, %y : f32 #tile.param<argument 2>, %out : !o #tile.param<argument 3>, %length : i32 #tile.param<argument 4>)
    grid affine_map<(b, h, m) -> (m)> {
  tile.roles {
    tile.role "consumer" copies 1 warps 4 registers 240 {
    ^bb0(%part : i32):
      %c0 = arith.constant 0 : i32
      %c1 = arith.constant 1 : i32
      %always = arith.cmpi slt, %length, %bound : i32
      %sum1 = scf.for %i = %c0 to %n step %c1 iter_args(%a = %y) -> (f32) : i32 {
        %first = arith.cmpi slt, %i, %bound : i32
        %last = arith.cmpi sge, %i, %length : i32
        %any = arith.ori %first, %last : i1
        %b = scf.if %any -> (f32) {
          %c = arith.addf %a, %y : f32
          scf.yield %c : f32
        } else {
          scf.yield %a : f32
        }
        scf.yield %b : f32
      }
      %sum2 = scf.for %i = %c0 to %n step %c1 iter_args(%a = %y) -> (f32) : i32 {
        %first = arith.cmpi slt, %i, %bound : i32
        %own = arith.cmpi sgt, %i, %length : i32
        %some = arith.ori %always, %own : i1
        %any = arith.ori %some, %first : i1
        %b = scf.if %any -> (f32) {
          %c = arith.addf %a, %y : f32
          scf.yield %c : f32
        } else {
          scf.yield %a : f32
        }
        scf.yield %b : f32
      }
      %sum3 = scf.for %i = %c0 to %n step %c1 iter_args(%a = %y) -> (f32) : i32 {
        %last = arith.cmpi sge, %i, %bound : i32
        %any = arith.ori %always, %last : i1
        %b = scf.if %any -> (f32) {
          %c = arith.addf %a, %y : f32
          scf.yield %c : f32
        } else {
          scf.yield %a : f32
        }
        scf.yield %b : f32
      }
      tile.end
    }
  }
  tile.return
}

// A bound that the loop computes or carries, or steps other than one: one loop.
// CHECK-LABEL: tile.kernel @kept(
// CHECK: scf.for
// CHECK: scf.if
// CHECK: scf.for
// CHECK: scf.if
// CHECK: scf.for
// CHECK: scf.if
// CHECK-NOT: scf.for
tile.kernel @kept(%bound : i32 #tile.param<argument 0>, %n : i32 #tile.param<argument 1>, %y : f32 #tile.param<argument 2>, %out : !o #tile.param<argument 3>)
    grid affine_map<(b, h, m) -> (m)> {
  tile.roles {
    tile.role "consumer" copies 1 warps 4 registers 240 {
    ^bb0(%part : i32):
      %c0 = arith.constant 0 : i32
      %c1 = arith.constant 1 : i32
      %c2 = arith.constant 2 : i32
      %sum = scf.for %i = %c0 to %n step %c1 iter_args(%a = %y) -> (f32) : i32 {
        %own = arith.addi %i, %bound : i32
        %is_partial = arith.cmpi slt, %i, %own : i32
        %b = scf.if %is_partial -> (f32) {
          %c = arith.addf %a, %y : f32
          scf.yield %c : f32
        } else {
          scf.yield %a : f32
        }
        scf.yield %b : f32
      }
      %last = scf.for %i = %c0 to %n step %c1 iter_args(%most = %bound) -> (i32) : i32 {
        %is_partial = arith.cmpi slt, %i, %most : i32
        %next = scf.if %is_partial -> (i32) {
          %c = arith.addi %most, %c1 : i32
          scf.yield %c : i32
        } else {
          scf.yield %most : i32
        }
        scf.yield %next : i32
      }
      %other = scf.for %i = %c0 to %n step %c2 iter_args(%a = %y) -> (f32) : i32 {
        %is_partial = arith.cmpi slt, %i, %bound : i32
        %b = scf.if %is_partial -> (f32) {
          %c = arith.addf %a, %y : f32
          scf.yield %c : f32
        } else {
          scf.yield %a : f32
        }
        scf.yield %b : f32
      }
      tile.end
    }
  }
  tile.return
}
