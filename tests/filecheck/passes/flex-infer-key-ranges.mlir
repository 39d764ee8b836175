// RUN: flexc-opt %s -p flex-infer-key-ranges | flexc-opt | filecheck %s

!t = tensor<?x?x?x8xf32>

// Rows see more and more keys. Blocks with no key after the first row are full.
// CHECK-LABEL: @causal
// CHECK: key_ranges = #flex.key_ranges<live "kv_idx in [0, q_last]",
// CHECK-SAME: dead "kv_idx in [q_first + 1, kv_len - 1]",
// CHECK-SAME: growth "positive", moving "none", remainders []>
func.func @causal(%q : !t, %scale : f32) {
  %out = flex.attention %q, %q, %q : !t, !t, !t scale(%scale : f32) -> out(!t)
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c = arith.cmpi sge, %qi, %ki : i32
    flex.yield %c : i1
  }
  func.return
}

// Every third key of a window: the window bounds keys, the remainder is left to the
// mask, so no block is full.
// CHECK-LABEL: @dilated_window
// CHECK: live "kv_idx in [max(0, q_first - window), q_last]", dead "all",
// CHECK-SAME: growth "none", moving "all", remainders
// CHECK-SAME: [#flex.remainder<"ki % 3 == 0", #builtin.int<3>, "columns">]>
func.func @dilated_window(%q : !t, %scale : f32, %w : i32) {
  %out = flex.attention %q, %q, %q : !t, !t, !t scale(%scale : f32)
      captures(%w : i32) -> out(!t) {max_length = 65536, indices_fit}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32, %window : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %window : i32) {
    %c = arith.cmpi sge, %qi, %ki : i32
    %d = arith.subi %qi, %ki : i32
    %near = arith.cmpi sle, %d, %window : i32
    %both = arith.andi %c, %near : i1
    %three = arith.constant 3 : i32
    %zero = arith.constant 0 : i32
    %r = arith.remsi %ki, %three : i32
    %third = arith.cmpi eq, %r, %zero : i32
    %all = arith.andi %both, %third : i1
    flex.yield %all : i1
  }
  func.return
}

// No mask: all keys are live, and none is dead.
// CHECK-LABEL: @all
// CHECK: live "all", dead "none", growth "none", moving "none", remainders []>
func.func @all(%q : !t, %scale : f32) {
  %out = flex.attention %q, %q, %q : !t, !t, !t scale(%scale : f32) -> out(!t)
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %true = arith.constant true
    flex.yield %true : i1
  }
  func.return
}

// Documents are read by row and column, and bound no keys.
// CHECK-LABEL: @documents
// CHECK-NOT: key_ranges = #flex
// CHECK: no_key_ranges = "no range of keys follows from doc[qi] == doc[ki]"
func.func @documents(%q : !t, %scale : f32, %docs : tensor<?xi32>) {
  %out = flex.attention %q, %q, %q : !t, !t, !t scale(%scale : f32)
      captures(%docs : tensor<?xi32>) -> out(!t)
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32,
                %doc : tensor<?xi32>) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %doc : tensor<?xi32>) {
    %a = flex.load_capture %doc[%qi] : tensor<?xi32>, i32
    %c = flex.load_capture %doc[%ki] : tensor<?xi32>, i32
    %same = arith.cmpi eq, %a, %c : i32
    flex.yield %same : i1
  }
  func.return
}

// Sums for keys and values own blocks of keys, and see queries.
// CHECK-LABEL: @sums_of_keys
// CHECK: key_ranges = #flex.key_ranges<live "q_idx in [kv_first, q_len - 1]",
// CHECK-SAME: dead "q_idx in [0, kv_last - 1]", growth "negative",
func.func @sums_of_keys(%k : !t, %q : !t, %scale : f32) -> !t {
  %sums = flex.pair_sums rows(%k : !t) columns(%q : !t) scale(%scale : f32) -> !t
      {transposed, products = [array<i32: 0, 0>], sums = [#flex.sum<matrix [[0, 0]]>]}
      pairs(%s : f32, %scale_ : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c = arith.cmpi sge, %qi, %ki : i32
    flex.yield %c : i1
  }
  func.return %sums : !t
}

// Sequences that are packed: the ranges are those of a sequence, whose rows have keys,
// as rows and keys have the same positions. Reads of the sequences are gone.
// CHECK-LABEL: @packed
// CHECK: sequences = array<i64: 0, 0, 1, 1>
// CHECK-SAME: live "kv_idx in [0, q_last] of the sequence",
// CHECK-SAME: dead "kv_idx in [q_first + 1, kv_len - 1] of the sequence"
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
