// RUN: flexc-opt %s -p tile-split-rows | filecheck %s
// RUN: flexc-opt %s -p tile-split-rows | flexc-opt | filecheck %s
// RUN: flexc-opt %s -p "tile-split-rows{rows=32}" | filecheck %s --check-prefix=QUARTERS

!t = tensor<?x?x?x16xf16>
!o = memref<?x?x?x16xf16>
!r = memref<?x?x?xf32>

// Tiles of rows shrink, tiles of columns do not; what is a number stays before.
// CHECK-LABEL: tile.kernel @attend(
// CHECK: %c128 = arith.constant 128
// CHECK-NEXT: %start = arith.muli %m, %c128
// CHECK: %[[N:.*]] = tile.dim %k, 2
// CHECK-NOT: tile.tile
// CHECK: tile.parts 2 {
// CHECK-NEXT: ^bb0(%part: i32):
// CHECK-NEXT: %[[ROWS:.*]] = arith.constant 64
// CHECK-NEXT: %[[FIRST:.*]] = arith.muli %part, %[[ROWS]]
// CHECK-NEXT: %[[START:.*]] = arith.addi %start, %[[FIRST]]
// CHECK-NEXT: tile.iota %[[START]] : !tile.tile<64xi32>
// CHECK: %[[START:.*]] = arith.addi %start, %[[FIRST]]
// CHECK-NEXT: tile.load %q[%b, %h, %[[START]], %c0] checked [0]
// CHECK-SAME: -> !tile.tile<64x16xf16>
// CHECK: scf.for {{.*}}!tile.tile<64xf32>, !tile.tile<64x16xf32>
// CHECK-NEXT: tile.load %k[%b, %h, %i, %c0]
// CHECK-SAME: -> !tile.tile<128x16xf16>
// CHECK: tile.iota %i : !tile.tile<128xi32>
// CHECK: tile.dot {{.*}} -> !tile.tile<64x128xf32>
// CHECK: scf.if %{{.*}} -> (!tile.tile<64x128xf32>)
// CHECK: tile.reduce sum {{.*}} : !tile.tile<64x128xf32>
// CHECK: tile.store {{.*}} : !tile.tile<64x16xf16>, %out[%b, %h, %{{.*}}, %c0]
// CHECK: tile.store {{.*}} : !tile.tile<64xf32>, %sum[%b, %h, %{{.*}}]
// CHECK-NEXT: tile.end
// CHECK-NEXT: }
// CHECK-NEXT: tile.return
// QUARTERS-LABEL: tile.kernel @attend(
// QUARTERS: tile.parts 4 {
// QUARTERS: !tile.tile<32x128xf32>
tile.kernel @attend(%q : !t #tile.param<argument 0>, %k : !t #tile.param<argument 1>,
    %out : !o #tile.param<argument 2>, %sum : !r #tile.param<argument 3>)
    grid affine_map<(b, h, m) -> (m ceildiv 128, h, b)> attributes {rows_per_part = 64 : i32} {
  %m = tile.program_id 0
  %h = tile.program_id 1
  %b = tile.program_id 2
  %c0 = arith.constant 0 : i32
  %c128 = arith.constant 128 : i32
  %start = arith.muli %m, %c128 : i32
  %idx = tile.iota %start : !tile.tile<128xi32>
  %rows = tile.load %q[%b, %h, %start, %c0] checked [0] : !t, i32, i32, i32, i32 -> !tile.tile<128x16xf16>
  %zero = arith.constant 0.0 : f32
  %zeros = tile.full %zero : f32 -> !tile.tile<128x128xf32>
  %l0 = tile.full %zero : f32 -> !tile.tile<128xf32>
  %acc0 = tile.full %zero : f32 -> !tile.tile<128x16xf32>
  %n = tile.dim %k, 2 : !t -> i32
  %l, %acc = scf.for %i = %c0 to %n step %c128 iter_args(%l_i = %l0, %acc_i = %acc0) -> (!tile.tile<128xf32>, !tile.tile<128x16xf32>) : i32 {
    %columns = tile.load %k[%b, %h, %i, %c0] checked [0] : !t, i32, i32, i32, i32 -> !tile.tile<128x16xf16>
    %kv_idx = tile.iota %i : !tile.tile<128xi32>
    %turned = tile.transpose %columns : !tile.tile<128x16xf16> -> !tile.tile<16x128xf16>
    %s = tile.dot %rows, %turned, %zeros : !tile.tile<128x16xf16>, !tile.tile<16x128xf16>, !tile.tile<128x128xf32> -> !tile.tile<128x128xf32>
    %edge = arith.cmpi sge, %i, %start : i32
    %x = scf.if %edge -> (!tile.tile<128x128xf32>) {
      %live = tile.map(%a : i32 = %idx [0] : !tile.tile<128xi32>, %c : i32 = %kv_idx [1] : !tile.tile<128xi32>, %v : f32 = %s [0, 1] : !tile.tile<128x128xf32>) {
        %ok = arith.cmpi sge, %a, %c : i32
        %none = arith.constant 0.0 : f32
        %w = arith.select %ok, %v, %none : f32
        flex.yield %w : f32
      } -> !tile.tile<128x128xf32>
      scf.yield %live : !tile.tile<128x128xf32>
    } else {
      scf.yield %s : !tile.tile<128x128xf32>
    }
    %total = tile.reduce sum %x along 1 : !tile.tile<128x128xf32>
    %l_next = tile.map(%a : f32 = %l_i [0] : !tile.tile<128xf32>, %c : f32 = %total [0] : !tile.tile<128xf32>) {
      %y = arith.addf %a, %c : f32
      flex.yield %y : f32
    } -> !tile.tile<128xf32>
    %p = tile.map(%a : f32 = %x [0, 1] : !tile.tile<128x128xf32>) {
      %y = arith.truncf %a : f32 to f16
      flex.yield %y : f16
    } -> !tile.tile<128x128xf16>
    %next = tile.dot %p, %columns, %acc_i : !tile.tile<128x128xf16>, !tile.tile<128x16xf16>, !tile.tile<128x16xf32> -> !tile.tile<128x16xf32>
    scf.yield %l_next, %next : !tile.tile<128xf32>, !tile.tile<128x16xf32>
  }
  %o = tile.map(%a : f32 = %acc [0, 1] : !tile.tile<128x16xf32>) {
    %y = arith.truncf %a : f32 to f16
    flex.yield %y : f16
  } -> !tile.tile<128x16xf16>
  tile.store %o : !tile.tile<128x16xf16>, %out[%b, %h, %start, %c0] checked [0] : !o, i32, i32, i32, i32
  tile.store %l : !tile.tile<128xf32>, %sum[%b, %h, %start] checked [0] : !r, i32, i32, i32
  tile.return
}

// A kernel that says nothing of parts is whole.
// CHECK-LABEL: tile.kernel @whole(
// CHECK-NOT: tile.parts
tile.kernel @whole(%q : !t #tile.param<argument 0>, %out : !o #tile.param<argument 1>)
    grid affine_map<(b, h, m) -> (m ceildiv 128, h, b)> {
  %c0 = arith.constant 0 : i32
  %x = tile.load %q[%c0, %c0, %c0, %c0] : !t, i32, i32, i32, i32 -> !tile.tile<128x16xf16>
  tile.store %x : !tile.tile<128x16xf16>, %out[%c0, %c0, %c0, %c0] : !o, i32, i32, i32, i32
  tile.return
}

// As many rows as a part has are one part.
// CHECK-LABEL: tile.kernel @one(
// CHECK: tile.parts 1 {
// CHECK: !tile.tile<64x16xf16>
tile.kernel @one(%q : !t #tile.param<argument 0>, %out : !o #tile.param<argument 1>)
    grid affine_map<(b, h, m) -> (m ceildiv 64, h, b)> attributes {rows_per_part = 64 : i32} {
  %c0 = arith.constant 0 : i32
  %x = tile.load %q[%c0, %c0, %c0, %c0] : !t, i32, i32, i32, i32 -> !tile.tile<64x16xf16>
  tile.store %x : !tile.tile<64x16xf16>, %out[%c0, %c0, %c0, %c0] : !o, i32, i32, i32, i32
  tile.return
}
