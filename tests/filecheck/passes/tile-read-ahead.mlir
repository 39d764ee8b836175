// RUN: flexc-opt %s -p tile-read-ahead --split-input-file | filecheck %s

!table = tensor<?xi32, strided<[1]>>
!keys = tensor<?x16xbf16, strided<[?, 1]>>

// The loop carries the page of its next iteration. The last one reads its own again.
// CHECK-LABEL: tile.kernel @ahead(
// CHECK: %[[ANY:.*]] = arith.cmpi slt, %[[FIRST:.*]], %[[END:.*]] : i32
// CHECK: %[[PAGE:.*]] = scf.if %[[ANY]]
// CHECK: tile.read %table[%[[FIRST]]]
// CHECK: scf.yield
// CHECK: else
// CHECK: arith.constant 0
// CHECK: scf.for %i = %[[FIRST]] to %[[END]] step %[[STEP:.*]] iter_args(%sum_1 = %sum, %[[NOW:.*]] = %[[PAGE]]
// CHECK-NOT: tile.read %table
// CHECK: %k = tile.gather %keys[%[[NOW]] + %offsets]
// CHECK: %[[AFTER:.*]] = arith.addi %i, %[[STEP]]
// CHECK: %[[MORE:.*]] = arith.cmpi slt, %[[AFTER]], %[[END]]
// CHECK: %[[NEXT:.*]] = arith.select %[[MORE]], %[[AFTER]], %i
// CHECK: %[[LATER:.*]] = tile.read %table[%[[NEXT]]]
// CHECK: scf.yield %{{.*}}, %[[LATER]]
