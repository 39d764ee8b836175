// RUN: flexc-opt %s -p tile-split-maps --split-input-file | filecheck %s

// Values by head become scalars, by row or column vectors; the rest is full.
// CHECK-LABEL: tile.kernel @every_rank(
tile.kernel @every_rank(%h : i32 #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %q = tile.iota %h : !tile.tile<32xi32>
  %k = tile.iota %h : !tile.tile<16xi32>
  // CHECK: [[U:%.*]] = tile.map({{%.*}} : i32 = %h [] : i32) {
  // CHECK-NEXT: [[TWO:%.*]] = arith.constant 2 : i32
  // CHECK-NEXT: arith.muli {{%.*}}, [[TWO]] : i32
  // CHECK-NEXT: flex.yield
  // CHECK-NEXT: } -> i32
  // CHECK-NEXT: [[R:%.*]] = tile.map({{.*}}[[U]] [] : i32{{.*}}) {
  // CHECK-NEXT: arith.addi
  // CHECK-NEXT: flex.yield
  // CHECK-NEXT: } -> !tile.tile<32xi32>
  // CHECK-NEXT: [[C:%.*]] = tile.map({{%.*}} : i32 = %k [0] : !tile.tile<16xi32>) {
  // CHECK-NEXT: arith.constant 2
  // CHECK-NEXT: arith.subi
  // CHECK-NEXT: flex.yield
  // CHECK-NEXT: } -> !tile.tile<16xi32>
  // CHECK-NEXT: %x = tile.map({{%.*}} : i32 = [[R]] [0] : !tile.tile<32xi32>, {{%.*}} : i32 = [[C]] [1] : !tile.tile<16xi32>) {
  // CHECK-NEXT: arith.xori
  // CHECK-NEXT: flex.yield
  // CHECK-NEXT: } -> !tile.tile<32x16xi32>
  %x = tile.map(%a : i32 = %h [] : i32, %b : i32 = %q [0] : !tile.tile<32xi32>,
                %c : i32 = %k [1] : !tile.tile<16xi32>) {
    %two = arith.constant 2 : i32
    %u = arith.muli %a, %two : i32
    %r = arith.addi %b, %u : i32
    %s = arith.subi %c, %two : i32
    %e = arith.xori %r, %s : i32
    flex.yield %e : i32
  } -> !tile.tile<32x16xi32>
  tile.return
}

// -----

// Nothing of lower rank: the map stays as it is.
// CHECK-LABEL: tile.kernel @full(
tile.kernel @full(%z : f32 #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %s = tile.full %z : f32 -> !tile.tile<16x16xf32>
  // CHECK: %x = tile.map(%a : f32 = %s [0, 1] : !tile.tile<16x16xf32>, %b : f32 = %z [] : f32) {
  // CHECK-NEXT: %one = arith.constant
  // CHECK-NEXT: %c = arith.mulf %a, %one
  // CHECK-NEXT: %d = arith.addf %c, %b
  // CHECK-NOT: tile.map
  // CHECK: tile.return
  %x = tile.map(%a : f32 = %s [0, 1] : !tile.tile<16x16xf32>, %b : f32 = %z [] : f32) {
    %one = arith.constant 1.0 : f32
    %c = arith.mulf %a, %one : f32
    %d = arith.addf %c, %b : f32
    flex.yield %d : f32
  } -> !tile.tile<16x16xf32>
  tile.return
}

// -----

// A read by row is a read of that many elements; what two ranks need is shared.
// A result of lower rank than the map is still given at the map's rank.
// CHECK-LABEL: tile.kernel @read(
tile.kernel @read(%t : tensor<?xf32> #tile.param<argument 0>,
                  %h : i32 #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %q = tile.iota %h : !tile.tile<32xi32>
  %k = tile.iota %h : !tile.tile<16xi32>
  // CHECK: [[V:%.*]] = tile.map({{.*}} = %t [] : tensor<?xf32>{{.*}}) {
  // CHECK: tile.read
  // CHECK: } -> !tile.tile<32xf32>
  // CHECK: [[P:%.*]], [[W:%.*]] = tile.map({{.*}} = [[V]] [0] : !tile.tile<32xf32>{{.*}}) {
  // CHECK-NOT: tile.read
  // CHECK: flex.yield {{%.*}}, {{%.*}} : f32, f32
  // CHECK: } -> !tile.tile<32x16xf32>, !tile.tile<32x16xf32>
  %p, %w = tile.map(%u : tensor<?xf32> = %t [] : tensor<?xf32>,
                    %i : i32 = %q [0] : !tile.tile<32xi32>,
                    %j : i32 = %k [1] : !tile.tile<16xi32>) {
    %v = tile.read %u[%i] : tensor<?xf32>, i32 -> f32
    %f = arith.sitofp %j : i32 to f32
    %e = arith.addf %v, %f : f32
    flex.yield %e, %v : f32, f32
  } -> !tile.tile<32x16xf32>, !tile.tile<32x16xf32>
  tile.return
}

// -----

// Dead code of lower rank makes no map; operands that nothing uses are dropped.
// CHECK-LABEL: tile.kernel @dead(
tile.kernel @dead(%h : i32 #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %q = tile.iota %h : !tile.tile<32xi32>
  // CHECK: %x = tile.map(%b : i32 = %q [0] : !tile.tile<32xi32>) {
  // CHECK-NEXT: %c = arith.addi %b, %b
  // CHECK-NEXT: flex.yield %c
  %x = tile.map(%a : i32 = %h [] : i32, %b : i32 = %q [0] : !tile.tile<32xi32>) {
    %dead = arith.addi %a, %a : i32
    %c = arith.addi %b, %b : i32
    flex.yield %c : i32
  } -> !tile.tile<32xi32>
  tile.return
}
