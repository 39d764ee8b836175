// RUN: flexc-opt %s -p 'flex-expand-derivatives{one_pass=queries}' | filecheck %s

!m = tensor<?x?x?x8xbf16>
!r = tensor<?x?x?xf32>

// One kernel for all of query, key and value, and for what is read by row, of which
// the adjoints are those of scores: computed once. Sums by
// column are rounded once all their parts are added up. What is read by column has a
// kernel of its own.
// CHECK-LABEL: func.func @all_delta
// CHECK-LABEL: func.func @all_gradients(
// CHECK: %d_query, %d_key, %d_value, %total_sums = flex.pair_sums rows(%q, %do : {{[^)]*}}) columns(%k, %v : {{[^)]*}}) row_values(%lse, %delta : {{[^)]*}})
// CHECK-SAME: -> tensor<?x?x?x8xbf16, strided<[?, ?, ?, 1]>>, tensor<?x?x?x?x8xf32, strided<[?, ?, ?, ?, 1]>>, tensor<?x?x?x?x8xf32, strided<[?, ?, ?, ?, 1]>>, tensor<?x?x?xf32, strided<[?, ?, 1]>>
// CHECK-SAME: sums = [#flex.sum<matrix {{\[\[}}0, 0]] scaled>, #flex.sum<column_matrix {{\[\[}}0, 0]] scaled>, #flex.sum<column_matrix {{\[\[}}1, 1]]>, #flex.sum<total {{\[\[}}0]]>]}
// CHECK-LABEL: func.func @all_key_value(
// CHECK: flex.pair_sums rows(%k, %v : {{[^)]*}}) columns(%q, %do : {{[^)]*}})
// CHECK-SAME: sums = [#flex.sum<total {{\[\[}}0]]>], transposed}
// CHECK-LABEL: func.func @all(
// CHECK: %d_query, %d_key, %d_value, %total_sums = flex.launch @all_gradients(
// CHECK-NEXT: %d_rows = flex.scatter_sums row %total_sums, %rows
// CHECK: %d_key_1 = flex.sum_parts %d_key : {{.*}} -> tensor<?x?x?x8xbf16, strided<[?, ?, ?, 1]>>
// CHECK-NEXT: %d_value_1 = flex.sum_parts %d_value
// CHECK-NEXT: %[[SUMS:.*]] = flex.launch @all_key_value(
// CHECK-NEXT: %d_columns = flex.scatter_sums column %[[SUMS]], %columns
// CHECK: func.return %d_query, %d_key_1, %d_value_1, %d_rows, %d_columns
func.func @all(%q : !m, %k : !m, %v : !m, %scale : f32, %rows : tensor<?xf32>,
    %columns : tensor<?xf32>, %out : !m, %lse : !r, %do : !m)
    -> (!m, !m, !m, tensor<?xf32>, tensor<?xf32>) {
  %dq, %dk, %dv, %dr, %dc = flex.attention_backward %q, %k, %v : !m, !m, !m
      saved(%out, %lse : !m, !r) cotangents(%do : !m) scale(%scale : f32)
      captures(%rows, %columns : tensor<?xf32>, tensor<?xf32>)
      -> !m, !m, !m, tensor<?xf32>, tensor<?xf32>
      {wrt = ["query", "key", "value", "capture 0", "capture 1"]}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32,
                %rows_ : tensor<?xf32>, %columns_ : tensor<?xf32>) {
    %r = flex.load_capture %rows_[%qi] : tensor<?xf32>, i32
    %x = arith.addf %s, %r : f32
    %c = flex.load_capture %columns_[%ki] : tensor<?xf32>, i32
    %y = arith.mulf %x, %c : f32
    flex.yield %y : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %rows_ : tensor<?xf32>,
             %columns_ : tensor<?xf32>) {
    %c = arith.cmpi sge, %qi, %ki : i32
    flex.yield %c : i1
  }
  func.return %dq, %dk, %dv, %dr, %dc : !m, !m, !m, tensor<?xf32>, tensor<?xf32>
}

// What is read by distance or by pair is a sum more, of some rows at a time. Delta is
// part of the only kernel that reads it.
// CHECK-NOT: @pairs_delta
// CHECK-LABEL: func.func @pairs_gradients(
// CHECK-SAME: %q: {{.*}}, %do: {{.*}}, %lse: {{.*}}, %table: {{.*}}, %out: tensor<?x?x?x8xbf16>) ->
// CHECK-NEXT: %delta = flex.map_rows lhs(%do : {{[^)]*}}) rhs(%out : {{[^)]*}})
// CHECK: %d_query, %d_key, %diagonal_sums, %pairs_sums = flex.pair_sums {{.*}} tile_origin(%{{.*}} : i32)
// CHECK-SAME: sums = [#flex.sum<matrix {{\[\[}}0, 0]] scaled>, #flex.sum<column_matrix {{\[\[}}0, 0]] scaled>, #flex.sum<diagonal {{\[\[}}0]]>, #flex.sum<pairs {{\[\[}}1]]>]}
// CHECK-NOT: @pairs_read_0
// CHECK-LABEL: func.func @pairs(
// CHECK: %d_query, %d_key, %diagonal_sums, %pairs_sums = flex.launch @pairs_gradients(
// CHECK-NEXT: %d_bias = flex.scatter_sums distance %diagonal_sums, %bias
// CHECK: %d_table = flex.scatter_sums pair %pairs_sums, %table
func.func @pairs(%q : !m, %k : !m, %v : !m, %scale : f32, %bias : tensor<?xf32>,
    %table : tensor<?x?xf32>, %out : !m, %lse : !r, %do : !m)
    -> (!m, !m, tensor<?xf32>, tensor<?x?xf32>) {
  %dq, %dk, %db, %dt = flex.attention_backward %q, %k, %v : !m, !m, !m
      saved(%out, %lse : !m, !r) cotangents(%do : !m) scale(%scale : f32)
      captures(%bias, %table : tensor<?xf32>, tensor<?x?xf32>)
      -> !m, !m, tensor<?xf32>, tensor<?x?xf32>
      {wrt = ["query", "key", "capture 0", "capture 1"]}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32,
                %bias_ : tensor<?xf32>, %table_ : tensor<?x?xf32>) {
    %d = arith.subi %qi, %ki : i32
    %near = flex.load_capture %bias_[%d] : tensor<?xf32>, i32
    %x = arith.addf %s, %near : f32
    %t = flex.load_capture %table_[%qi, %ki] : tensor<?x?xf32>, i32, i32
    %two = arith.constant 2.0 : f32
    %u = arith.mulf %t, %two : f32
    %y = arith.addf %x, %u : f32
    flex.yield %y : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %bias_ : tensor<?xf32>,
             %table_ : tensor<?x?xf32>) {
    %c = arith.cmpi sge, %qi, %ki : i32
    flex.yield %c : i1
  }
  func.return %dq, %dk, %db, %dt : !m, !m, tensor<?xf32>, tensor<?x?xf32>
}

// If only one side is wanted, no more is visited than that takes.
// CHECK-LABEL: func.func @one_side_key_value(
// CHECK: %d_key = flex.pair_sums rows(%k, %v : {{.*}} sums = [#flex.sum<matrix {{\[\[}}0, 0]] scaled>], transposed}
// CHECK-LABEL: func.func @one_side(
// CHECK-NOT: flex.sum_parts
func.func @one_side(%q : !m, %k : !m, %v : !m, %scale : f32, %out : !m, %lse : !r,
    %do : !m) -> !m {
  %dk = flex.attention_backward %q, %k, %v : !m, !m, !m
      saved(%out, %lse : !m, !r) cotangents(%do : !m) scale(%scale : f32)
      -> !m {wrt = ["key"]}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c = arith.cmpi sge, %qi, %ki : i32
    flex.yield %c : i1
  }
  func.return %dk : !m
}

// Weights of rows are part of it as well; what they are given is given once.
// CHECK-NOT: @weighed_weighed_d_out
// CHECK-LABEL: func.func @weighed_gradients(
// CHECK-SAME: %q: {{.*}}, %k: {{.*}}, %v: {{.*}}, %lse: {{.*}}, %scale: f32, %out: {{.*}}, %d_lse: {{.*}}, %rest: {{.*}}, %do: tensor<?x?x?x8xbf16>) ->
// CHECK-NEXT: %d_out = flex.map_rows values(%do, %lse, %rest : {{[^)]*}}) {{.*}} code(%do_1: f32,
// CHECK: math.exp2
// CHECK: %[[D_LSE:.*]] = flex.map_rows values(%d_lse, %lse, %rest : {{[^)]*}})
// CHECK: %delta = flex.map_rows lhs(%d_out : {{[^)]*}}) rhs(%out : {{[^)]*}}) values(%[[D_LSE]] : {{[^)]*}})
// CHECK: flex.pair_sums rows(%q, %d_out : {{[^)]*}}) columns(%k, %v : {{[^)]*}}) row_values(%lse, %delta : {{[^)]*}})
// CHECK-LABEL: func.func @weighed(
// CHECK-NEXT: %{{.*}} = flex.launch @weighed_gradients(
func.func @weighed(%q : !m, %k : !m, %v : !m, %scale : f32, %out : !m, %lse : !r,
    %rest : !r, %do : !m, %d_lse : !r) -> (!m, !m) {
  %dq, %dk = flex.attention_backward %q, %k, %v : !m, !m, !m
      saved(%out, %lse, %rest : !m, !r, !r) cotangents(%do, %d_lse : !m, !r)
      scale(%scale : f32) -> !m, !m {wrt = ["query", "key"]}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    %y = arith.addf %s, %s : f32
    flex.yield %y : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c = arith.cmpi sge, %qi, %ki : i32
    flex.yield %c : i1
  }
  func.return %dq, %dk : !m, !m
}
