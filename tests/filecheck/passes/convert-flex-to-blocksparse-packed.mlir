// RUN: flexc-opt %s -p 'flex-infer-key-ranges,convert-flex-to-blocksparse{block_m=64 block_n=32},flex-simplify-mods' | filecheck %s
// RUN: flexc-opt %s -p 'flex-infer-key-ranges,convert-flex-to-blocksparse{target=gluon block_m=128 block_n=128}' | filecheck %s --check-prefix LOOPS
// RUN: flexc-opt %s -p 'flex-infer-key-ranges,convert-flex-to-blocksparse,convert-blocksparse-to-tile' | filecheck %s --check-prefix TILE

// RUN: flexc-opt %s -p 'flex-infer-key-ranges,convert-flex-to-blocksparse{target=gluon},convert-blocksparse-to-tile{target=gluon}' | filecheck %s --check-prefix BEGIN

// Sequences that are packed are found by the row: nothing is read by column. Bounds
// begin in the sequence of a block's first row, and end in that of its last row. One loop
// visits the blocks of short sequences in order. Heads start together whose sequences of
// mean length share the cache.

// TILE: %sequences = arith.subi
// TILE: %mean_length = arith.divsi %kv_len, %
// TILE: %heads_per_group

// LOOPS: func.func @packed
// LOOPS: segment mixed
// LOOPS-NOT: segment
// LOOPS: func.func @long
// LOOPS: sequence_blocks
// LOOPS: segment partial
// LOOPS: segment full

// Blocks of long sequences begin where these begin. Their masks find no sequence, and
// programs of no block end.

// BEGIN: tile.kernel @long
// BEGIN-SAME: (d2 ceildiv [[M:[0-9]+]]) + (d2 floordiv 1024)
// BEGIN: tile.return_unless
// BEGIN: tile.load %q_2[%b, %h_1, %first_row
// BEGIN: tile.load %q_2[%b, %kv_h, %first_column
// BEGIN-NOT: tile.load %of
// BEGIN: tile.store %o {{.*}} below %q_end

!t = tensor<?x?x?x8xf32>

// CHECK: segment partial bounds
// CHECK: %sequence = flex.load_capture %of_1[%q_start] inside
// CHECK: %q_begin = flex.load_capture %starts_1[%sequence] inside
// CHECK: %sequence_1 = flex.load_capture %of_1[%q_last] inside
// CHECK: arith.cmpi eq, %sequence, %sequence_1
// CHECK: mask_mod(%b_3: i32, %h_3: i32, %qi_1: i32, %ki_1: i32
// CHECK-NEXT: %sequence_4 = flex.load_capture %of__1[%qi_1] inside
// CHECK-NEXT: %q_begin_4 = flex.load_capture %starts__1[%sequence_4] inside
// CHECK-NEXT: %c = arith.cmpi sge, %qi_1, %ki_1
// CHECK-NEXT: arith.cmpi sge, %ki_1, %q_begin_4
// CHECK-NEXT: arith.andi
// CHECK-NEXT: flex.yield
!i = tensor<?xi32>
func.func @packed(%q : !t, %scale : f32, %of : !i, %starts : !i) {
  %out = flex.attention %q, %q, %q : !t, !t, !t scale(%scale : f32)
      captures(%of, %starts : !i, !i) -> out(!t) {sequences = array<i64: 0, 0, 1, 1>}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32, %of_ : !i,
                %starts_ : !i) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %of_ : !i, %starts_ : !i) {
    %n = flex.load_capture %of_[%qi] : !i, i32
    %m = flex.load_capture %of_[%ki] : !i, i32
    %same = arith.cmpi eq, %n, %m : i32
    %qb = flex.load_capture %starts_[%n] : !i, i32
    %kb = flex.load_capture %starts_[%m] : !i, i32
    %row = arith.subi %qi, %qb : i32
    %column = arith.subi %ki, %kb : i32
    %c = arith.cmpi sge, %row, %column : i32
    %all = arith.andi %same, %c : i1
    flex.yield %all : i1
  }
  func.return
}

func.func @long(%q : !t, %scale : f32, %of : !i, %starts : !i) {
  %out = flex.attention %q, %q, %q : !t, !t, !t scale(%scale : f32)
      captures(%of, %starts : !i, !i) -> out(!t) {sequences = array<i64: 0, 0, 1, 1>,
                                                 long_sequences}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32, %of_ : !i,
                %starts_ : !i) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %of_ : !i, %starts_ : !i) {
    %n = flex.load_capture %of_[%qi] : !i, i32
    %m = flex.load_capture %of_[%ki] : !i, i32
    %same = arith.cmpi eq, %n, %m : i32
    %qb = flex.load_capture %starts_[%n] : !i, i32
    %kb = flex.load_capture %starts_[%m] : !i, i32
    %row = arith.subi %qi, %qb : i32
    %column = arith.subi %ki, %kb : i32
    %c = arith.cmpi sge, %row, %column : i32
    %all = arith.andi %same, %c : i1
    flex.yield %all : i1
  }
  func.return
}
