// RUN: flexc-opt %s -p tile-take-turns --split-input-file | filecheck %s

// Both products of an iteration are issued before the first one is awaited.
!view = !tile.view<!tile.tile<64x64xbf16>>
!sums = !tile.tile<64x64xf32>
!going = !tile.pending<!sums>
// CHECK-LABEL: tile.kernel @together
tile.kernel @together() grid affine_map<(b, h, q_len) -> (q_len)> {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %end = "test.op"() : () -> i32
  tile.roles {
    tile.role "consumer" copies 3 warps 4 registers 160 {
    // CHECK: ^bb0(%part: i32):
    // CHECK-NEXT: %[[LAST:.*]] = arith.constant 2 : i32
    // CHECK-NEXT: %is_last = arith.cmpi eq, %part, %[[LAST]] : i32
    // CHECK-NEXT: scf.if %is_last {
    // CHECK-NEXT: tile.pass_turn %part
    // CHECK-NEXT: }
    ^bb0(%part : i32):
      %q, %k, %p, %v = "test.op"() : () -> (!view, !view, !view, !view)
      %most = arith.minsi %end, %c1 : i32
      // CHECK: scf.for
      // CHECK-NEXT: tile.take_turn %part
      // CHECK-NEXT: %s_issued = tile.issue_dot
      // CHECK-NEXT: %o_issued = tile.issue_dot
      // CHECK-NEXT: tile.pass_turn %part
      // CHECK-NEXT: %s = tile.await_dot
      scf.for %i = %c0 to %most step %c1 : i32 {
        %s_issued = tile.issue_dot %q, %k of !view, !view -> !going
        %o_issued = tile.issue_dot %p, %v of !view, !view -> !going
        %s = tile.await_dot %s_issued outstanding 1 : !going -> !sums
        %o = tile.await_dot %o_issued outstanding 0 : !going -> !sums
      }
      // The second product is issued after the first one was awaited.
      // CHECK: scf.for
      // CHECK-NOT: _turn
      scf.for %i = %c0 to %end step %c1 : i32 {
        %s_issued = tile.issue_dot %q, %k of !view, !view -> !going
        %s = tile.await_dot %s_issued outstanding 0 : !going -> !sums
        %o_issued = tile.issue_dot %p, %v of !view, !view -> !going
        %o = tile.await_dot %o_issued outstanding 0 : !going -> !sums
      }
      // Only some iterations of the outer loop run the inner one.
      // CHECK: scf.for
      // CHECK-NOT: _turn
      scf.for %j = %c0 to %end step %c1 : i32 {
        scf.for %i = %c0 to %j step %c1 : i32 {
          %s_issued = tile.issue_dot %q, %k of !view, !view -> !going
          %o_issued = tile.issue_dot %p, %v of !view, !view -> !going
          %s = tile.await_dot %s_issued outstanding 1 : !going -> !sums
          %o = tile.await_dot %o_issued outstanding 0 : !going -> !sums
        }
      }
      // Copies have different numbers of iterations.
      // CHECK: scf.for
      // CHECK-NOT: _turn
      scf.for %i = %c0 to %part step %c1 : i32 {
        %s_issued = tile.issue_dot %q, %k of !view, !view -> !going
        %o_issued = tile.issue_dot %p, %v of !view, !view -> !going
        %s = tile.await_dot %s_issued outstanding 1 : !going -> !sums
        %o = tile.await_dot %o_issued outstanding 0 : !going -> !sums
      }
      tile.end
    }
  }
  tile.return
}

// -----

// A single copy has nobody to take turns with.
!view = !tile.view<!tile.tile<64x64xbf16>>
!sums = !tile.tile<64x64xf32>
!going = !tile.pending<!sums>
// CHECK-LABEL: tile.kernel @alone
// CHECK-NOT: _turn
tile.kernel @alone() grid affine_map<(b, h, q_len) -> (q_len)> {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %end = "test.op"() : () -> i32
  tile.roles {
    tile.role "consumer" copies 1 warps 4 registers 160 {
    ^bb0(%part : i32):
      %q, %k, %p, %v = "test.op"() : () -> (!view, !view, !view, !view)
      scf.for %i = %c0 to %end step %c1 : i32 {
        %s_issued = tile.issue_dot %q, %k of !view, !view -> !going
        %o_issued = tile.issue_dot %p, %v of !view, !view -> !going
        %s = tile.await_dot %s_issued outstanding 1 : !going -> !sums
        %o = tile.await_dot %o_issued outstanding 0 : !going -> !sums
      }
      tile.end
    }
  }
  tile.return
}
