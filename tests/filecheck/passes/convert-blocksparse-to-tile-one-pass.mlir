// RUN: flexc-opt %s -p 'convert-blocksparse-to-tile{target=cpp}' | filecheck %s
// RUN: not flexc-opt %s -p 'convert-blocksparse-to-tile{target=triton}' 2>&1 | filecheck %s --check-prefix=TRITON

!m = tensor<?x?x?x64xbf16>
!r = tensor<?x?x?xf32>
!c = tensor<?x?x?x?x64xf32>
!p = tensor<?x?x?x?xf32>

// A program for each part of each head of the keys. It goes over its blocks of rows,
// those of all heads of the query that share its own, and adds to columns in memory:
// of the rows those that exist to the columns that exist. 16-bit rows stay as they are,
// and values of pairs are scaled before they are rounded.
// TRITON: triton has no blocksparse.pair_sums with sums by column
// CHECK-LABEL: tile.kernel @both
// CHECK-SAME: grid affine_map<(d0, d1, d2) -> (d0, d2, d1)> attributes {sums = "#flex.sum<matrix {{\[\[}}0, 0]]>, #flex.sum<column_matrix {{\[\[}}0, 0]] scaled>", rows = "queries", {{.*}}grid_of = array<i32: 5, 5, 5>
// CHECK: %part = tile.program_id 0
// CHECK-NEXT: %kv_h = tile.program_id 1
// CHECK-NEXT: %kv_b = tile.program_id 2
// CHECK: %parts = tile.dim %dk, 0
// CHECK: %group = arith.divsi %q_heads, %kv_heads
// CHECK: %shared_batches = arith.divsi %q_batches, %kv_batches
// CHECK: %blocks = arith.muli %{{.*}}, %row_blocks
// CHECK: %own_blocks = arith.divsi
// CHECK: scf.for %n = %{{.*}} to %own_blocks
// CHECK: %number = arith.addi %part,
// CHECK: %shared = arith.divsi %number, %row_blocks
// CHECK-NEXT: %m_block = arith.remsi %number, %row_blocks
// CHECK: %row_count = arith.minsi
// CHECK: %q_tile = tile.load %q[%q_b, %q_h, %row_start, %{{.*}}] checked [0]
// CHECK: scf.for %i =
// CHECK: %k_tile = tile.load %k[%kv_b, %kv_h, %kv_start, %{{.*}}] checked [0]
// CHECK: %column_count = arith.minsi
// CHECK: %scaled = tile.map(%w_1 : f32 = %w [0, 1] : !tile.tile<64x32xf32>, %scale_1 : f32 = %scale [] : f32)
// CHECK: %scaled_bf16 = tile.map(
// CHECK: %turned = tile.transpose %scaled_bf16 : !tile.tile<64x32xbf16> -> !tile.tile<32x64xbf16>
// CHECK-NEXT: %dk_sums = tile.dot %turned, %q_tile, %{{.*}} count %row_count : !tile.tile<32x64xbf16>, !tile.tile<64x64xbf16>, !tile.tile<32x64xf32> -> !tile.tile<32x64xf32>
// CHECK: tile.add_to %dk_sums, %dk[%part, %kv_b, %kv_h, %kv_start, %{{.*}}] count %column_count
// CHECK: tile.store %{{.*}} : !tile.tile<64x64xbf16>, %dq[%q_b, %q_h, %row_start, %{{.*}}] checked [0]
func.func @both(%q : !m, %k : !m, %lse : !r, %scale : f32) -> (!m, !c) {
  %dq, %dk = blocksparse.pair_sums rows(%q : !m) columns(%k : !m)
      row_values(%lse : !r) scale(%scale : f32) -> !m, !c
      {block_m = 64 : i32, block_n = 32 : i32, products = [array<i32: 0, 0>],
       sums = [#flex.sum<matrix [[0, 0]]>, #flex.sum<column_matrix [[0, 0]] scaled>]}
      pairs(%qk : f32, %s : f32, %l : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    %w = arith.subf %qk, %l : f32
    flex.yield %w : f32
  } segments {
    blocksparse.segment partial bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32) {
      %zero = arith.constant 0 : i32
      %one = arith.constant 1 : i32
      flex.yield %zero, %one : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32, %kv_len : i32) {
      %n = arith.constant 32 : i32
      %kv_start = arith.muli %i, %n : i32
      flex.yield %kv_start : i32
    }
  }
  func.return %dq, %dk : !m, !c
}

// Of some rows, from the first on: what is stored by row begins there, and what is
// stored of pairs is what there is of this block of columns, unless it was visited in
// place of nothing. Diagonals are those of all blocks of the same part.
// CHECK-LABEL: tile.kernel @some_rows
// CHECK: %part_rows = tile.dim %pairs, 2
// CHECK: %row_blocks = arith.divsi
// CHECK: %row_start = arith.muli %m_block,
// CHECK: %row_start_1 = arith.addi %row_start, %first
// CHECK: %q_tile = tile.load %q[%q_b, %q_h, %row_start_1,
// CHECK: %count_1 = arith.maxsi %count,
// CHECK: scf.if %{{.*}} {
// CHECK-NEXT: tile.store %w : !tile.tile<32x48xf32>, %pairs[%q_b, %q_h, %row_start, %kv_start] checked [0] count %count_1
// CHECK-NEXT: }
// CHECK: %diagonals = tile.diagonals %w count %count_1 : !tile.tile<32x48xf32> -> !tile.tile<80xf32>
// CHECK: tile.add_to %diagonals, %d[%q_b, %q_h, %part, %at]
func.func @some_rows(%q : !m, %k : !m, %first : i32, %scale : f32) -> (!p, !p, !c) {
  %pairs, %d, %dk = blocksparse.pair_sums rows(%q : !m) columns(%k : !m)
      tile_origin(%first : i32) scale(%scale : f32) -> !p, !p, !c
      {block_m = 32 : i32, block_n = 48 : i32, products = [array<i32: 0, 0>],
       sums = [#flex.sum<pairs [[0]]>, #flex.sum<diagonal [[0]]>,
               #flex.sum<column_matrix [[0, 0]]>]}
      pairs(%qk : f32, %s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    %w = arith.mulf %qk, %s : f32
    flex.yield %w : f32
  } segments {
    blocksparse.segment full {inside, may_skip} bounds(%b : i32, %h : i32,
        %q_start : i32, %q_len : i32, %kv_len : i32) {
      %zero = arith.constant 0 : i32
      %two = arith.constant 2 : i32
      flex.yield %zero, %two : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32, %kv_len : i32) {
      %n = arith.constant 48 : i32
      %kv_start = arith.muli %i, %n : i32
      %count = arith.subi %kv_len, %kv_start : i32
      flex.yield %kv_start, %count : i32, i32
    }
  }
  func.return %pairs, %d, %dk : !p, !p, !c
}

// Ops over rows are part of the program: it makes the rows that it owns, once for each
// block of them, and has what they read in the place of what they make.
// CHECK-NOT: tile.kernel @made
// CHECK-LABEL: tile.kernel @made
// CHECK-SAME: %q : {{.*}}, %k : {{.*}}, %out : {{.*}}, %lse : {{.*}}, %rest : {{.*}}, %scale : f32 {{.*}}, %dq : memref<{{.*}}, %dk : memref<{{.*}}grid_of = array<i32: 7, 7, 7>
// CHECK: tile.dim %q, 2
// CHECK: scf.for %n =
// CHECK: tile.load %q[%q_b, %q_h, %row_start, %{{.*}}] checked [0]
// CHECK: %w = tile.map(
// CHECK-NOT: tile.load %q
// CHECK: %out_tile = tile.load %out[%q_b, %q_h, %row_start, %{{.*}}] checked [0]
// CHECK: %dots = tile.reduce sum %product along 1
// CHECK: %delta = tile.map(
// CHECK: tile.store
// CHECK-NOT: tile.kernel @made
func.func @made(%q : !m, %k : !m, %out : !m, %lse : !r, %rest : !r, %scale : f32)
    -> (!m, !c) {
  %w = flex.map_rows values(%q, %rest : !m, !r) -> !m code(%x : f32, %s : f32) {
    %y = arith.mulf %x, %s : f32
    flex.yield %y : f32
  }
  %delta = flex.map_rows lhs(%w : !m) rhs(%out : !m) values(%lse : !r) -> !r
      code(%dot : f32, %l : f32) {
    %y = arith.subf %dot, %l : f32
    flex.yield %y : f32
  }
  %dq, %dk = blocksparse.pair_sums rows(%w : !m) columns(%k : !m)
      row_values(%delta : !r) scale(%scale : f32) -> !m, !c
      {block_m = 64 : i32, block_n = 32 : i32, products = [array<i32: 0, 0>],
       sums = [#flex.sum<matrix [[0, 0]]>, #flex.sum<column_matrix [[0, 0]]>]}
      pairs(%qk : f32, %s : f32, %d : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    %x = arith.subf %qk, %d : f32
    flex.yield %x : f32
  } segments {
  ^bb0:
  }
  func.return %dq, %dk : !m, !c
}
