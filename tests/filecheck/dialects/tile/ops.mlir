// RUN: FLEXC_ROUNDTRIP
// RUN: FLEXC_GENERIC_ROUNDTRIP

// CHECK-LABEL: tile.kernel @arguments(%q : tensor<?x?x?x64xbf16> #tile.param<argument 0>, %out : memref<?x?x?x64xbf16> #tile.param<argument 1>, %n : i32 #tile.param<dim 0, 2>, %s : i64 #tile.param<stride 0, 1>, %u : i64 #tile.param<stride 0, 2 / 8>) grid affine_map<(d0, d1, d2) -> ((d2 ceildiv 64), d1, d0)> attributes {num_warps = 4 : i32} {
// CHECK-GENERIC-LABEL: "tile.kernel"() <{sym_name = "arguments"
// CHECK-GENERIC-SAME: grid = affine_map<(d0, d1, d2) -> ((d2 ceildiv 64), d1, d0)>
// CHECK-GENERIC-SAME: params = [#tile.param<argument 0>, #tile.param<argument 1>, #tile.param<dim 0, 2>, #tile.param<stride 0, 1>, #tile.param<stride 0, 2 / 8>]
tile.kernel @arguments(%q : tensor<?x?x?x64xbf16> #tile.param<argument 0>,
                       %out : memref<?x?x?x64xbf16> #tile.param<argument 1>,
                       %n : i32 #tile.param<dim 0, 2>,
                       %s : i64 #tile.param<stride 0, 1>,
                       %u : i64 #tile.param<stride 0, 2 / 8>)
    grid affine_map<(b, h, q_len) -> (q_len ceildiv 64, h, b)>
    attributes {num_warps = 4 : i32} {
  // CHECK-NEXT: tile.await_kernels
  tile.await_kernels
  // CHECK-NEXT: %m = tile.program_id 0
  %m = tile.program_id 0
  // CHECK-NEXT: %q_len = tile.dim %q, 2 : tensor<?x?x?x64xbf16> -> i32
  %q_len = tile.dim %q, 2 : tensor<?x?x?x64xbf16> -> i32
  // CHECK-NEXT: %stride = tile.stride %out, 1 : memref<?x?x?x64xbf16> -> i64
  %stride = tile.stride %out, 1 : memref<?x?x?x64xbf16> -> i64
  // CHECK-NEXT: %c0 = arith.constant 0 : i32
  %c0 = arith.constant 0 : i32
  // CHECK-NEXT: %has_rows = arith.cmpi slt, %m, %q_len : i32
  %has_rows = arith.cmpi slt, %m, %q_len : i32
  // CHECK-NEXT: tile.return_unless %has_rows
  tile.return_unless %has_rows
  // CHECK-NEXT: %x = tile.load %q[%c0, %c0, %m, %c0] checked [0, 1] : tensor<?x?x?x64xbf16>, i32, i32, i32, i32 -> !tile.tile<64x64xbf16>
  %x = tile.load %q[%c0, %c0, %m, %c0] checked [0, 1]
      : tensor<?x?x?x64xbf16>, i32, i32, i32, i32 -> !tile.tile<64x64xbf16>
  // CHECK-NEXT: %y = tile.load %q[%c0, %c0, %m, %c0] : tensor<?x?x?x64xbf16>, i32, i32, i32, i32 -> !tile.tile<64xbf16>
  %y = tile.load %q[%c0, %c0, %m, %c0]
      : tensor<?x?x?x64xbf16>, i32, i32, i32, i32 -> !tile.tile<64xbf16>
  // CHECK-NEXT: tile.store %x : !tile.tile<64x64xbf16>, %out[%c0, %c0, %m, %c0] checked [0] : memref<?x?x?x64xbf16>, i32, i32, i32, i32
  tile.store %x : !tile.tile<64x64xbf16>, %out[%c0, %c0, %m, %c0] checked [0]
      : memref<?x?x?x64xbf16>, i32, i32, i32, i32
  // CHECK-NEXT: tile.store %x : !tile.tile<64x64xbf16>, %out[%c0, %c0, %m, %c0] checked [0] count %m : memref<?x?x?x64xbf16>, i32, i32, i32, i32
  tile.store %x : !tile.tile<64x64xbf16>, %out[%c0, %c0, %m, %c0] checked [0] count %m
      : memref<?x?x?x64xbf16>, i32, i32, i32, i32
  // CHECK-NEXT: tile.store %x : !tile.tile<64x64xbf16>, %out[%c0, %c0, %m, %c0] checked [0] below %m : memref<?x?x?x64xbf16>, i32, i32, i32, i32
  tile.store %x : !tile.tile<64x64xbf16>, %out[%c0, %c0, %m, %c0] checked [0] below %m
      : memref<?x?x?x64xbf16>, i32, i32, i32, i32
  // CHECK-NEXT: tile.return
  tile.return
}

// CHECK-LABEL: tile.kernel @compute(
tile.kernel @compute(%t : tensor<?xf32> #tile.param<argument 0>,
                     %out : memref<?xf32> #tile.param<argument 1>,
                     %z : f32 #tile.param<argument 2>,
                     %base : i64 #tile.param<stride 0, 0>)
    grid affine_map<(b, h, q_len) -> (1)> {
  %c0 = arith.constant 0 : i32
  // CHECK: %rows = tile.iota %c0 : !tile.tile<32xi32>
  %rows = tile.iota %c0 : !tile.tile<32xi32>
  // CHECK-NEXT: %acc = tile.full %z : f32 -> !tile.tile<32x16xf32>
  %acc = tile.full %z : f32 -> !tile.tile<32x16xf32>
  // CHECK-NEXT: %acc_t = tile.transpose %acc : !tile.tile<32x16xf32> -> !tile.tile<16x32xf32>
  %acc_t = tile.transpose %acc : !tile.tile<32x16xf32> -> !tile.tile<16x32xf32>
  // CHECK-NEXT: %square = tile.full %z : f32 -> !tile.tile<32x32xf32>
  %square = tile.full %z : f32 -> !tile.tile<32x32xf32>
  // CHECK-NEXT: %s = tile.dot %acc, %acc_t, %square {precision = "tf32"} : !tile.tile<32x16xf32>, !tile.tile<16x32xf32>, !tile.tile<32x32xf32> -> !tile.tile<32x32xf32>
  %s = tile.dot %acc, %acc_t, %square {precision = "tf32"}
      : !tile.tile<32x16xf32>, !tile.tile<16x32xf32>, !tile.tile<32x32xf32>
      -> !tile.tile<32x32xf32>
  // CHECK-NEXT: %m = tile.reduce max %s along 1 : !tile.tile<32x32xf32>
  %m = tile.reduce max %s along 1 : !tile.tile<32x32xf32>
  // CHECK-NEXT: %l = tile.reduce sum %s along 0 : !tile.tile<32x32xf32>
  %l = tile.reduce sum %s along 0 : !tile.tile<32x32xf32>
  // CHECK-NEXT: %some = tile.partial_sums %s : !tile.tile<32x32xf32> -> !tile.tile<32x8xf32>
  %some = tile.partial_sums %s : !tile.tile<32x32xf32> -> !tile.tile<32x8xf32>
  // CHECK-NEXT: %half = arith.constant 5.000000e-01 : bf16
  %half = arith.constant 0.5 : bf16
  // CHECK-NEXT: %narrow = tile.full
  %narrow = tile.full %half : bf16 -> !tile.tile<32x32xbf16>
  // CHECK-NEXT: %pairs = tile.pack_pairs %narrow : !tile.tile<32x32xbf16> -> !tile.tile<32x16xi32>
  %pairs = tile.pack_pairs %narrow : !tile.tile<32x32xbf16> -> !tile.tile<32x16xi32>
  // CHECK-NEXT: %again = tile.unpack_pairs %pairs : !tile.tile<32x16xi32> -> !tile.tile<32x32xbf16>
  %again = tile.unpack_pairs %pairs : !tile.tile<32x16xi32> -> !tile.tile<32x32xbf16>
  // CHECK-NEXT: %band = tile.keep_columns %s from %rows to %rows else 0.000000e+00 : f32 : !tile.tile<32x32xf32>, !tile.tile<32xi32>, !tile.tile<32xi32>
  %band = tile.keep_columns %s from %rows to %rows else 0.0 : f32 : !tile.tile<32x32xf32>, !tile.tile<32xi32>, !tile.tile<32xi32>
  // CHECK-NEXT: %upto = tile.scan %s : !tile.tile<32x32xf32>
  %upto = tile.scan %s : !tile.tile<32x32xf32>
  // CHECK-NEXT: %p, %live = tile.map(%a : f32 = %s [0, 1] : !tile.tile<32x32xf32>, %b : f32 = %m [0] : !tile.tile<32xf32>, %c : i32 = %rows [1] : !tile.tile<32xi32>, %d : f32 = %z [] : f32, %u : tensor<?xf32> = %t [] : tensor<?xf32>, %o : i64 = %base [] : i64) {
  // CHECK-NEXT: %v = tile.read %u[%o] : tensor<?xf32>, i64 -> f32
  // CHECK-NEXT: %k = arith.cmpf olt, %a, %b : f32
  // CHECK-NEXT: %w = tile.read %u[%c] if %k : tensor<?xf32>, i32 -> f32
  // CHECK-NEXT: %h = tile.tanh_approx %w : f32
  // CHECK-NEXT: %f = arith.truncf %h : f32 to f8E5M2
  // CHECK-NEXT: %x = tile.widen_bytes %f : f8E5M2 to f16
  // CHECK-NEXT: %x_staged = tile.widen_bytes staged %f : f8E5M2 to bf16
  // CHECK-NEXT: %wide = tile.widen %x_staged : bf16
  // CHECK-NEXT: flex.yield %h, %k : f32, i1
  // CHECK-NEXT: } -> !tile.tile<32x32xf32>, !tile.tile<32x32xi1>
  %p, %live = tile.map(%a : f32 = %s [0, 1] : !tile.tile<32x32xf32>,
                       %b : f32 = %m [0] : !tile.tile<32xf32>,
                       %c : i32 = %rows [1] : !tile.tile<32xi32>,
                       %d : f32 = %z [] : f32, %u : tensor<?xf32> = %t [] : tensor<?xf32>,
                       %o : i64 = %base [] : i64) {
    %v = tile.read %u[%o] : tensor<?xf32>, i64 -> f32
    %k = arith.cmpf olt, %a, %b : f32
    %w = tile.read %u[%c] if %k : tensor<?xf32>, i32 -> f32
    %h = tile.tanh_approx %w : f32
    %f = arith.truncf %h : f32 to f8E5M2
    %x = tile.widen_bytes %f : f8E5M2 to f16
    %x_staged = tile.widen_bytes staged %f : f8E5M2 to bf16
    %wide = tile.widen %x_staged : bf16
    flex.yield %h, %k : f32, i1
  } -> !tile.tile<32x32xf32>, !tile.tile<32x32xi1>
  // CHECK-NEXT: %bias = tile.read_diagonals %t[%base] step -1 : tensor<?xf32>, i64 -> !tile.tile<32x32xf32>
  %bias = tile.read_diagonals %t[%base] step -1
      : tensor<?xf32>, i64 -> !tile.tile<32x32xf32>
  // CHECK-NEXT: %edge = tile.read_diagonals %t[%base] step 1 rows %c0 columns %c0 : tensor<?xf32>, i64 -> !tile.tile<32x32xf32>
  %edge = tile.read_diagonals %t[%base] step 1 rows %c0 columns %c0
      : tensor<?xf32>, i64 -> !tile.tile<32x32xf32>
  // CHECK-NEXT: %scalar = tile.map(%d : f32 = %z [] : f32) {
  // CHECK-NEXT: flex.yield
  // CHECK-NEXT: } attributes {note = "x"} -> f32
  %scalar = tile.map(%d : f32 = %z [] : f32) {
    flex.yield %d : f32
  } attributes {note = "x"} -> f32
  // CHECK-NEXT: %inside = tile.map(
  %inside = tile.map(%i : i32 = %rows [0] : !tile.tile<32xi32>) {
    %zero = arith.constant 0 : i32
    %x = arith.cmpi slt, %i, %zero : i32
    flex.yield %x : i1
  } -> !tile.tile<32xi1>
  // CHECK: %g = tile.gather %t[%base + %rows] : tensor<?xf32>, !tile.tile<32xi32> -> !tile.tile<32xf32>
  %g = tile.gather %t[%base + %rows] : tensor<?xf32>, !tile.tile<32xi32> -> !tile.tile<32xf32>
  // CHECK-NEXT: %g_1 = tile.gather %t[%base + %rows] if %inside : !tile.tile<32xi1> : tensor<?xf32>, !tile.tile<32xi32> -> !tile.tile<32xf32>
  %g_1 = tile.gather %t[%base + %rows] if %inside : !tile.tile<32xi1>
      : tensor<?xf32>, !tile.tile<32xi32> -> !tile.tile<32xf32>
  // CHECK-NEXT: tile.scatter %g, %out[%base + %rows] : !tile.tile<32xf32>, memref<?xf32>, !tile.tile<32xi32>
  tile.scatter %g, %out[%base + %rows] : !tile.tile<32xf32>, memref<?xf32>, !tile.tile<32xi32>
  // CHECK-NEXT: tile.scatter %g_1, %out[%base + %rows] if %inside : !tile.tile<32xi1> : !tile.tile<32xf32>, memref<?xf32>, !tile.tile<32xi32>
  tile.scatter %g_1, %out[%base + %rows] if %inside : !tile.tile<32xi1>
      : !tile.tile<32xf32>, memref<?xf32>, !tile.tile<32xi32>
  // CHECK-NEXT: tile.scatter_add %g, %out[%base + %rows] : !tile.tile<32xf32>, memref<?xf32>, !tile.tile<32xi32>
  tile.scatter_add %g, %out[%base + %rows] : !tile.tile<32xf32>, memref<?xf32>, !tile.tile<32xi32>
  // CHECK-NEXT: tile.scatter_add atomic %g, %out[%base + %rows] if %{{.*}} : !tile.tile<32xi1> : !tile.tile<32xf32>, memref<?xf32>, !tile.tile<32xi32>
  tile.scatter_add atomic %g, %out[%base + %rows] if %inside : !tile.tile<32xi1> : !tile.tile<32xf32>, memref<?xf32>, !tile.tile<32xi32>
  // CHECK-NEXT: %d = tile.diagonals %acc : !tile.tile<32x16xf32> -> !tile.tile<48xf32>
  %d = tile.diagonals %acc : !tile.tile<32x16xf32> -> !tile.tile<48xf32>
  // CHECK-NEXT: %e = tile.diagonals %acc count %c0 transposed : !tile.tile<32x16xf32> -> !tile.tile<48xf32>
  %e = tile.diagonals %acc count %c0 transposed : !tile.tile<32x16xf32> -> !tile.tile<48xf32>
  // CHECK-NEXT: tile.add_to %d, %out[%c0] : !tile.tile<48xf32>, memref<?xf32>
  tile.add_to %d, %out[%c0] : !tile.tile<48xf32>, memref<?xf32>
  // CHECK-NEXT: tile.add_to %d, %out[%c0] count %c0 : !tile.tile<48xf32>, memref<?xf32>
  tile.add_to %d, %out[%c0] count %c0 : !tile.tile<48xf32>, memref<?xf32>
  tile.return
}
