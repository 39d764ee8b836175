// RUN: flexc-opt %s -p tile-specialize-warps,canonicalize,cse,tile-async-products | filecheck %s

// A product of zeros is not added to anything; the first is waited for at once.
// CHECK: tile.role "consumer"
// CHECK: %s0_issued = tile.issue_dot %q, %k0_t {comment = "the first block"} of !tile.view
// CHECK-NEXT: %s0 = tile.await_dot %s0_issued outstanding 0
// CHECK-NEXT: tile.arrive %k_empty[%c0]
// CHECK: scf.for
// CHECK: %s_issued = tile.issue_dot %q, %k_t of !tile.view
// CHECK-NOT: tile.arrive
// CHECK: tile.await %v_full
// CHECK: %o_issued = tile.issue_dot %p_i, %v, %acc_i
// CHECK-NOT: tile.arrive

// One product is in flight while the scores are masked and summed.
// CHECK: %s = tile.await_dot %s_issued outstanding 1
// CHECK-NEXT: tile.arrive %k_empty[%k_slot]
// CHECK-NEXT: scf.if
// CHECK: %p_next = tile.map
// CHECK: %o = tile.await_dot %o_issued outstanding 0
// CHECK-NEXT: tile.arrive %v_empty[%v_slot]
// CHECK-NEXT: %acc_next = tile.map
// CHECK: scf.yield

// CHECK: %o_last_issued = tile.issue_dot %p, %v_last, %acc_1
// CHECK-NEXT: %o_last = tile.await_dot %o_last_issued outstanding 0
// CHECK-NEXT: tile.arrive %v_empty[%v_slot_1]
// CHECK-NOT: tile.dot
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

// Products of tiles that are in registers are not asynchronous. The others are complete
// before a branch that has products, in it, and where a loop begins.
// CHECK-LABEL: tile.kernel @regions
// CHECK: %a_issued = tile.issue_dot %x, %view, %f
// CHECK-NEXT: %b = tile.dot %x, %x, %f
// CHECK-NEXT: %a = tile.await_dot %a_issued outstanding 0
// CHECK-NEXT: tile.arrive %done[%c0]
// CHECK-NEXT: scf.if
// CHECK: %e_issued = tile.issue_dot %x, %view, %b
// CHECK-NEXT: %e = tile.await_dot %e_issued outstanding 0
// CHECK-NEXT: scf.yield %e
// CHECK: %g_issued = tile.issue_dot
// CHECK-NEXT: %g = tile.await_dot %g_issued outstanding 0
// CHECK-NEXT: scf.for
tile.kernel @regions(%on : i1 #tile.param<argument 0>, %n : i32 #tile.param<argument 1>, %out : memref<?x?xf32> #tile.param<argument 2>) grid affine_map<(b, h, m) -> (m)> {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %one_b = arith.constant 1.0 : bf16
  %one = arith.constant 1.0 : f32
  %shared = tile.shared : !tile.shared<1, !tile.tile<64x64xbf16>>
  %done = tile.barriers : !tile.barriers<1, 1>
  tile.roles {
    tile.role "all" copies 1 warps 4 registers 240 {
    ^bb0(%part : i32):
      %x = tile.full %one_b : bf16 -> !tile.tile<64x64xbf16>
      %f = tile.full %one : f32 -> !tile.tile<64x64xf32>

      %view = tile.slot %shared[%c0] : !tile.shared<1, !tile.tile<64x64xbf16>> -> !tile.view<!tile.tile<64x64xbf16>>
      %a = tile.dot %x, %view, %f : !tile.tile<64x64xbf16>, !tile.view<!tile.tile<64x64xbf16>>, !tile.tile<64x64xf32> -> !tile.tile<64x64xf32>
      tile.arrive %done[%c0] after_products : !tile.barriers<1, 1>
      %b = tile.dot %x, %x, %f : !tile.tile<64x64xbf16>, !tile.tile<64x64xbf16>, !tile.tile<64x64xf32> -> !tile.tile<64x64xf32>
      %d = scf.if %on -> (!tile.tile<64x64xf32>) {
        %e = tile.dot %x, %view, %b : !tile.tile<64x64xbf16>, !tile.view<!tile.tile<64x64xbf16>>, !tile.tile<64x64xf32> -> !tile.tile<64x64xf32>
        scf.yield %e : !tile.tile<64x64xf32>
      } else {
        scf.yield %a : !tile.tile<64x64xf32>
      }
      %g = tile.dot %x, %view, %d : !tile.tile<64x64xbf16>, !tile.view<!tile.tile<64x64xbf16>>, !tile.tile<64x64xf32> -> !tile.tile<64x64xf32>
      %h = scf.for %i = %c0 to %n step %c1 iter_args(%j = %b) -> (!tile.tile<64x64xf32>) : i32 {
        %k = tile.map(%v : f32 = %j [0, 1] : !tile.tile<64x64xf32>) {
          %w = arith.addf %v, %v : f32
          flex.yield %w : f32
        } -> !tile.tile<64x64xf32>
        scf.yield %k : !tile.tile<64x64xf32>
      }
      tile.store %g : !tile.tile<64x64xf32>, %out[%c0, %c0] : memref<?x?xf32>, i32, i32
      tile.store %h : !tile.tile<64x64xf32>, %out[%c0, %n] : memref<?x?xf32>, i32, i32
      tile.end
    }
  }
  tile.return
}
