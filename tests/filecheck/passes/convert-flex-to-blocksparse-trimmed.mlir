// RUN: flexc-opt %s -p 'convert-flex-to-blocksparse{target=cpp machine=avx512},flex-simplify-mods' | filecheck %s
// RUN: flexc-opt %s -p 'convert-flex-to-blocksparse{target=cpp machine=avx512}' | flexc-opt -p 'convert-blocksparse-to-tile{target=cpp}' | filecheck %s --check-prefix=TILE

// A CPU visits runs of columns that are exact to one, some columns at a time.

!t = tensor<?x?x?x8xf32>

// All columns: the last iteration has what is left. No segment is partial.
// CHECK-LABEL: @dense
// CHECK: block_m = 64 : i32, block_n = 96 : i32
// CHECK-NOT: segment partial
// CHECK: blocksparse.segment full {inside} bounds(
// CHECK: } block(
// CHECK: [[STEP:%.*]] = arith.constant 96 : i32
// CHECK: %kv_start = arith.muli %i, [[STEP]] : i32
// CHECK: [[LEFT:%.*]] = arith.subi %kv_len_1, %kv_start : i32
// CHECK: %count = arith.minsi [[LEFT]], [[STEP]] : i32
// CHECK: flex.yield %kv_start, %count : i32, i32
// CHECK-NOT: blocksparse.segment
// TILE-LABEL: tile.kernel @dense
// TILE: tile.load %key[{{.*}}] count %count :
// TILE: tile.load %value[{{.*}}] count %count :
// TILE: tile.reduce max {{.*}} along 1 count %count :
// TILE: tile.reduce sum {{.*}} along 1 count %count :
// TILE: tile.dot %p, %v, {{.*}} count %count :
func.func @dense(%query : !t, %key : !t, %value : !t, %scale : f32) {
  %out = flex.attention %query, %key, %value : !t, !t, !t scale(%scale : f32)
      -> out(!t) {max_length = 16777216}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %true = arith.constant true
    flex.yield %true : i1
  }
  func.return
}

// No iteration has fewer columns: nothing is counted.
// CHECK-LABEL: @whole_steps
// CHECK: flex.yield %kv_start, %count : i32, i32
// TILE-LABEL: tile.kernel @whole_steps
// TILE-NOT: count %count
func.func @whole_steps(%query : !t, %key : !t, %value : !t, %scale : f32) {
  %out = flex.attention %query, %key, %value : !t, !t, !t scale(%scale : f32)
      -> out(!t) {kv_len_multiple = 192}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %true = arith.constant true
    flex.yield %true : i1
  }
  func.return
}

// One run of partial columns, after the first row, and one of full ones before it.
// CHECK-LABEL: @causal
// TILE-LABEL: tile.kernel @causal
// CHECK: blocksparse.segment partial {inside} bounds(
// CHECK: } block(
// CHECK-NOT: arith.cmpi
// CHECK: [[AT:%.*]] = arith.muli %i, {{%.*}} : i32
// CHECK-NEXT: %kv_start = arith.addi {{%.*}}, [[AT]] : i32
// CHECK: %count = arith.minsi
// CHECK: mask_mod(
// CHECK: blocksparse.segment full {inside} bounds(
// CHECK-NOT: blocksparse.segment
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

// Two runs of partial columns, at either side: an iteration of one or of the other.
// CHECK-LABEL: @window
// CHECK: blocksparse.segment partial {inside} bounds(
// CHECK: } block(
// CHECK: [[LATER:%.*]] = arith.cmpi sge, %i,
// CHECK: arith.select [[LATER]],
// CHECK: arith.select [[LATER]],
// CHECK: arith.select [[LATER]],
// CHECK: %count = arith.minsi
// CHECK: mask_mod(
// CHECK: blocksparse.segment full {inside} bounds(
func.func @window(%query : !t, %key : !t, %value : !t, %scale : f32) {
  %out = flex.attention %query, %key, %value : !t, !t, !t scale(%scale : f32)
      -> out(!t) {max_length = 16777216}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %n = arith.constant 256 : i32
    %c = arith.cmpi sge, %qi, %ki : i32
    %d = arith.subi %qi, %ki : i32
    %near = arith.cmpi slt, %d, %n : i32
    %m = arith.andi %c, %near : i1
    flex.yield %m : i1
  }
  func.return
}

// Every other column: there is no full one, and what is visited is one run.
// CHECK-LABEL: @periodic
// CHECK: blocksparse.segment partial {inside} bounds(
// CHECK-NOT: blocksparse.segment
func.func @periodic(%query : !t, %key : !t, %value : !t, %scale : f32) {
  %out = flex.attention %query, %key, %value : !t, !t, !t scale(%scale : f32)
      -> out(!t) {max_length = 16777216}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %zero = arith.constant 0 : i32
    %two = arith.constant 2 : i32
    %r = arith.remsi %ki, %two : i32
    %c = arith.cmpi eq, %r, %zero : i32
    flex.yield %c : i1
  }
  func.return
}

// Blocks of 256 columns are three iterations each; of the last block, some may have no
// columns, and are then read as one that is there and does not count.
// CHECK-LABEL: @large_blocks
// CHECK: block_m = 32 : i32, block_n = 88 : i32
// CHECK: blocksparse.segment full {inside, may_skip} bounds(
// CHECK: } block(
// CHECK: %kv_block = flex.load_capture
// CHECK: flex.yield %kv_start{{.*}}, %count{{.*}} : i32, i32
// TILE-LABEL: tile.kernel @large_blocks
// TILE: [[EXISTS:%.*]] = arith.cmpi sgt, [[COUNT:%count.*]], {{%.*}} : i32
// TILE: %count{{.*}} = arith.maxsi [[COUNT]],
// TILE: tile.map({{.*}} = [[EXISTS]] [] : i1)
func.func @large_blocks(%query : !t, %key : !t, %value : !t, %scale : f32,
                        %num : tensor<?x?x?xi32>, %idx : tensor<?x?x?x?xi32>) {
  %out = flex.attention %query, %key, %value : !t, !t, !t scale(%scale : f32)
      tables(%num, %idx, %num, %idx : tensor<?x?x?xi32>, tensor<?x?x?x?xi32>,
             tensor<?x?x?xi32>, tensor<?x?x?x?xi32>)
      -> out(!t) {sparse_block = array<i64: 128, 256>}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c = arith.cmpi sge, %qi, %ki : i32
    flex.yield %c : i1
  }
  func.return
}
