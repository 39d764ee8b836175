// RUN: flexc-opt %s -p 'convert-flex-to-blocksparse{target=triton block-m=64 block-n=32},flex-simplify-mods' | filecheck %s

// Masks whose live and dead keys have a closed form: no table, two loops at most.

!t = tensor<?x?x?x8xf32>

// Causal: full blocks up to the first row, partial ones up to the last. Later rows
// have more of them and start first.
// CHECK-LABEL: @causal
func.func @causal(%q : !t, %scale : f32) {
  // CHECK: order = #blocksparse<order descending>, heads_per_group = 8
  // CHECK: blocksparse.segment partial {inside} bounds(
  // CHECK: %q_last = arith.subi
  // CHECK: [[HI:%.*]] = arith.minsi {{%.*}}, {{%.*}} : i32
  // CHECK-NEXT: [[LAST:%.*]] = arith.shrsi [[HI]], [[FIVE:%.*]] : i32
  // CHECK-NEXT: [[END:%.*]] = arith.addi [[LAST]],
  // CHECK: [[BEGIN:%.*]] = arith.select
  // CHECK-NEXT: [[MOST:%.*]] = arith.maxsi [[BEGIN]], [[END]]
  // CHECK-NEXT: flex.yield [[BEGIN]], [[MOST]] : i32, i32
  // CHECK: } block(
  // CHECK-NEXT: [[N:%.*]] = arith.constant 32 : i32
  // CHECK-NEXT: arith.muli %i, [[N]] : i32
  // CHECK: mask_mod(
  // CHECK: blocksparse.segment full {inside} bounds(
  // CHECK-NOT: mask_mod
  // CHECK: func.return
  %out = flex.attention %q, %q, %q : !t, !t, !t scale(%scale : f32) -> out(!t)
      {kv_len_multiple = 128, max_length = 16777216}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c = arith.cmpi sge, %qi, %ki : i32
    flex.yield %c : i1
  }
  func.return
}

// Keys may end within a block: the last one is partial, and its columns are tested.
// CHECK-LABEL: @ragged
func.func @ragged(%q : !t, %scale : f32) {
  // CHECK: blocksparse.segment partial bounds(
  // CHECK: %blocks = arith.divsi
  // CHECK: blocksparse.segment full {inside} bounds(
  // CHECK: func.return
  %out = flex.attention %q, %q, %q : !t, !t, !t scale(%scale : f32) -> out(!t)
      {max_length = 16777216}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c = arith.cmpi sge, %qi, %ki : i32
    flex.yield %c : i1
  }
  func.return
}

// A window per head: the captured tensor is read where bounds are computed. A
// window may be empty, and then no row has a key.
// CHECK-LABEL: @window_per_head
func.func @window_per_head(%q : !t, %scale : f32, %w : tensor<?xi32>) {
  // CHECK-NOT: order
  // CHECK: blocksparse.segment partial {inside} bounds(
  // CHECK: [[W:%.*]] = flex.load_capture %w_{{[0-9]+}}[%h_{{[0-9]+}}]
  // CHECK: arith.maxsi [[W]], {{%.*}} : i32
  // CHECK: [[LOW:%.*]] = arith.subi %q_start,
  // CHECK: arith.cmpi sle, [[LOW]], %q_start : i32
  // CHECK: } block(
  // Two runs of partial blocks, at either side of the window: one loop.
  // CHECK: arith.cmpi sge, %i,
  // CHECK: arith.select
  // CHECK: arith.addi %i,
  // CHECK: mask_mod(
  // CHECK: blocksparse.segment full {inside}
  // CHECK: func.return
  %out = flex.attention %q, %q, %q : !t, !t, !t scale(%scale : f32)
      captures(%w : tensor<?xi32>) -> out(!t)
      {kv_len_multiple = 128, max_length = 16777216}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32,
                %w_ : tensor<?xi32>) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %w_ : tensor<?xi32>) {
    %c = arith.cmpi sge, %qi, %ki : i32
    %d = arith.subi %qi, %ki : i32
    %n = flex.load_capture %w_[%h] : tensor<?xi32>, i32
    %near = arith.cmpi sle, %d, %n : i32
    %m = arith.andi %c, %near : i1
    flex.yield %m : i1
  }
  func.return
}

// A sum that may wrap around 64 bits: checked where the kernel runs; where the check
// fails all keys are visited.
// CHECK-LABEL: @unsized
func.func @unsized(%q : !t, %scale : f32, %n : i64) {
  // CHECK: blocksparse.segment partial {inside} bounds({{.*}}%n_{{[0-9]+}}: i64)
  // CHECK: arith.constant -137438953472 : i64
  // CHECK: arith.cmpi sge, [[N:%n_[0-9]+]], {{%.*}} : i64
  // CHECK: arith.cmpi sle, [[N]], {{%.*}} : i64
  // CHECK: [[SOUND:%.*]] = arith.andi
  // CHECK: arith.select [[SOUND]],
  // CHECK: func.return
  %out = flex.attention %q, %q, %q : !t, !t, !t scale(%scale : f32)
      captures(%n : i64) -> out(!t)
      {kv_len_multiple = 128, max_length = 16777216}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32, %n_ : i64) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %n_ : i64) {
    %wide = arith.extsi %qi : i32 to i64
    %moved = arith.addi %wide, %n_ : i64
    %key = arith.extsi %ki : i32 to i64
    %c = arith.cmpi sge, %moved, %key : i64
    flex.yield %c : i1
  }
  func.return
}

// A sum that may wrap around 32 bits bounds nothing.
// CHECK-LABEL: @wraps
func.func @wraps(%q : !t, %scale : f32, %n : i32) {
  // CHECK-NOT: segment full
  // CHECK: func.return
  %out = flex.attention %q, %q, %q : !t, !t, !t scale(%scale : f32)
      captures(%n : i32) -> out(!t)
      {kv_len_multiple = 128, max_length = 16777216}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32, %n_ : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %n_ : i32) {
    %moved = arith.addi %qi, %n_ : i32
    %c = arith.cmpi sge, %moved, %ki : i32
    flex.yield %c : i1
  }
  func.return
}

// The same, of a call that was proved to fit.
// CHECK-LABEL: @fits
func.func @fits(%q : !t, %scale : f32, %n : i32) {
  // CHECK: segment full
  // CHECK: func.return
  %out = flex.attention %q, %q, %q : !t, !t, !t scale(%scale : f32)
      captures(%n : i32) -> out(!t)
      {kv_len_multiple = 128, max_length = 16777216, indices_fit}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32, %n_ : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %n_ : i32) {
    %moved = arith.addi %qi, %n_ : i32
    %c = arith.cmpi sge, %moved, %ki : i32
    flex.yield %c : i1
  }
  func.return
}

// Chunks of a captured size: a divisor is checked to be positive.
// CHECK-LABEL: @chunks
func.func @chunks(%q : !t, %scale : f32, %n : i32) {
  // CHECK: blocksparse.segment partial {inside} bounds(
  // CHECK: arith.floordivsi
  // CHECK: [[ONE:%.*]] = arith.cmpi sge, %n_{{[0-9]+}}, {{%.*}} : i32
  // CHECK: arith.select [[ONE]],
  // CHECK: blocksparse.segment full {inside}
  // CHECK: func.return
  %out = flex.attention %q, %q, %q : !t, !t, !t scale(%scale : f32)
      captures(%n : i32) -> out(!t)
      {kv_len_multiple = 128, max_length = 16777216}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32, %n_ : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %n_ : i32) {
    %row = arith.floordivsi %qi, %n_ : i32
    %key = arith.floordivsi %ki, %n_ : i32
    %c = arith.cmpi eq, %row, %key : i32
    flex.yield %c : i1
  }
  func.return
}

// Every third key below the diagonal: each block that causality leaves has some, so
// the remainder bounds nothing, and none is full.
// CHECK-LABEL: @dilated
func.func @dilated(%q : !t, %scale : f32) {
  // CHECK: blocksparse.segment partial {inside} bounds(
  // CHECK-NOT: blocksparse.segment
  // CHECK: func.return
  %out = flex.attention %q, %q, %q : !t, !t, !t scale(%scale : f32) -> out(!t)
      {kv_len_multiple = 128, max_length = 16777216}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c = arith.cmpi sge, %qi, %ki : i32
    %three = arith.constant 3 : i32
    %zero = arith.constant 0 : i32
    %rest = arith.remsi %ki, %three : i32
    %third = arith.cmpi eq, %rest, %zero : i32
    %m = arith.andi %c, %third : i1
    flex.yield %m : i1
  }
  func.return
}

// Documents are read by row and by column: their ranges are no closed form.
// CHECK-LABEL: @documents
func.func @documents(%q : !t, %scale : f32, %d : tensor<?xi32>) {
  // CHECK-NOT: segment full
  // CHECK: func.return
  %out = flex.attention %q, %q, %q : !t, !t, !t scale(%scale : f32)
      captures(%d : tensor<?xi32>) -> out(!t)
      {kv_len_multiple = 128, max_length = 16777216}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32,
                %d_ : tensor<?xi32>) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %d_ : tensor<?xi32>) {
    %row = flex.load_capture %d_[%qi] : tensor<?xi32>, i32
    %key = flex.load_capture %d_[%ki] : tensor<?xi32>, i32
    %c = arith.cmpi eq, %row, %key : i32
    flex.yield %c : i1
  }
  func.return
}

// A mask that is false everywhere: nothing is visited.
// CHECK-LABEL: @nothing
func.func @nothing(%q : !t, %scale : f32) {
  // CHECK: segments {
  // CHECK-NEXT: ^bb0:
  // CHECK-NEXT: }
  // CHECK-NEXT: func.return
  %out = flex.attention %q, %q, %q : !t, !t, !t scale(%scale : f32) -> out(!t)
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %f = arith.constant false
    flex.yield %f : i1
  }
  func.return
}
