// RUN: flexc-opt %s -p "blocksparse-merge-segments{into_one=true}" | filecheck %s
// RUN: flexc-opt %s -p "blocksparse-merge-segments{into_one=true}" | flexc-opt | filecheck %s

!t = tensor<?x?x?x64xbf16>
!num = tensor<?x?x?xi32>
!idx = tensor<?x?x?x?xi32>

// The incomplete block and whole ones, without a mask: the first is partial.
// CHECK-LABEL: @dense
// CHECK: blocksparse.segment mixed {full_inside, nonempty} bounds(
// CHECK: partial_if
// CHECK: arith.cmpi slt, %i
// CHECK-NOT: mask_mod
// CHECK-NOT: blocksparse.segment
func.func @dense(%q : !t, %scale : f32) -> !t {
  %out = blocksparse.attention %q, %q, %q : !t, !t, !t scale(%scale : f32)
      -> out(!t) {block_m = 64 : i32, block_n = 64 : i32, has_pairs, rows_never_empty}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } segments {
    blocksparse.segment partial bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32) {
      flex.yield %q_start, %kv_len : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32, %kv_len : i32) {
      flex.yield %i : i32
    }
    blocksparse.segment full {inside} bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32) {
      %zero = arith.constant 0 : i32
      flex.yield %zero, %q_start : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32, %kv_len : i32) {
      flex.yield %i : i32
    }
  }
  func.return %out : !t
}

// Blocks of both kinds reach beyond the last column, so the kind says nothing.
// CHECK-LABEL: @listed
// CHECK: blocksparse.segment full {nonempty} bounds(
// CHECK-NOT: partial_if
// CHECK-NOT: blocksparse.segment
func.func @listed(%q : !t, %scale : f32) -> !t {
  %out = blocksparse.attention %q, %q, %q : !t, !t, !t scale(%scale : f32)
      -> out(!t) {block_m = 64 : i32, block_n = 64 : i32, has_pairs, rows_never_empty}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } segments {
    blocksparse.segment partial bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32) {
      flex.yield %q_start, %kv_len : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32, %kv_len : i32) {
      flex.yield %i : i32
    }
    blocksparse.segment full bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32) {
      %zero = arith.constant 0 : i32
      flex.yield %zero, %q_start : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32, %kv_len : i32) {
      flex.yield %i : i32
    }
  }
  func.return %out : !t
}

// One segment that is never empty stays as it is.
// CHECK-LABEL: @one
// CHECK: blocksparse.segment full {inside, nonempty} bounds(
// CHECK-NEXT: flex.yield %q_start, %kv_len
// CHECK-NOT: blocksparse.segment
func.func @one(%q : !t, %scale : f32) -> !t {
  %out = blocksparse.attention %q, %q, %q : !t, !t, !t scale(%scale : f32)
      -> out(!t) {block_m = 64 : i32, block_n = 64 : i32, has_pairs, rows_never_empty}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } segments {
    blocksparse.segment full {inside} bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32) {
      flex.yield %q_start, %kv_len : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32, %kv_len : i32) {
      flex.yield %i : i32
    }
  }
  func.return %out : !t
}

// A key that all queries see.
// CHECK-LABEL: @transposed
// CHECK: blocksparse.segment full {inside, nonempty} bounds(
// CHECK-NOT: blocksparse.segment
func.func @transposed(%q : !t, %k : !t, %scale : f32) -> !t {
  %sums = blocksparse.pair_sums rows(%k : !t) columns(%q : !t) scale(%scale : f32) -> !t
      {block_m = 64 : i32, block_n = 64 : i32, has_pairs, transposed,
       key_ranges = #flex.key_ranges<live "all", dead "none", growth "none",
         moving "none", remainders []>,
       products = [array<i32: 0, 0>], sums = [#flex.sum<matrix [[0, 0]]>]}
      pairs(%qk : f32, %s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %qk : f32
  } segments {
    blocksparse.segment full {inside} bounds(%b : i32, %h : i32, %kv_start : i32,
        %kv_len : i32, %q_len : i32) {
      %zero = arith.constant 0 : i32
      flex.yield %zero, %q_len : i32, i32
    } block(%b : i32, %h : i32, %kv_start : i32, %i : i32, %kv_len : i32, %q_len : i32) {
      flex.yield %i : i32
    }
  }
  func.return %sums : !t
}

// Rows may see nothing: the first block stands in. Only partial ones stick out.
// CHECK-LABEL: @mixed
// CHECK: blocksparse.segment mixed {full_inside, padded} bounds(
// CHECK: } block(
// CHECK: %[[SOME:.*]] = arith.cmpi slt, %{{.*}}, %{{.*}} : i32
// CHECK-NEXT: %[[START:.*]] = arith.select %[[SOME]]
// CHECK-NEXT: flex.yield %[[START]] : i32
// CHECK: partial_if(
// CHECK: mask_mod(
// CHECK-NOT: blocksparse.segment
func.func @mixed(%q : !t, %scale : f32) -> !t {
  %out = blocksparse.attention %q, %q, %q : !t, !t, !t scale(%scale : f32)
      -> out(!t) {block_m = 64 : i32, block_n = 64 : i32, has_pairs}
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

// Where there may be no keys tables may have no entries.
// CHECK-LABEL: @no_keys
// CHECK: blocksparse.segment partial {padded} bounds(
// CHECK: } block(
// CHECK: flex.load_capture %num_
// CHECK-SAME: ] : tensor
// CHECK: flex.load_capture %idx_
// CHECK-SAME: ] : tensor
func.func @no_keys(%q : !t, %scale : f32, %num : !num, %idx : !idx) -> !t {
  %out = blocksparse.attention %q, %q, %q : !t, !t, !t scale(%scale : f32)
      tables(%num, %idx : !num, !idx) -> out(!t) {block_m = 64 : i32, block_n = 64 : i32}
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
  }
  func.return %out : !t
}

// Masks that differ have loops of their own.
// CHECK-LABEL: @two_masks
// CHECK-COUNT-2: blocksparse.segment partial {inside}
func.func @two_masks(%q : !t, %scale : f32) -> !t {
  %out = blocksparse.attention %q, %q, %q : !t, !t, !t scale(%scale : f32)
      -> out(!t) {block_m = 64 : i32, block_n = 64 : i32, has_pairs}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } segments {
    blocksparse.segment partial {inside} bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32) {
      %zero = arith.constant 0 : i32
      flex.yield %zero, %q_start : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32, %kv_len : i32) {
      flex.yield %i : i32
    } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
      %c = arith.cmpi sge, %qi, %ki : i32
      flex.yield %c : i1
    }
    blocksparse.segment partial {inside} bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32) {
      flex.yield %q_start, %kv_len : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32, %kv_len : i32) {
      flex.yield %i : i32
    } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
      %c = arith.cmpi slt, %qi, %ki : i32
      flex.yield %c : i1
    }
  }
  func.return %out : !t
}

// Numbers of columns are a CPU's, and stay.
// CHECK-LABEL: @trimmed
// CHECK: blocksparse.segment full {inside} bounds(
// CHECK: } block(
// CHECK-NEXT: flex.yield %{{.*}}, %{{.*}} : i32, i32
func.func @trimmed(%q : !t, %scale : f32) -> !t {
  %out = blocksparse.attention %q, %q, %q : !t, !t, !t scale(%scale : f32)
      -> out(!t) {block_m = 64 : i32, block_n = 64 : i32}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } segments {
    blocksparse.segment full {inside} bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32) {
      flex.yield %q_start, %kv_len : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32, %kv_len : i32) {
      flex.yield %i, %q_len : i32, i32
    }
  }
  func.return %out : !t
}
