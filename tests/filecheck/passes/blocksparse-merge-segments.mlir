// RUN: flexc-opt %s -p blocksparse-merge-segments | filecheck %s
// RUN: sed s/64xbf16/256xbf16/ %s | flexc-opt -p blocksparse-merge-segments | filecheck %s --check-prefix=WIDE

!t = tensor<?x?x?x64xbf16>
!num = tensor<?x?x?xi32>
!idx = tensor<?x?x?x?xi32>

// Iterations count from 0 through both tables. Each is read at an entry of its own,
// whichever the iteration falls to.
// WIDE-LABEL: @tables
// WIDE-NOT: mixed
// CHECK-LABEL: @tables
func.func @tables(%q : !t, %scale : f32, %num : !num, %idx : !idx) -> !t {
  // CHECK: blocksparse.segment mixed {inside} bounds(
  // CHECK: arith.addi
  // CHECK: %[[SUM:.*]] = arith.addi
  // CHECK: flex.yield %{{.*}}, %[[SUM]] : i32, i32
  // CHECK: } block(
  // CHECK: arith.minsi
  // CHECK: flex.load_capture
  // CHECK: arith.maxsi
  // CHECK: flex.load_capture
  // CHECK: %[[LATER:.*]] = arith.cmpi sge, %i,
  // CHECK: %[[START:.*]] = arith.select %[[LATER]]
  // CHECK: flex.yield %[[START]] : i32
  // CHECK: } partial_if(
  // CHECK: %[[PARTIAL:.*]] = arith.cmpi slt, %i
  // CHECK: flex.yield %[[PARTIAL]] : i1
  // CHECK: } mask_mod(
  // CHECK-NOT: blocksparse.segment
  %out = blocksparse.attention %q, %q, %q : !t, !t, !t scale(%scale : f32)
      tables(%num, %idx : !num, !idx) -> out(!t) {block_m = 64 : i32, block_n = 64 : i32, short_rows}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } segments {
    blocksparse.segment partial {inside} bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32, %num_ : !num, %idx_ : !idx) {
      %zero = arith.constant 0 : i32
      %n = flex.load_capture %num_[%b, %h, %zero] inside : !num, i32, i32, i32
      flex.yield %zero, %n : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32,
            %kv_len : i32, %num_ : !num, %idx_ : !idx) {
      %zero = arith.constant 0 : i32
      %n = flex.load_capture %idx_[%b, %h, %zero, %i] inside : !idx, i32, i32, i32, i32
      flex.yield %n : i32
    } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
      %c = arith.cmpi sge, %qi, %ki : i32
      flex.yield %c : i1
    }
    blocksparse.segment full {inside} bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32, %num_ : !num, %idx_ : !idx) {
      %zero = arith.constant 0 : i32
      %one = arith.constant 1 : i32
      %n = flex.load_capture %num_[%b, %h, %one] inside : !num, i32, i32, i32
      flex.yield %zero, %n : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32,
            %kv_len : i32, %num_ : !num, %idx_ : !idx) {
      %one = arith.constant 1 : i32
      %n = flex.load_capture %idx_[%b, %h, %one, %i] inside : !idx, i32, i32, i32, i32
      flex.yield %n : i32
    }
  }
  func.return %out : !t
}

// Blocks that stick out have a loop of their own, so that the others need no test.
// CHECK-LABEL: @sticks_out
func.func @sticks_out(%q : !t, %scale : f32) -> !t {
  // CHECK: blocksparse.segment full {inside}
  // CHECK: blocksparse.segment partial bounds(
  // CHECK-NOT: mixed
  %out = blocksparse.attention %q, %q, %q : !t, !t, !t scale(%scale : f32)
      -> out(!t) {block_m = 64 : i32, block_n = 64 : i32, short_rows}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } segments {
    blocksparse.segment full {inside} bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32) {
      %zero = arith.constant 0 : i32
      flex.yield %zero, %q_start : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32, %kv_len : i32) {
      flex.yield %i : i32
    }
    blocksparse.segment partial bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32) {
      flex.yield %q_start, %kv_len : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32, %kv_len : i32) {
      flex.yield %i : i32
    } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
      %c = arith.cmpi sge, %qi, %ki : i32
      flex.yield %c : i1
    }
  }
  func.return %out : !t
}

// Two loops are as good where rows are long.
// CHECK-LABEL: @long_rows
func.func @long_rows(%q : !t, %scale : f32) -> !t {
  // CHECK: blocksparse.segment full {inside}
  // CHECK: blocksparse.segment partial {inside}
  // CHECK-NOT: mixed
  %out = blocksparse.attention %q, %q, %q : !t, !t, !t scale(%scale : f32)
      -> out(!t) {block_m = 64 : i32, block_n = 64 : i32}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } segments {
    blocksparse.segment full {inside} bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32) {
      %zero = arith.constant 0 : i32
      flex.yield %zero, %q_start : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32, %kv_len : i32) {
      flex.yield %i : i32
    }
    blocksparse.segment partial {inside} bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32) {
      flex.yield %q_start, %kv_len : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32, %kv_len : i32) {
      flex.yield %i : i32
    } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
      %c = arith.cmpi sge, %qi, %ki : i32
      flex.yield %c : i1
    }
  }
  func.return %out : !t
}
