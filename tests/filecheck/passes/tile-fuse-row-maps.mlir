// RUN: flexc-opt %s -p tile-fuse-row-maps | filecheck %s

// The second map reads nothing that is later than the first one, and moves up. Both, and
// the third one, are read by the last one alone, and move down. A result that only the
// map itself reads is not kept, nor is a map that nothing reads.
// CHECK-LABEL: tile.kernel @rows
// CHECK: %a = tile.iota
// CHECK-NOT: tile.map
// CHECK: %least = tile.reduce min
// CHECK-NEXT: %double, %last = tile.map(%{{.*}} = %a [0] : {{.*}} = %least [0] : {{.*}}) {
// CHECK-NEXT: %[[double:.*]] = arith.addi
// CHECK-NEXT: %[[sum:.*]] = arith.addi %[[double]]
// CHECK-NEXT: %[[square:.*]] = arith.muli
// CHECK-NEXT: %[[last:.*]] = arith.subi %[[square]], %[[sum]]
// CHECK-NEXT: flex.yield %[[double]], %[[last]]
// CHECK-NOT: tile.map
// CHECK: tile.return
tile.kernel @rows(%out : memref<?xi32> #tile.param<argument 0>, %z : i32 #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (1)> {
  %one = arith.constant 1 : i64
  %none = arith.constant 0 : i64
  %c32 = arith.constant 32 : i32
  %a = tile.iota %z : !tile.tile<32xi32>
  %double = tile.map(%x : i32 = %a [0] : !tile.tile<32xi32>) {
    %d = arith.addi %x, %x : i32
    flex.yield %d : i32
  } -> !tile.tile<32xi32>
  %unread = tile.map(%x : i32 = %double [0] : !tile.tile<32xi32>) {
    %d = arith.addi %x, %x : i32
    flex.yield %d : i32
  } -> !tile.tile<32xi32>
  %also_unread = tile.map(%x : i32 = %unread [0] : !tile.tile<32xi32>) {
    %d = arith.addi %x, %x : i32
    flex.yield %d : i32
  } -> !tile.tile<32xi32>
  %full = tile.full %z : i32 -> !tile.tile<96x32xi32>
  %sum = tile.map(%x : i32 = %double [0] : !tile.tile<32xi32>, %y : i32 = %a [0] : !tile.tile<32xi32>) {
    %d = arith.addi %x, %y : i32
    flex.yield %d : i32
  } -> !tile.tile<32xi32>
  %least = tile.reduce min %full along 0 : !tile.tile<96x32xi32>
  %square = tile.map(%x : i32 = %least [0] : !tile.tile<32xi32>) {
    %d = arith.muli %x, %x : i32
    flex.yield %d : i32
  } -> !tile.tile<32xi32>
  %last = tile.map(%x : i32 = %square [0] : !tile.tile<32xi32>, %y : i32 = %sum [0] : !tile.tile<32xi32>) {
    %d = arith.subi %x, %y : i32
    flex.yield %d : i32
  } -> !tile.tile<32xi32>
  tile.store_strided %double, %out[%none] strides [%one] extents [%c32] : !tile.tile<32xi32>, memref<?xi32>
  tile.store_strided %last, %out[%none] strides [%one] extents [%c32] : !tile.tile<32xi32>, memref<?xi32>
  tile.return
}

// Another length, numbers of 64 bits beside others, and a value that is read between two
// maps: they stay apart.
// CHECK-LABEL: tile.kernel @stays
// CHECK: %long = tile.map
// CHECK: %wide = tile.map
// CHECK: %a = tile.map
// CHECK: %largest = tile.reduce
// CHECK: %b = tile.map
tile.kernel @stays(%out : memref<?xi32> #tile.param<argument 0>, %z : i32 #tile.param<argument 1>,
    %places : memref<?xi64> #tile.param<argument 2>)
    grid affine_map<(b, h, q_len) -> (1)> {
  %one = arith.constant 1 : i64
  %none = arith.constant 0 : i64
  %c32 = arith.constant 32 : i32
  %c64 = arith.constant 64 : i32
  %i = tile.iota %z : !tile.tile<32xi32>
  %j = tile.iota %z : !tile.tile<64xi32>
  %long = tile.map(%x : i32 = %j [0] : !tile.tile<64xi32>) {
    %d = arith.addi %x, %x : i32
    flex.yield %d : i32
  } -> !tile.tile<64xi32>
  %wide = tile.map(%x : i32 = %i [0] : !tile.tile<32xi32>) {
    %d = arith.extsi %x : i32 to i64
    flex.yield %d : i64
  } -> !tile.tile<32xi64>
  %a = tile.map(%x : i32 = %i [0] : !tile.tile<32xi32>) {
    %d = arith.addi %x, %x : i32
    flex.yield %d : i32
  } -> !tile.tile<32xi32>
  %full = tile.map(%x : i32 = %a [1] : !tile.tile<32xi32>, %y : i32 = %j [0] : !tile.tile<64xi32>) {
    %d = arith.addi %x, %y : i32
    flex.yield %d : i32
  } -> !tile.tile<64x32xi32>
  %largest = tile.reduce max %full along 0 : !tile.tile<64x32xi32>
  %b = tile.map(%x : i32 = %largest [0] : !tile.tile<32xi32>) {
    %d = arith.addi %x, %x : i32
    flex.yield %d : i32
  } -> !tile.tile<32xi32>
  tile.store_strided %long, %out[%none] strides [%one] extents [%c64] : !tile.tile<64xi32>, memref<?xi32>
  tile.store_strided %wide, %places[%none] strides [%one] extents [%c32] : !tile.tile<32xi64>, memref<?xi64>
  tile.store_strided %b, %out[%none] strides [%one] extents [%c32] : !tile.tile<32xi32>, memref<?xi32>
  tile.return
}
