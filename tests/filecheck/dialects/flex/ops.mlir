// RUN: FLEXC_ROUNDTRIP
// RUN: FLEXC_GENERIC_ROUNDTRIP

// CHECK-LABEL: @every_part
// CHECK-GENERIC-LABEL: "every_part"
func.func @every_part(%q : tensor<?x?x?x64xbf16>, %k : tensor<?x?x?x64xbf16>,
                      %v : tensor<?x?x?x32xbf16>, %scale : f32,
                      %slopes : tensor<?xf32>, %window : i64,
                      %num : tensor<?x?x?xi32>, %idx : tensor<?x?x?x?xi32>) {
  // CHECK: %out, %lse, %max_scores = flex.attention %q, %k, %v : tensor<?x?x?x64xbf16>, tensor<?x?x?x64xbf16>, tensor<?x?x?x32xbf16> scale(%scale : f32) captures(%slopes, %window : tensor<?xf32>, i64) tables(%num, %idx : tensor<?x?x?xi32>, tensor<?x?x?x?xi32>) -> out(tensor<?x?x?x32xbf16>) lse(tensor<?x?x?xf32>) max_scores(tensor<?x?x?xf32>)
  // CHECK-SAME: {scale_positive, q_len_multiple = 64 : i64, kv_len_multiple = 128 : i64, alignment = 16 : i64, index_width = 32 : i64, sparse_block = array<i64: 128, 128>}
  // CHECK-SAME: score_mod(%s: f32, %b: i32, %h: i32, %qi: i32, %ki: i32, %slopes_: tensor<?xf32>, %window_: i64) {
  // CHECK-NEXT: %m = flex.load_capture %slopes_[%h] : tensor<?xf32>, i32
  // CHECK-NEXT: %n = flex.dim %slopes_, 0 : tensor<?xf32> -> i32
  // CHECK-NEXT: %f = flex.fmod %s, %m : f32
  // CHECK-NEXT: flex.yield %f : f32
  // CHECK-NEXT: } mask_mod(%b
  // CHECK: flex.yield %c : i1
  // CHECK-GENERIC: "flex.attention"(%q, %k, %v, %scale, %slopes, %window, %num, %idx) <{
  // CHECK-GENERIC-SAME: resultSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>
  // CHECK-GENERIC-SAME: operandSegmentSizes = array<i32: 1, 1, 1, 1, 2, 2, 0, 0, 0, 0>
  // CHECK-GENERIC: "flex.load_capture"(%slopes_, %h) : (tensor<?xf32>, i32) -> f32
  %out, %lse, %max_scores = flex.attention %q, %k, %v
      : tensor<?x?x?x64xbf16>, tensor<?x?x?x64xbf16>, tensor<?x?x?x32xbf16>
      scale(%scale : f32) captures(%slopes, %window : tensor<?xf32>, i64)
      tables(%num, %idx : tensor<?x?x?xi32>, tensor<?x?x?x?xi32>)
      -> out(tensor<?x?x?x32xbf16>) lse(tensor<?x?x?xf32>)
         max_scores(tensor<?x?x?xf32>)
      {scale_positive, q_len_multiple = 64, kv_len_multiple = 128, alignment = 16,
       index_width = 32, sparse_block = array<i64: 128, 128>}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32,
                %slopes_ : tensor<?xf32>, %window_ : i64) {
    %m = flex.load_capture %slopes_[%h] : tensor<?xf32>, i32
    %n = flex.dim %slopes_, 0 : tensor<?xf32> -> i32
    %f = flex.fmod %s, %m : f32
    flex.yield %f : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %slopes_ : tensor<?xf32>,
             %window_ : i64) {
    %c = arith.cmpi sge, %qi, %ki : i32
    flex.yield %c : i1
  }
  func.return
}

// Nothing that may be left out; only the second of the optional results.
// CHECK-LABEL: @least
func.func @least(%q : tensor<?x?x?x8xf64>, %scale : f64) {
  // CHECK: %out, %max_scores = flex.attention %q, %q, %q : tensor<?x?x?x8xf64>, tensor<?x?x?x8xf64>, tensor<?x?x?x8xf64> scale(%scale : f64) -> out(tensor<?x?x?x8xf64>) max_scores(tensor<?x?x?xf64>) score_mod(
  %out, %max_scores = flex.attention %q, %q, %q
      : tensor<?x?x?x8xf64>, tensor<?x?x?x8xf64>, tensor<?x?x?x8xf64>
      scale(%scale : f64) -> out(tensor<?x?x?x8xf64>) max_scores(tensor<?x?x?xf64>)
      score_mod(%s : f64, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f64
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// CHECK-LABEL: @loads
func.func @loads(%t : tensor<?x4xi8>, %zero_d : tensor<bf16>, %i : i32, %j : i64) {
  // CHECK: %a = flex.load_capture %t[%i, %j] : tensor<?x4xi8>, i32, i64
  %a = flex.load_capture %t[%i, %j] : tensor<?x4xi8>, i32, i64
  // CHECK: %b = flex.load_capture %t[%i, %j] inside : tensor<?x4xi8>, i32, i64
  %b = flex.load_capture %t[%i, %j] inside : tensor<?x4xi8>, i32, i64
  // CHECK: %c = flex.load_capture %zero_d[] : tensor<bf16>
  %c = flex.load_capture %zero_d[] : tensor<bf16>
  func.return
}

// Narrow keys, with a scale for each head, and values, with one for each key.
// CHECK-LABEL: @narrow
func.func @narrow(%q : tensor<?x?x?x8xf16>, %k : tensor<?x?x?x8xi8>,
                  %v : tensor<?x?x?x8xf8E4M3FN>, %scale : f32,
                  %ks : tensor<?x?xf32>, %vs : tensor<?x?x?xf32>) {
  // CHECK: flex.attention %q, %k, %v : tensor<?x?x?x8xf16>, tensor<?x?x?x8xi8>, tensor<?x?x?x8xf8E4M3FN> scale(%scale : f32) key_scale(%ks : tensor<?x?xf32>) value_scale(%vs : tensor<?x?x?xf32>) -> out(tensor<?x?x?x8xf16>) score_mod(
  %out = flex.attention %q, %k, %v
      : tensor<?x?x?x8xf16>, tensor<?x?x?x8xi8>, tensor<?x?x?x8xf8E4M3FN>
      scale(%scale : f32) key_scale(%ks : tensor<?x?xf32>)
      value_scale(%vs : tensor<?x?x?xf32>) -> out(tensor<?x?x?x8xf16>)
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// Keys and values in pages.
// CHECK-LABEL: @pages
func.func @pages(%q : tensor<?x?x?x8xf16>, %k : tensor<?x?x16x8xf16>, %scale : f32, %table : tensor<?x?xi32>) {
  // CHECK: flex.attention %q, %k, %k : tensor<?x?x?x8xf16>, tensor<?x?x16x8xf16>, tensor<?x?x16x8xf16> scale(%scale : f32) page_table(%table : tensor<?x?xi32>) -> out(tensor<?x?x?x8xf16>) score_mod(
  %out = flex.attention %q, %k, %k : tensor<?x?x?x8xf16>, tensor<?x?x16x8xf16>, tensor<?x?x16x8xf16>
      scale(%scale : f32) page_table(%table : tensor<?x?xi32>) -> out(tensor<?x?x?x8xf16>)
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %true = arith.constant true
    flex.yield %true : i1
  }
  func.return
}

// Bounds of scores are printed in digits, whatever their size.
// CHECK-LABEL: @bounded
func.func @bounded(%q : tensor<?x?x?x8xf32>, %scale : f32) {
  // CHECK: {score_range = #flex.float_range<-2147483648.0, 1.0e+22>, scores_finite} score_mod(
  %out = flex.attention %q, %q, %q : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>
      scale(%scale : f32) -> out(tensor<?x?x?x8xf32>)
      {score_range = #flex.float_range<-2147483648.0, 1.0e22>, scores_finite}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %true = arith.constant true
    flex.yield %true : i1
  }
  func.return
}
