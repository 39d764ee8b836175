// RUN: flexc-opt %s -p tile-assign-layouts | filecheck %s

!q = !tile.shared<1, !tile.tile<64x64xbf16>>
!k = !tile.shared<1, !tile.tile<32x64xbf16>>
!matrix = !tile.tile<64x32xf32>
!o = !tile.tile<64x64xf32>
!row = !tile.tile<64xf32>

// CHECK: tile.kernel @attention
tile.kernel @attention(%bias : tensor<?xf32> #tile.param<argument 0>,
                       %out : memref<?xf32> #tile.param<argument 1>,
                       %n : i32 #tile.param<dim 0, 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %q_s = tile.shared : !q
  %k_s = tile.shared : !k
  %v_s = tile.shared : !k
  %full = tile.barriers : !tile.barriers<1, 1>
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %base = arith.constant 0 : i64
  %zero = arith.constant 0.0 : f32
  tile.roles {
    tile.role "consumer" copies 1 warps 4 registers 240 {
    ^bb0(%part : i32):
      // Sequences are made in each layout in which they are used.
      // CHECK: %rows = tile.iota %c0 : !tile.tile<64xi32, #tile.along<0, #tile.product<32>>>
      // CHECK-NEXT: %acc = tile.full %zero : f32 -> !tile.tile<64x64xf32, #tile.product<64>>
      %rows = tile.iota %c0 : !tile.tile<64xi32>
      %acc = tile.full %zero : f32 -> !o
      // CHECK: %l = tile.full %zero : f32 -> !tile.tile<64xf32, #tile.along<0, #tile.product<32>>>
      %l = tile.full %zero : f32 -> !row
      // CHECK-NEXT: %columns = tile.iota %c0 : !tile.tile<32xi32, #tile.along<1, #tile.product<32>>>
      %columns = tile.iota %c0 : !tile.tile<32xi32>
      // What is loaded lies as its uses want it.
      // CHECK-NEXT: %b = tile.gather %bias[%base + %columns] : tensor<?xf32>, {{.*}} -> !tile.tile<32xf32, #tile.along<1, #tile.product<32>>>
      %b = tile.gather %bias[%base + %columns] : tensor<?xf32>, !tile.tile<32xi32> -> !tile.tile<32xf32>
      %q = tile.slot %q_s[%c0] : !q -> !tile.view<!tile.tile<64x64xbf16>>
      %k = tile.slot %k_s[%c0] : !k -> !tile.view<!tile.tile<32x64xbf16>>
      %k_t = tile.transpose_view %k : !tile.view<!tile.tile<32x64xbf16>> -> !tile.view<!tile.tile<64x32xbf16>>
      %v = tile.slot %v_s[%c0] : !k -> !tile.view<!tile.tile<32x64xbf16>>
      // CHECK: %p0 = tile.full %{{.*}} : bf16 -> !tile.tile<64x32xbf16, #tile.operand<#tile.product<64>>>
      %half = arith.constant 0.5 : bf16
      %p0 = tile.full %half : bf16 -> !tile.tile<64x32xbf16>
      // CHECK: scf.for
      // CHECK-SAME: !tile.tile<64x32xbf16, #tile.operand<#tile.product<64>>>
      %l_end, %p_end, %acc_end = scf.for %i = %c0 to %n step %c1 iter_args(%l_i = %l, %p_i = %p0, %acc_i = %acc) -> (!row, !tile.tile<64x32xbf16>, !o) : i32 {
        // CHECK: tile.issue_dot %q, %k_t of {{.*}} -> !tile.pending<!tile.tile<64x32xf32, #tile.product<32>>>
        %s_issued = tile.issue_dot %q, %k_t of !tile.view<!tile.tile<64x64xbf16>>, !tile.view<!tile.tile<64x32xbf16>> -> !tile.pending<!matrix>
        %o_issued = tile.issue_dot %p_i, %v, %acc_i : !o, of !tile.tile<64x32xbf16>, !tile.view<!tile.tile<32x64xbf16>> -> !tile.pending<!o>
        %s = tile.await_dot %s_issued outstanding 1 : !tile.pending<!matrix> -> !matrix
        %x = tile.map(%s_ : f32 = %s [0, 1] : !matrix, %b_ : f32 = %b [1] : !tile.tile<32xf32>) {
          %y = arith.addf %s_, %b_ : f32
          flex.yield %y : f32
        } -> !matrix
        // CHECK: %sum = tile.reduce sum %x along 1 : !tile.tile<64x32xf32, #tile.product<32>>
        %sum = tile.reduce sum %x along 1 : !matrix
        %l_next = tile.map(%a : f32 = %l_i [0] : !row, %c : f32 = %sum [0] : !row) {
          %d = arith.addf %a, %c : f32
          flex.yield %d : f32
        } -> !row
        %p = tile.map(%x_ : f32 = %x [0, 1] : !matrix) {
          %y = arith.truncf %x_ : f32 to bf16
          flex.yield %y : bf16
        } -> !tile.tile<64x32xbf16>
        // CHECK: %o = tile.await_dot
        %o = tile.await_dot %o_issued outstanding 0 : !tile.pending<!o> -> !o
        // CHECK-NEXT: %l_next_1 = tile.convert_layout %l_next : !tile.tile<64xf32, #tile.along<0, #tile.product<32>>> -> !tile.tile<64xf32, #tile.along<0, #tile.product<64>>>
        %scaled = tile.map(%o_ : f32 = %o [0, 1] : !o, %l_ : f32 = %l_next [0] : !row) {
          %y = arith.mulf %o_, %l_ : f32
          flex.yield %y : f32
        } -> !o
        // CHECK: %p_1 = tile.convert_layout %p : !tile.tile<64x32xbf16, #tile.product<32>> -> !tile.tile<64x32xbf16, #tile.operand<#tile.product<64>>>
        // CHECK-NEXT: scf.yield %l_next, %p_1, %scaled
        scf.yield %l_next, %p, %scaled : !row, !tile.tile<64x32xbf16>, !o
      }
      // CHECK: tile.scatter %{{.*}}, %out[%base + %rows]
      tile.scatter %l_end, %out[%base + %rows] : !row, memref<?xf32>, !tile.tile<64xi32>
      tile.end
    }
  }
  tile.return
}

// A branch may have no other side.
// CHECK: tile.kernel @one_sided
tile.kernel @one_sided(%c : i1 #tile.param<argument 0>) 
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %one = tile.barriers : !tile.barriers<1, 1>
  %c0 = arith.constant 0 : i32
  tile.roles {
    tile.role "consumer" copies 1 warps 4 registers 240 {
    ^bb0(%part : i32):
      // CHECK: scf.if %c {
      scf.if %c {
        tile.arrive %one[%c0] : !tile.barriers<1, 1>
      }
      tile.end
    }
  }
  tile.return
}
