// RUN: flexc-opt %s -p flex-simplify-mods --split-input-file | filecheck %s

// An index is not negative: nothing wraps, and Python's // and % are plain.

// CHECK-LABEL: @indices
// CHECK:       score_mod(%s: f32, %b: i32, %h: i32, %qi: i32, %ki: i32, %t_: tensor<?xf32>)
// CHECK-NEXT:    %x = flex.load_capture %t_[%qi] : tensor<?xf32>, i32
// CHECK-NEXT:    %r = arith.addf %s, %x : f32
// CHECK-NEXT:    flex.yield %r : f32
// CHECK:       mask_mod(%b_1: i32, %h_1: i32, %qi_1: i32, %ki_1: i32, %t__1: tensor<?xf32>)
// CHECK-NEXT:    %c3 = arith.constant 3 : i32
// CHECK-NEXT:    %mod = arith.remsi %ki_1, %c3 : i32
// CHECK-NEXT:    %[[FOUR:.*]] = arith.constant 4 : i32
// CHECK-NEXT:    %block = arith.shrsi %qi_1, %[[FOUR]] : i32
// CHECK-NEXT:    %same = arith.cmpi eq, %block, %mod : i32
// CHECK-NEXT:    flex.yield %same : i1
func.func @indices(%q: tensor<1x1x8x16xf32>, %scale: f32, %t: tensor<?xf32>) -> tensor<1x1x8x16xf32> {
  %out = flex.attention %q, %q, %q : tensor<1x1x8x16xf32>, tensor<1x1x8x16xf32>, tensor<1x1x8x16xf32> scale(%scale : f32) captures(%t : tensor<?xf32>) -> out(tensor<1x1x8x16xf32>) score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32, %t_ : tensor<?xf32>) {
    %c0 = arith.constant 0 : i32
    %n = flex.dim %t_, 0 : tensor<?xf32> -> i32
    %negative = arith.cmpi slt, %qi, %c0 : i32
    %wrapped = arith.addi %qi, %n : i32
    %i = arith.select %negative, %wrapped, %qi : i32
    %x = flex.load_capture %t_[%i] : tensor<?xf32>, i32
    %r = arith.addf %s, %x : f32
    flex.yield %r : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %t_ : tensor<?xf32>) {
    %c0 = arith.constant 0 : i32
    %c3 = arith.constant 3 : i32
    %c16 = arith.constant 16 : i32
    %mod = arith.remsi %ki, %c3 : i32
    %is_zero = arith.cmpi ne, %mod, %c0 : i32
    %m_neg = arith.cmpi slt, %mod, %c0 : i32
    %c_neg = arith.cmpi slt, %c3, %c0 : i32
    %differ = arith.xori %m_neg, %c_neg : i1
    %fix = arith.andi %is_zero, %differ : i1
    %fixed = arith.addi %mod, %c3 : i32
    %rem = arith.select %fix, %fixed, %mod : i32
    %block = arith.floordivsi %qi, %c16 : i32
    %same = arith.cmpi eq, %block, %rem : i32
    flex.yield %same : i1
  }
  func.return %out : tensor<1x1x8x16xf32>
}

// -----

// Differences may be negative, and sums of two indices may wrap around; but an
// index has a successor, and floors by powers of two need no sign.

// CHECK-LABEL: @signed
// CHECK:       mask_mod(%b_1: i32, %h_1: i32, %qi_1: i32, %ki_1: i32)
// CHECK:         %sum = arith.addi %qi_1, %ki_1 : i32
// CHECK:         %sum_negative = arith.cmpi slt, %sum, %c0 : i32
// CHECK-NEXT:    %d = arith.subi %qi_1, %ki_1 : i32
// CHECK-NEXT:    %third = arith.floordivsi %d, %c3 : i32
// CHECK:         %[[TWO:.*]] = arith.constant 2 : i32
// CHECK-NEXT:    %quarter = arith.shrsi %d, %[[TWO]] : i32
// CHECK-NEXT:    %rem = arith.andi %d, %c3 : i32
// CHECK-NEXT:    %x = arith.cmpi eq, %third, %quarter : i32
// CHECK-NEXT:    %y = arith.cmpi eq, %rem, %c0 : i32
// CHECK-NEXT:    %xy = arith.andi %x, %y : i1
// CHECK-NEXT:    %z0 = arith.ori %xy, %sum_negative : i1
// CHECK-NEXT:    flex.yield %z0 : i1
func.func @signed(%q: tensor<1x1x8x16xf32>, %scale: f32) -> tensor<1x1x8x16xf32> {
  %out = flex.attention %q, %q, %q : tensor<1x1x8x16xf32>, tensor<1x1x8x16xf32>, tensor<1x1x8x16xf32> scale(%scale : f32) -> out(tensor<1x1x8x16xf32>) score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %c3 = arith.constant 3 : i32
    %c4 = arith.constant 4 : i32
    %sum = arith.addi %qi, %ki : i32
    %sum_negative = arith.cmpi slt, %sum, %c0 : i32
    %next = arith.addi %qi, %c1 : i32
    %next_negative = arith.cmpi slt, %next, %c0 : i32
    %d = arith.subi %qi, %ki : i32
    %third = arith.floordivsi %d, %c3 : i32
    %quarter = arith.floordivsi %d, %c4 : i32
    %mod = arith.remsi %d, %c4 : i32
    %nonzero = arith.cmpi ne, %mod, %c0 : i32
    %negative = arith.cmpi slt, %mod, %c0 : i32
    %fix = arith.andi %nonzero, %negative : i1
    %fixed = arith.addi %mod, %c4 : i32
    %rem = arith.select %fix, %fixed, %mod : i32
    %x = arith.cmpi eq, %third, %quarter : i32
    %y = arith.cmpi eq, %rem, %c0 : i32
    %xy = arith.andi %x, %y : i1
    %z0 = arith.ori %xy, %sum_negative : i1
    %z = arith.ori %z0, %next_negative : i1
    flex.yield %z : i1
  }
  func.return %out : tensor<1x1x8x16xf32>
}

// -----

// Logic.

// CHECK-LABEL: @logic
// CHECK:         tile.map
// CHECK-NEXT:    %a = arith.cmpi sge, %a0, %a1 : i32
// CHECK-NEXT:    %d = arith.select %a2, %a0, %a1 : i32
// CHECK-NEXT:    flex.yield %a, %a2, %d : i1, i1, i32
func.func @logic(%i: !tile.tile<64xi32>, %j: !tile.tile<64xi32>, %p: !tile.tile<64xi1>) -> !tile.tile<64xi1> {
  %x, %y, %z = tile.map(%a0 : i32 = %i [0] : !tile.tile<64xi32>, %a1 : i32 = %j [0] : !tile.tile<64xi32>, %a2 : i1 = %p [0] : !tile.tile<64xi1>) {
    %true = arith.constant true
    %less = arith.cmpi slt, %a0, %a1 : i32
    %a = arith.xori %less, %true : i1
    %less_again = arith.cmpi slt, %a0, %a1 : i32
    %b0 = arith.ori %a, %less_again : i1
    %b = arith.andi %a2, %b0 : i1
    %not = arith.xori %b, %true : i1
    %d0 = arith.select %not, %a1, %a0 : i32
    %d = arith.select %a2, %d0, %a1 : i32
    flex.yield %a, %b, %d : i1, i1, i32
  } -> !tile.tile<64xi1>, !tile.tile<64xi1>, !tile.tile<64xi32>
  func.return %x : !tile.tile<64xi1>
}

// -----

// Floating-point identities hold for all numbers, or are left alone.

// CHECK-LABEL: @floats
// CHECK:       tile.map
// CHECK:         %zero = arith.constant 0.000000e+00 : f32
// CHECK-NEXT:    %kept = arith.addf %{{.*}}, %zero : f32
// CHECK-NEXT:    %itself = arith.cmpf oeq, %{{.*}}, %{{.*}} : f32
// CHECK-NEXT:    %position = arith.sitofp %{{.*}} : i32 to f32
// CHECK-NEXT:    %[[EIGHTH:.*]] = arith.constant 1.250000e-01 : f32
// CHECK-NEXT:    %scaled = arith.mulf %position, %[[EIGHTH]] : f32
// CHECK-NEXT:    %total = arith.addf %kept, %scaled : f32
// CHECK-NEXT:    flex.yield %total, %itself : f32, i1
func.func @floats(%s: !tile.tile<64xf32>, %i: !tile.tile<64xi32>) -> !tile.tile<64xf32> {
  %x, %y = tile.map(%a0 : f32 = %s [0] : !tile.tile<64xf32>, %a1 : i32 = %i [0] : !tile.tile<64xi32>) {
    %zero = arith.constant 0.0 : f32
    %one = arith.constant 1.0 : f32
    %two = arith.constant 2.0 : f32
    %four = arith.constant 4.0 : f32
    %eight = arith.mulf %two, %four : f32
    %same = arith.mulf %a0, %one : f32
    %kept = arith.addf %same, %zero : f32
    %itself = arith.cmpf oeq, %a0, %a0 : f32
    %position = arith.sitofp %a1 : i32 to f32
    %dropped = arith.addf %position, %zero : f32
    %scaled = arith.divf %dropped, %eight : f32
    %total = arith.addf %kept, %scaled : f32
    flex.yield %total, %itself : f32, i1
  } -> !tile.tile<64xf32>, !tile.tile<64xi1>
  func.return %x : !tile.tile<64xf32>
}

// -----

// A map knows what defines its scalar operands, and nothing of tiles.

// CHECK-LABEL: @operands
// CHECK:         %b = arith.maxsi %a1, %c0 : i32
// CHECK-NEXT:    flex.yield %a0, %b : i32, i32
func.func @operands(%t: tensor<?xf32>, %i: !tile.tile<64xi32>) -> !tile.tile<64xi32> {
  %n = tile.dim %t, 0 : tensor<?xf32> -> i32
  %x, %y = tile.map(%a0 : i32 = %n [] : i32, %a1 : i32 = %i [0] : !tile.tile<64xi32>) {
    %c0 = arith.constant 0 : i32
    %a = arith.maxsi %a0, %c0 : i32
    %b = arith.maxsi %a1, %c0 : i32
    flex.yield %a, %b : i32, i32
  } -> !tile.tile<64xi32>, !tile.tile<64xi32>
  func.return %y : !tile.tile<64xi32>
}
