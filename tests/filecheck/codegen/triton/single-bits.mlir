// RUN: flexc-opt %s -t triton | filecheck %s

// To the signed ops of MLIR a set bit is -1; to Triton i1 is unsigned.
tile.kernel @single_bits(%out : memref<?xi32> #tile.param<argument 0>,
    %n : i32 #tile.param<dim 0, 2>, %x : f32 #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (1, 1, 1)> {
  %zero = arith.constant 0 : i32
  %p = arith.cmpi sgt, %n, %zero : i32
  // CHECK: q = (n & 1) != 0
  %q = arith.trunci %n : i32 to i1
  // CHECK-NEXT: less = q < p
  %less = arith.cmpi slt, %p, %q : i1
  // CHECK-NEXT: below = p < q
  %below = arith.cmpi ult, %p, %q : i1
  // CHECK-NEXT: signed = tl.cast(-tl.cast(p, tl.int32), tl.int64)
  %signed = arith.extsi %p : i1 to i64
  // CHECK-NEXT: number = tl.cast(-tl.cast(p, tl.int32), tl.float32)
  %number = arith.sitofp %p : i1 to f32
  // CHECK-NEXT: plain = tl.cast(p, tl.int32)
  %plain = arith.extui %p : i1 to i32
  // CHECK-NEXT: bit = tl.cast(x, tl.int32) != 0
  %bit = arith.fptosi %x : f32 to i1
  // CHECK-NEXT: negative = x * -1.0
  %negative = arith.negf %x : f32
  tile.return
}
