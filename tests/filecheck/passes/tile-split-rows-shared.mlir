// RUN: flexc-opt %s -p tile-split-rows | filecheck %s

// A sum over all rows that is added to memory: parts share its operands, and each
// computes half of its columns.
// CHECK-LABEL: tile.kernel @shared(
// CHECK: tile.parts 2 {
// CHECK: %[[OFFSET:.*]] = arith.muli %part, %{{.*}} : i32
// CHECK: %rows = tile.load {{.*}} -> !tile.tile<64x128xf16>
// CHECK-NEXT: %rows_of = tile.share %rows of %part : !tile.tile<64x128xf16> -> !tile.shares<2, !tile.tile<64x128xf16>>
// CHECK: %w = tile.load {{.*}} -> !tile.tile<64x64xf16>
// CHECK-NEXT: %w_of = tile.share %w of %part
// CHECK: %[[W:.*]] = tile.of_part %w_of[
// CHECK-NEXT: %[[X:.*]] = tile.of_part %rows_of[
// CHECK-NEXT: %[[HALF:.*]] = tile.take_columns %[[X]][%part] of 2
// CHECK-NEXT: %[[TURNED:.*]] = tile.transpose %[[W]]
// CHECK-NEXT: %sums = tile.dot %[[TURNED]], %[[HALF]], %zeros
// CHECK: %sums_1 = tile.dot {{.*}}, %sums :
// CHECK: tile.add_to atomic %sums_1, %added[%c0, %c0, %c0, %{{.*}}] : !tile.tile<64x64xf32>
tile.kernel @shared(%q : tensor<?x?x?x128xf16> #tile.param<argument 0>, %p : tensor<?x?x?x64xf16> #tile.param<argument 1>, %out : memref<?x?x?x128xf16> #tile.param<argument 2>, %added : memref<?x?x?x128xf32> #tile.param<argument 3>)
    grid affine_map<(b, h, m) -> (m ceildiv 128, h, b)> attributes {rows_per_part = 64 : i32} {
  %c0 = arith.constant 0 : i32
  %rows = tile.load %q[%c0, %c0, %c0, %c0] : tensor<?x?x?x128xf16>, i32, i32, i32, i32 -> !tile.tile<128x128xf16>
  %w = tile.load %p[%c0, %c0, %c0, %c0] : tensor<?x?x?x64xf16>, i32, i32, i32, i32 -> !tile.tile<128x64xf16>
  %turned = tile.transpose %w : !tile.tile<128x64xf16> -> !tile.tile<64x128xf16>
  %zero = arith.constant 0.0 : f32
  %none = tile.full %zero : f32 -> !tile.tile<64x128xf32>
  %sums = tile.dot %turned, %rows, %none : !tile.tile<64x128xf16>, !tile.tile<128x128xf16>, !tile.tile<64x128xf32> -> !tile.tile<64x128xf32>
  tile.add_to atomic %sums, %added[%c0, %c0, %c0, %c0] : !tile.tile<64x128xf32>, memref<?x?x?x128xf32>
  tile.store %rows : !tile.tile<128x128xf16>, %out[%c0, %c0, %c0, %c0] : memref<?x?x?x128xf16>, i32, i32, i32, i32
  tile.return
}
