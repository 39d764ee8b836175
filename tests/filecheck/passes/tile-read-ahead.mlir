// RUN: flexc-opt %s -p 'flexc-to-triton{block-m=16 block-n=32}' --split-input-file | filecheck %s

!q = tensor<?x?x?x64xbf16, strided<[?, ?, ?, 1]>>
!pages = tensor<?x?x16x64xbf16, strided<[?, ?, ?, 1]>>
!table = tensor<?x?xi32, strided<[?, 1]>>

// A loop carries the pages of its next block. The last one reads its own again, and a
// loop without blocks reads none.
// CHECK-LABEL: tile.kernel @small_pages(
// CHECK: %[[ANY:.*]] = arith.cmpi slt, %[[BEGIN:whole[_0-9]*]], %[[END:[^ ]*]] : i32
// CHECK-NEXT: %[[FIRST:.*]] = scf.if %[[ANY]]
// CHECK: tile.gather %page_table
// CHECK: } else {
// CHECK: tile.full
// CHECK: scf.for %i = %[[BEGIN]] to %[[END]] step %[[STEP:[^ ]*]] iter_args({{.*}}, %[[NOW:pages_[0-9]*]] = %[[FIRST]])
// CHECK-NOT: tile.gather %page_table
// CHECK: tile.map({{.*}} = %[[NOW]] [0]
// CHECK: tile.gather %key
// CHECK: %[[AFTER:.*]] = arith.addi %i, %[[STEP]]
// CHECK-NEXT: %[[MORE:.*]] = arith.cmpi slt, %[[AFTER]], %[[END]]
// CHECK-NEXT: arith.select %[[MORE]], %[[AFTER]], %i
// CHECK: %[[LATER:.*]] = tile.gather %page_table
// CHECK-NEXT: scf.yield {{.*}}, %[[LATER]]
func.func @small_pages(%query : !q, %key : !pages, %value : !pages, %scale : f32, %page_table : !table) -> !q {
  %out = flex.attention %query, %key, %value : !q, !pages, !pages scale(%scale : f32) page_table(%page_table : !table) -> out(!q) {scale_positive, has_pairs} score_mod(%s : f32, %b : i32, %h : i32, %i : i32, %j : i32) {
    flex.yield %s : f32
  } mask_mod(%b_1 : i32, %h_1 : i32, %i_1 : i32, %j_1 : i32) {
    %all = arith.constant true
    flex.yield %all : i1
  }
  func.return %out : !q
}

// -----

!q = tensor<?x?x?x64xbf16, strided<[?, ?, ?, 1]>>
!pages = tensor<?x?x64x64xbf16, strided<[?, ?, ?, 1]>>
!table = tensor<?x?xi32, strided<[?, 1]>>

// So with one page of a block, by an index of 64 bits.
// CHECK-LABEL: tile.kernel @whole_blocks(
// CHECK: %[[FIRST:.*]] = scf.if
// CHECK: tile.read %page_table
// CHECK: scf.for {{.*}}, %[[NOW:page_[0-9]*]] = %[[FIRST]])
// CHECK-NOT: tile.read %page_table
// CHECK: arith.maxsi %[[NOW]]
// CHECK: tile.gather %key
// CHECK: tile.read %page_table
// CHECK-NEXT: scf.yield
func.func @whole_blocks(%query : !q, %key : !pages, %value : !pages, %scale : f32, %page_table : !table) -> !q {
  %out = flex.attention %query, %key, %value : !q, !pages, !pages scale(%scale : f32) page_table(%page_table : !table) -> out(!q) {scale_positive, has_pairs} score_mod(%s : f32, %b : i32, %h : i32, %i : i32, %j : i32) {
    flex.yield %s : f32
  } mask_mod(%b_1 : i32, %h_1 : i32, %i_1 : i32, %j_1 : i32) {
    %all = arith.constant true
    flex.yield %all : i1
  }
  func.return %out : !q
}
