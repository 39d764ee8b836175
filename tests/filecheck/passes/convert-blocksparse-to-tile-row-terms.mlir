// RUN: flexc-opt %s -p "convert-blocksparse-to-tile{target=gluon},canonicalize,cse,tile-split-maps,canonicalize,cse,licm" | filecheck %s
// RUN: flexc-opt %s -p "convert-blocksparse-to-tile{target=triton}" | filecheck %s --check-prefix=TRITON

!t = tensor<?x?x?x64xbf16>

// What all scores of a row have in common is added to the block's maximum. What the
// slope makes of columns is the same for all blocks, and leaves the loop.
// CHECK-LABEL: tile.kernel @distance
// CHECK: %column_offset = tile.iota %{{.*}} : !tile.tile<64xi32>
// CHECK: %offset_f32 = tile.map(%{{.*}} = %column_offset [0]
// CHECK-NEXT: arith.sitofp
// CHECK-NEXT: arith.mulf
// CHECK: scf.for
// CHECK: %s = tile.dot
// CHECK: %[[X:.*]] = tile.map(%{{.*}} = %s [0, 1] : {{.*}} = %offset_f32 [1]
// CHECK-NEXT: arith.mulf %s_1, %scale_1
// CHECK-NEXT: arith.addf
// CHECK-NEXT: flex.yield
// CHECK: %term = tile.map({{.*}} = %q_idx [0]
// CHECK-NEXT: arith.subi
// CHECK-NEXT: arith.sitofp
// CHECK-NEXT: arith.mulf
// CHECK-NEXT: flex.yield
// CHECK: %row_max = tile.reduce max %[[X]] along 1
// CHECK: %block_max = tile.map({{.*}} = %row_max [0] : {{.*}} = %term [0]
// CHECK-NEXT: arith.addf
// CHECK: %m = tile.map({{.*}} = %block_max [0]
// CHECK-NEXT: arith.maxnumf
// CHECK: %factor = tile.map({{.*}} = %row_max [0]
// CHECK: %shift = tile.map({{.*}} = %row_max [0] : {{.*}} = %block_max [0] : {{.*}} = %m_i_2 [0] : {{.*}} = %factor [0]
// CHECK: arith.subf
// CHECK: arith.subf
// CHECK-NEXT: arith.mulf
// CHECK: %p = tile.map({{.*}} = %[[X]] [0, 1] : {{.*}} = %factor [0] : {{.*}} = %shift [0]
// CHECK-NEXT: math.fma
// CHECK-NEXT: math.exp2
// TRITON-LABEL: tile.kernel @distance
// TRITON-NOT: block_max
func.func @distance(%q : !t, %scale : f32, %slope : f32) -> !t {
  %out = blocksparse.attention %q, %q, %q : !t, !t, !t scale(%scale : f32)
      captures(%slope : f32)
      -> out(!t) {block_m = 128 : i32, block_n = 64 : i32, max_length = 65536 : i64}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32, %a : f32) {
    %d = arith.subi %ki, %qi : i32
    %f = arith.sitofp %d : i32 to f32
    %t = arith.mulf %a, %f : f32
    %x = arith.addf %s, %t : f32
    flex.yield %x : f32
  } segments {
    blocksparse.segment full {inside} bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32, %a : f32) {
      flex.yield %q_start, %kv_len : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32, %kv_len : i32, %a : f32) {
      flex.yield %i : i32
    }
  }
  func.return %out : !t
}

// Floats do not hold all distances of such lengths.
// CHECK-LABEL: tile.kernel @long
// CHECK-NOT: block_max
func.func @long(%q : !t, %scale : f32, %slope : f32) -> !t {
  %out = blocksparse.attention %q, %q, %q : !t, !t, !t scale(%scale : f32)
      captures(%slope : f32)
      -> out(!t) {block_m = 128 : i32, block_n = 64 : i32, max_length = 33554432 : i64}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32, %a : f32) {
    %d = arith.subi %ki, %qi : i32
    %f = arith.sitofp %d : i32 to f32
    %t = arith.mulf %a, %f : f32
    %x = arith.addf %s, %t : f32
    flex.yield %x : f32
  } segments {
    blocksparse.segment full {inside} bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32, %a : f32) {
      flex.yield %q_start, %kv_len : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32, %kv_len : i32, %a : f32) {
      flex.yield %i : i32
    }
  }
  func.return %out : !t
}
