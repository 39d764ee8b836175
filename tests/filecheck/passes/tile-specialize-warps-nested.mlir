// RUN: flexc-opt %s -p tile-specialize-warps,canonicalize,cse | filecheck %s
// RUN: flexc-opt %s -p tile-specialize-warps,canonicalize,cse,tile-async-products | filecheck %s --check-prefix=ASYNC

// A tile that is used by all of the inner loop, and one that feeds two products. Both
// are in loops: slots are counted through both loops. What is loaded in 32 bits, or as
// a vector, stays with the consumer.
// CHECK-LABEL: tile.kernel @sums
// CHECK-SAME: schedule = "1 consumer of 64 rows, 1 producer, 4 slots"
// CHECK: %rows_s = tile.shared : !tile.shared<1, !tile.tile<64x64xf16>>
// CHECK-NEXT: %rows_full = tile.barriers : !tile.barriers<1, 1>
// CHECK-NEXT: %w_s = tile.shared : !tile.shared<4, !tile.tile<64x64xf16>>
// CHECK-NEXT: %w_full = tile.barriers : !tile.barriers<4, 1>
// CHECK-NEXT: %w_empty = tile.barriers by_warps 4 : !tile.barriers<4, 1>
// CHECK-NEXT: %q_s = tile.shared : !tile.shared<4, !tile.tile<32x64xf16>>
// CHECK: %d_w_s = tile.shared : !tile.shared<1, !tile.tile<64x32xf16>>

// CHECK: tile.role "consumer" copies 1 warps 4 registers 240
// CHECK: tile.await %rows_full[%c0] parity %c0
// CHECK-NEXT: %rows = tile.slot %rows_s[%c0]
// CHECK: scf.for %h = %c0 to %heads step %c1 iter_args(%d_outer = %zeros, %w_at_1 = %c0, %q_at_1 = %c0)
// CHECK-NEXT: %w_slot = arith.andi %w_at_1, %c3
// CHECK-NEXT: [[TURN:%.*]] = arith.shrsi %w_at_1, %c2
// CHECK: tile.await %w_full[%w_slot] parity %w_parity
// CHECK: scf.for %i = %c0 to %n step %c1 iter_args(%d_inner = %d_outer, %q_at_3 = %q_at_1)
// CHECK: tile.load %sums
// CHECK: tile.await %q_full[%q_slot] parity %q_parity
// CHECK-NEXT: %q = tile.slot
// CHECK-NEXT: %q_t = tile.transpose_view %q
// CHECK-NEXT: tile.dot %rows, %q_t
// CHECK-NOT: tile.arrive
// CHECK: %d_new = tile.dot %p, %q, %d_inner
// CHECK-NEXT: tile.arrive %q_empty[%q_slot]
// CHECK: tile.dot %p_d, %w
// CHECK-NOT: tile.arrive
// CHECK: scf.yield
// CHECK-NEXT: }
// CHECK-NEXT: tile.arrive %w_empty[%w_slot]
// CHECK-NEXT: scf.yield

// A product is complete before the next loop or iteration begins.
// ASYNC: tile.role "consumer"
// ASYNC: scf.for
// ASYNC: scf.for
// ASYNC: tile.await_dot %s_issued outstanding 0
// ASYNC-NOT: tile.arrive
// ASYNC: %d_new_issued = tile.issue_dot %p, %q, %d_inner
// ASYNC: %e_issued = tile.issue_dot %p_d, %w of
// ASYNC-NEXT: %d_new = tile.await_dot %d_new_issued outstanding 1
// ASYNC-NEXT: tile.arrive %q_empty[%q_slot]
// ASYNC-NEXT: %e = tile.await_dot %e_issued outstanding 0
// ASYNC-NEXT: tile.map
// ASYNC: scf.yield
// ASYNC-NEXT: }
// ASYNC-NEXT: tile.arrive %w_empty[%w_slot]

// A result in 32 bits is stored; one in 16 bits leaves through a slot of its own, as
// its shape is not that of the rows.
// CHECK: tile.store %d : !tile.tile<64x64xf32>, %d_rows[%b, %c0, %first, %c0]
// CHECK: %d_w_view = tile.slot %d_w_s[%part]
// CHECK: tile.write_view %d_w, %d_w_view
// CHECK: tile.copy_out %d_w_view to %d_key

// CHECK: tile.role "producer"
// CHECK: tile.copy_in %key[%b, %c0, %first, %c0] to %rows_1, %rows_full[%c0]
// CHECK: scf.for
// CHECK: tile.copy_in %value[%b, %h_1, %c0, %c0]
// CHECK-NEXT: scf.for
// CHECK: tile.copy_in %query[%b, %h_1, %start_1, %c0]
// CHECK-NOT: tile.load
!t = tensor<?x?x?x64xf16, strided<[?, ?, ?, 1]>>
!o = memref<?x?x?x32xf16, strided<[?, ?, ?, 1]>>
tile.kernel @sums(%query : !t #tile.param<argument 0>, %key : !t #tile.param<argument 1>, %value : !t #tile.param<argument 2>, %sums : tensor<?x?x?xf32> #tile.param<argument 3>, %d_rows : memref<?x?x?x64xf32> #tile.param<argument 4>, %d_key : !o #tile.param<argument 5>, %n : i32 #tile.param<argument 6>) grid affine_map<(b, h, q_len) -> (q_len ceildiv 64, b)> attributes {num_stages = 5 : i32, alignment = 16 : i64, aligned = array<i64: 0, 1, 2, 4, 5>} {
  %b = tile.program_id 1
  %block = tile.program_id 0
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %c32 = arith.constant 32 : i32
  %c64 = arith.constant 64 : i32
  %first = arith.muli %block, %c64 : i32
  %heads = tile.dim %query, 1 : !t -> i32
  %zero = arith.constant 0.0 : f32
  %half = arith.constant 0.5 : f16
  tile.parts 1 {
  ^bb0(%part : i32):
    %zeros = tile.full %zero : f32 -> !tile.tile<64x64xf32>
    %narrow = tile.full %zero : f32 -> !tile.tile<64x32xf32>
    %rows = tile.load %key[%b, %c0, %first, %c0] : !t, i32, i32, i32, i32 -> !tile.tile<64x64xf16>
    %d = scf.for %h = %c0 to %heads step %c1 iter_args(%d_outer = %zeros) -> (!tile.tile<64x64xf32>) : i32 {
      %w = tile.load %value[%b, %h, %c0, %c0] : !t, i32, i32, i32, i32 -> !tile.tile<64x64xf16>
      %inner = scf.for %i = %c0 to %n step %c1 iter_args(%d_inner = %d_outer) -> (!tile.tile<64x64xf32>) : i32 {
        %start = arith.muli %i, %c32 : i32
        %q = tile.load %query[%b, %h, %start, %c0] checked [0] : !t, i32, i32, i32, i32 -> !tile.tile<32x64xf16>
        %row = tile.load %sums[%b, %h, %start] : tensor<?x?x?xf32>, i32, i32, i32 -> !tile.tile<32xf32>
        %q_t = tile.transpose %q : !tile.tile<32x64xf16> -> !tile.tile<64x32xf16>
        %s = tile.dot %rows, %q_t, %narrow : !tile.tile<64x64xf16>, !tile.tile<64x32xf16>, !tile.tile<64x32xf32> -> !tile.tile<64x32xf32>
        %p = tile.map(%x : f32 = %s [0, 1] : !tile.tile<64x32xf32>, %y : f32 = %row [1] : !tile.tile<32xf32>) {
          %z = arith.subf %x, %y : f32
          %t = arith.truncf %z : f32 to f16
          flex.yield %t : f16
        } -> !tile.tile<64x32xf16>
        %d_new = tile.dot %p, %q, %d_inner : !tile.tile<64x32xf16>, !tile.tile<32x64xf16>, !tile.tile<64x64xf32> -> !tile.tile<64x64xf32>
        %p_d = tile.map(%x : f32 = %d_inner [0, 1] : !tile.tile<64x64xf32>) {
          %t = arith.truncf %x : f32 to f16
          flex.yield %t : f16
        } -> !tile.tile<64x64xf16>
        %e = tile.dot %p_d, %w, %zeros : !tile.tile<64x64xf16>, !tile.tile<64x64xf16>, !tile.tile<64x64xf32> -> !tile.tile<64x64xf32>
        %d_sum = tile.map(%x : f32 = %d_new [0, 1] : !tile.tile<64x64xf32>, %y : f32 = %e [0, 1] : !tile.tile<64x64xf32>) {
          %z = arith.addf %x, %y : f32
          flex.yield %z : f32
        } -> !tile.tile<64x64xf32>
        scf.yield %d_sum : !tile.tile<64x64xf32>
      }
      scf.yield %inner : !tile.tile<64x64xf32>
    }
    tile.store %d : !tile.tile<64x64xf32>, %d_rows[%b, %c0, %first, %c0] : memref<?x?x?x64xf32>, i32, i32, i32, i32
    %d_w = tile.full %half : f16 -> !tile.tile<64x32xf16>
    tile.store %d_w : !tile.tile<64x32xf16>, %d_key[%b, %c0, %first, %c0] : !o, i32, i32, i32, i32
    tile.end
  }
  tile.return
}
