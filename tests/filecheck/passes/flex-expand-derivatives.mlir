// RUN: flexc-opt %s -p flex-expand-derivatives | filecheck %s

!m = tensor<?x?x?x8xf32>
!r = tensor<?x?x?xf32>

// A kernel for what is summed over keys, one for what is summed over queries, one for
// each sum by distance or by pair; and what is done with their sums.
// CHECK-LABEL: func.func @reads_delta(%do: {{.*}}, %out: {{.*}}, %lse: {{[^)]*}})
// CHECK: %delta, %shift = flex.map_rows lhs(%do : {{[^)]*}}) rhs(%out : {{[^)]*}}) values(%lse : {{[^)]*}}) -> {{.*}} {alignment = 16 : i64} code(%dot: f32, %lse_1: f32) {
// CHECK-LABEL: func.func @reads_query(
// CHECK: %d_query, %total_sums = flex.pair_sums rows(%q, %do : {{[^)]*}}) columns(%k, %v : {{[^)]*}}) row_values(%shift, %delta : {{[^)]*}}) scale(%scale : f32) captures(%slopes, %table : {{[^)]*}})
// CHECK-SAME: {alignment = 16 : i64, products = [array<i32: 0, 0>, array<i32: 1, 1>], sums = [#flex.sum<matrix {{\[\[}}0, 0]] scaled>, #flex.sum<total {{\[\[}}1]]>]}
// CHECK-SAME: pairs(%qk: f32, %dp: f32, %scale_1: f32, %shift_1: f32, %delta_1: f32, %b: i32
// CHECK-NEXT: %s = arith.mulf %qk, %scale_1 : f32
// CHECK-NEXT: %slope = flex.load_capture
// CHECK: %p = math.exp2
// CHECK-NEXT: %[[CENTRED:.*]] = arith.subf %dp, %delta_1 : f32
// CHECK-NEXT: %dx = arith.mulf %p, %[[CENTRED]] : f32
// CHECK: %[[SCALED:.*]] = arith.mulf %dx, %slope : f32
// CHECK: %[[TIMES:.*]] = arith.mulf %dx, %s : f32
// CHECK: flex.yield %d_s, %d_slope : f32, f32
// CHECK-NEXT: } mask_mod(
// CHECK-NEXT: %c = arith.cmpi sge, %qi, %ki : i32
// CHECK-LABEL: func.func @reads_key_value(
// CHECK: %d_key, %d_value = flex.pair_sums rows(%k, %v : {{[^)]*}}) columns(%q, %do : {{[^)]*}}) column_values(%shift, %delta : {{[^)]*}})
// CHECK-SAME: {alignment = 16 : i64, products = [array<i32: 0, 0>, array<i32: 1, 1>], sums = [#flex.sum<matrix {{\[\[}}0, 0]] scaled>, #flex.sum<matrix {{\[\[}}1, 1]]>], transposed}
// CHECK-SAME: pairs(%qk: f32, %dp: f32, %scale_1: f32, %shift_1: f32, %delta_1: f32, %b: i32, %h: i32, %q_idx: i32, %kv_idx: i32
// CHECK: flex.yield %d_s, %p : f32, f32
// CHECK-LABEL: func.func @reads_read_0(
// CHECK: %diagonal_sums = flex.pair_sums rows({{.*}}) tile_origin(%{{.*}}, %{{.*}}, %{{.*}} : i32, i32, i32) scale({{.*}}) {{.*}} sums = [#flex.sum<diagonal {{\[\[}}0]]>]
// CHECK: flex.yield %dx : f32
// CHECK-LABEL: func.func @reads(
// CHECK-NEXT: %delta, %shift = flex.launch @reads_delta(%do, %out, %lse)
// CHECK-NEXT: %d_query, %total_sums = flex.launch @reads_query(
// CHECK-NEXT: %d_slopes = flex.scatter_sums head %total_sums, %slopes : {{.*}} index(%b: i32, %h: i32
// CHECK-NEXT: flex.yield %h : i32
// CHECK: %d_key, %d_value = flex.launch @reads_key_value(
// CHECK: %diagonal_sums = flex.launch @reads_read_0(
// CHECK-NEXT: %d_table = flex.scatter_sums distance %diagonal_sums, %table
// CHECK-NEXT: %d = arith.subi %qi, %ki : i32
// CHECK-NEXT: flex.yield %h, %d : i32, i32
// CHECK: func.return %d_query, %d_key, %d_value, %d_slopes, %d_table
func.func @reads(%q : !m, %k : !m, %v : !m, %scale : f32, %slopes : tensor<?xf32>,
    %table : tensor<?x?xf32>, %out : !m, %lse : !r, %do : !m)
    -> (!m, !m, !m, tensor<?xf32>, tensor<?x?xf32>) {
  %dq, %dk, %dv, %ds, %dt = flex.attention_backward %q, %k, %v : !m, !m, !m
      saved(%out, %lse : !m, !r) cotangents(%do : !m) scale(%scale : f32)
      captures(%slopes, %table : tensor<?xf32>, tensor<?x?xf32>)
      -> !m, !m, !m, tensor<?xf32>, tensor<?x?xf32>
      {wrt = ["query", "key", "value", "capture 0", "capture 1"], alignment = 16}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32,
                %slopes_ : tensor<?xf32>, %table_ : tensor<?x?xf32>) {
    %slope = flex.load_capture %slopes_[%h] : tensor<?xf32>, i32
    %x = arith.mulf %s, %slope : f32
    %d = arith.subi %qi, %ki : i32
    %t = flex.load_capture %table_[%h, %d] : tensor<?x?xf32>, i32, i32
    %y = arith.addf %x, %t : f32
    flex.yield %y : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %slopes_ : tensor<?xf32>,
             %table_ : tensor<?x?xf32>) {
    %c = arith.cmpi sge, %qi, %ki : i32
    flex.yield %c : i1
  }
  func.return %dq, %dk, %dv, %ds, %dt : !m, !m, !m, tensor<?xf32>, tensor<?x?xf32>
}

// Reads of equal adjoints have the same sums, whatever they read.
// CHECK-LABEL: func.func @alike_read_0(
// CHECK: %pairs_sums = flex.pair_sums {{.*}} sums = [#flex.sum<pairs {{\[\[}}0]]>]
// CHECK-NOT: @alike_read_1
// CHECK-LABEL: func.func @alike(
// CHECK: %pairs_sums = flex.launch @alike_read_0(
// CHECK-NEXT: %d_table = flex.scatter_sums pair %pairs_sums, %table
// CHECK: %d_other = flex.scatter_sums pair %pairs_sums, %other
// CHECK: %d_table_1 = flex.scatter_sums pair %pairs_sums, %table {{.*}} plus(%d_table :
func.func @alike(%q : !m, %k : !m, %v : !m, %scale : f32, %table : tensor<?x?xf32>,
    %other : tensor<?x?xf32>, %out : !m, %lse : !r, %do : !m)
    -> (tensor<?x?xf32>, tensor<?x?xf32>) {
  %dt, %do_ = flex.attention_backward %q, %k, %v : !m, !m, !m
      saved(%out, %lse : !m, !r) cotangents(%do : !m) scale(%scale : f32)
      captures(%table, %other : tensor<?x?xf32>, tensor<?x?xf32>)
      -> tensor<?x?xf32>, tensor<?x?xf32> {wrt = ["capture 0", "capture 1"]}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32,
                %table_ : tensor<?x?xf32>, %other_ : tensor<?x?xf32>) {
    %t = flex.load_capture %table_[%qi, %ki] : tensor<?x?xf32>, i32, i32
    %o = flex.load_capture %other_[%qi, %ki] : tensor<?x?xf32>, i32, i32
    %u = flex.load_capture %table_[%ki, %qi] : tensor<?x?xf32>, i32, i32
    %x = arith.addf %s, %t : f32
    %y = arith.addf %x, %o : f32
    %z = arith.addf %y, %u : f32
    flex.yield %z : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %table_ : tensor<?x?xf32>,
             %other_ : tensor<?x?xf32>) {
    %c = arith.constant true
    flex.yield %c : i1
  }
  func.return %dt, %do_ : tensor<?x?xf32>, tensor<?x?xf32>
}

// What is not asked for is not computed: d_out and the value do not meet.
// CHECK-NOT: @value_alone_delta
// CHECK-LABEL: func.func @value_alone_key_value(
// CHECK: %d_value = flex.pair_sums rows(%k : {{[^)]*}}) columns(%q, %do : {{[^)]*}}) column_values(%lse : tensor<?x?x?xf32>)
// CHECK-SAME: {products = [array<i32: 0, 0>], sums = [#flex.sum<matrix {{\[\[}}0, 1]]>], transposed}
// CHECK-SAME: pairs(%qk: f32, %scale_1: f32, %lse_1: f32, %b: i32
// CHECK: flex.yield %p : f32
// CHECK-LABEL: func.func @value_alone(
// CHECK-NEXT: %d_value = flex.launch @value_alone_key_value(
// CHECK-NEXT: func.return %d_value
func.func @value_alone(%q : !m, %k : !m, %v : !m, %scale : f32, %out : !m, %lse : !r,
                       %do : !m) -> !m {
  %dv = flex.attention_backward %q, %k, %v : !m, !m, !m saved(%out, %lse : !m, !r)
      cotangents(%do : !m) scale(%scale : f32) -> !m {wrt = ["value"]}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return %dv : !m
}

// A step has no derivative, and a captured tensor no gradient through it.
// CHECK-LABEL: func.func @zero_query(
// CHECK: sums = [#flex.sum<matrix [] scaled>]
// CHECK-LABEL: func.func @zero(
// CHECK: %ds = flex.zeros_like %slopes : tensor<?xf32> -> tensor<?xf32>
// CHECK-NEXT: func.return %d_query, %ds
func.func @zero(%q : !m, %k : !m, %v : !m, %scale : f32, %slopes : tensor<?xf32>,
                %out : !m, %lse : !r, %do : !m) -> (!m, tensor<?xf32>) {
  %dq, %ds = flex.attention_backward %q, %k, %v : !m, !m, !m
      saved(%out, %lse : !m, !r) cotangents(%do : !m) scale(%scale : f32)
      captures(%slopes : tensor<?xf32>) -> !m, tensor<?xf32>
      {wrt = ["query", "capture 0"]}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32,
                %slopes_ : tensor<?xf32>) {
    %slope = flex.load_capture %slopes_[%h] : tensor<?xf32>, i32
    %down = math.floor %slope : f32
    flex.yield %down : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %slopes_ : tensor<?xf32>) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return %dq, %ds : !m, tensor<?xf32>
}

// Scores move with the keys, and what is summed with scores and values.
// CHECK-LABEL: func.func @jvp_tangents(
// CHECK: %sums, %t_lse = flex.pair_sums rows(%q : {{[^)]*}}) columns(%k, %t_k, %v, %t_v : {{[^)]*}}) row_values(%lse : {{[^)]*}})
// CHECK-SAME: {products = [array<i32: 0, 0>, array<i32: 0, 1>], sums = [#flex.sum<matrix {{\[\[}}0, 2], [1, 3]]>, #flex.sum<total {{\[\[}}0]]>]}
// CHECK-SAME: pairs(%qk: f32, %t_qk: f32, %scale_1: f32, %lse_1: f32, %b: i32
// CHECK: %t_s = arith.mulf %t_qk, %scale_1 : f32
// CHECK-NEXT: %p_t_x = arith.mulf %p, %t_s : f32
// CHECK-NEXT: flex.yield %p_t_x, %p : f32, f32
// CHECK-LABEL: func.func @jvp(
// CHECK-NEXT: %sums, %t_lse = flex.launch @jvp_tangents(%q, %k, %t_k, %v, %t_v, %lse, %scale)
// CHECK-NEXT: %t_out = flex.center_rows %sums, %t_lse, %out
// CHECK-NEXT: func.return %t_out, %t_lse
func.func @jvp(%q : !m, %k : !m, %v : !m, %scale : f32, %out : !m, %lse : !r,
               %t_k : !m, %t_v : !m) -> (!m, !r) {
  %t_out, %t_lse = flex.attention_jvp %q, %k, %v : !m, !m, !m saved(%out, %lse : !m, !r)
      tangents(%t_k, %t_v : !m, !m) scale(%scale : f32) -> !m, !r
      {along = ["key", "value"]}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return %t_out, %t_lse : !m, !r
}

// out, lse and delta move too. A sum has terms for what moves in its products.
// CHECK-LABEL: func.func @second_delta(
// CHECK-LABEL: func.func @second_tangents(
// CHECK-LABEL: func.func @second_t_delta(
// CHECK: %t_delta = flex.map_rows lhs(%t_do, %do : {{[^)]*}}) rhs(%out, %t_out : {{[^)]*}})
// CHECK-LABEL: func.func @second_query(
// CHECK: %d_query = flex.pair_sums rows(%q, %do, %t_q, %t_do : {{[^)]*}}) columns(%k, %v : {{[^)]*}}) row_values(%lse, %delta, %t_lse, %t_delta : {{[^)]*}})
// CHECK-SAME: {products = [array<i32: 0, 0>, array<i32: 1, 1>, array<i32: 2, 0>, array<i32: 3, 1>], sums = [#flex.sum<matrix {{\[\[}}0, 0]] scaled>]}
// CHECK: flex.yield %t_dx : f32
// CHECK-LABEL: func.func @second_key_value(
// CHECK: %d_value = flex.pair_sums rows(%k : {{[^)]*}}) columns(%q, %t_q, %do, %t_do : {{[^)]*}}) column_values(%lse, %t_lse : {{[^)]*}})
// CHECK-SAME: sums = [#flex.sum<matrix {{\[\[}}0, 2], [1, 3]]>], transposed
// CHECK: flex.yield %t_p, %p : f32, f32
// CHECK-LABEL: func.func @second(
// CHECK: %t_out = flex.center_rows %sums, %t_lse, %out
// CHECK-NEXT: %t_delta = flex.launch @second_t_delta(%t_do, %do, %out, %t_out)
func.func @second(%q : !m, %k : !m, %v : !m, %scale : f32, %out : !m, %lse : !r,
                  %do : !m, %t_q : !m, %t_do : !m) -> (!m, !m) {
  %dq, %dv = flex.attention_backward %q, %k, %v : !m, !m, !m saved(%out, %lse : !m, !r)
      cotangents(%do : !m) tangents(%t_q, %t_do : !m, !m) scale(%scale : f32) -> !m, !m
      {wrt = ["query", "value"], along = ["query", "d_out"]}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return %dq, %dv : !m, !m
}

// Each side has its own tables; rows are weighed by what lse lost.
// CHECK-LABEL: func.func @tables_weighed_d_out(
// CHECK: %d_out = flex.map_rows values(%do, %lse, %rest :
// CHECK-LABEL: func.func @tables_weighed_d_lse(
// CHECK: %d_lse = flex.map_rows values(%dl, %lse, %rest :
// CHECK-LABEL: func.func @tables_delta(
// CHECK: %delta, %shift = flex.map_rows lhs(%d_out : {{[^)]*}}) rhs(%out : {{[^)]*}}) values(%lse, %d_lse : {{[^)]*}})
// CHECK-LABEL: func.func @tables_query(
// CHECK: flex.pair_sums {{.*}} tables(%num, %idx : {{[^)]*}}) {{.*}} sparse_block = array<i64: 64, 128>}
// CHECK-LABEL: func.func @tables_key_value(
// CHECK: flex.pair_sums {{.*}} tables(%q_num, %q_idx : {{[^)]*}}) {{.*}} transposed, sparse_block = array<i64: 128, 64>}
func.func @tables(%q : !m, %k : !m, %v : !m, %scale : f32, %num : tensor<?x?x?xi32>,
    %idx : tensor<?x?x?x?xi32>, %q_num : tensor<?x?x?xi32>, %q_idx : tensor<?x?x?x?xi32>,
    %out : !m, %lse : !r, %rest : !r, %do : !m, %dl : !r) -> (!m, !m) {
  %dq, %dk = flex.attention_backward %q, %k, %v : !m, !m, !m
      saved(%out, %lse, %rest : !m, !r, !r) cotangents(%do, %dl : !m, !r)
      scale(%scale : f32) tables(%num, %idx : tensor<?x?x?xi32>, tensor<?x?x?x?xi32>)
      column_tables(%q_num, %q_idx : tensor<?x?x?xi32>, tensor<?x?x?x?xi32>) -> !m, !m
      {wrt = ["query", "key"], sparse_block = array<i64: 64, 128>,
       column_block = array<i64: 128, 64>}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c = arith.cmpi sge, %qi, %ki : i32
    flex.yield %c : i1
  }
  func.return %dq, %dk : !m, !m
}
