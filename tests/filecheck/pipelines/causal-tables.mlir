// RUN: flexc-opt %s -p flexc-to-blocksparse | filecheck %s --check-prefix=BLOCKSPARSE
// RUN: flexc-opt %s -p flexc-to-tile | filecheck %s --check-prefix=TILE
// RUN: flexc-opt %s -p flexc-to-triton | filecheck %s --check-prefix=TRITON
// RUN: flexc-opt %s -p flexc-to-cpp | filecheck %s --check-prefix=CPP

!t = tensor<?x?x?x64xbf16, strided<[?, ?, ?, 1]>>
!num = tensor<?x?x?xi32, strided<[?, ?, 1]>>
!idx = tensor<?x?x?x?xi32, strided<[?, ?, ?, 1]>>

// One segment over both pairs of tables; the mask is for the blocks of the first.
// The last rows, which see most, start first.
// BLOCKSPARSE-LABEL: func.func @attention(
// BLOCKSPARSE-SAME: %kv_num_blocks
// BLOCKSPARSE: order = #blocksparse<order descending>
// BLOCKSPARSE: blocksparse.segment mixed {inside}
// BLOCKSPARSE: flex.load_capture %kv_num_blocks
// BLOCKSPARSE: flex.load_capture %full_kv_num_blocks
// BLOCKSPARSE: flex.load_capture %kv_indices
// BLOCKSPARSE: flex.load_capture %full_kv_indices
// BLOCKSPARSE: partial_if(
// BLOCKSPARSE: mask_mod(
// BLOCKSPARSE-NOT: blocksparse.segment

// The counts are read once, and the mask is behind a branch.
// TILE-LABEL: tile.kernel @attention(
// TILE: tile.read %kv_num_blocks
// TILE: tile.read %full_kv_num_blocks
// TILE-NOT: tile.read
// TILE: scf.for
// TILE: tile.read %kv_indices
// TILE: tile.read %full_kv_indices
// TILE: scf.if
// TILE: arith.cmpi sge
// TILE: segment = #blocksparse<kind partial>
// TILE: segment = #blocksparse<kind mixed>

// TRITON-LABEL: tile.kernel @attention(
// TRITON: scf.for
// TRITON: tile.read %kv_indices
// TRITON: tile.read %full_kv_indices
// TRITON: scf.if
// TRITON-NOT: scf.for

// A CPU has a loop for each kind of block.
// CPP-LABEL: tile.kernel @attention(
// CPP: scf.for
// CPP: tile.read %kv_indices
// CPP: scf.for
// CPP: tile.read %full_kv_indices
func.func @attention(%query : !t, %key : !t, %value : !t, %scale : f32,
                     %kv_num_blocks : !num, %kv_indices : !idx,
                     %full_kv_num_blocks : !num, %full_kv_indices : !idx) -> !t {
  %out = flex.attention %query, %key, %value : !t, !t, !t scale(%scale : f32)
      tables(%kv_num_blocks, %kv_indices, %full_kv_num_blocks, %full_kv_indices
             : !num, !idx, !num, !idx)
      -> out(!t) {scale_positive, index_width = 32, kv_len_multiple = 128,
                   sparse_block = array<i64: 128, 128>}
      score_mod(%score : f32, %b : i32, %h : i32, %q_idx : i32, %kv_idx : i32) {
    flex.yield %score : f32
  } mask_mod(%b : i32, %h : i32, %q_idx : i32, %kv_idx : i32) {
    %ge = arith.cmpi sge, %q_idx, %kv_idx : i32
    flex.yield %ge : i1
  }
  func.return %out : !t
}
