// RUN: flexc-opt %s -p tile-specialize-warps,canonicalize,cse | filecheck %s

// One tile of rows for each part, which stays; two rings of two slots. The first key
// tile is taken out of the loop, the values are one behind.
// CHECK-LABEL: tile.kernel @attention
// CHECK-SAME: num_warps = 4 : i32, schedule = "2 consumers of 64 rows, 1 producer, 2 slots"

// What both roles use is computed before.
// CHECK: %q_start = arith.muli
// CHECK-NOT: arith.mulf
// CHECK: %q_s = tile.shared : !tile.shared<2, !tile.tile<64x64xbf16>>
// CHECK-NEXT: %q_full = tile.barriers : !tile.barriers<1, 1>
// CHECK-NEXT: %k_s = tile.shared : !tile.shared<2, !tile.tile<64x64xbf16>>
// CHECK-NEXT: %k_full = tile.barriers : !tile.barriers<2, 1>
// CHECK-NEXT: %k_empty = tile.barriers by_warps 4 : !tile.barriers<2, 2>
// CHECK-NEXT: %v_s = tile.shared
// CHECK-NEXT: %v_full = tile.barriers
// CHECK-NEXT: %v_empty = tile.barriers

// CHECK-NEXT: tile.roles {
// CHECK-NEXT: tile.role "consumer" copies 2 warps 4 registers 240 {
// CHECK-NEXT: ^bb0(%part: i32):
// CHECK: %c = arith.mulf %scale
// CHECK: tile.await %q_full[%c0] parity %c0
// CHECK-NEXT: %q = tile.slot %q_s[%part]
// CHECK-NEXT: tile.await %k_full[%c0] parity %c0
// CHECK-NEXT: %k0 = tile.slot %k_s[%c0]
// CHECK-NEXT: %k0_t = tile.transpose_view %k0
// CHECK-NEXT: %s0 = tile.dot %q, %k0_t, %acc
// CHECK-NEXT: tile.arrive %k_empty[%c0]

// Places in the keys are the producer's business.
// CHECK: scf.for %i = %c1 to %n step %c1 iter_args(%l_i = %l, %acc_i = %acc, %p_i = %p0, %k_at_1 = %c1, %v_at_1 = %c0)
// CHECK-NEXT: %kv_start = arith.muli
// CHECK-NEXT: %k_slot = arith.andi %k_at_1, %c1
// CHECK-NEXT: [[TURN:%.*]] = arith.shrsi %k_at_1, %c1
// CHECK-NEXT: %k_parity = arith.andi [[TURN]], %c1
// CHECK-NEXT: %k_at_2 = arith.addi %k_at_1, %c1
// CHECK-NEXT: tile.await %k_full[%k_slot] parity %k_parity
// CHECK-NEXT: %k = tile.slot %k_s[%k_slot]
// CHECK-NEXT: %k_t = tile.transpose_view %k
// CHECK-NEXT: %s = tile.dot %q, %k_t
// CHECK-NEXT: tile.arrive %k_empty[%k_slot]
// CHECK: tile.await %v_full[%v_slot] parity %v_parity
// CHECK-NEXT: %v = tile.slot %v_s[%v_slot]
// CHECK-NEXT: %o = tile.dot %p_i, %v, %acc_i
// CHECK-NEXT: tile.arrive %v_empty[%v_slot]
// CHECK: scf.yield %l_next, %acc_next, %p_next, %k_at_2, %v_at_2

// CHECK: tile.await %v_full[%v_slot_1] parity %v_parity_1
// CHECK: tile.dot %p, %v_last, %acc_1
// CHECK-NEXT: tile.arrive %v_empty[%v_slot_1]
// The result leaves from where the query was; other results are stored.
// CHECK: tile.write_view %o_bf16, %q
// CHECK-NEXT: tile.fence_copies
// CHECK-NEXT: tile.copy_out %q to %out[%b, %h, %first, %c0]
// CHECK-NEXT: tile.store %{{.*}}, %lse[%b, %h, %first]
// CHECK-NEXT: tile.await_copies outstanding 0
// CHECK-NEXT: tile.end

// CHECK: tile.role "producer" copies 1 warps 1 registers 24 {
// CHECK: %kv_h = arith.divsi
// CHECK-NEXT: tile.expect %q_full[%c0] bytes 16384
// CHECK-NEXT: %q_1 = tile.slot %q_s[%c0]
// CHECK-NEXT: tile.copy_in %query[%b, %h, %q_start, %c0] to %q_1, %q_full[%c0]
// CHECK-NEXT: %first_1 = arith.addi %q_start, %c64
// CHECK-NEXT: %q_2 = tile.slot %q_s[%c1]
// CHECK-NEXT: tile.copy_in %query[%b, %h, %first_1, %c0] to %q_2, %q_full[%c0]
// CHECK-NEXT: tile.await %k_empty[%c0] parity %c1 {comment = "the first block"}
// CHECK-NEXT: tile.expect %k_full[%c0] bytes 8192
// CHECK-NEXT: %k_1 = tile.slot %k_s[%c0]
// CHECK-NEXT: tile.copy_in %key[%b, %kv_h, %c0, %c0] to %k_1, %k_full[%c0]
// CHECK-NEXT: %before, %k_at_3, %v_at_3 = scf.for %i_1 = %c1 to %n step %c1 iter_args(%kv_before = %c0, %k_at_4 = %c1, %v_at_4 = %c0)
// CHECK-NEXT: %kv_start_1 = arith.muli
// CHECK: tile.await %k_empty[%k_slot_1]
// CHECK-NEXT: tile.expect %k_full[%k_slot_1] bytes 8192
// CHECK: tile.copy_in %key[%b, %kv_h, %kv_start_1, %c0]
// CHECK: tile.copy_in %value[%b, %kv_h, %kv_before, %c0]
// CHECK-NEXT: scf.yield %kv_start_1, %k_at_5, %v_at_5
// CHECK: tile.copy_in %value[%b, %kv_h, %before, %c0]
// CHECK-NEXT: tile.end
!q = tensor<?x?x?x64xbf16, strided<[?, ?, ?, 1]>>
!o = memref<?x?x?x64xbf16, strided<[?, ?, ?, 1]>>
tile.kernel @attention(%query : !q #tile.param<argument 0>, %key : !q #tile.param<argument 1>, %value : !q #tile.param<argument 2>, %scale : f32 #tile.param<argument 3>, %out : !o #tile.param<argument 4>, %lse : memref<?x?x?xf32, strided<[?, ?, 1]>> #tile.param<argument 5>) grid affine_map<(d0, d1, d2) -> (d2 ceildiv 128, d1, d0)> attributes {num_stages = 2 : i32, alignment = 16 : i64} {
  %kv_len = tile.dim %key, 2 : !q -> i32
  %m_block = tile.program_id 0
  %h = tile.program_id 1
  %b = tile.program_id 2
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %c64 = arith.constant 64 : i32
  %c128 = arith.constant 128 : i32
  %q_start = arith.muli %m_block, %c128 : i32
  %heads = tile.dim %query, 1 : !q -> i32
  %kv_heads = tile.dim %key, 1 : !q -> i32
  %h_kv = arith.muli %h, %kv_heads : i32
  %kv_h = arith.divsi %h_kv, %heads : i32
  %half = arith.constant 0.5 : f32
  %c = arith.mulf %scale, %half : f32
  %n = arith.divsi %kv_len, %c64 : i32
  %zero = arith.constant 0.0 : f32
  tile.parts 2 {
  ^bb0(%part : i32):
    %offset = arith.muli %part, %c64 : i32
    %first = arith.addi %q_start, %offset : i32
    %acc_0 = tile.full %zero : f32 -> !tile.tile<64x64xf32>
    %l_0 = tile.full %zero : f32 -> !tile.tile<64xf32>
    %q = tile.load %query[%b, %h, %first, %c0] : !q, i32, i32, i32, i32 -> !tile.tile<64x64xbf16>
    %k0 = tile.load %key[%b, %kv_h, %c0, %c0] : !q, i32, i32, i32, i32 -> !tile.tile<64x64xbf16>
    %k0_t = tile.transpose %k0 : !tile.tile<64x64xbf16> -> !tile.tile<64x64xbf16>
    %s0 = tile.dot %q, %k0_t, %acc_0 {comment = "the first block"} : !tile.tile<64x64xbf16>, !tile.tile<64x64xbf16>, !tile.tile<64x64xf32> -> !tile.tile<64x64xf32>
    %p0 = tile.map(%x : f32 = %s0 [0, 1] : !tile.tile<64x64xf32>, %c_ : f32 = %c [] : f32) {
      %y = arith.mulf %x, %c_ : f32
      %z = arith.truncf %y : f32 to bf16
      flex.yield %z : bf16
    } -> !tile.tile<64x64xbf16>
    %l, %acc, %p, %before = scf.for %i = %c1 to %n step %c1 iter_args(%l_i = %l_0, %acc_i = %acc_0, %p_i = %p0, %kv_before = %c0) -> (!tile.tile<64xf32>, !tile.tile<64x64xf32>, !tile.tile<64x64xbf16>, i32) : i32 {
      %kv_start = arith.muli %i, %c64 : i32
      %k = tile.load %key[%b, %kv_h, %kv_start, %c0] : !q, i32, i32, i32, i32 -> !tile.tile<64x64xbf16>
      %k_t = tile.transpose %k : !tile.tile<64x64xbf16> -> !tile.tile<64x64xbf16>
      %v = tile.load %value[%b, %kv_h, %kv_before, %c0] : !q, i32, i32, i32, i32 -> !tile.tile<64x64xbf16>
      %s = tile.dot %q, %k_t, %acc_0 : !tile.tile<64x64xbf16>, !tile.tile<64x64xbf16>, !tile.tile<64x64xf32> -> !tile.tile<64x64xf32>
      %o = tile.dot %p_i, %v, %acc_i : !tile.tile<64x64xbf16>, !tile.tile<64x64xbf16>, !tile.tile<64x64xf32> -> !tile.tile<64x64xf32>
      %is_partial = arith.cmpi slt, %i, %c64 : i32
      %scores = scf.if %is_partial -> (!tile.tile<64x64xf32>) {
        %q_idx = tile.iota %first : !tile.tile<64xi32>
        %kv_idx = tile.iota %kv_start : !tile.tile<64xi32>
        %masked = tile.map(%x : f32 = %s [0, 1] : !tile.tile<64x64xf32>, %qi : i32 = %q_idx [0] : !tile.tile<64xi32>, %ki : i32 = %kv_idx [1] : !tile.tile<64xi32>) {
          %live = arith.cmpi sge, %qi, %ki : i32
          %none = arith.constant 0.0 : f32
          %y = arith.select %live, %x, %none : f32
          flex.yield %y : f32
        } -> !tile.tile<64x64xf32>
        scf.yield %masked : !tile.tile<64x64xf32>
      } else {
        scf.yield %s : !tile.tile<64x64xf32>
      }
      %row_sum = tile.reduce sum %scores along 1 : !tile.tile<64x64xf32>
      %l_next = tile.map(%x : f32 = %l_i [0] : !tile.tile<64xf32>, %y : f32 = %row_sum [0] : !tile.tile<64xf32>) {
        %z = arith.addf %x, %y : f32
        flex.yield %z : f32
      } -> !tile.tile<64xf32>
      %p_next = tile.map(%x : f32 = %scores [0, 1] : !tile.tile<64x64xf32>, %c_ : f32 = %c [] : f32) {
        %y = arith.mulf %x, %c_ : f32
        %z = arith.truncf %y : f32 to bf16
        flex.yield %z : bf16
      } -> !tile.tile<64x64xbf16>
      %acc_next = tile.map(%x : f32 = %o [0, 1] : !tile.tile<64x64xf32>, %r : f32 = %row_sum [0] : !tile.tile<64xf32>) {
        %y = arith.mulf %x, %r : f32
        flex.yield %y : f32
      } -> !tile.tile<64x64xf32>
      scf.yield %l_next, %acc_next, %p_next, %kv_start : !tile.tile<64xf32>, !tile.tile<64x64xf32>, !tile.tile<64x64xbf16>, i32
    }
    %v_last = tile.load %value[%b, %kv_h, %before, %c0] : !q, i32, i32, i32, i32 -> !tile.tile<64x64xbf16>
    %o_last = tile.dot %p, %v_last, %acc : !tile.tile<64x64xbf16>, !tile.tile<64x64xbf16>, !tile.tile<64x64xf32> -> !tile.tile<64x64xf32>
    %o_bf16 = tile.map(%x : f32 = %o_last [0, 1] : !tile.tile<64x64xf32>) {
      %y = arith.truncf %x : f32 to bf16
      flex.yield %y : bf16
    } -> !tile.tile<64x64xbf16>
    tile.store %o_bf16 : !tile.tile<64x64xbf16>, %out[%b, %h, %first, %c0] : !o, i32, i32, i32, i32
    tile.store %l : !tile.tile<64xf32>, %lse[%b, %h, %first] : memref<?x?x?xf32, strided<[?, ?, 1]>>, i32, i32, i32
    tile.end
  }
  tile.return
}
