// RUN: flexc-opt %s -p tile-put-rows-in-lanes | filecheck %s
// RUN: flexc-opt %s -p tile-put-rows-in-lanes | flexc-opt | filecheck %s
// RUN: flexc-opt %s -p "tile-put-rows-in-lanes{machine=avx512}" | filecheck %s --check-prefix=WIDE

!t = tensor<?x?x?x16xf16>
!o = memref<?x?x?x16xf16>
!r = memref<?x?x?xf32>
!p = memref<?x?x?x?xf32>

// Scores are [columns x rows]: keys are read as they lie, the query once transposed,
// and reductions go over the first dimension, or as much of it as counts.
// CHECK-LABEL: tile.kernel @attend(
// CHECK: %idx = tile.iota %start : !tile.tile<32xi32>
// CHECK: %q = tile.load %query[%b, %h, %start, %c0] checked [0]
// CHECK-NEXT: %q_1 = tile.transpose %q : !tile.tile<32x16xf16> -> !tile.tile<16x32xf16>
// CHECK: %acc = tile.full %zero : f32 -> !tile.tile<16x32xf32>
// CHECK: scf.for {{.*}} -> (!tile.tile<32xf32>, !tile.tile<16x32xf32>) : i32 {
// CHECK: %k = tile.load %key[%b, %kv_h, %i, %c0] count %n : {{.*}} -> !tile.tile<48x16xf16>
// CHECK-NOT: tile.transpose %k
// CHECK: %zeros = tile.full %zero : f32 -> !tile.tile<48x32xf32>
// CHECK: %s = tile.dot %k, %q_1, %zeros : !tile.tile<48x16xf16>, !tile.tile<16x32xf16>, !tile.tile<48x32xf32> -> !tile.tile<48x32xf32>
// CHECK: %bias = tile.map(%t : tensor<?xf32> = %table [] : tensor<?xf32>, %qi : i32 = %idx [1] : !tile.tile<32xi32>, %ki : i32 = %kv_idx [0] : !tile.tile<48xi32>, %x : f32 = %s [0, 1] : !tile.tile<48x32xf32>) {
// CHECK: } -> !tile.tile<48x32xf32>
// CHECK: %x = scf.if %edge -> (!tile.tile<48x32xf32>) {
// CHECK: tile.map(%qi : i32 = %idx [1] : !tile.tile<32xi32>, %ki : i32 = %kv_idx [0] : !tile.tile<48xi32>, %v : f32 = %bias [0, 1]
// CHECK: scf.yield %live : !tile.tile<48x32xf32>
// CHECK: scf.yield %bias : !tile.tile<48x32xf32>
// CHECK: }{segment = #blocksparse<kind partial>}
// CHECK: %total = tile.reduce sum %x along 0 count %n : !tile.tile<48x32xf32>
// CHECK: %l_next = tile.map({{.*}} [0] : !tile.tile<32xf32>, {{.*}} [0] : !tile.tile<32xf32>)
// CHECK: %p = tile.map(
// CHECK: } -> !tile.tile<48x32xf16>
// CHECK: %v = tile.load %value[%b, %kv_h, %i, %c0] count %n
// CHECK-NEXT: %v_1 = tile.transpose %v : !tile.tile<48x16xf16> -> !tile.tile<16x48xf16>
// CHECK: %next = tile.dot %v_1, %p, %acc_i count %n : !tile.tile<16x48xf16>, !tile.tile<48x32xf16>, !tile.tile<16x32xf32> -> !tile.tile<16x32xf32>
// CHECK: %o = tile.map(
// CHECK: } -> !tile.tile<16x32xf16>
// CHECK-NEXT: %o_1 = tile.transpose %o : !tile.tile<16x32xf16> -> !tile.tile<32x16xf16>
// CHECK-NEXT: tile.store %o_1 : !tile.tile<32x16xf16>, %out[%b, %h, %start, %c0] checked [0]
// CHECK-NEXT: tile.store %l : !tile.tile<32xf32>, %sum[
tile.kernel @attend(%query : !t #tile.param<argument 0>, %key : !t #tile.param<argument 1>,
    %value : !t #tile.param<argument 2>, %table : tensor<?xf32> #tile.param<argument 3>,
    %out : !o #tile.param<argument 4>, %sum : !r #tile.param<argument 5>)
    grid affine_map<(b, h, m) -> (m ceildiv 32, h, b)> {
  %m = tile.program_id 0
  %h = tile.program_id 1
  %b = tile.program_id 2
  %c0 = arith.constant 0 : i32
  %c2 = arith.constant 2 : i32
  %c32 = arith.constant 32 : i32
  %c48 = arith.constant 48 : i32
  %kv_h = arith.divsi %h, %c2 : i32
  %start = arith.muli %m, %c32 : i32
  %idx = tile.iota %start : !tile.tile<32xi32>
  %q = tile.load %query[%b, %h, %start, %c0] checked [0] : !t, i32, i32, i32, i32 -> !tile.tile<32x16xf16>
  %zero = arith.constant 0.0 : f32
  %l0 = tile.full %zero : f32 -> !tile.tile<32xf32>
  %acc = tile.full %zero : f32 -> !tile.tile<32x16xf32>
  %len = tile.dim %key, 2 : !t -> i32
  %l, %sums = scf.for %i = %c0 to %len step %c48 iter_args(%l_i = %l0, %acc_i = %acc) -> (!tile.tile<32xf32>, !tile.tile<32x16xf32>) : i32 {
    %left = arith.subi %len, %i : i32
    %n = arith.minsi %left, %c48 : i32
    %k = tile.load %key[%b, %kv_h, %i, %c0] count %n : !t, i32, i32, i32, i32 -> !tile.tile<48x16xf16>
    %k_t = tile.transpose %k : !tile.tile<48x16xf16> -> !tile.tile<16x48xf16>
    %kv_idx = tile.iota %i : !tile.tile<48xi32>
    %zeros = tile.full %zero : f32 -> !tile.tile<32x48xf32>
    %s = tile.dot %q, %k_t, %zeros : !tile.tile<32x16xf16>, !tile.tile<16x48xf16>, !tile.tile<32x48xf32> -> !tile.tile<32x48xf32>
    %bias = tile.map(%t : tensor<?xf32> = %table [] : tensor<?xf32>, %qi : i32 = %idx [0] : !tile.tile<32xi32>, %ki : i32 = %kv_idx [1] : !tile.tile<48xi32>, %x : f32 = %s [0, 1] : !tile.tile<32x48xf32>) {
      %d = arith.subi %qi, %ki : i32
      %y = tile.read %t[%d] : tensor<?xf32>, i32 -> f32
      %z = arith.addf %x, %y : f32
      flex.yield %z : f32
    } -> !tile.tile<32x48xf32>
    %edge = arith.cmpi sge, %i, %start : i32
    %x = scf.if %edge -> (!tile.tile<32x48xf32>) {
      %live = tile.map(%qi : i32 = %idx [0] : !tile.tile<32xi32>, %ki : i32 = %kv_idx [1] : !tile.tile<48xi32>, %v : f32 = %bias [0, 1] : !tile.tile<32x48xf32>) {
        %ok = arith.cmpi sge, %qi, %ki : i32
        %none = arith.constant 0.0 : f32
        %w = arith.select %ok, %v, %none : f32
        flex.yield %w : f32
      } -> !tile.tile<32x48xf32>
      scf.yield %live : !tile.tile<32x48xf32>
    } else {
      scf.yield %bias : !tile.tile<32x48xf32>
    } {segment = #blocksparse<kind partial>}
    %total = tile.reduce sum %x along 1 count %n : !tile.tile<32x48xf32>
    %l_next = tile.map(%a : f32 = %l_i [0] : !tile.tile<32xf32>, %c : f32 = %total [0] : !tile.tile<32xf32>) {
      %y = arith.addf %a, %c : f32
      flex.yield %y : f32
    } -> !tile.tile<32xf32>
    %p = tile.map(%a : f32 = %x [0, 1] : !tile.tile<32x48xf32>) {
      %y = arith.truncf %a : f32 to f16
      flex.yield %y : f16
    } -> !tile.tile<32x48xf16>
    %v = tile.load %value[%b, %kv_h, %i, %c0] count %n : !t, i32, i32, i32, i32 -> !tile.tile<48x16xf16>
    %next = tile.dot %p, %v, %acc_i count %n : !tile.tile<32x48xf16>, !tile.tile<48x16xf16>, !tile.tile<32x16xf32> -> !tile.tile<32x16xf32>
    scf.yield %l_next, %next : !tile.tile<32xf32>, !tile.tile<32x16xf32>
  }
  %o = tile.map(%a : f32 = %sums [0, 1] : !tile.tile<32x16xf32>) {
    %y = arith.truncf %a : f32 to f16
    flex.yield %y : f16
  } -> !tile.tile<32x16xf16>
  tile.store %o : !tile.tile<32x16xf16>, %out[%b, %h, %start, %c0] checked [0] : !o, i32, i32, i32, i32
  tile.store %l : !tile.tile<32xf32>, %sum[%b, %h, %start] checked [0] : !r, i32, i32, i32
  tile.return
}

// A product that sums over the rows has no rows in its result, which stays as it is:
// two transposes are none, and the query is read as it lies, too. Diagonals, and pairs
// in memory, are those of the transpose of what there is.
// CHECK-LABEL: tile.kernel @both_sides(
// CHECK: %q = tile.load
// CHECK-NEXT: %[[Q_T:.*]] = tile.transpose %q : !tile.tile<8x16xf32>
// CHECK: %k = tile.load
// CHECK-NEXT: %[[K_T:.*]] = tile.transpose %k : !tile.tile<24x16xf32>
// CHECK: %s = tile.dot %k, %[[Q_T]], %{{.*}} -> !tile.tile<24x8xf32>
// CHECK-NEXT: %[[S_T:.*]] = tile.transpose %s : !tile.tile<24x8xf32> -> !tile.tile<8x24xf32>
// CHECK: %dq = tile.dot %[[K_T]], %s, %{{.*}} -> !tile.tile<16x8xf32>
// CHECK-NEXT: %[[DQ_T:.*]] = tile.transpose %dq
// CHECK: %dk = tile.dot %s, %q, %{{.*}} : !tile.tile<24x8xf32>, !tile.tile<8x16xf32>, !tile.tile<24x16xf32> -> !tile.tile<24x16xf32>
// CHECK-NEXT: %least = tile.reduce min %s along 1 : !tile.tile<24x8xf32>
// CHECK-NEXT: %d = tile.diagonals %s transposed : !tile.tile<24x8xf32> -> !tile.tile<32xf32>
// CHECK-NEXT: tile.add_to %[[DQ_T]], %out
// CHECK-NEXT: tile.add_to %dk, %out
// CHECK-NEXT: tile.store %[[S_T]] : !tile.tile<8x24xf32>, %pairs[
tile.kernel @both_sides(%query : tensor<?x16xf32> #tile.param<argument 0>,
    %key : tensor<?x16xf32> #tile.param<argument 1>,
    %out : memref<?x16xf32> #tile.param<argument 2>, %pairs : !p #tile.param<argument 3>,
    %sums : !r #tile.param<argument 4>)
    grid affine_map<(b, h, m) -> (m ceildiv 8, h, b)> {
  %c0 = arith.constant 0 : i32
  %zero = arith.constant 0.0 : f32
  %q = tile.load %query[%c0, %c0] : tensor<?x16xf32>, i32, i32 -> !tile.tile<8x16xf32>
  %k = tile.load %key[%c0, %c0] : tensor<?x16xf32>, i32, i32 -> !tile.tile<24x16xf32>
  %k_t = tile.transpose %k : !tile.tile<24x16xf32> -> !tile.tile<16x24xf32>
  %none = tile.full %zero : f32 -> !tile.tile<8x24xf32>
  %s = tile.dot %q, %k_t, %none : !tile.tile<8x16xf32>, !tile.tile<16x24xf32>, !tile.tile<8x24xf32> -> !tile.tile<8x24xf32>
  %rows = tile.full %zero : f32 -> !tile.tile<8x16xf32>
  %dq = tile.dot %s, %k, %rows : !tile.tile<8x24xf32>, !tile.tile<24x16xf32>, !tile.tile<8x16xf32> -> !tile.tile<8x16xf32>
  %s_t = tile.transpose %s : !tile.tile<8x24xf32> -> !tile.tile<24x8xf32>
  %columns = tile.full %zero : f32 -> !tile.tile<24x16xf32>
  %dk = tile.dot %s_t, %q, %columns : !tile.tile<24x8xf32>, !tile.tile<8x16xf32>, !tile.tile<24x16xf32> -> !tile.tile<24x16xf32>
  %least = tile.reduce min %s along 0 : !tile.tile<8x24xf32>
  %d = tile.diagonals %s : !tile.tile<8x24xf32> -> !tile.tile<32xf32>
  tile.add_to %dq, %out[%c0, %c0] : !tile.tile<8x16xf32>, memref<?x16xf32>
  tile.add_to %dk, %out[%c0, %c0] : !tile.tile<24x16xf32>, memref<?x16xf32>
  tile.store %s : !tile.tile<8x24xf32>, %pairs[%c0, %c0, %c0, %c0] : !p, i32, i32, i32, i32
  tile.store %d : !tile.tile<32xf32>, %sums[%c0, %c0, %c0] : !r, i32, i32, i32
  tile.store %least : !tile.tile<24xf32>, %sums[%c0, %c0, %c0] : !r, i32, i32, i32
  tile.return
}

// Eight rows are a vector of 256 bits and no vector of 512.
// WIDE-LABEL: tile.kernel @both_sides(
// WIDE: %s = tile.dot {{.*}} -> !tile.tile<8x24xf32>

// What spans a map the other way around has the form that spans it in order.
// CHECK-LABEL: tile.kernel @exchanged(
// CHECK: %x = tile.load
// CHECK-NEXT: %s = tile.dot
// CHECK-NOT: tile.transpose
// CHECK: tile.map(%p : f32 = %s [0, 1] : !tile.tile<8x16xf32>, %r : f32 = %x [0, 1] : !tile.tile<8x16xf32>) {
// CHECK: } -> !tile.tile<8x16xf32>
// CHECK-NEXT: tile.transpose
// CHECK-NEXT: tile.store
tile.kernel @exchanged(%in : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>)
    grid affine_map<(b, h, m) -> (m ceildiv 8, h, b)> {
  %c0 = arith.constant 0 : i32
  %zero = arith.constant 0.0 : f32
  %zeros = tile.full %zero : f32 -> !tile.tile<16x8xf32>
  %a = tile.full %zero : f32 -> !tile.tile<16x4xf32>
  %b = tile.full %zero : f32 -> !tile.tile<4x8xf32>
  %x = tile.load %in[%c0, %c0] : tensor<?x?xf32>, i32, i32 -> !tile.tile<8x16xf32>
  %s = tile.dot %a, %b, %zeros : !tile.tile<16x4xf32>, !tile.tile<4x8xf32>, !tile.tile<16x8xf32> -> !tile.tile<16x8xf32>
  %y = tile.map(%p : f32 = %s [0, 1] : !tile.tile<16x8xf32>, %r : f32 = %x [1, 0] : !tile.tile<8x16xf32>) {
    %t = arith.addf %p, %r : f32
    flex.yield %t : f32
  } -> !tile.tile<16x8xf32>
  tile.store %y : !tile.tile<16x8xf32>, %out[%c0, %c0] : memref<?x?xf32>, i32, i32
  tile.return
}

// One row has no lanes to lie in.
// CHECK-LABEL: tile.kernel @one_row(
// CHECK: tile.dot {{.*}} -> !tile.tile<1x8xf32>
tile.kernel @one_row(%in : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>)
    grid affine_map<(b, h, m) -> (m, h, b)> {
  %c0 = arith.constant 0 : i32
  %zero = arith.constant 0.0 : f32
  %zeros = tile.full %zero : f32 -> !tile.tile<1x8xf32>
  %a = tile.load %in[%c0, %c0] : tensor<?x?xf32>, i32, i32 -> !tile.tile<1x16xf32>
  %b = tile.load %in[%c0, %c0] : tensor<?x?xf32>, i32, i32 -> !tile.tile<16x8xf32>
  %s = tile.dot %a, %b, %zeros : !tile.tile<1x16xf32>, !tile.tile<16x8xf32>, !tile.tile<1x8xf32> -> !tile.tile<1x8xf32>
  tile.store %s : !tile.tile<1x8xf32>, %out[%c0, %c0] : memref<?x?xf32>, i32, i32
  tile.return
}

// A kernel without products is left alone.
// CHECK-LABEL: tile.kernel @no_product(
// CHECK: %x = tile.load {{.*}} -> !tile.tile<32x16xf32>
// CHECK-NEXT: %sum = tile.reduce sum %x along 1
tile.kernel @no_product(%in : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?xf32> #tile.param<argument 1>)
    grid affine_map<(b, h, m) -> (m ceildiv 32, h, b)> {
  %c0 = arith.constant 0 : i32
  %x = tile.load %in[%c0, %c0] : tensor<?x?xf32>, i32, i32 -> !tile.tile<32x16xf32>
  %sum = tile.reduce sum %x along 1 : !tile.tile<32x16xf32>
  tile.store %sum : !tile.tile<32xf32>, %out[%c0] : memref<?xf32>, i32
  tile.return
}
