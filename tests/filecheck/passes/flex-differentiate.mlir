// RUN: flexc-opt %s -p 'flex-differentiate{wrt=query,"capture 0"}' | filecheck %s
// RUN: flexc-opt %s -p 'flex-differentiate{wrt=value d_lse=true}' | filecheck %s --check-prefix=LSE
// RUN: flexc-opt %s -p 'flex-differentiate{wrt=nothing along=query}' | filecheck %s --check-prefix=JVP
// RUN: flexc-opt %s -p 'flex-differentiate{wrt=key along=query}' | filecheck %s --check-prefix=BOTH
// RUN: not flexc-opt %s -p 'flex-differentiate{wrt=nonsense}' 2>&1 | filecheck %s --check-prefix=NAME

// Gradients of the names in wrt, in their order; the mods are carried unchanged.
// CHECK-LABEL: func.func @attention_backward(%q: {{[^%]*}} %k: {{[^%]*}} %v: {{[^%]*}} %scale: f32, %slopes: tensor<?xf32>, %out: {{[^%]*}} %lse: {{[^%]*}} %d_out: {{[^%]*}}) -> (tensor<?x?x?x64xf32, strided<[?, ?, ?, 1]>>, tensor<?xf32>)
// CHECK-NEXT: %0, %1 = flex.attention_backward %q, %k, %v : {{.*}} saved(%out, %lse : {{[^)]*}}) cotangents(%d_out : {{[^)]*}}) scale(%scale : f32) captures(%slopes : tensor<?xf32>)
// CHECK-SAME: {wrt = ["query", "capture 0"]} score_mod(%s: f32
// CHECK-NEXT: flex.load_capture %slopes_[%h]
// CHECK: } mask_mod(
// CHECK-NEXT: arith.cmpi sge
// CHECK: func.return %0, %1

// LSE-LABEL: func.func @attention_backward({{.*}} %d_out: {{[^%]*}} %d_lse: tensor<?x?x?xf32, strided<[?, ?, 1]>>)
// LSE-NEXT: %0 = flex.attention_backward {{.*}} cotangents(%d_out, %d_lse : {{.*}} {wrt = ["value"]}

// A tangent for each name in along; the results are those of out and lse.
// JVP-LABEL: func.func @attention_jvp({{.*}} %lse: {{[^%]*}} %t_query: {{.*}}) -> (tensor<?x?x?x64xf32, strided<[?, ?, ?, 1]>>, tensor<?x?x?xf32, strided<[?, ?, 1]>>)
// JVP-NEXT: %0, %1 = flex.attention_jvp {{.*}} saved(%out, %lse : {{.*}} tangents(%t_query : {{.*}} {along = ["query"]}

// With both, tangents of gradients.
// BOTH-LABEL: func.func @attention_backward({{.*}} %d_out: {{[^%]*}} %t_query: {{.*}}) -> tensor<?x?x?x64xf32
// BOTH-NEXT: %0 = flex.attention_backward {{.*}} cotangents(%d_out : {{.*}} tangents(%t_query : {{.*}} {along = ["query"], wrt = ["key"]}

// NAME: wrt and along expect names among query, key, value, out, d_out, lse, d_lse, capture 0, got 'nonsense'

func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>,
    %v: tensor<?x?x?x64xf32>, %scale: f32, %slopes: tensor<?xf32>)
    -> tensor<?x?x?x64xf32> {
  %out = flex.attention %q, %k, %v
      : tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>
      scale(%scale : f32) captures(%slopes : tensor<?xf32>)
      -> out(tensor<?x?x?x64xf32>) {values_in_keys}
  score_mod(%s: f32, %b: i32, %h: i32, %qi: i32, %ki: i32, %slopes_: tensor<?xf32>) {
    %m = flex.load_capture %slopes_[%h] : tensor<?xf32>, i32
    %d = arith.subi %ki, %qi : i32
    %f = arith.sitofp %d : i32 to f32
    %p = arith.mulf %m, %f : f32
    %r = arith.addf %s, %p : f32
    flex.yield %r : f32
  } mask_mod(%b: i32, %h: i32, %qi: i32, %ki: i32, %slopes_: tensor<?xf32>) {
    %c = arith.cmpi sge, %qi, %ki : i32
    flex.yield %c : i1
  }
  func.return %out : tensor<?x?x?x64xf32>
}
