// RUN: flexc-opt %s -p "flex-infer-key-ranges,convert-flex-to-blocksparse{target=gluon}" | filecheck %s
// RUN: flexc-opt %s -p "flex-infer-key-ranges,convert-flex-to-blocksparse{target=gluon shared_memory=101376}" | filecheck %s --check-prefix=SMALL
// RUN: flexc-opt %s -p "flex-infer-key-ranges,convert-flex-to-blocksparse{target=gluon block_m=32}" | filecheck %s --check-prefix=NARROW
// RUN: flexc-opt %s -p "flex-infer-key-ranges,convert-flex-to-blocksparse{target=gluon overlap=false}" | filecheck %s --check-prefix=SIMPLE
// RUN: flexc-opt %s -p "flex-infer-key-ranges,convert-flex-to-blocksparse{target=gluon num_stages=4}" | filecheck %s --check-prefix=STAGES
// RUN: flexc-opt %s -p "flex-infer-key-ranges,convert-flex-to-blocksparse{target=gluon program_rows=64}" | filecheck %s --check-prefix=FEW
// RUN: not flexc-opt %s -p "flex-infer-key-ranges,convert-flex-to-blocksparse{target=gluon block_m=96}" 2>&1 | filecheck %s --check-prefix=ODD

// ODD: BLOCK_M expects a multiple of 64 or a power of 2, got 96

!n = tensor<?x?x?x20xf16>
!m = tensor<?x?x?x128xbf16>
!w = tensor<?x?x?x192xbf16>
!f = tensor<?x?x?x128xf32>
!num = tensor<?x?x?xi32>
!idx = tensor<?x?x?x?xi32>

// Three groups of warps own 64 rows each.
// CHECK-LABEL: @narrow
// CHECK: block_m = 192 : i32, block_n = 128 : i32, num_warps = 4 : i32, num_stages = 2 : i32
// CHECK-SAME: rows_per_part = 64
// FEW-LABEL: @narrow
// FEW: block_m = 64 : i32, block_n = 128 : i32
// Rows that are not split are nobody's part.
// NARROW-LABEL: @narrow
// NARROW: block_m = 32 : i32
// NARROW-NOT: rows_per_part
// NARROW: score_mod
func.func @narrow(%q : !n, %scale : f32) -> !n {
  %out = flex.attention %q, %q, %q : !n, !n, !n scale(%scale : f32) -> out(!n)
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return %out : !n
}

// CHECK-LABEL: @middle
// CHECK: block_m = 128 : i32, block_n = 128 : i32, num_warps = 4 : i32, num_stages = 2 : i32
// CHECK-SAME: rows_per_part = 64
// SMALL-LABEL: @middle
// SMALL: block_m = 128 : i32, block_n = 64 : i32
func.func @middle(%q : !m, %scale : f32) -> !m {
  %out = flex.attention %q, %q, %q : !m, !m, !m scale(%scale : f32) -> out(!m)
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return %out : !m
}

// Head dims may differ: the wider one decides.
// CHECK-LABEL: @wide
// CHECK: block_m = 128 : i32, block_n = 64 : i32, num_warps = 4 : i32, num_stages = 2 : i32
// CHECK-SAME: rows_per_part = 64
func.func @wide(%q : !w, %v : !m, %scale : f32) -> !m {
  %out = flex.attention %q, %q, %v : !w, !w, !m scale(%scale : f32) -> out(!m)
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return %out : !m
}

// Tiles divide the blocks of a table, in whole parts.
// CHECK-LABEL: @tables
// CHECK: block_m = 128 : i32, block_n = 32 : i32
// CHECK-SAME: rows_per_part = 64
func.func @tables(%q : !n, %scale : f32, %num : !num, %idx : !idx) -> !n {
  %out = flex.attention %q, %q, %q : !n, !n, !n scale(%scale : f32)
      tables(%num, %idx : !num, !idx) -> out(!n) {sparse_block = array<i64: 128, 32>}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return %out : !n
}

// Products in single precision are not asynchronous: Triton's tiles, and no parts.
// CHECK-LABEL: @single
// CHECK: block_m = 32 : i32, block_n = 32 : i32
// CHECK-NOT: rows_per_part
// CHECK: score_mod
func.func @single(%q : !f, %scale : f32) -> !f {
  %out = flex.attention %q, %q, %q : !f, !f, !f scale(%scale : f32) -> out(!f)
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return %out : !f
}

// A score mod's work is that of small programs. Of those whose products overlap fewer
// share a multiprocessor, as each thread needs more registers.
// CHECK-LABEL: @scored
// CHECK: block_m = 64 : i32, block_n = 64 : i32, num_warps = 4 : i32, num_stages = 2 : i32
// CHECK-SAME: residents = 3 : i32
// SIMPLE-LABEL: @scored
// SIMPLE: block_m = 64 : i32, block_n = 64 : i32, num_warps = 4 : i32, num_stages = 2 : i32
// SIMPLE-SAME: residents = 4 : i32
// With stages that were asked for it need not fit beside others.
// STAGES-LABEL: @scored
// STAGES: block_m = 64 : i32, block_n = 64 : i32, num_warps = 4 : i32, num_stages = 4 : i32
// STAGES-NOT: residents
// STAGES: score_mod
func.func @scored(%q : !n, %scale : f32) -> !n {
  %out = flex.attention %q, %q, %q : !n, !n, !n scale(%scale : f32) -> out(!n)
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    %twice = arith.addf %s, %s : f32
    flex.yield %twice : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return %out : !n
}

// A window visits its partial blocks first, for a loop of its own. Where programs share a
// multiprocessor, one loop visits all blocks in their order.
// CHECK-LABEL: @window
// CHECK-NOT: residents
// CHECK: blocksparse.segment partial
// CHECK: blocksparse.segment full
func.func @window(%q : !m, %scale : f32) -> !m {
  %out = flex.attention %q, %q, %q : !m, !m, !m scale(%scale : f32) -> out(!m)
      {max_length = 4096 : i64}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %size = arith.constant 1024 : i32
    %distance = arith.subi %qi, %ki : i32
    %near = arith.cmpi slt, %distance, %size : i32
    %causal = arith.cmpi sge, %qi, %ki : i32
    %both = arith.andi %near, %causal : i1
    flex.yield %both : i1
  }
  func.return %out : !m
}

// CHECK-LABEL: @narrow_window
// CHECK: residents
// CHECK: blocksparse.segment mixed
func.func @narrow_window(%q : !n, %scale : f32) -> !n {
  %out = flex.attention %q, %q, %q : !n, !n, !n scale(%scale : f32) -> out(!n)
      {max_length = 4096 : i64}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %size = arith.constant 1024 : i32
    %distance = arith.subi %qi, %ki : i32
    %near = arith.cmpi slt, %distance, %size : i32
    %causal = arith.cmpi sge, %qi, %ki : i32
    %both = arith.andi %near, %causal : i1
    flex.yield %both : i1
  }
  func.return %out : !n
}
