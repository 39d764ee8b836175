// RUN: flexc-opt %s -p flexc-to-triton -t triton | filecheck %s
// RUN: flexc-opt %s -p 'flexc-to-triton{tanh=nvidia}' -t triton | filecheck %s --check-prefix=NVIDIA

!t = tensor<?x?x?x64xf32, strided<[?, ?, ?, 1]>>
!bias = tensor<?x?xf16, strided<[?, 1]>>

// The bias of a head's row is found once for the row, read for every pair.
// CHECK: scale: tl.float32, bias, out,
// CHECK: # partial blocks
// CHECK: tl.load(bias
// CHECK: # full blocks
// CHECK: tl.load(bias
// CHECK: tl.store(
// NVIDIA: from flexc.codegen.triton.support import {{.*}}tanh_approx
// NVIDIA: tanh_approx(
func.func @attention(%query : !t, %key : !t, %value : !t, %scale : f32, %bias : !bias)
    -> !t {
  %out = flex.attention %query, %key, %value : !t, !t, !t scale(%scale : f32)
      captures(%bias : !bias) -> out(!t) {index_width = 32}
      score_mod(%score : f32, %b : i32, %h : i32, %q_idx : i32, %kv_idx : i32,
                %bias_ : !bias) {
    %index = arith.addi %q_idx, %kv_idx : i32
    %half = flex.load_capture %bias_[%h, %index] : !bias, i32, i32
    %wide = arith.extf %half : f16 to f32
    %sum = arith.addf %score, %wide : f32
    %capped = math.tanh %sum : f32
    flex.yield %capped : f32
  } mask_mod(%b : i32, %h : i32, %q_idx : i32, %kv_idx : i32, %bias_ : !bias) {
    %true = arith.constant true
    flex.yield %true : i1
  }
  func.return %out : !t
}
