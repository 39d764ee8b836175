// RUN: flexc-opt %s -p flexc-to-blocksparse | filecheck %s --check-prefix=BLOCKSPARSE
// RUN: flexc-opt %s -p flexc-to-tile | filecheck %s --check-prefix=TILE
// RUN: flexc-opt %s -p flexc-to-triton | filecheck %s --check-prefix=TRITON
// RUN: flexc-opt %s -p flexc-to-cpp | filecheck %s --check-prefix=CPP

!t = tensor<?x?x?x64xbf16, strided<[?, ?, ?, 1]>>
!slopes = tensor<?xf32, strided<[1]>>

// No mask: the incomplete block, then whole ones.
// BLOCKSPARSE-LABEL: func.func @attention(
// BLOCKSPARSE: flex.load_capture
// BLOCKSPARSE: blocksparse.segment partial
// BLOCKSPARSE-NOT: mask_mod
// BLOCKSPARSE: blocksparse.segment full

// The slope is one scalar of the head, loaded before the loop.
// TILE-LABEL: tile.kernel @attention(
// TILE: tile.read
// TILE: } -> f32
// TILE: scf.for
// TILE-NOT: tile.read
// TILE: segment = #blocksparse<kind partial>
// TILE: segment = #blocksparse<kind full>

// TRITON-LABEL: tile.kernel @attention(
// TRITON: tile.read
// TRITON: scf.for
// TRITON-NOT: tile.read
// TRITON: tile.scatter

// CPP-LABEL: tile.kernel @attention(
// CPP: tile.read
// CPP: scf.for
// CPP-NOT: tile.read
// CPP: tile.store_strided
func.func @attention(%query : !t, %key : !t, %value : !t, %scale : f32,
                     %slopes : !slopes) -> !t {
  %out = flex.attention %query, %key, %value : !t, !t, !t scale(%scale : f32)
      captures(%slopes : !slopes) -> out(!t) {scale_positive, index_width = 32}
      score_mod(%score : f32, %b : i32, %h : i32, %q_idx : i32, %kv_idx : i32,
                %slopes_ : !slopes) {
    %slope = flex.load_capture %slopes_[%h] : !slopes, i32
    %distance = arith.subi %kv_idx, %q_idx : i32
    %float = arith.sitofp %distance : i32 to f32
    %bias = arith.mulf %slope, %float : f32
    %sum = arith.addf %score, %bias : f32
    flex.yield %sum : f32
  } mask_mod(%b : i32, %h : i32, %q_idx : i32, %kv_idx : i32, %slopes_ : !slopes) {
    %true = arith.constant true
    flex.yield %true : i1
  }
  func.return %out : !t
}
