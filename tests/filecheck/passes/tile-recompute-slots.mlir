// RUN: flexc-opt %s -p tile-recompute-slots | filecheck %s

!s = !tile.tile<64x64xf32>
!q = !tile.tile<64x64xbf16>
!view = !tile.view<!q>
!shared = !tile.shared<2, !q>

// The slot that the loop does not change is computed in each iteration, from an index
// that no compiler can move. The slot of a ring changes anyway.
// CHECK: scf.for %i = %lo to %hi
// CHECK-NEXT: %k = tile.slot %ks[%i]
// CHECK-NEXT: %[[A:.*]] = tile.opaque %c0
// CHECK-NEXT: %[[Q:.*]] = tile.slot %qs[%[[A]]]
// CHECK-NEXT: %[[B:.*]] = tile.opaque %c0
// CHECK-NEXT: %[[V:.*]] = tile.slot %vs[%[[B]]]
// CHECK-NEXT: %[[T:.*]] = tile.transpose_view %[[V]]
// CHECK-NEXT: %p = tile.issue_dot %[[Q]], %[[T]]
// CHECK: %r = tile.issue_dot %{{.*}}, %k
func.func @loop(%qs : !shared, %ks : !shared, %vs : !shared, %lo : i32, %hi : i32,
                %step : i32, %c0 : i32) {
  %q0 = tile.slot %qs[%c0] : !shared -> !view
  %v0 = tile.slot %vs[%c0] : !shared -> !view
  %vt0 = tile.transpose_view %v0 : !view -> !view
  scf.for %i = %lo to %hi step %step : i32 {
    %k = tile.slot %ks[%i] : !shared -> !view
    %p = tile.issue_dot %q0, %vt0 of !view, !view -> !tile.pending<!s>
    %p_ = tile.await_dot %p outstanding 0 : !tile.pending<!s> -> !s
    %r = tile.issue_dot %q0, %k of !view, !view -> !tile.pending<!s>
    %r_ = tile.await_dot %r outstanding 0 : !tile.pending<!s> -> !s
  }
  func.return
}
