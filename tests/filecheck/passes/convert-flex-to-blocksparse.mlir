// RUN: flexc-opt %s -p 'convert-flex-to-blocksparse{target=triton block-m=64 block-n=32}' | filecheck %s
// RUN: flexc-opt %s -p 'convert-flex-to-blocksparse{target=cpp machine=avx512}' | filecheck %s --check-prefix=CHOSEN

!t = tensor<?x?x?x8xf32>
!num = tensor<?x?x?xi32>
!idx = tensor<?x?x?x?xi32>

// Without a mask: the incomplete block, whose columns are tested, then whole ones.
// CHECK-LABEL: @no_mask
// CHOSEN-LABEL: @no_mask
func.func @no_mask(%q : !t, %scale : f32) {
  // CHECK: blocksparse.attention
  // CHECK-SAME: {scale_positive, block_m = 64 : i32, block_n = 32 : i32, num_warps = 4 : i32
  // CHECK: blocksparse.segment partial bounds(
  // CHECK-NOT: mask_mod
  // CHECK: blocksparse.segment full {inside} bounds(%b_{{[0-9]}}: i32, %h_1: i32, %q_start: i32, %q_len: i32, %kv_len: i32) {
  // CHECK: [[END:%.*]] = arith.divsi %kv_len, {{%.*}} : i32
  // CHECK: flex.yield {{%.*}}, [[END]] : i32, i32
  // CHECK: } block({{.*}}%i: i32
  // CHECK: [[N:%.*]] = arith.constant 32 : i32
  // CHECK: [[START:%.*]] = arith.muli %i, [[N]] : i32
  // CHECK: flex.yield [[START]] : i32
  // CHECK-NOT: blocksparse.segment
  // CHOSEN: block_m = 64 : i32, block_n = 96 : i32
  %out = flex.attention %q, %q, %q : !t, !t, !t scale(%scale : f32) -> out(!t)
      {scale_positive}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// Known to be whole blocks: no rest. The fact is kept.
// CHECK-LABEL: @no_mask_even
func.func @no_mask_even(%q : !t, %scale : f32) {
  // CHECK: kv_len_multiple = 128
  // CHECK: blocksparse.segment full {inside}
  // CHECK-NOT: blocksparse.segment
  // CHECK: func.return
  %out = flex.attention %q, %q, %q : !t, !t, !t scale(%scale : f32) -> out(!t)
      {kv_len_multiple = 128}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// A mask that no ranges of keys follow from: all blocks are partial.
// Captures reach every region.
// CHECK-LABEL: @mask
func.func @mask(%q : !t, %scale : f32, %w : i64) {
  // CHECK-NOT: segment full
  // CHECK: blocksparse.segment partial bounds({{.*}}%kv_len: i32, %w_1: i64) {
  // CHECK: arith.constant 31 : i32
  // CHECK: } block({{.*}}%w_2: i64) {
  // CHECK: } mask_mod({{.*}}%w_{{.*}}: i64) {
  // CHECK-NEXT: arith.xori {{%qi.*}}, {{%ki.*}}
  // CHECK: blocksparse.segment partial {inside} bounds(
  // CHECK-NOT: blocksparse.segment
  // CHECK: func.return
  %out = flex.attention %q, %q, %q : !t, !t, !t scale(%scale : f32)
      captures(%w : i64) -> out(!t)
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32, %w_ : i64) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %w_ : i64) {
    %x = arith.xori %qi, %ki : i32
    %c = arith.cmpi sge, %x, %ki : i32
    flex.yield %c : i1
  }
  func.return
}

// Tables: a partial segment over kv_indices; blocks of 128 in four tiles of 32.
// Later rows tend to have more blocks: they start first.
// CHECK-LABEL: @tables
func.func @tables(%q : !t, %scale : f32, %num : !num, %idx : !idx) {
  // CHECK: order = #blocksparse<order descending>
  // CHECK: blocksparse.segment partial bounds({{.*}}) {
  // CHECK: [[BLOCK:%.*]] = arith.constant 128 : i32
  // CHECK: %q_block = arith.divsi %q_start, [[BLOCK]] : i32
  // CHECK: %num_blocks = flex.load_capture {{%num[_0-9]*}}[{{%.*}}, %q_block] inside
  // CHECK: arith.constant 4 : i32
  // CHECK: arith.muli %num_blocks
  // CHECK: } block(
  // CHECK: arith.divsi %i,
  // CHECK: %kv_block = flex.load_capture {{%idx[_0-9]*}}[{{%.*}}] inside
  // CHECK: arith.remsi %i,
  // CHECK: flex.yield %kv_start{{.*}} : i32
  // CHECK: } mask_mod(
  // CHECK-NOT: blocksparse.segment
  // CHECK: func.return
  // CHOSEN-LABEL: @tables
  // CHOSEN: block_m = 32 : i32, block_n = 128 : i32
  %out = flex.attention %q, %q, %q : !t, !t, !t scale(%scale : f32)
      tables(%num, %idx : !num, !idx) -> out(!t)
      {sparse_block = array<i64: 128, 128>}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c = arith.cmpi sge, %qi, %ki : i32
    flex.yield %c : i1
  }
  func.return
}

// Full tables: a second segment without a mask, which reads the other pair.
// CHECK-LABEL: @full_tables
func.func @full_tables(%q : !t, %scale : f32, %num : !num, %idx : !idx,
                       %fnum : !num, %fidx : !idx) {
  // CHECK: blocksparse.segment partial
  // CHECK: mask_mod(
  // CHECK: blocksparse.segment full bounds(
  // CHECK: flex.load_capture {{%fnum[_0-9]*}}[
  // CHECK: flex.load_capture {{%fidx[_0-9]*}}[
  // CHECK-NOT: mask_mod
  // CHECK: func.return
  // CHOSEN-LABEL: @full_tables
  // A tile divides the blocks of the table.
  // CHOSEN: block_m = 32 : i32, block_n = 32 : i32
  %out = flex.attention %q, %q, %q : !t, !t, !t scale(%scale : f32)
      tables(%num, %idx, %fnum, %fidx : !num, !idx, !num, !idx) -> out(!t)
      {sparse_block = array<i64: 64, 32>}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c = arith.cmpi sge, %qi, %ki : i32
    flex.yield %c : i1
  }
  func.return
}

// What is no attention is left alone.
// CHECK-LABEL: @other
func.func @other(%a : f32) -> f32 {
  // CHECK-NEXT: %b = arith.addf %a, %a : f32
  // CHECK-NEXT: func.return %b : f32
  %b = arith.addf %a, %a : f32
  func.return %b : f32
}
