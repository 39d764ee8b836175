// RUN: flexc-opt %s -p "convert-blocksparse-to-tile{target=gluon},canonicalize,cse" | filecheck %s

!t = tensor<?x?x?x64xbf16>

// Full blocks compare columns with the number of keys only where they stick out.
// CHECK-LABEL: tile.kernel @full
// CHECK-SAME: rows_per_part = 64
// CHECK: scf.for %kv_start =
// CHECK: tile.load {{.*}}, %kv_start, %{{.*}}] checked [0]
// CHECK: %[[END:.*]] = arith.addi %kv_start, %{{.*}} : i32
// CHECK-NEXT: %[[OVER:.*]] = arith.cmpi sgt, %[[END]], %{{.*}} : i32
// CHECK: scf.if %[[OVER]]
// CHECK: arith.cmpi slt, %kv_idx_1, %kv_len
// CHECK: } {segment = #blocksparse<kind full>, nonempty}
func.func @full(%q : !t, %scale : f32) -> !t {
  %out = blocksparse.attention %q, %q, %q : !t, !t, !t scale(%scale : f32)
      -> out(!t) {block_m = 128 : i32, block_n = 64 : i32, rows_per_part = 64 : i32, has_pairs}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } segments {
    blocksparse.segment full {nonempty} bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32) {
      flex.yield %q_start, %kv_len : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32, %kv_len : i32) {
      flex.yield %i : i32
    }
  }
  func.return %out : !t
}

// A block that stands in for none is no pair's: its loop ends after one at least. Where
// a block is not masked and yet sticks out the mask says nothing of it.
// CHECK-LABEL: tile.kernel @mixed
// CHECK: %[[SOME:.*]] = arith.cmpi slt, %[[BEGIN:.*]], %[[END:.*]] : i32
// CHECK-NEXT: %[[NEXT:.*]] = arith.addi %[[BEGIN]], %{{.*}} : i32
// CHECK-NEXT: %[[BOUND:.*]] = arith.maxsi %[[END]], %[[NEXT]] : i32
// CHECK: scf.for %kv_start = %[[BEGIN]] to %[[BOUND]]
// CHECK: %is_partial = arith.cmpi slt
// CHECK: %[[OVER:.*]] = arith.cmpi sgt
// CHECK: %[[NONE:.*]] = arith.xori %[[SOME]]
// CHECK-NEXT: %[[EITHER:.*]] = arith.ori %is_partial, %[[OVER]]
// CHECK-NEXT: %[[DOUBT:.*]] = arith.ori %[[EITHER]], %[[NONE]]
// CHECK: scf.if %[[DOUBT]]
// CHECK: i1 = %is_partial [] : i1, %{{.*}} : i1 = %[[SOME]] [] : i1)
// CHECK: %[[IN:.*]] = arith.cmpi slt, %kv_idx
// CHECK: %[[LIVE:.*]] = arith.cmpi sge
// CHECK: %[[FULL:.*]] = arith.xori
// CHECK-NEXT: %[[OR:.*]] = arith.ori %[[LIVE]], %[[FULL]]
// CHECK-NEXT: %[[THERE:.*]] = arith.andi %[[IN]], %{{.*}} : i1
// CHECK-NEXT: arith.andi %[[OR]], %[[THERE]]
// CHECK: } {segment = #blocksparse<kind mixed>, nonempty}
func.func @mixed(%q : !t, %scale : f32) -> !t {
  %out = blocksparse.attention %q, %q, %q : !t, !t, !t scale(%scale : f32)
      -> out(!t) {block_m = 64 : i32, block_n = 64 : i32, has_pairs}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } segments {
    blocksparse.segment mixed {padded} bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32) {
      flex.yield %q_start, %kv_len : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32, %kv_len : i32) {
      flex.yield %i : i32
    } partial_if(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32, %kv_len : i32) {
      %m = arith.cmpi slt, %i, %q_start : i32
      flex.yield %m : i1
    } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
      %c = arith.cmpi sge, %qi, %ki : i32
      flex.yield %c : i1
    }
  }
  func.return %out : !t
}

// If only partial blocks stick out, nothing but `partial_if` is asked.
// CHECK-LABEL: tile.kernel @full_inside
// CHECK: %is_partial = arith.cmpi slt
// CHECK-NOT: arith.ori
// CHECK: scf.if %is_partial
// CHECK: arith.cmpi slt, %kv_idx
// CHECK-NOT: arith.ori
// CHECK: } {segment = #blocksparse<kind mixed>, nonempty}
func.func @full_inside(%q : !t, %scale : f32) -> !t {
  %out = blocksparse.attention %q, %q, %q : !t, !t, !t scale(%scale : f32)
      -> out(!t) {block_m = 64 : i32, block_n = 64 : i32, has_pairs}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } segments {
    blocksparse.segment mixed {full_inside, nonempty} bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32) {
      flex.yield %q_start, %kv_len : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32, %kv_len : i32) {
      flex.yield %i : i32
    } partial_if(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32, %kv_len : i32) {
      %m = arith.cmpi slt, %i, %q_start : i32
      flex.yield %m : i1
    } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
      %c = arith.cmpi sge, %qi, %ki : i32
      flex.yield %c : i1
    }
  }
  func.return %out : !t
}

!c = tensor<?xf32>

// A captured tensor that has something for each key is read at the last one for columns
// beyond it, not behind a guard.
// CHECK-LABEL: tile.kernel @captured
// CHECK: %[[LAST:.*]] = arith.minsi %kv_idx
// CHECK: flex.load_capture %{{.*}}[%[[LAST]]] inside
// CHECK: scf.if
func.func @captured(%q : !t, %scale : f32, %bias : !c) -> !t {
  %out = blocksparse.attention %q, %q, %q : !t, !t, !t scale(%scale : f32)
      captures(%bias : !c)
      -> out(!t) {block_m = 64 : i32, block_n = 64 : i32, has_pairs}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32, %t : !c) {
    %v = flex.load_capture %t[%ki] inside : !c, i32
    %x = arith.addf %s, %v : f32
    flex.yield %x : f32
  } segments {
    blocksparse.segment full {nonempty} bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32, %t : !c) {
      flex.yield %q_start, %kv_len : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32, %kv_len : i32, %t : !c) {
      flex.yield %i : i32
    }
  }
  func.return %out : !t
}
