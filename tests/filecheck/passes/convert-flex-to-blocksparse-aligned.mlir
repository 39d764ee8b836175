// RUN: flexc-opt %s -p 'convert-flex-to-blocksparse{target=cpp machine=amx},flex-simplify-mods' | filecheck %s
// RUN: flexc-opt %s -p 'convert-flex-to-blocksparse{target=cpp machine=avx512},flex-simplify-mods' | filecheck %s --check-prefix=EXACT

// Products that are packed keep transposed blocks of 32 columns: bounds that move with the
// rows are multiples of 32.

!t = tensor<?x?x?x8xbf16>

// CHECK-LABEL: @causal
// CHECK: blocksparse.segment partial {inside} bounds(
// CHECK: %[[NONE:.*]] = arith.cmpi sge, %[[FIRST:.*]], %kv_len : i32
// CHECK: %[[BLOCK:.*]] = arith.shrsi %[[FIRST]], %{{.*}} : i32
// CHECK: %[[ALIGNED:.*]] = arith.muli %[[BLOCK]], %{{.*}} : i32
// CHECK: arith.select %[[NONE]], %[[FIRST]], %[[ALIGNED]] : i32
// EXACT-LABEL: @causal
// EXACT: blocksparse.segment partial
// EXACT-NOT: arith.shrsi
// EXACT: mask_mod(
func.func @causal(%query : !t, %key : !t, %value : !t, %scale : f32) {
  %out = flex.attention %query, %key, %value : !t, !t, !t scale(%scale : f32)
      -> out(!t) {max_length = 16777216}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c = arith.cmpi sge, %qi, %ki : i32
    flex.yield %c : i1
  }
  func.return
}

// A bound that all rows share is exact.
// CHECK-LABEL: @prefix
// CHECK-NOT: arith.shrsi
// EXACT-LABEL: @prefix
func.func @prefix(%query : !t, %key : !t, %value : !t, %scale : f32) {
  %out = flex.attention %query, %key, %value : !t, !t, !t scale(%scale : f32)
      -> out(!t) {max_length = 16777216}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %n = arith.constant 100 : i32
    %c = arith.cmpi slt, %ki, %n : i32
    flex.yield %c : i1
  }
  func.return
}
