// RUN: flexc-opt %s -p flexc-to-blocksparse | filecheck %s --check-prefix=BLOCKSPARSE
// RUN: flexc-opt %s -p flexc-to-tile | filecheck %s --check-prefix=TILE
// RUN: flexc-opt %s -p flexc-to-triton | filecheck %s --check-prefix=TRITON
// RUN: flexc-opt %s -p flexc-to-cpp | filecheck %s --check-prefix=CPP

!t = tensor<?x?x?x64xf32, strided<[?, ?, ?, 1]>>
!ids = tensor<?xi32, strided<[1]>>

// BLOCKSPARSE-LABEL: func.func @attention(
// BLOCKSPARSE: blocksparse.segment partial
// BLOCKSPARSE: mask_mod(
// BLOCKSPARSE-NEXT: flex.load_capture {{.*}}[%q_idx
// BLOCKSPARSE-NEXT: flex.load_capture {{.*}}[%kv_idx

// Documents of rows are a vector loaded before the loop, of columns one within.
// TILE-LABEL: tile.kernel @attention(
// TILE: tile.read
// TILE: } -> !tile.tile<64xi32>
// TILE: scf.for
// TILE: tile.read
// TILE: } -> !tile.tile<64xi32>
// TILE-NOT: tile.read
// TILE: arith.cmpi eq
// TILE: tile.reduce max
// TILE: tile.return

// TRITON-LABEL: tile.kernel @attention(
// TRITON: tile.read
// TRITON: scf.for
// TRITON: tile.read
// TRITON-NOT: tile.read
// TRITON: tile.dot {{.*}} {precision = "ieee"}

// CPP-LABEL: tile.kernel @attention(
// CPP: tile.read
// CPP: scf.for
// CPP: tile.read
func.func @attention(%query : !t, %key : !t, %value : !t, %scale : f32, %ids : !ids)
    -> !t {
  %out = flex.attention %query, %key, %value : !t, !t, !t scale(%scale : f32)
      captures(%ids : !ids) -> out(!t) {scale_positive, index_width = 32}
      score_mod(%score : f32, %b : i32, %h : i32, %q_idx : i32, %kv_idx : i32,
                %ids_ : !ids) {
    flex.yield %score : f32
  } mask_mod(%b : i32, %h : i32, %q_idx : i32, %kv_idx : i32, %ids_ : !ids) {
    %row = flex.load_capture %ids_[%q_idx] : !ids, i32
    %column = flex.load_capture %ids_[%kv_idx] : !ids, i32
    %same = arith.cmpi eq, %row, %column : i32
    flex.yield %same : i1
  }
  func.return %out : !t
}
