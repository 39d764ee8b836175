// RUN: flexc-opt %s -p tile-delay-products | filecheck %s
// RUN: flexc-opt %s -p tile-delay-products,canonicalize,cse | filecheck %s --check-prefix=TIDY

!t = tensor<?x16xf16>
!o = memref<?x16xf32>

// The first iteration comes before the loop, without its second product. Each goes on
// with that of the one before: what it read for it is read at the place it left, and
// what is done to the sum that it adds to is done then.
// CHECK-LABEL: tile.kernel @delayed(
// CHECK: %[[AT0:.*]] = arith.muli %c0, %c16
// CHECK-NEXT: tile.load %k[%[[AT0]], %c0]
// CHECK: tile.dot %rows, {{.*}} {comment = "the first block"}
// CHECK-NOT: tile.load
// CHECK-NOT: tile.dot
// CHECK: %[[FIRST:.*]] = arith.addi %c0, %c1
// CHECK: scf.for %i = %[[FIRST]] to %n step %c1 iter_args(%[[L:.*]] = %{{.*}}, %[[AT:.*]] = %[[AT0]], %[[A:.*]] = %zeros, %[[C:.*]] = %l0, %[[P:.*]] = %{{.*}})
// CHECK-NEXT: %[[NOW:.*]] = arith.muli %i, %c16
// CHECK-NEXT: tile.load %k[%[[NOW]], %c0]
// CHECK-NEXT: tile.transpose
// CHECK-NEXT: tile.dot %rows
// CHECK-NEXT: %[[V:.*]] = tile.load %v[%[[AT]], %c0]
// CHECK-NEXT: %[[SCALED:.*]] = tile.map({{.*}} = %[[A]] [0, 1] {{.*}} = %[[C]] [0]
// CHECK: %[[O:.*]] = tile.dot %[[P]], %[[V]], %[[SCALED]]
// CHECK: tile.reduce
// CHECK: scf.yield %{{.*}}, %[[NOW]], %[[O]], %[[L]], %{{.*}} :
// CHECK-NEXT: } {segment
// CHECK-NOT: nonempty
// CHECK: %[[V:.*]] = tile.load %v[
// CHECK-NEXT: tile.map
// CHECK: %[[LAST:.*]] = tile.dot %{{.*}}, %[[V]], %{{.*}} {comment = "the last block's values"}
// CHECK-NEXT: tile.store %[[LAST]]
tile.kernel @delayed(%q : !t #tile.param<argument 0>, %k : !t #tile.param<argument 1>,
    %v : !t #tile.param<argument 2>, %n : i32 #tile.param<argument 3>, %out : !o #tile.param<argument 4>)
    grid affine_map<(b, h, m) -> (m)> {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %c16 = arith.constant 16 : i32
  %zero = arith.constant 0.0 : f32
  %rows = tile.load %q[%c0, %c0] : !t, i32, i32 -> !tile.tile<16x16xf16>
  %zeros = tile.full %zero : f32 -> !tile.tile<16x16xf32>
  %l0 = tile.full %zero : f32 -> !tile.tile<16xf32>
  %l, %acc = scf.for %i = %c0 to %n step %c1 iter_args(%l_i = %l0, %acc_i = %zeros) -> (!tile.tile<16xf32>, !tile.tile<16x16xf32>) : i32 {
    %at = arith.muli %i, %c16 : i32
    %kt = tile.load %k[%at, %c0] : !t, i32, i32 -> !tile.tile<16x16xf16>
    %turned = tile.transpose %kt : !tile.tile<16x16xf16> -> !tile.tile<16x16xf16>
    %s = tile.dot %rows, %turned, %zeros : !tile.tile<16x16xf16>, !tile.tile<16x16xf16>, !tile.tile<16x16xf32> -> !tile.tile<16x16xf32>
    %vt = tile.load %v[%at, %c0] : !t, i32, i32 -> !tile.tile<16x16xf16>
    %total = tile.reduce sum %s along 1 : !tile.tile<16x16xf32>
    %scaled = tile.map(%a : f32 = %acc_i [0, 1] : !tile.tile<16x16xf32>, %c : f32 = %l_i [0] : !tile.tile<16xf32>) {
      %y = arith.mulf %a, %c : f32
      flex.yield %y : f32
    } -> !tile.tile<16x16xf32>
    %p = tile.map(%a : f32 = %s [0, 1] : !tile.tile<16x16xf32>) {
      %y = arith.truncf %a : f32 to f16
      flex.yield %y : f16
    } -> !tile.tile<16x16xf16>
    %next = tile.dot %p, %vt, %scaled : !tile.tile<16x16xf16>, !tile.tile<16x16xf16>, !tile.tile<16x16xf32> -> !tile.tile<16x16xf32>
    scf.yield %total, %next : !tile.tile<16xf32>, !tile.tile<16x16xf32>
  } {segment = "full", nonempty}
  tile.store %acc : !tile.tile<16x16xf32>, %out[%c0, %c0] : !o, i32, i32
  tile.return
}

// What only adds up carries its sum: the product of the iteration before.
// CHECK-LABEL: tile.kernel @sum(
// CHECK: scf.for %[[I:.*]] = %{{.*}} to %n step %c16 iter_args(%[[AT:.*]] = %c0, %[[P:.*]] = %{{.*}}, %[[A:.*]] = %zeros)
// CHECK: tile.dot %rows
// CHECK: %[[V:.*]] = tile.load %v[%[[AT]], %c0]
// CHECK-NEXT: %[[O:.*]] = tile.dot %[[P]], %[[V]], %[[A]]
// CHECK: scf.yield %[[I]], %{{.*}}, %[[O]] :
tile.kernel @sum(%q : !t #tile.param<argument 0>, %k : !t #tile.param<argument 1>,
    %v : !t #tile.param<argument 2>, %n : i32 #tile.param<argument 3>, %out : !o #tile.param<argument 4>)
    grid affine_map<(b, h, m) -> (m)> {
  %c0 = arith.constant 0 : i32
  %c16 = arith.constant 16 : i32
  %zero = arith.constant 0.0 : f32
  %rows = tile.load %q[%c0, %c0] : !t, i32, i32 -> !tile.tile<16x16xf16>
  %zeros = tile.full %zero : f32 -> !tile.tile<16x16xf32>
  %acc = scf.for %i = %c0 to %n step %c16 iter_args(%acc_i = %zeros) -> (!tile.tile<16x16xf32>) : i32 {
    %kt = tile.load %k[%i, %c0] : !t, i32, i32 -> !tile.tile<16x16xf16>
    %s = tile.dot %rows, %kt, %zeros : !tile.tile<16x16xf16>, !tile.tile<16x16xf16>, !tile.tile<16x16xf32> -> !tile.tile<16x16xf32>
    %p = tile.map(%a : f32 = %s [0, 1] : !tile.tile<16x16xf32>) {
      %y = arith.truncf %a : f32 to f16
      flex.yield %y : f16
    } -> !tile.tile<16x16xf16>
    %vt = tile.load %v[%i, %c0] : !t, i32, i32 -> !tile.tile<16x16xf16>
    %next = tile.dot %p, %vt, %acc_i : !tile.tile<16x16xf16>, !tile.tile<16x16xf16>, !tile.tile<16x16xf32> -> !tile.tile<16x16xf32>
    scf.yield %next : !tile.tile<16x16xf32>
  } {nonempty}
  tile.store %acc : !tile.tile<16x16xf32>, %out[%c0, %c0] : !o, i32, i32
  tile.return
}

// A loop that ends after max(n, 1) has a second iteration only if 0 < n.
// TIDY-LABEL: tile.kernel @stands_in(
// TIDY: %[[SOME:.*]] = arith.cmpi slt, %c0, %n
// TIDY: arith.select %[[SOME]]
// TIDY: scf.for
// TIDY-NOT: %[[SOME]]
// TIDY: tile.return
tile.kernel @stands_in(%q : !t #tile.param<argument 0>, %k : !t #tile.param<argument 1>,
    %v : !t #tile.param<argument 2>, %n : i32 #tile.param<argument 3>, %out : !o #tile.param<argument 4>)
    grid affine_map<(b, h, m) -> (m)> {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %c16 = arith.constant 16 : i32
  %zero = arith.constant 0.0 : f32
  %some = arith.cmpi slt, %c0, %n : i32
  %end = arith.maxsi %n, %c1 : i32
  %rows = tile.load %q[%c0, %c0] : !t, i32, i32 -> !tile.tile<16x16xf16>
  %zeros = tile.full %zero : f32 -> !tile.tile<16x16xf32>
  %acc = scf.for %i = %c0 to %end step %c1 iter_args(%acc_i = %zeros) -> (!tile.tile<16x16xf32>) : i32 {
    %at = arith.select %some, %i, %c16 : i32
    %kt = tile.load %k[%at, %c0] : !t, i32, i32 -> !tile.tile<16x16xf16>
    %s = tile.dot %rows, %kt, %zeros : !tile.tile<16x16xf16>, !tile.tile<16x16xf16>, !tile.tile<16x16xf32> -> !tile.tile<16x16xf32>
    %p = tile.map(%a : f32 = %s [0, 1] : !tile.tile<16x16xf32>) {
      %y = arith.truncf %a : f32 to f16
      flex.yield %y : f16
    } -> !tile.tile<16x16xf16>
    %vt = tile.load %v[%at, %c0] : !t, i32, i32 -> !tile.tile<16x16xf16>
    %next = tile.dot %p, %vt, %acc_i : !tile.tile<16x16xf16>, !tile.tile<16x16xf16>, !tile.tile<16x16xf32> -> !tile.tile<16x16xf32>
    scf.yield %next : !tile.tile<16x16xf32>
  } {nonempty}
  tile.store %acc : !tile.tile<16x16xf32>, %out[%c0, %c0] : !o, i32, i32
  tile.return
}

// A loop that may be empty has no first iteration to begin with.
// CHECK-LABEL: tile.kernel @maybe_empty(
// CHECK: scf.for %i = %c0 to %n step %c16 iter_args(%acc_i = %zeros)
// A tile that another product reads would stay in registers.
// CHECK-LABEL: tile.kernel @shared(
// CHECK: scf.for %i = %c0 to %n step %c16 iter_args(%acc_i = %zeros)
// CHECK: nonempty
// There is nothing that one product could run beside.
// CHECK-LABEL: tile.kernel @alone(
// CHECK: scf.for %i = %c0 to %n step %c16 iter_args(%acc_i = %zeros)
// CHECK: nonempty
// Nor is there before the sum is needed.
// CHECK-LABEL: tile.kernel @needed(
// CHECK: scf.for %i = %c0 to %n step %c16 iter_args(%acc_i = %zeros)
// CHECK: nonempty
tile.kernel @maybe_empty(%q : !t #tile.param<argument 0>, %k : !t #tile.param<argument 1>,
    %v : !t #tile.param<argument 2>, %n : i32 #tile.param<argument 3>, %out : !o #tile.param<argument 4>)
    grid affine_map<(b, h, m) -> (m)> {
  %c0 = arith.constant 0 : i32
  %c16 = arith.constant 16 : i32
  %zero = arith.constant 0.0 : f32
  %rows = tile.load %q[%c0, %c0] : !t, i32, i32 -> !tile.tile<16x16xf16>
  %zeros = tile.full %zero : f32 -> !tile.tile<16x16xf32>
  %acc = scf.for %i = %c0 to %n step %c16 iter_args(%acc_i = %zeros) -> (!tile.tile<16x16xf32>) : i32 {
    %kt = tile.load %k[%i, %c0] : !t, i32, i32 -> !tile.tile<16x16xf16>
    %s = tile.dot %rows, %kt, %zeros : !tile.tile<16x16xf16>, !tile.tile<16x16xf16>, !tile.tile<16x16xf32> -> !tile.tile<16x16xf32>
    %p = tile.map(%a : f32 = %s [0, 1] : !tile.tile<16x16xf32>) {
      %y = arith.truncf %a : f32 to f16
      flex.yield %y : f16
    } -> !tile.tile<16x16xf16>
    %vt = tile.load %v[%i, %c0] : !t, i32, i32 -> !tile.tile<16x16xf16>
    %next = tile.dot %p, %vt, %acc_i : !tile.tile<16x16xf16>, !tile.tile<16x16xf16>, !tile.tile<16x16xf32> -> !tile.tile<16x16xf32>
    scf.yield %next : !tile.tile<16x16xf32>
  }
  tile.store %acc : !tile.tile<16x16xf32>, %out[%c0, %c0] : !o, i32, i32
  tile.return
}

tile.kernel @shared(%q : !t #tile.param<argument 0>, %k : !t #tile.param<argument 1>,
    %n : i32 #tile.param<argument 2>, %out : !o #tile.param<argument 3>)
    grid affine_map<(b, h, m) -> (m)> {
  %c0 = arith.constant 0 : i32
  %c16 = arith.constant 16 : i32
  %zero = arith.constant 0.0 : f32
  %rows = tile.load %q[%c0, %c0] : !t, i32, i32 -> !tile.tile<16x16xf16>
  %zeros = tile.full %zero : f32 -> !tile.tile<16x16xf32>
  %acc = scf.for %i = %c0 to %n step %c16 iter_args(%acc_i = %zeros) -> (!tile.tile<16x16xf32>) : i32 {
    %kt = tile.load %k[%i, %c0] : !t, i32, i32 -> !tile.tile<16x16xf16>
    %s = tile.dot %rows, %kt, %zeros : !tile.tile<16x16xf16>, !tile.tile<16x16xf16>, !tile.tile<16x16xf32> -> !tile.tile<16x16xf32>
    %p = tile.map(%a : f32 = %s [0, 1] : !tile.tile<16x16xf32>) {
      %y = arith.truncf %a : f32 to f16
      flex.yield %y : f16
    } -> !tile.tile<16x16xf16>
    %next = tile.dot %p, %kt, %acc_i : !tile.tile<16x16xf16>, !tile.tile<16x16xf16>, !tile.tile<16x16xf32> -> !tile.tile<16x16xf32>
    scf.yield %next : !tile.tile<16x16xf32>
  } {nonempty}
  tile.store %acc : !tile.tile<16x16xf32>, %out[%c0, %c0] : !o, i32, i32
  tile.return
}

tile.kernel @alone(%q : !t #tile.param<argument 0>, %k : !t #tile.param<argument 1>,
    %n : i32 #tile.param<argument 2>, %out : !o #tile.param<argument 3>)
    grid affine_map<(b, h, m) -> (m)> {
  %c0 = arith.constant 0 : i32
  %c16 = arith.constant 16 : i32
  %zero = arith.constant 0.0 : f32
  %rows = tile.load %q[%c0, %c0] : !t, i32, i32 -> !tile.tile<16x16xf16>
  %zeros = tile.full %zero : f32 -> !tile.tile<16x16xf32>
  %acc = scf.for %i = %c0 to %n step %c16 iter_args(%acc_i = %zeros) -> (!tile.tile<16x16xf32>) : i32 {
    %kt = tile.load %k[%i, %c0] : !t, i32, i32 -> !tile.tile<16x16xf16>
    %next = tile.dot %rows, %kt, %acc_i : !tile.tile<16x16xf16>, !tile.tile<16x16xf16>, !tile.tile<16x16xf32> -> !tile.tile<16x16xf32>
    scf.yield %next : !tile.tile<16x16xf32>
  } {nonempty}
  tile.store %acc : !tile.tile<16x16xf32>, %out[%c0, %c0] : !o, i32, i32
  tile.return
}

tile.kernel @needed(%q : !t #tile.param<argument 0>, %k : !t #tile.param<argument 1>,
    %v : !t #tile.param<argument 2>, %n : i32 #tile.param<argument 3>, %out : !o #tile.param<argument 4>)
    grid affine_map<(b, h, m) -> (m)> {
  %c0 = arith.constant 0 : i32
  %c16 = arith.constant 16 : i32
  %zero = arith.constant 0.0 : f32
  %rows = tile.load %q[%c0, %c0] : !t, i32, i32 -> !tile.tile<16x16xf16>
  %zeros = tile.full %zero : f32 -> !tile.tile<16x16xf32>
  %acc = scf.for %i = %c0 to %n step %c16 iter_args(%acc_i = %zeros) -> (!tile.tile<16x16xf32>) : i32 {
    %kt = tile.load %k[%i, %c0] : !t, i32, i32 -> !tile.tile<16x16xf16>
    %s = tile.dot %rows, %kt, %acc_i : !tile.tile<16x16xf16>, !tile.tile<16x16xf16>, !tile.tile<16x16xf32> -> !tile.tile<16x16xf32>
    %p = tile.map(%a : f32 = %s [0, 1] : !tile.tile<16x16xf32>) {
      %y = arith.truncf %a : f32 to f16
      flex.yield %y : f16
    } -> !tile.tile<16x16xf16>
    %vt = tile.load %v[%i, %c0] : !t, i32, i32 -> !tile.tile<16x16xf16>
    %next = tile.dot %p, %vt, %zeros : !tile.tile<16x16xf16>, !tile.tile<16x16xf16>, !tile.tile<16x16xf32> -> !tile.tile<16x16xf32>
    scf.yield %next : !tile.tile<16x16xf32>
  } {nonempty}
  tile.store %acc : !tile.tile<16x16xf32>, %out[%c0, %c0] : !o, i32, i32
  tile.return
}
