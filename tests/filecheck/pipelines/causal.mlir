// RUN: flexc-opt %s -p flexc-to-blocksparse | filecheck %s --check-prefix=BLOCKSPARSE
// RUN: flexc-opt %s -p flexc-to-tile | filecheck %s --check-prefix=TILE
// RUN: flexc-opt %s -p flexc-to-triton | filecheck %s --check-prefix=TRITON
// RUN: flexc-opt %s -p flexc-to-cpp | filecheck %s --check-prefix=CPP
// RUN: flexc-opt %s -p flexc-to-tile | flexc-opt | filecheck %s --check-prefix=TILE
// RUN: flexc-opt %s -p flexc-to-blocksparse | flexc-opt | filecheck %s --check-prefix=BLOCKSPARSE

!t = tensor<?x?x?x64xbf16, strided<[?, ?, ?, 1]>>

// A mask without a table: all blocks are visited, each is masked.
// BLOCKSPARSE-LABEL: func.func @attention(
// BLOCKSPARSE: blocksparse.attention
// BLOCKSPARSE-NOT: segment full
// BLOCKSPARSE: blocksparse.segment partial
// BLOCKSPARSE: mask_mod(
// BLOCKSPARSE-NEXT: arith.cmpi sge

// The positive scale is part of the softmax's factor: scores are only masked.
// TILE-LABEL: tile.kernel @attention(
// TILE: %qk_scale = arith.mulf %scale
// TILE: scf.for
// TILE: tile.dot
// TILE-NOT: arith.mulf
// TILE: arith.select
// TILE: tile.reduce max
// TILE: math.exp2
// TILE: segment = #blocksparse<kind partial>

// Offsets do not depend on the loop: they are computed before it.
// TRITON-LABEL: tile.kernel @attention(
// TRITON-SAME: #tile.param<stride 1, 2>
// TRITON: %key_offsets = tile.map(
// TRITON: scf.for
// TRITON-NOT: _offsets = tile.map(
// TRITON: tile.gather %key
// TRITON: tile.gather %value
// TRITON: scf.yield
// TRITON: tile.scatter

// CPP-LABEL: tile.kernel @attention(
// CPP-SAME: tile.buffers = [
// CPP: tile.load_strided %query
// CPP: scf.for
// CPP: tile.register_product
// CPP: tile.store_strided
func.func @attention(%query : !t, %key : !t, %value : !t, %scale : f32) -> !t {
  %out = flex.attention %query, %key, %value : !t, !t, !t scale(%scale : f32)
      -> out(!t) {scale_positive}
      score_mod(%score : f32, %b : i32, %h : i32, %q_idx : i32, %kv_idx : i32) {
    flex.yield %score : f32
  } mask_mod(%b : i32, %h : i32, %q_idx : i32, %kv_idx : i32) {
    %ge = arith.cmpi sge, %q_idx, %kv_idx : i32
    flex.yield %ge : i1
  }
  func.return %out : !t
}
