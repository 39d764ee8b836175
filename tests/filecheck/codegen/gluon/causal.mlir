// RUN: flexc-opt %s -p 'flexc-to-gluon{block-m=128 block-n=64}' -t gluon | filecheck %s

// What the source says of itself.
// CHECK: # attention, emitted by flexc for Gluon
// CHECK-NEXT: # grid: (d0, d1, d2) -> ((d2 ceildiv 128), d1, d0)
// CHECK: # schedule: 2 consumers of 64 rows, 1 producer, 2 slots
// CHECK: # role consumer: 2 x 4 warps, 240 registers
// CHECK-NEXT: # role producer: 1 x 1 warps, 24 registers
// CHECK-NEXT: # shared memory: 98376 bytes
// CHECK: from triton.experimental import gluon
// CHECK: from flexc.codegen.gluon.support import (
// CHECK-NEXT: barriers, copy_in, copy_out, keep_columns, pack_pairs, partial_sums, pass_turn,
// CHECK-NEXT: take_turn, tile_of, unpack_pairs

// A role is a function of what it uses from before; its layouts have names.
// CHECK: @gluon.jit
// CHECK-NEXT: def attention_consumer(
// CHECK-NEXT: part: gl.constexpr, scale, out,
// CHECK: PRODUCT_8: gl.constexpr = gl.NVMMADistributedLayout(
// CHECK-NEXT: version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 8, 16]
// CHECK: PRODUCT_64: gl.constexpr = gl.NVMMADistributedLayout(
// CHECK-NEXT: version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16]
// CHECK: ROWS_64: gl.constexpr = gl.SliceLayout(1, PRODUCT_64)
// CHECK-NEXT: OPERAND_128: gl.constexpr = gl.DotOperandLayout(
// CHECK-NEXT: operand_index=0, parent=PRODUCT_128, k_width=2
// CHECK: is_last = part == 1
// CHECK-NEXT: if is_last:
// CHECK-NEXT: pass_turn(part, 2)
// CHECK: part_start = part * 64
// CHECK: q_idx = q_start_1 + gl.arange(0, 64, ROWS_64)
// CHECK: acc = gl.full([64, 128], 0.0, gl.float32, PRODUCT_128)
// CHECK: mbarrier.wait(q_full.index(0), 0)
// CHECK-NEXT: q = q_s.index(part)
// CHECK-NEXT: mbarrier.wait(k_full.index(0), 0)
// CHECK-NEXT: k = k_s.index(0)
// CHECK-NEXT: k_t = tile_of(k).permute([1, 0])
// CHECK-NEXT: # the first block
// CHECK-NEXT: s_issued = warpgroup_mma(
// CHECK-NEXT: tile_of(q), k_t, gl.full([64, 64], 0.0, gl.float32, PRODUCT_64),
// CHECK: s = warpgroup_mma_wait(0, [s_issued])
// CHECK-NEXT: mbarrier.arrive(k_empty.index(0), count=4)
// CHECK-NEXT: if {{.*}}:
// CHECK-NEXT: # partial blocks
// CHECK: scores_1 = keep_columns({{.*}}, "0fFF800000", PRODUCT_64)

// What a loop carries into a product is carried as that product reads it. Two loops, one
// with the mask and one without, carry it in pairs.
// CHECK: p_bf16_1 = gl.convert_layout(p_bf16, OPERAND_128)
// CHECK-NEXT: pairs = pack_pairs(p_bf16_1)
// CHECK: pairs_1 = pairs
// CHECK: # partial blocks, after the first
// CHECK-NEXT: for i in range(1, {{.*}}):
// CHECK-NEXT: p_bf16_2 = unpack_pairs(pairs_1, gl.bfloat16, OPERAND_128)
// CHECK-NEXT: take_turn(part)
// CHECK: acc_next_issued = warpgroup_mma(
// CHECK-NEXT: p_bf16_2, tile_of(v), acc_scaled_1, is_async=True
// CHECK-NEXT: )
// CHECK-NEXT: pass_turn(part, 2)
// CHECK-NEXT: s_1 = warpgroup_mma_wait(1, [s_issued_1])
// CHECK-NEXT: mbarrier.arrive(k_empty.index(k_slot), count=4)
// CHECK: keep_columns(
// CHECK: row_sum_1 = partial_sums(p_1, PRODUCT_8)
// CHECK: acc_next = warpgroup_mma_wait(0, [acc_next_issued])
// CHECK-NEXT: mbarrier.arrive(v_empty.index(v_slot), count=4)
// CHECK: = pack_pairs(
// CHECK: # full blocks, after the first
// CHECK-NEXT: for {{.*}} in range({{.*}}, end):
// CHECK: gl.convert_layout({{.*}}, ROWS_128)
// CHECK: gl.convert_layout({{.*}}, OPERAND_128)
// CHECK-NEXT: = pack_pairs(
// CHECK: unpack_pairs({{.*}}, gl.bfloat16, OPERAND_128)
// CHECK: # the last block's values
// CHECK-NEXT: {{.*}} = warpgroup_mma(
// CHECK: tile_of(q).store(o_bf16)
// CHECK-NEXT: fence_async_shared()
// CHECK-NEXT: copy_out(out, [b, h_1, q_start_1, 0], q)
// CHECK-NEXT: tma.store_wait(0)

// CHECK: def attention_producer(
// CHECK-NEXT: query, key, value,
// CHECK: mbarrier.expect(q_full.index(0), 32768)
// CHECK: copy_in(query, [b, h_1, q_start, 0], q_full.index(0), q)
// CHECK: # the first block
// CHECK-NEXT: mbarrier.wait(k_empty.index(0), 1)
// CHECK-NEXT: mbarrier.expect(k_full.index(0), 16384)
// CHECK: # mixed blocks, after the first
// CHECK-NEXT: for i in range(1, end):
// CHECK: # the last block's values
// CHECK-NEXT: mbarrier.wait(v_empty.index(v_slot_1), {{.*}})

// The kernel makes what roles share, and starts them.
// CHECK: @gluon.jit(do_not_specialize=[
// CHECK: def attention(
// CHECK-NEXT: query, key, value, scale: gl.float32, out, q_len: gl.int32,
// CHECK: q_s = gl.allocate_shared_memory(
// CHECK-NEXT: gl.bfloat16, [2, 1, 1, 64, 128],
// CHECK-NEXT: gl.NVMMASharedLayout.get_default_for([1, 1, 64, 128], gl.bfloat16)
// CHECK: q_full = barriers(1, 1)
// CHECK: k_empty = barriers(2, 8)
// CHECK: v_empty = barriers(2, 8)
// CHECK-NEXT: gl.warp_specialize(
// CHECK-NEXT: [
// CHECK-NEXT: (attention_consumer, (
// CHECK-NEXT: 0, scale, out,
// CHECK: (attention_consumer, (
// CHECK-NEXT: 1, scale, out,
// CHECK: (attention_producer, (
// CHECK-NEXT: query, key, value,
// CHECK: [4, 1],
// CHECK-NEXT: [240, 24],
!t = tensor<?x?x?x128xbf16, strided<[?, ?, ?, 1]>>

func.func @attention(%query : !t, %key : !t, %value : !t, %scale : f32) -> !t {
  %out = flex.attention %query, %key, %value : !t, !t, !t scale(%scale : f32)
      -> out(!t) {scale_positive, alignment = 16, kv_len_multiple = 128}
      score_mod(%score : f32, %b : i32, %h : i32, %q_idx : i32, %kv_idx : i32) {
    flex.yield %score : f32
  } mask_mod(%b : i32, %h : i32, %q_idx : i32, %kv_idx : i32) {
    %ge = arith.cmpi sge, %q_idx, %kv_idx : i32
    flex.yield %ge : i1
  }
  func.return %out : !t
}
