// RUN: flexc-opt %s -p tile-materialize-params --split-input-file | filecheck %s

// Equal queries share an argument; a size is 32 bits wide and a stride 64.
// CHECK-LABEL: tile.kernel @queries(
// CHECK-SAME: %n : i32 #tile.param<dim 0, 2>, %q_stride1 : i64 #tile.param<stride 0, 1>, %out_stride0 : i64 #tile.param<stride 1, 0>)
tile.kernel @queries(%q : tensor<?x?x?x64xf32, strided<[?, ?, ?, 1]>> #tile.param<argument 0>,
                     %out : memref<?x?xf32> #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %n = tile.dim %q, 2 : tensor<?x?x?x64xf32, strided<[?, ?, ?, 1]>> -> i32
  %n64 = tile.dim %q, 2 : tensor<?x?x?x64xf32, strided<[?, ?, ?, 1]>> -> i64
  %s = tile.stride %q, 1 : tensor<?x?x?x64xf32, strided<[?, ?, ?, 1]>> -> i64
  %s32 = tile.stride %q, 1 : tensor<?x?x?x64xf32, strided<[?, ?, ?, 1]>> -> i32
  %o = tile.stride %out, 0 : memref<?x?xf32> -> i64
  // What the type says is a constant.
  %d = tile.dim %q, 3 : tensor<?x?x?x64xf32, strided<[?, ?, ?, 1]>> -> i32
  %one = tile.stride %q, 3 : tensor<?x?x?x64xf32, strided<[?, ?, ?, 1]>> -> i64
  // CHECK-NOT: tile.dim
  // CHECK-NOT: tile.stride
  // CHECK: [[N64:%.*]] = arith.extsi %n : i32 to i64
  // CHECK: [[S32:%.*]] = arith.trunci %q_stride1 : i64 to i32
  // CHECK: [[D:%.*]] = arith.constant 64 : i32
  // CHECK: [[ONE:%.*]] = arith.constant 1 : i64
  // CHECK: "test.op"(%n, [[N64]], %q_stride1, [[S32]], %out_stride0, [[D]], [[ONE]])
  "test.op"(%n, %n64, %s, %s32, %o, %d, %one) : (i32, i64, i64, i32, i64, i32, i64) -> ()
  tile.return
}

// -----

// Rows of 16 bytes: strides of query, key, value and out count units of 8 bf16,
// captures' and the last dimension's do not.
// CHECK-LABEL: tile.kernel @aligned(
// CHECK-SAME: %q_stride0_div8 : i64 #tile.param<stride 0, 0 / 8>
// CHECK-SAME: %q_stride3 : i64 #tile.param<stride 0, 3>
// CHECK-SAME: %t_stride0 : i64 #tile.param<stride 4, 0>
// CHECK-SAME: %out_stride0_div8 : i64 #tile.param<stride 5, 0 / 8>
tile.kernel @aligned(%q : tensor<?x?x?x64xbf16> #tile.param<argument 0>,
                     %k : tensor<?x?x?x64xbf16> #tile.param<argument 1>,
                     %v : tensor<?x?x?x64xbf16> #tile.param<argument 2>,
                     %scale : f32 #tile.param<argument 3>,
                     %t : tensor<?xbf16> #tile.param<argument 4>,
                     %out : memref<?x?x?x64xbf16> #tile.param<argument 5>)
    grid affine_map<(b, h, q_len) -> (q_len)> attributes {alignment = 16 : i64} {
  %a = tile.stride %q, 0 : tensor<?x?x?x64xbf16> -> i64
  %b = tile.stride %q, 3 : tensor<?x?x?x64xbf16> -> i64
  %c = tile.stride %t, 0 : tensor<?xbf16> -> i64
  %d = tile.stride %out, 0 : memref<?x?x?x64xbf16> -> i64
  // CHECK-DAG: %q_stride0 = arith.muli %q_stride0_div8, {{%.*}} : i64
  // CHECK-DAG: %out_stride0 = arith.muli %out_stride0_div8, {{%.*}} : i64
  // CHECK: "test.op"(%q_stride0, %q_stride3, %t_stride0, %out_stride0)
  "test.op"(%a, %b, %c, %d) : (i64, i64, i64, i64) -> ()
  tile.return
}

// -----

// No query, no argument.
// CHECK-LABEL: tile.kernel @none(%q : tensor<?xf32> #tile.param<argument 0>) grid
tile.kernel @none(%q : tensor<?xf32> #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK-NEXT: tile.return
  tile.return
}
