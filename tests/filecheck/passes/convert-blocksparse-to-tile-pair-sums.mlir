// RUN: flexc-opt %s -p 'convert-blocksparse-to-tile{target=cpp}' | filecheck %s

!m = tensor<?x?x?x64xbf16>
!r = tensor<?x?x?xf32>
!p = tensor<?x?x?x?xf32>

// The rows' matrices are loaded once, the columns' for each block; values of pairs are
// rounded to the type of what they multiply, sums are not until they are stored.
// CHECK-LABEL: tile.kernel @rows(%q : {{.*}} #tile.param<argument 0>, %k : {{.*}} #tile.param<argument 1>, %lse : {{.*}} #tile.param<argument 2>, %scale : f32 #tile.param<argument 3>, %dq : memref<?x?x?x64xbf16> #tile.param<argument 4>, %total : memref<?x?x?xf32> #tile.param<argument 5>) grid affine_map<(d0, d1, d2) -> ((d2 ceildiv 64), d1, d0)>
// CHECK-SAME: sums = "#flex.sum<matrix {{\[\[}}0, 0]] scaled>, #flex.sum<total {{\[\[}}0]]>", rows = "queries"
// CHECK: %q_tile = tile.load %q[%b, %h, %row_start, %{{.*}}] checked [0]
// CHECK: %kv_h = arith.divsi
// CHECK: %kv_b = arith.minsi %b,
// CHECK: %lse_1 = tile.load %lse[%b, %h, %row_start] checked [0]
// CHECK: scf.for
// CHECK: %kv_start = arith.muli
// CHECK: %k_tile = tile.load %k[%kv_b, %kv_h, %kv_start, %{{.*}}] : {{.*}} -> !tile.tile<32x64xbf16>
// CHECK: %k_tile_t = tile.transpose %k_tile
// CHECK: %dot = tile.dot %q_tile, %k_tile_t, %zeros
// CHECK: %w = tile.map(%dot_1 : f32 = %dot [0, 1] : {{.*}}, %scale_1 : f32 = %scale [] : f32, %lse_2 : f32 = %lse_1 [0] : !tile.tile<64xf32>
// CHECK: %[[ROUNDED:.*]] = tile.map(%{{.*}} : f32 = %w [0, 1] : {{.*}}) {
// CHECK-NEXT: arith.truncf
// CHECK: %acc_1 = tile.dot %{{.*}}, %k_tile, %{{.*}} : !tile.tile<64x32xbf16>, !tile.tile<32x64xbf16>, !tile.tile<64x64xf32>
// CHECK: %row_sum = tile.reduce sum %w along 1
// CHECK: tile.store %{{.*}} : !tile.tile<64xf32>, %total[%b, %h, %row_start] checked [0]
// CHECK: arith.mulf
// CHECK: arith.truncf
// CHECK: tile.store %{{.*}} : !tile.tile<64x64xbf16>, %dq[%b, %h, %row_start, %{{.*}}] checked [0]
func.func @rows(%q : !m, %k : !m, %lse : !r, %scale : f32) -> (!m, !r) {
  %dq, %total = blocksparse.pair_sums rows(%q : !m) columns(%k : !m)
      row_values(%lse : !r) scale(%scale : f32) -> !m, !r
      {block_m = 64 : i32, block_n = 32 : i32, products = [array<i32: 0, 0>],
       sums = [#flex.sum<matrix [[0, 0]] scaled>, #flex.sum<total [[0]]>]}
      pairs(%qk : f32, %s : f32, %l : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    %w = arith.subf %qk, %l : f32
    flex.yield %w : f32
  } segments {
    blocksparse.segment full {inside} bounds(%b : i32, %h : i32, %q_start : i32,
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
  func.return %dq, %total : !m, !r
}

// Keys are rows: their program visits the segments of each head of the query that
// reads them, and adds up. The region is in terms of queries and keys as ever.
// CHECK-LABEL: tile.kernel @columns
// CHECK-SAME: rows = "keys", mask = "qi >= ki"
// CHECK: %k_tile = tile.load %k[%b, %h, %row_start, %{{.*}}] checked [0]
// CHECK: %group = arith.divsi %q_heads, %own_heads
// CHECK: %shared_batches = arith.divsi %batches, %own_batches
// CHECK: %[[COUNT:.*]] = arith.muli %group, %shared_batches
// CHECK: scf.for %shared = %{{.*}} to %[[COUNT]] step %{{.*}} iter_args(
// CHECK: %q_b = arith.addi
// CHECK: %q_h = arith.addi
// CHECK: scf.for
// CHECK: %q_tile = tile.load %q[%q_b, %q_h, %q_start, %{{.*}}] checked [0]
// CHECK: %lse_1 = tile.load %lse[%q_b, %q_h, %q_start] checked [0]
// CHECK: %dot = tile.dot %k_tile, %q_tile_t
// CHECK: %w = tile.map({{.*}} %lse_2 : f32 = %lse_1 [1] : !tile.tile<32xf32>, {{.*}} %rows_1 : i32 = %rows [0] : !tile.tile<64xi32>, %columns_1 : i32 = %columns [1] : !tile.tile<32xi32>) {
// CHECK: %[[INSIDE:.*]] = arith.cmpi slt, %columns_1, %column_len_1 : i32
// CHECK: %c = arith.cmpi sge, %columns_1, %rows_1 : i32
// CHECK-NEXT: %[[LIVE:.*]] = arith.andi %c, %[[INSIDE]] : i1
// CHECK: arith.select %[[LIVE]], %w_1, %{{.*}} : f32
// CHECK: tile.store %{{.*}}, %dk[%b, %h, %row_start, %{{.*}}] checked [0]
func.func @columns(%q : !m, %k : !m, %lse : !r, %scale : f32) -> !m {
  %dk = blocksparse.pair_sums rows(%k : !m) columns(%q : !m) column_values(%lse : !r)
      scale(%scale : f32) -> !m
      {block_m = 64 : i32, block_n = 32 : i32, products = [array<i32: 0, 0>],
       sums = [#flex.sum<matrix [[0, 0]]>], transposed}
      pairs(%qk : f32, %s : f32, %l : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    %w = arith.subf %qk, %l : f32
    flex.yield %w : f32
  } segments {
    blocksparse.segment partial bounds(%b : i32, %h : i32, %kv_start : i32,
        %kv_len : i32, %q_len : i32) {
      %zero = arith.constant 0 : i32
      %one = arith.constant 1 : i32
      flex.yield %zero, %one : i32, i32
    } block(%b : i32, %h : i32, %kv_start : i32, %i : i32, %kv_len : i32, %q_len : i32) {
      %n = arith.constant 32 : i32
      %q_start = arith.muli %i, %n : i32
      flex.yield %q_start : i32
    } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
      %c = arith.cmpi sge, %qi, %ki : i32
      flex.yield %c : i1
    }
  }
  func.return %dk : !m
}

// A part of all rows and heads: what is read is offset, what is stored is not, and
// there are programs for the part alone. Rows beyond the last must not count.
// CHECK-LABEL: tile.kernel @part
// CHECK: %part_heads = tile.dim %d, 1
// CHECK: %[[BLOCKS:.*]] = tile.dim %d, 2
// CHECK: %part_rows_1 = arith.muli %[[BLOCKS]], %{{.*}}
// CHECK: %m_blocks = arith.divsi
// CHECK: %m_block_1 = arith.subi
// CHECK: %row_start = arith.muli %m_block_1, %{{.*}}
// CHECK: %b_1 = arith.addi %b, %b0
// CHECK: %h_1 = arith.addi %h, %h0
// CHECK: %row_start_1 = arith.addi %row_start, %r0
// CHECK: %q_tile = tile.load %q[%b_1, %h_1, %row_start_1, %{{.*}}] checked [0]
// CHECK: arith.cmpi slt, %rows_1, %row_len_1 : i32
// CHECK: %diagonals = tile.diagonals %{{.*}} : !tile.tile<64x64xf32> -> !tile.tile<128xf32>
// CHECK: %at = arith.addi
// CHECK-NEXT: tile.add_to %diagonals, %d[%b, %h, %m_block_1, %at]
func.func @part(%q : !m, %k : !m, %b0 : i32, %h0 : i32, %r0 : i32, %scale : f32) -> !p {
  %d = blocksparse.pair_sums rows(%q : !m) columns(%k : !m)
      tile_origin(%b0, %h0, %r0 : i32, i32, i32) scale(%scale : f32) -> !p
      {block_m = 64 : i32, block_n = 64 : i32, products = [array<i32: 0, 0>],
       sums = [#flex.sum<diagonal [[0]]>], paired_heads,
       order = #blocksparse<order descending>}
      pairs(%qk : f32, %s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %qk : f32
  } segments {
    blocksparse.segment full {inside} bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32) {
      %zero = arith.constant 0 : i32
      %one = arith.constant 1 : i32
      flex.yield %zero, %one : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32, %kv_len : i32) {
      %n = arith.constant 64 : i32
      %kv_start = arith.muli %i, %n : i32
      flex.yield %kv_start : i32
    }
  }
  func.return %d : !p
}

// What is done to rows alone is a kernel as well.
// CHECK-LABEL: tile.kernel @dots
// CHECK: %product = tile.map(
// CHECK: %dots = tile.reduce sum %product along 1
// CHECK: arith.subf
// CHECK: tile.store %{{.*}}, %delta[
func.func @dots(%q : !m, %lse : !r) -> !r {
  %delta = flex.map_rows lhs(%q : !m) rhs(%q : !m) values(%lse : !r) -> !r
      code(%dot : f32, %l : f32) {
    %d = arith.subf %dot, %l : f32
    flex.yield %d : f32
  }
  func.return %delta : !r
}

// A result that depends on no operand is a constant tile.
// CHECK-LABEL: tile.kernel @several
// CHECK: %d_1 = tile.map(%lse_2 : f32 = %lse_1 [0]
// CHECK: math.exp2
// CHECK: tile.store %d_1 : !tile.tile<64xf32>, %d[%0, %1, %start] checked [0]
// CHECK: %w_1 = tile.map(%q_2 : bf16 = %q_1 [0, 1] : {{.*}}, %scale_1 : f32 = %scale [] : f32)
// CHECK: arith.truncf
// CHECK: tile.store %w_1 : {{.*}}, %w[
// CHECK: %[[Z:.*]] = tile.full %zero : f32 -> !tile.tile<64x4xf32>
// CHECK: tile.store %[[Z]] : {{.*}}, %z[
func.func @several(%q : !m, %lse : !r, %scale : f32) -> (!r, !m, tensor<?x?x?x4xf32>) {
  %d, %w, %z = flex.map_rows values(%q, %lse, %scale : !m, !r, f32)
      -> !r, !m, tensor<?x?x?x4xf32> code(%x : f32, %l : f32, %s : f32) {
    %e = math.exp2 %l : f32
    %y = arith.mulf %x, %s : f32
    %zero = arith.constant 0.0 : f32
    flex.yield %e, %y, %zero : f32, f32, f32
  }
  func.return %d, %w, %z : !r, !m, tensor<?x?x?x4xf32>
}
