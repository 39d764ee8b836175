// RUN: flexc-opt %s -p flex-widen-indices | filecheck %s

!t = tensor<?x?x?x64xf32>

// The squares of long rows need 64 bits, and so does their comparison.
// CHECK-LABEL: func.func @squares(
func.func @squares(%q : !t, %k : !t, %v : !t, %scale : f32) {
  // CHECK: mask_mod(%b: i32, %h: i32, %qi: i32, %ki: i32) {
  // CHECK-NEXT: %qi_1 = arith.extsi %qi : i32 to i64
  // CHECK-NEXT: %qq = arith.muli %qi_1, %qi_1 : i64
  // CHECK-NEXT: %ki_1 = arith.extsi %ki : i32 to i64
  // CHECK-NEXT: %kk = arith.muli %ki_1, %ki_1 : i64
  // CHECK-NEXT: %c = arith.cmpi sge, %qq, %kk : i64
  // CHECK-NEXT: flex.yield %c : i1
  %out = flex.attention %q, %k, %v : !t, !t, !t scale(%scale : f32) -> out(!t)
      {max_length = 16777216}
  score_mod(%s : f32, %sb : i32, %sh : i32, %sq : i32, %sk : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %qq = arith.muli %qi, %qi : i32
    %kk = arith.muli %ki, %ki : i32
    %c = arith.cmpi sge, %qq, %kk : i32
    flex.yield %c : i1
  }
  func.return
}

// Those of short ones do not.
// CHECK-LABEL: func.func @short_squares(
func.func @short_squares(%q : !t, %k : !t, %v : !t, %scale : f32) {
  // CHECK-NOT: arith.extsi
  // CHECK: arith.cmpi sge, %qq, %kk : i32
  %out = flex.attention %q, %k, %v : !t, !t, !t scale(%scale : f32) -> out(!t)
      {max_length = 46340}
  score_mod(%s : f32, %sb : i32, %sh : i32, %sq : i32, %sk : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %qq = arith.muli %qi, %qi : i32
    %kk = arith.muli %ki, %ki : i32
    %c = arith.cmpi sge, %qq, %kk : i32
    flex.yield %c : i1
  }
  func.return
}

// Known to fit: nothing changes.
// CHECK-LABEL: func.func @known_to_fit(
func.func @known_to_fit(%q : !t, %k : !t, %v : !t, %scale : f32, %w : i64) {
  // CHECK: %w32 = arith.trunci %w_1 : i64 to i32
  // CHECK-NEXT: %qq = arith.muli %qi, %w32 : i32
  // CHECK-NEXT: arith.cmpi sge, %qq, %ki : i32
  %out = flex.attention %q, %k, %v : !t, !t, !t scale(%scale : f32)
      captures(%w : i64) -> out(!t) {indices_fit}
  score_mod(%s : f32, %sb : i32, %sh : i32, %sq : i32, %sk : i32, %sw : i64) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %w_1 : i64) {
    %w32 = arith.trunci %w_1 : i64 to i32
    %qq = arith.muli %qi, %w32 : i32
    %c = arith.cmpi sge, %qq, %ki : i32
    flex.yield %c : i1
  }
  func.return
}

// A sum that max_length bounds, and one that it does not.
// CHECK-LABEL: func.func @offsets(
func.func @offsets(%q : !t, %k : !t, %v : !t, %scale : f32) {
  // CHECK: %near = arith.addi %qi, %{{.*}} : i32
  // CHECK: %far = arith.addi %{{.*}}, %{{.*}} : i64
  // CHECK: arith.cmpi sge, %near, %ki : i32
  %out = flex.attention %q, %k, %v : !t, !t, !t scale(%scale : f32) -> out(!t)
      {max_length = 16777216}
  score_mod(%s : f32, %sb : i32, %sh : i32, %sq : i32, %sk : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c64 = arith.constant 64 : i32
    %large = arith.constant 2147483647 : i32
    %near = arith.addi %qi, %c64 : i32
    %far = arith.addi %qi, %large : i32
    %c = arith.cmpi sge, %near, %ki : i32
    %d = arith.cmpi sge, %far, %large : i32
    %e = arith.andi %c, %d : i1
    flex.yield %e : i1
  }
  func.return
}

// A captured window is clamped, and pairs are compared as i32.
// CHECK-LABEL: func.func @window(
func.func @window(%q : !t, %k : !t, %v : !t, %scale : f32, %w : i64) {
  // CHECK: %d = arith.subi %qi, %ki : i32
  // CHECK-NEXT: %[[LOW:.*]] = arith.constant -2147483648 : i64
  // CHECK-NEXT: %[[MAX:.*]] = arith.maxsi %w_1, %[[LOW]] : i64
  // CHECK-NEXT: %[[HIGH:.*]] = arith.constant 2147483647 : i64
  // CHECK-NEXT: %[[MIN:.*]] = arith.minsi %[[MAX]], %[[HIGH]] : i64
  // CHECK-NEXT: %clamped = arith.trunci %[[MIN]] : i64 to i32
  // CHECK-NEXT: %c = arith.cmpi sle, %d, %clamped : i32
  %out = flex.attention %q, %k, %v : !t, !t, !t scale(%scale : f32)
      captures(%w : i64) -> out(!t)
  score_mod(%s : f32, %sb : i32, %sh : i32, %sq : i32, %sk : i32, %sw : i64) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %w_1 : i64) {
    %d = arith.subi %qi, %ki : i32
    %w32 = arith.trunci %w_1 : i64 to i32
    %c = arith.cmpi sle, %d, %w32 : i32
    flex.yield %c : i1
  }
  func.return
}

// Half of a captured number is one as well.
// CHECK-LABEL: func.func @half_a_window(
func.func @half_a_window(%q : !t, %k : !t, %v : !t, %scale : f32, %w : i64) {
  // CHECK: %half = arith.divsi %w_1, %{{.*}} : i64
  // CHECK: %{{.*}} = arith.maxsi %half
  %out = flex.attention %q, %k, %v : !t, !t, !t scale(%scale : f32)
      captures(%w : i64) -> out(!t)
  score_mod(%s : f32, %sb : i32, %sh : i32, %sq : i32, %sk : i32, %sw : i64) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %w_1 : i64) {
    %two = arith.constant 2 : i64
    %half = arith.divsi %w_1, %two : i64
    %w32 = arith.trunci %half : i64 to i32
    %d = arith.subi %qi, %ki : i32
    %c = arith.cmpi sle, %d, %w32 : i32
    flex.yield %c : i1
  }
  func.return
}

// A wide index is read at, and a difference of squares becomes a float, as i64.
// What fits again is an i32.
// CHECK-LABEL: func.func @scores(
func.func @scores(%q : !t, %k : !t, %v : !t, %scale : f32, %t : tensor<?xf32>) {
  // CHECK: %qq = arith.muli %{{.*}}, %{{.*}} : i64
  // CHECK: flex.load_capture %t_1[%qq] : tensor<?xf32>, i64
  // CHECK: %diff = arith.subi %qq, %kk : i64
  // CHECK: arith.sitofp %diff : i64 to f32
  // CHECK: %root = arith.divsi %qq, %{{.*}} : i64
  // CHECK: %[[ROOT:.*]] = arith.trunci %root : i64 to i32
  // CHECK: flex.load_capture %t_1[%[[ROOT]]] : tensor<?xf32>, i32
  %out = flex.attention %q, %k, %v : !t, !t, !t scale(%scale : f32)
      captures(%t : tensor<?xf32>) -> out(!t) {max_length = 16777216}
  score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32, %t_1 : tensor<?xf32>) {
    %qq = arith.muli %qi, %qi : i32
    %kk = arith.muli %ki, %ki : i32
    %x = flex.load_capture %t_1[%qq] : tensor<?xf32>, i32
    %diff = arith.subi %qq, %kk : i32
    %f = arith.sitofp %diff : i32 to f32
    %large = arith.constant 16777216 : i32
    %root = arith.divsi %qq, %large : i32
    %z = flex.load_capture %t_1[%root] : tensor<?xf32>, i32
    %r0 = arith.addf %s, %x : f32
    %r1 = arith.addf %r0, %f : f32
    %r2 = arith.addf %r1, %z : f32
    flex.yield %r2 : f32
  } mask_mod(%mb : i32, %mh : i32, %mq : i32, %mk : i32, %mt : tensor<?xf32>) {
    %true = arith.constant true
    flex.yield %true : i1
  }
  func.return
}

// A user's own cast wraps, and so do loaded values among themselves. Where one meets
// a position, the sum is exact.
// CHECK-LABEL: func.func @own_types(
func.func @own_types(%q : !t, %k : !t, %v : !t, %scale : f32, %t : tensor<?xi32>) {
  // CHECK: %cast = arith.trunci %product : i64 to i32
  // CHECK: %twice = arith.muli %cast, %cast : i32
  // CHECK: %square = arith.muli %x, %x : i32
  // CHECK: %c = arith.cmpi sge, %twice, %square : i32
  // CHECK: %moved = arith.addi %{{.*}}, %{{.*}} : i64
  // CHECK: %clamped = arith.trunci
  // CHECK: %d = arith.cmpi sge, %clamped, %ki : i32
  %out = flex.attention %q, %k, %v : !t, !t, !t scale(%scale : f32)
      captures(%t : tensor<?xi32>) -> out(!t) {max_length = 16777216}
  score_mod(%s : f32, %sb : i32, %sh : i32, %sq : i32, %sk : i32, %st : tensor<?xi32>) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %t_1 : tensor<?xi32>) {
    %long = arith.extsi %qi : i32 to i64
    %product = arith.muli %long, %long : i64
    %cast = arith.trunci %product : i64 to i32
    %twice = arith.muli %cast, %cast : i32
    %x = flex.load_capture %t_1[%b] : tensor<?xi32>, i32
    %square = arith.muli %x, %x : i32
    %c = arith.cmpi sge, %twice, %square : i32
    %moved = arith.addi %qi, %x : i32
    %d = arith.cmpi sge, %moved, %ki : i32
    %e = arith.andi %c, %d : i1
    flex.yield %e : i1
  }
  func.return
}

// Bits of a hash are those of Python's integers: all of them until some are cut.
// CHECK-LABEL: func.func @hash(
func.func @hash(%q : !t, %k : !t, %v : !t, %scale : f32) {
  // CHECK: %mixed = arith.xori %{{.*}}, %{{.*}} : i64
  // CHECK: %high = arith.shrsi %mixed, %{{.*}} : i64
  // CHECK: %low = arith.andi %high, %{{.*}} : i64
  // CHECK: %[[LOW:.*]] = arith.trunci %low : i64 to i32
  // CHECK: arith.cmpi slt, %[[LOW]], %{{.*}} : i32
  %out = flex.attention %q, %k, %v : !t, !t, !t scale(%scale : f32) -> out(!t)
      {max_length = 16777216}
  score_mod(%s : f32, %sb : i32, %sh : i32, %sq : i32, %sk : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %prime = arith.constant 1640531527 : i32
    %a = arith.muli %qi, %prime : i32
    %mixed = arith.xori %a, %ki : i32
    %c16 = arith.constant 16 : i32
    %high = arith.shrsi %mixed, %c16 : i32
    %mask = arith.constant 255 : i32
    %low = arith.andi %high, %mask : i32
    %half = arith.constant 128 : i32
    %c = arith.cmpi slt, %low, %half : i32
    flex.yield %c : i1
  }
  func.return
}

// A literal that an i32 does not hold is an i64 that the frontend cut.
// CHECK-LABEL: func.func @literal(
func.func @literal(%q : !t, %k : !t, %v : !t, %scale : f32) {
  // CHECK: %prime = arith.constant 2654435761 : i64
  // CHECK: %mixed = arith.muli %{{.*}}, %prime : i64
  // CHECK: %low = arith.andi %mixed, %{{.*}} : i64
  %out = flex.attention %q, %k, %v : !t, !t, !t scale(%scale : f32) -> out(!t)
      {max_length = 16777216}
  score_mod(%s : f32, %sb : i32, %sh : i32, %sq : i32, %sk : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %prime = arith.constant 2654435761 : i64
    %cut = arith.trunci %prime : i64 to i32
    %mixed = arith.muli %qi, %cut : i32
    %bits = arith.constant 255 : i32
    %low = arith.andi %mixed, %bits : i32
    %c = arith.cmpi slt, %low, %ki : i32
    flex.yield %c : i1
  }
  func.return
}

// Shifts by more bits than an i32 has are those of an i64; others stay.
// CHECK-LABEL: func.func @shifts(
func.func @shifts(%q : !t, %k : !t, %v : !t, %scale : f32) {
  // CHECK: %far = arith.shrsi %{{.*}}, %{{.*}} : i64
  // CHECK-NEXT: %[[FAR:.*]] = arith.trunci %far : i64 to i32
  // CHECK: %near = arith.shrsi %qi, %{{.*}} : i32
  // CHECK: arith.cmpi slt, %[[FAR]], %near : i32
  %out = flex.attention %q, %k, %v : !t, !t, !t scale(%scale : f32) -> out(!t)
      {max_length = 16777216}
  score_mod(%s : f32, %sb : i32, %sh : i32, %sq : i32, %sk : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c40 = arith.constant 40 : i32
    %far = arith.shrsi %qi, %c40 : i32
    %c4 = arith.constant 4 : i32
    %near = arith.shrsi %qi, %c4 : i32
    %c = arith.cmpi slt, %far, %near : i32
    flex.yield %c : i1
  }
  func.return
}
