// RUN: flexc-opt %s -p flex-infer-key-ranges,convert-flex-to-blocksparse | filecheck %s
// RUN: flexc-opt %s -p "flex-infer-key-ranges,convert-flex-to-blocksparse{shared_memory=166912}" | filecheck %s --check-prefix=ALONE

!t = tensor<?x?x?x128xbf16>
!num = tensor<?x?x?xi32>
!idx = tensor<?x?x?x?xi32>

// Rows of a table may be short: two small programs share a multiprocessor, unless
// its memory holds but one.
// CHECK-LABEL: @tables
// CHECK: block_m = 64 : i32, block_n = 64 : i32, num_warps = 4 : i32, num_stages = 3 : i32
// CHECK-SAME: short_rows
// ALONE-LABEL: @tables
// ALONE: block_m = 128 : i32, block_n = 64 : i32, num_warps = 8 : i32
func.func @tables(%q : !t, %scale : f32, %num : !num, %idx : !idx) -> !t {
  %out = flex.attention %q, %q, %q : !t, !t, !t scale(%scale : f32)
      tables(%num, %idx : !num, !idx) -> out(!t) {sparse_block = array<i64: 128, 128>}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c = arith.cmpi sge, %qi, %ki : i32
    flex.yield %c : i1
  }
  func.return %out : !t
}

// So are those of a window.
// CHECK-LABEL: @window
// CHECK: block_m = 64 : i32, block_n = 64 : i32
// CHECK-SAME: short_rows
func.func @window(%q : !t, %scale : f32) -> !t {
  %out = flex.attention %q, %q, %q : !t, !t, !t scale(%scale : f32)
      -> out(!t) {max_length = 65536, indices_fit}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c = arith.cmpi sge, %qi, %ki : i32
    %d = arith.subi %qi, %ki : i32
    %w = arith.constant 1024 : i32
    %near = arith.cmpi sle, %d, %w : i32
    %both = arith.andi %c, %near : i1
    flex.yield %both : i1
  }
  func.return %out : !t
}

// Causal rows grow, and most are long.
// CHECK-LABEL: @causal
// CHECK: block_m = 128 : i32, block_n = 128 : i32
// CHECK-NOT: short_rows
func.func @causal(%q : !t, %scale : f32) -> !t {
  %out = flex.attention %q, %q, %q : !t, !t, !t scale(%scale : f32)
      -> out(!t) {max_length = 65536, indices_fit}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c = arith.cmpi sge, %qi, %ki : i32
    flex.yield %c : i1
  }
  func.return %out : !t
}

// And all rows are long that see the keys up to a point.
// CHECK-LABEL: @prefix
// CHECK: block_m = 128 : i32, block_n = 128 : i32
// CHECK-NOT: short_rows
func.func @prefix(%q : !t, %scale : f32) -> !t {
  %out = flex.attention %q, %q, %q : !t, !t, !t scale(%scale : f32)
      -> out(!t) {max_length = 65536, indices_fit}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %w = arith.constant 1024 : i32
    %c = arith.cmpi slt, %ki, %w : i32
    flex.yield %c : i1
  }
  func.return %out : !t
}
