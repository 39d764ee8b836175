// RUN: flexc-opt %s -p 'flexc-to-tile{block-m=16 block-n=32}' --split-input-file | filecheck %s
// RUN: flexc-opt %s -p 'flexc-to-tile{block-m=16 block-n=32},legalize-tile-for-triton' --split-input-file | filecheck %s --check-prefix=TRITON

!q = tensor<?x?x?x64xbf16, strided<[?, ?, ?, 1]>>
!pages = tensor<?x?x16x64xbf16, strided<[?, ?, ?, 1]>>
!table = tensor<?x?xi32, strided<[?, 1]>>

// A block of 32 keys lies in two pages of 16: rows of the load find their pages.
// CHECK-LABEL: tile.kernel @small_pages(
// CHECK-SAME: num_stages = 3 : i32
// CHECK: %pages = tile.dim %page_table, 1
// CHECK: %kv_len =
// CHECK: scf.for
// CHECK: %k = tile.load %key[%b, %kv_h, %kv_start, {{%.*}}] {{.*}}pages %page_table
// TRITON-LABEL: tile.kernel @small_pages(
// TRITON-SAME: num_stages = 3 : i32
// TRITON: scf.for
// TRITON: %pages_1 = tile.gather %page_table[
// TRITON: %k = tile.gather %key[
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

// A block lies in one page, whose number is read once; it is kept in range.
// CHECK-LABEL: tile.kernel @whole_blocks(
// CHECK: scf.for
// CHECK-NOT: pages %page_table
// CHECK: %k = tile.load %key[%page{{[_0-9]*}}, %kv_h, %within, {{%.*}}]
// TRITON-LABEL: tile.kernel @whole_blocks(
// TRITON-SAME: pages, num_warps = 4 : i32, num_stages = 3 : i32
func.func @whole_blocks(%query : !q, %key : !pages, %value : !pages, %scale : f32, %page_table : !table) -> !q {
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
!pages = tensor<?x?x16x64xbf16, strided<[?, ?, ?, 1]>>
!table = tensor<?x?xi32, strided<[?, 1]>>

// Keys beyond a sequence's length are not read.
// CHECK-LABEL: tile.kernel @lengths(
// CHECK: %k = tile.load %key[{{.*}}pages %page_table : tensor<?x?xi32, {{.*}}>> live %[[LIVE:live[_0-9]*]] : !tile.tile<32xi1>
// CHECK: tile.load %value[{{.*}}live %[[LIVE]]
// TRITON-LABEL: tile.kernel @lengths(
func.func @lengths(%query : !q, %key : !pages, %value : !pages, %scale : f32, %lengths : tensor<?xi32, strided<[1]>>, %page_table : !table) -> !q {
  %out = flex.attention %query, %key, %value : !q, !pages, !pages scale(%scale : f32) captures(%lengths : tensor<?xi32, strided<[1]>>) page_table(%page_table : !table) -> out(!q) {scale_positive, has_pairs} score_mod(%s : f32, %b : i32, %h : i32, %i : i32, %j : i32, %n : tensor<?xi32, strided<[1]>>) {
    flex.yield %s : f32
  } mask_mod(%b_1 : i32, %h_1 : i32, %i_1 : i32, %j_1 : i32, %n_1 : tensor<?xi32, strided<[1]>>) {
    %length = flex.load_capture %n_1[%b_1] : tensor<?xi32, strided<[1]>>, i32
    %live = arith.cmpi slt, %j_1, %length : i32
    flex.yield %live : i1
  }
  func.return %out : !q
}

// -----

!q = tensor<?x?x?x64xbf16, strided<[?, ?, ?, 1]>>
!v = tensor<?x?x?x48xbf16, strided<[?, ?, ?, 1]>>

// Values that lie in keys are read with them.
// CHECK-LABEL: tile.kernel @values_in_keys(
// CHECK: %k = tile.load %key[
// CHECK-NOT: tile.load
// CHECK: tile.dot %p
// TRITON-LABEL: tile.kernel @values_in_keys(
func.func @values_in_keys(%query : !q, %key : !q, %value : !v, %scale : f32) -> !v {
  %out = flex.attention %query, %key, %value : !q, !q, !v scale(%scale : f32) -> out(!v) {scale_positive, has_pairs, kv_len_multiple = 32, values_in_keys} score_mod(%s : f32, %b : i32, %h : i32, %i : i32, %j : i32) {
    flex.yield %s : f32
  } mask_mod(%b_1 : i32, %h_1 : i32, %i_1 : i32, %j_1 : i32) {
    %all = arith.constant true
    flex.yield %all : i1
  }
  func.return %out : !v
}
