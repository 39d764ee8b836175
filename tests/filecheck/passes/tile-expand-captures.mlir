// RUN: flexc-opt %s -p tile-expand-captures --split-input-file | filecheck %s

// Each index is tested from both sides by one unsigned comparison; offsets are
// as wide as the kernel says. Sizes and strides are uniform operands of the map,
// asked for once at the entry.
// CHECK-LABEL: tile.kernel @narrow(
tile.kernel @narrow(%t : tensor<?x?xf32> #tile.param<argument 0>,
                    %h : i32 #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (q_len)> attributes {index_width = 32 : i64} {
  // CHECK-DAG: %t_size0 = tile.dim %t, 0 : tensor<?x?xf32> -> i32
  // CHECK-DAG: %t_stride0 = tile.stride %t, 0 : tensor<?x?xf32> -> i32
  // CHECK-DAG: %t_size1 = tile.dim %t, 1 : tensor<?x?xf32> -> i32
  // CHECK-DAG: %t_stride1 = tile.stride %t, 1 : tensor<?x?xf32> -> i32
  %rows = tile.iota %h : !tile.tile<16xi32>
  // CHECK: %x = tile.map({{.*}}[[SIZE0:%[a-z0-9_]*]] : i32 = %t_size0 [] : i32, [[STRIDE0:%[a-z0-9_]*]] : i32 = %t_stride0 [] : i32, [[SIZE1:%[a-z0-9_]*]] : i32 = %t_size1 [] : i32, [[STRIDE1:%[a-z0-9_]*]] : i32 = %t_stride1 [] : i32)
  // CHECK-NEXT: [[A:%.*]] = arith.cmpi ult, %i, [[SIZE0]] : i32
  // CHECK-NEXT: [[I:%.*]] = arith.muli %i, [[STRIDE0]] : i32
  // CHECK-NEXT: [[B:%.*]] = arith.cmpi ult, %j, [[SIZE1]] : i32
  // CHECK-NEXT: [[VALID:%.*]] = arith.andi [[A]], [[B]] : i1
  // CHECK-NEXT: [[J:%.*]] = arith.muli %j, [[STRIDE1]] : i32
  // CHECK-NEXT: [[OFFSET:%.*]] = arith.addi [[I]], [[J]] : i32
  // CHECK-NEXT: %v = tile.read {{%.*}}[[[OFFSET]]] if [[VALID]] : tensor<?x?xf32>, i32 -> f32
  %x = tile.map(%i : i32 = %h [] : i32, %j : i32 = %rows [0] : !tile.tile<16xi32>,
                %u : tensor<?x?xf32> = %t [] : tensor<?x?xf32>) {
    %v = flex.load_capture %u[%i, %j] : tensor<?x?xf32>, i32, i32
    flex.yield %v : f32
  } -> !tile.tile<16xf32>
  // The same queries serve a second map.
  // CHECK: %y = tile.map({{.*}} = %t_size0 [] : i32, {{.*}} = %t_stride0 [] : i32
  %y = tile.map(%i : i32 = %h [] : i32, %j : i32 = %rows [0] : !tile.tile<16xi32>,
                %u : tensor<?x?xf32> = %t [] : tensor<?x?xf32>) {
    %v = flex.load_capture %u[%j, %i] : tensor<?x?xf32>, i32, i32
    flex.yield %v : f32
  } -> !tile.tile<16xf32>
  tile.return
}

// -----

// Without a promise offsets are 64 bits wide. What the type says is no operand;
// no test where the index is known to be inside; a 0-d tensor has offset 0.
// CHECK-LABEL: tile.kernel @wide(
tile.kernel @wide(%t : tensor<?x8xf32, strided<[?, 1]>> #tile.param<argument 0>,
                  %z : tensor<f32> #tile.param<argument 1>,
                  %h : i32 #tile.param<argument 2>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK-NOT: tile.dim
  // CHECK: %t_stride0 = tile.stride %t, 0 : {{.*}} -> i64
  // CHECK-NOT: tile.stride
  // CHECK: tile.map(
  // CHECK-NEXT: [[I:%.*]] = arith.extsi %i : i32 to i64
  // CHECK-NEXT: [[A:%.*]] = arith.muli [[I]], {{%.*}} : i64
  // CHECK-NEXT: [[J:%.*]] = arith.extsi %i : i32 to i64
  // CHECK-NEXT: [[OFFSET:%.*]] = arith.addi [[A]], [[J]] : i64
  // CHECK-NEXT: %v = tile.read %u[[[OFFSET]]] : {{.*}}, i64 -> f32
  // CHECK-NEXT: [[ZERO:%.*]] = arith.constant 0 : i64
  // CHECK-NEXT: {{%w.*}} = tile.read %y[[[ZERO]]] : tensor<f32>, i64 -> f32
  // CHECK-NEXT: {{%n.*}} = arith.constant 8 : i32
  %x, %w, %n = tile.map(%i : i32 = %h [] : i32,
                    %u : tensor<?x8xf32, strided<[?, 1]>> = %t [] : tensor<?x8xf32, strided<[?, 1]>>,
                    %y : tensor<f32> = %z [] : tensor<f32>) {
    %v = flex.load_capture %u[%i, %i] inside : tensor<?x8xf32, strided<[?, 1]>>, i32, i32
    %w = flex.load_capture %y[] : tensor<f32>
    %n = flex.dim %u, 1 : tensor<?x8xf32, strided<[?, 1]>> -> i32
    flex.yield %v, %w, %n : f32, f32, i32
  } -> f32, f32, i32
  tile.return
}

// -----

// Outside of a map the load stands alone, as in the bounds of a segment.
// CHECK-LABEL: tile.kernel @outside(
tile.kernel @outside(%t : tensor<?xi32> #tile.param<argument 0>,
                     %h : i32 #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: %t_size0 = tile.dim %t, 0 : tensor<?xi32> -> i32
  // CHECK: arith.cmpi ult, %h, %t_size0 : i32
  // CHECK: %v = tile.read %t[{{.*}}] if
  %v = flex.load_capture %t[%h] : tensor<?xi32>, i32
  // CHECK-NOT: flex.dim
  %n = flex.dim %t, 0 : tensor<?xi32> -> i32
  // CHECK: arith.addi %v, %t_size0 : i32
  %m = arith.addi %v, %n : i32
  tile.return
}
