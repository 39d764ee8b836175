// RUN: flexc-opt %s -p 'flexc-to-triton{block-m=128 block-n=32}' -t triton | filecheck %s

!t = tensor<?x?x?x64xbf16, strided<[?, ?, ?, 1]>>

// What the source says of itself, and arguments whose values Triton must not look at.
// CHECK: # attention, emitted by flexc for Triton
// CHECK-NEXT: # grid: (d0, d1, d2) -> ((d2 ceildiv 128), d1, d0)
// CHECK-NEXT: # num_warps: {{[48]}}, num_stages: {{[0-9]}}
// CHECK-NEXT: # score: score
// CHECK-NEXT: # mask: {{.*}} >= {{.*}}
// CHECK-NEXT: # segments: partial, full
// CHECK: @triton.jit(do_not_specialize=[
// CHECK: def attention(
// CHECK-NEXT: query, key, value, scale: tl.float32, out,
// CHECK: kv_h = {{.*}} // q_heads
// CHECK: q_idx = q_start + tl.arange(0, 128)
// CHECK: q = tl.load(query +
// CHECK: qk_scale = scale * 1.44269502
// CHECK: m_i = tl.full([128], float("-inf"), tl.float32)
// CHECK: acc = tl.full([128, 64], 0.0, tl.float32)
// CHECK: # partial blocks
// CHECK-NEXT: for i in tl.range({{.*}}, {{.*}}, 1):
// CHECK: k_t = tl.trans(k)
// CHECK: s = tl.dot(q, k_t, zeros)
// CHECK: q_idx[:, None] >= kv_idx[None, :]
// CHECK: tl.where({{.*}}, s, float("-inf"))
// CHECK: row_max = tl.max(
// CHECK: p = tl.exp2(
// CHECK: alpha = tl.exp2(
// CHECK: p_bf16 = tl.cast(p, tl.bfloat16)
// CHECK: acc_next = tl.dot(p_bf16, v{{.*}}, acc_scaled)
// CHECK: m_i_1, l_i_1, acc_1 = m, l, acc_next
// Blocks below the diagonal need no mask.
// CHECK-NEXT: {{.*}}
// CHECK: # full blocks
// CHECK-NEXT: for i_1 in tl.range(0, {{.*}}, 1):
// CHECK-NOT: float("-inf"))
// CHECK: acc_next_1 = tl.dot(
// CHECK: tl.store(out + {{.*}}, o_bf16, mask=out_inside
func.func @attention(%query : !t, %key : !t, %value : !t, %scale : f32) -> !t {
  %out = flex.attention %query, %key, %value : !t, !t, !t scale(%scale : f32)
      -> out(!t) {scale_positive}
      score_mod(%score : f32, %b : i32, %h : i32, %q_idx : i32, %kv_idx : i32) {
    flex.yield %score : f32
  } mask_mod(%b : i32, %h : i32, %q_idx : i32, %kv_idx : i32) {
    %ge = arith.cmpi sge, %q_idx, %kv_idx : i32
    flex.yield %ge : i1
  }
  func.return %out : !t
}
