// RUN: flexc-opt %s -p 'flex-expand-derivatives{one_pass=keys}' | filecheck %s

!m = tensor<?x?x?x8xf32>
!r = tensor<?x?x?xf32>

// One kernel, whose rows are keys, for the gradients of all inputs. It takes a shift in
// place of each row's lse, and adds to zeros. The query's sums are scaled when they are
// rounded.
// CHECK-LABEL: func.func @all_delta(
// CHECK: %delta, %shift, %zeros = flex.map_rows lhs(%do : {{[^)]*}}) rhs(%out : {{[^)]*}}) values(%lse : {{[^)]*}})
// CHECK-SAME: code(%dot: f32, %lse_1: f32) {
// CHECK-LABEL: func.func @all_gradients(
// CHECK: %d_value, %d_key, %d_query = flex.pair_sums rows(%k, %v : {{[^)]*}}) columns(%q, %do : {{[^)]*}}) column_values(%shift, %delta : {{[^)]*}})
// CHECK-SAME: sums = [#flex.sum<matrix {{\[\[}}0, 1]]>, #flex.sum<matrix {{\[\[}}1, 0]] scaled>, #flex.sum<column_matrix {{\[\[}}1, 0]]>], transposed}
// CHECK: %{{.*}} = math.fma %qk, %{{.*}}, %shift_1 : f32
// CHECK-LABEL: func.func @all_rounded_query(
// CHECK: %d_query_1 = flex.map_rows values(%d_query, %scale : {{[^)]*}})
// CHECK-LABEL: func.func @all(
// CHECK: flex.launch @all_gradients({{.*}}) plus(%zeros :
// CHECK: func.return %d_query_{{.*}}, %d_key, %d_value
func.func @all(%q : !m, %k : !m, %v : !m, %scale : f32, %out : !m, %lse : !r, %do : !m)
    -> (!m, !m, !m) {
  %dq, %dk, %dv = flex.attention_backward %q, %k, %v : !m, !m, !m
      saved(%out, %lse : !m, !r) cotangents(%do : !m) scale(%scale : f32)
      -> !m, !m, !m {wrt = ["query", "key", "value"]}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c = arith.cmpi sge, %qi, %ki : i32
    flex.yield %c : i1
  }
  func.return %dq, %dk, %dv : !m, !m, !m
}

// Without the query's gradient nothing is added by column.
// CHECK-LABEL: func.func @keys_key_value(
// CHECK: %d_key, %d_value = flex.pair_sums
// CHECK-NOT: column_matrix
func.func @keys(%q : !m, %k : !m, %v : !m, %scale : f32, %out : !m, %lse : !r, %do : !m)
    -> (!m, !m) {
  %dk, %dv = flex.attention_backward %q, %k, %v : !m, !m, !m
      saved(%out, %lse : !m, !r) cotangents(%do : !m) scale(%scale : f32)
      -> !m, !m {wrt = ["key", "value"]}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c = arith.constant true
    flex.yield %c : i1
  }
  func.return %dk, %dv : !m, !m
}

// Where heads share keys, programs that add in a fixed order belong to one query head.
// They add to one sum of all heads, which a kernel rounds.
// CHECK-LABEL: func.func @in_order_gradients(
// CHECK: %d_value, %d_key, %d_query = flex.pair_sums rows(%k, %v : {{[^)]*}}) columns(%q, %do :
// CHECK-SAME: transposed, ordered, per_query_head}
// CHECK-LABEL: func.func @in_order(
// CHECK: %d_value, %d_key, %{{.*}} = flex.launch @in_order_gradients(
// CHECK-NEXT: %d_value_1, %d_key_1 = flex.launch @in_order_rounded_gradients(%d_value, %d_key, %scale) :
// CHECK: func.return %d_query_1, %d_key_1, %d_value_1
func.func @in_order(%q : !m, %k : !m, %v : !m, %scale : f32, %out : !m, %lse : !r,
    %do : !m) -> (!m, !m, !m) {
  %dq, %dk, %dv = flex.attention_backward %q, %k, %v : !m, !m, !m
      saved(%out, %lse : !m, !r) cotangents(%do : !m) scale(%scale : f32)
      -> !m, !m, !m {ordered, per_query_head, wrt = ["query", "key", "value"]}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c = arith.cmpi sge, %qi, %ki : i32
    flex.yield %c : i1
  }
  func.return %dq, %dk, %dv : !m, !m, !m
}
