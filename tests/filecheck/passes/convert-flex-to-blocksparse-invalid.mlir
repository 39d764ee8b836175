// RUN: not flexc-opt %s -p 'convert-flex-to-blocksparse{target=triton block-n=64}' 2>&1 | filecheck %s
// RUN: not flexc-opt %s -p 'convert-flex-to-blocksparse{target=cpp block-m=256}' 2>&1 | filecheck %s --check-prefix=ROWS
// RUN: not flexc-opt %s -p 'convert-flex-to-blocksparse{target=triton num-warps=3}' 2>&1 | filecheck %s --check-prefix=WARPS
// RUN: not flexc-opt %s -p 'convert-flex-to-blocksparse{target=triton block-n=8}' 2>&1 | filecheck %s --check-prefix=NARROW

// CHECK: BLOCK_N expects a divisor of the BlockMask's block size 32, got 64
// NARROW: BLOCK_N expects 16 or more for Triton, got 8;
// WARPS: num_warps expects a power of 2 for Triton, got 3
// ROWS: BLOCK_M expects a divisor of the BlockMask's block size 128, got 256
func.func @tables(%q : tensor<?x?x?x8xf32>, %scale : f32, %num : tensor<?x?x?xi32>,
                  %idx : tensor<?x?x?x?xi32>) {
  %out = flex.attention %q, %q, %q
      : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>
      scale(%scale : f32)
      tables(%num, %idx : tensor<?x?x?xi32>, tensor<?x?x?x?xi32>)
      -> out(tensor<?x?x?x8xf32>) {sparse_block = array<i64: 128, 32>}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}
