// RUN: FLEXC_ROUNDTRIP
// RUN: FLEXC_GENERIC_ROUNDTRIP

!m = tensor<?x?x?x8xf32>
!r = tensor<?x?x?xf32>

// CHECK-LABEL: @every_part
// CHECK-GENERIC-LABEL: "every_part"
func.func @every_part(%q : !m, %k : !m, %v : !m, %lse : !r, %zero : i32, %scale : f32,
                      %bias : tensor<?xf32>, %num : tensor<?x?x?xi32>,
                      %idx : tensor<?x?x?x?xi32>) {
  // CHECK: %dq, %total, %diagonals, %pairs = flex.pair_sums rows(%q, %q : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) columns(%k, %v : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>)
  // CHECK-SAME: row_values(%lse : tensor<?x?x?xf32>) column_values(%lse : tensor<?x?x?xf32>) tile_origin(%zero, %zero, %zero : i32, i32, i32) scale(%scale : f32) captures(%bias : tensor<?xf32>)
  // CHECK-SAME: tables(%num, %idx : tensor<?x?x?xi32>, tensor<?x?x?x?xi32>) -> tensor<?x?x?x8xf32>, tensor<?x?x?xf32>, tensor<?x?x?x?xf32>, tensor<?x?x?x?xf32>
  // CHECK-SAME: {products = [array<i32: 0, 0>, array<i32: 1, 1, 0, 1>], sums = [#flex.sum<matrix {{\[\[}}0, 0], [1, 1]] scaled>, #flex.sum<total {{\[\[}}0], [1]]>, #flex.sum<diagonal {{\[\[}}1]]>, #flex.sum<pairs {{\[\[}}0]]>], transposed, scale_positive, sparse_block = array<i64: 128, 64>}
  // CHECK-SAME: pairs(%qk: f32, %dp: f32, %scale_: f32, %lse_: f32, %other: f32, %b: i32, %h: i32, %qi: i32, %ki: i32, %bias_: tensor<?xf32>) {
  // CHECK: flex.yield %qk, %dp : f32, f32
  // CHECK-NEXT: } mask_mod(
  // CHECK-GENERIC: "flex.pair_sums"({{.*}}) <{
  // CHECK-GENERIC-SAME: operandSegmentSizes = array<i32: 2, 2, 1, 1, 3, 1, 1, 2>
  %dq, %total, %diagonals, %pairs = flex.pair_sums rows(%q, %q : !m, !m)
      columns(%k, %v : !m, !m) row_values(%lse : !r) column_values(%lse : !r)
      tile_origin(%zero, %zero, %zero : i32, i32, i32) scale(%scale : f32)
      captures(%bias : tensor<?xf32>)
      tables(%num, %idx : tensor<?x?x?xi32>, tensor<?x?x?x?xi32>)
      -> !m, !r, tensor<?x?x?x?xf32>, tensor<?x?x?x?xf32>
      {products = [array<i32: 0, 0>, array<i32: 1, 1, 0, 1>],
       sums = [#flex.sum<matrix [[0, 0], [1, 1]] scaled>, #flex.sum<total [[0], [1]]>,
               #flex.sum<diagonal [[1]]>, #flex.sum<pairs [[0]]>],
       transposed, scale_positive, sparse_block = array<i64: 128, 64>}
      pairs(%qk : f32, %dp : f32, %scale_ : f32, %lse_ : f32, %other : f32, %b : i32,
            %h : i32, %qi : i32, %ki : i32, %bias_ : tensor<?xf32>) {
    flex.yield %qk, %dp : f32, f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %bias_ : tensor<?xf32>) {
    %c = arith.cmpi sge, %qi, %ki : i32
    flex.yield %c : i1
  }
  func.return
}

// CHECK-LABEL: @both_sides
func.func @both_sides(%q : !m, %k : !m, %v : !m, %scale : f32) {
  // CHECK: %dq, %dk = flex.pair_sums rows(%q, %v : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) columns(%k : tensor<?x?x?x8xf32>) scale(%scale : f32) -> tensor<?x?x?x8xf32>, tensor<?x?x?x?x8xf32>
  // CHECK-SAME: sums = [#flex.sum<matrix {{\[\[}}0, 0]]>, #flex.sum<column_matrix {{\[\[}}0, 0], [0, 1]] scaled>]
  %dq, %dk = flex.pair_sums rows(%q, %v : !m, !m) columns(%k : !m) scale(%scale : f32)
      -> !m, tensor<?x?x?x?x8xf32>
      {products = [array<i32: 0, 0>],
       sums = [#flex.sum<matrix [[0, 0]]>, #flex.sum<column_matrix [[0, 0], [0, 1]] scaled>]}
      pairs(%qk : f32, %s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %qk : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c = arith.cmpi sge, %qi, %ki : i32
    flex.yield %c : i1
  }
  // CHECK: %sum = flex.sum_parts %dk : tensor<?x?x?x?x8xf32> -> tensor<?x?x?x8xbf16>
  %sum = flex.sum_parts %dk : tensor<?x?x?x?x8xf32> -> tensor<?x?x?x8xbf16>
  func.return
}

// CHECK-LABEL: @rows
func.func @rows(%q : !m, %v : tensor<?x?x?x4xbf16>, %lse : !r, %scale : f32) {
  // CHECK: %delta, %zeros = flex.map_rows lhs(%q, %q : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) rhs(%q, %q : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) values(%lse : tensor<?x?x?xf32>) -> tensor<?x?x?xf32>, tensor<?x?x?x4xf32> {alignment = 16 : i64} code(%dot: f32, %lse_: f32) {
  // CHECK-GENERIC: "flex.map_rows"({{.*}}) <{alignment = 16 : i64, operandSegmentSizes = array<i32: 2, 2, 1>}>
  %delta, %zeros = flex.map_rows lhs(%q, %q : !m, !m) rhs(%q, %q : !m, !m)
      values(%lse : !r) -> !r, tensor<?x?x?x4xf32> {alignment = 16 : i64}
      code(%dot : f32, %lse_ : f32) {
    %d = arith.subf %dot, %lse_ : f32
    %z = arith.constant 0.0 : f32
    flex.yield %d, %z : f32, f32
  }
  // CHECK: %scaled = flex.map_rows values(%v, %scale : tensor<?x?x?x4xbf16>, f32) -> tensor<?x?x?x4xbf16> code(%x: f32, %s: f32) {
  %scaled = flex.map_rows values(%v, %scale : tensor<?x?x?x4xbf16>, f32)
      -> tensor<?x?x?x4xbf16> code(%x : f32, %s : f32) {
    %y = arith.mulf %x, %s : f32
    flex.yield %y : f32
  }
  func.return
}

func.func @kernel(%sums : !r, %out : !m) -> (!r, !m) {
  func.return %sums, %out : !r, !m
}

// CHECK-LABEL: @finish
func.func @finish(%sums : !r, %bias : tensor<?xbf16>, %out : !m) {
  // CHECK: %d = flex.zeros_like %bias : tensor<?xbf16> -> tensor<?xbf16>
  %d = flex.zeros_like %bias : tensor<?xbf16> -> tensor<?xbf16>
  // CHECK: %e = flex.scatter_sums row %sums, %bias : tensor<?x?x?xf32>, tensor<?xbf16> captures(%bias : tensor<?xbf16>) plus(%d : tensor<?xbf16>) index(%b: i32, %h: i32, %qi: i32, %ki: i32, %bias_: tensor<?xbf16>) {
  // CHECK-NEXT: flex.yield %qi : i32
  // CHECK-GENERIC: "flex.scatter_sums"(%sums, %bias, %bias, %d) <{by = #flex<coordinates row>
  %e = flex.scatter_sums row %sums, %bias : !r, tensor<?xbf16>
      captures(%bias : tensor<?xbf16>) plus(%d : tensor<?xbf16>)
      index(%b : i32, %h : i32, %qi : i32, %ki : i32, %bias_ : tensor<?xbf16>) {
    flex.yield %qi : i32
  }
  // CHECK: %t = flex.center_rows %out, %sums, %out : tensor<?x?x?x8xf32>, tensor<?x?x?xf32>, tensor<?x?x?x8xf32> -> tensor<?x?x?x8xf32>
  %t = flex.center_rows %out, %sums, %out : !m, !r, !m -> !m
  // CHECK: %l, %m = flex.launch @kernel(%sums, %out) : tensor<?x?x?xf32>, tensor<?x?x?x8xf32> -> tensor<?x?x?xf32>, tensor<?x?x?x8xf32>
  %l, %m = flex.launch @kernel(%sums, %out) : !r, !m -> !r, !m
  // CHECK: %n, %o = flex.launch @kernel(%sums, %out) plus(%t : tensor<?x?x?x8xf32>) : tensor<?x?x?xf32>, tensor<?x?x?x8xf32> -> tensor<?x?x?xf32>, tensor<?x?x?x8xf32>
  %n, %o = flex.launch @kernel(%sums, %out) plus(%t : !m) : !r, !m -> !r, !m
  func.return
}
