// RUN: FLEXC_ROUNDTRIP

// CHECK-LABEL: tile.kernel @parts
tile.kernel @parts(%first : i32 #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: tile.parts 2 {
  // CHECK-NEXT: ^{{.*}}(%part: i32):
  tile.parts 2 {
  ^bb0(%part : i32):
    %row = arith.addi %first, %part : i32
    // CHECK: tile.end
    tile.end
  }
  tile.return
}

// -----

// CHECK-LABEL: tile.kernel @roles
tile.kernel @roles(%key : tensor<?x?x64xbf16> #tile.param<argument 0>,
                   %out : memref<?x?x64xbf16> #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  // CHECK: %slots = tile.shared : !tile.shared<2, !tile.tile<64x64xbf16>>
  %slots = tile.shared : !tile.shared<2, !tile.tile<64x64xbf16>>
  // CHECK-NEXT: %full = tile.barriers : !tile.barriers<2, 1>
  %full = tile.barriers : !tile.barriers<2, 1>
  // CHECK-NEXT: %empty = tile.barriers by_warps 4 : !tile.barriers<2, 2>
  %empty = tile.barriers by_warps 4 : !tile.barriers<2, 2>
  // CHECK-NEXT: tile.roles {
  tile.roles {
    // CHECK-NEXT: tile.role "consumer" copies 2 warps 4 registers 240 {
    // CHECK-NEXT: ^{{.*}}(%part: i32):
    tile.role "consumer" copies 2 warps 4 registers 240 {
    ^bb0(%part : i32):
      // CHECK-NEXT: tile.await %full[%c0] parity %c0 : !tile.barriers<2, 1>
      tile.await %full[%c0] parity %c0 : !tile.barriers<2, 1>
      // CHECK-NEXT: %k = tile.slot %slots[%c0] : !tile.shared<2, !tile.tile<64x64xbf16>> -> !tile.view<!tile.tile<64x64xbf16>>
      %k = tile.slot %slots[%c0] : !tile.shared<2, !tile.tile<64x64xbf16>> -> !tile.view<!tile.tile<64x64xbf16>>
      // CHECK-NEXT: %k_t = tile.transpose_view %k : !tile.view<!tile.tile<64x64xbf16>> -> !tile.view<!tile.tile<64x64xbf16>>
      %k_t = tile.transpose_view %k : !tile.view<!tile.tile<64x64xbf16>> -> !tile.view<!tile.tile<64x64xbf16>>
      // CHECK-NEXT: %s = tile.issue_dot %k, %k_t of !tile.view<!tile.tile<64x64xbf16>>, !tile.view<!tile.tile<64x64xbf16>> -> !tile.pending<!tile.tile<64x64xf32>>
      %s = tile.issue_dot %k, %k_t of !tile.view<!tile.tile<64x64xbf16>>, !tile.view<!tile.tile<64x64xbf16>> -> !tile.pending<!tile.tile<64x64xf32>>
      // CHECK-NEXT: %x = tile.await_dot %s outstanding 0 : !tile.pending<!tile.tile<64x64xf32>> -> !tile.tile<64x64xf32>
      %x = tile.await_dot %s outstanding 0 : !tile.pending<!tile.tile<64x64xf32>> -> !tile.tile<64x64xf32>
      // CHECK-NEXT: %p = tile.map(
      %p = tile.map(%e : f32 = %x [0, 1] : !tile.tile<64x64xf32>) {
        %f = arith.truncf %e : f32 to bf16
        flex.yield %f : bf16
      } -> !tile.tile<64x64xbf16>
      // CHECK: %o = tile.issue_dot %p, %k, %x : !tile.tile<64x64xf32>, of !tile.tile<64x64xbf16>, !tile.view<!tile.tile<64x64xbf16>> -> !tile.pending<!tile.tile<64x64xf32>>
      %o = tile.issue_dot %p, %k, %x : !tile.tile<64x64xf32>, of !tile.tile<64x64xbf16>, !tile.view<!tile.tile<64x64xbf16>> -> !tile.pending<!tile.tile<64x64xf32>>
      %y = tile.await_dot %o outstanding 0 : !tile.pending<!tile.tile<64x64xf32>> -> !tile.tile<64x64xf32>
      // CHECK: %z = tile.dot %p, %k_t, %y : !tile.tile<64x64xbf16>, !tile.view<!tile.tile<64x64xbf16>>, !tile.tile<64x64xf32> -> !tile.tile<64x64xf32>
      %z = tile.dot %p, %k_t, %y : !tile.tile<64x64xbf16>, !tile.view<!tile.tile<64x64xbf16>>, !tile.tile<64x64xf32> -> !tile.tile<64x64xf32>
      // CHECK-NEXT: tile.arrive %empty[%c0] : !tile.barriers<2, 2>
      tile.arrive %empty[%c0] : !tile.barriers<2, 2>
      // CHECK: %own = tile.opaque %part
      %own = tile.opaque %part
      %to = tile.slot %slots[%own] : !tile.shared<2, !tile.tile<64x64xbf16>> -> !tile.view<!tile.tile<64x64xbf16>>
      // CHECK: tile.write_view %p, %to : !tile.tile<64x64xbf16>, !tile.view<!tile.tile<64x64xbf16>>
      tile.write_view %p, %to : !tile.tile<64x64xbf16>, !tile.view<!tile.tile<64x64xbf16>>
      // CHECK-NEXT: tile.fence_copies
      tile.fence_copies
      // CHECK-NEXT: tile.copy_out %to to %out[%c0, %part, %c0] : !tile.view<!tile.tile<64x64xbf16>>, memref<?x?x64xbf16>
      tile.copy_out %to to %out[%c0, %part, %c0] : !tile.view<!tile.tile<64x64xbf16>>, memref<?x?x64xbf16>
      // CHECK-NEXT: tile.await_copies outstanding 0
      tile.await_copies outstanding 0
      // CHECK-NEXT: tile.end
      tile.end
    }
    // CHECK: tile.role "producer" copies 1 warps 1 registers 24 {
    tile.role "producer" copies 1 warps 1 registers 24 {
    ^bb0(%copy : i32):
      // CHECK: tile.await %empty[%c0] parity %c1 : !tile.barriers<2, 2>
      tile.await %empty[%c0] parity %c1 : !tile.barriers<2, 2>
      // CHECK-NEXT: tile.expect %full[%c0] bytes 8192 : !tile.barriers<2, 1>
      tile.expect %full[%c0] bytes 8192 : !tile.barriers<2, 1>
      %slot = tile.slot %slots[%c0] : !tile.shared<2, !tile.tile<64x64xbf16>> -> !tile.view<!tile.tile<64x64xbf16>>
      // CHECK: tile.copy_in %key[%c0, %copy, %c0] to %slot, %full[%c0] : tensor<?x?x64xbf16>, !tile.view<!tile.tile<64x64xbf16>>, !tile.barriers<2, 1>
      tile.copy_in %key[%c0, %copy, %c0] to %slot, %full[%c0] : tensor<?x?x64xbf16>, !tile.view<!tile.tile<64x64xbf16>>, !tile.barriers<2, 1>
      tile.end
    }
  }
  tile.return
}

// -----

// A copy that chooses among the barriers by its number may be the only one.
// CHECK-LABEL: tile.kernel @one_barrier_for_each_copy
tile.kernel @one_barrier_for_each_copy(%c : i1 #tile.param<argument 0>,
                                       %i : i32 #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %own = tile.barriers : !tile.barriers<2, 1>
  %one = tile.barriers : !tile.barriers<1, 1>
  tile.roles {
    tile.role "consumer" copies 2 warps 4 registers 240 {
    ^bb0(%part : i32):
      tile.arrive %own[%part] : !tile.barriers<2, 1>
      scf.if %c {
        tile.arrive %one[%i] : !tile.barriers<1, 1>
      }
      tile.end
    }
  }
  tile.return
}

// -----

// CHECK-LABEL: tile.kernel @shares
tile.kernel @shares(%key : tensor<?x?x?x128xbf16> #tile.param<argument 0>,
                    %sums : memref<?x?x?x128xf32> #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %c0 = arith.constant 0 : i32
  tile.parts 2 {
  ^bb0(%part : i32):
    %x = tile.load %key[%c0, %c0, %part, %c0] : tensor<?x?x?x128xbf16>, i32, i32, i32, i32 -> !tile.tile<64x128xbf16>
    // CHECK: %all = tile.share %x of %part : !tile.tile<64x128xbf16> -> !tile.shares<2, !tile.tile<64x128xbf16>>
    %all = tile.share %x of %part : !tile.tile<64x128xbf16> -> !tile.shares<2, !tile.tile<64x128xbf16>>
    // CHECK-NEXT: %first = tile.of_part %all[%c0] : !tile.shares<2, !tile.tile<64x128xbf16>> -> !tile.tile<64x128xbf16>
    %first = tile.of_part %all[%c0] : !tile.shares<2, !tile.tile<64x128xbf16>> -> !tile.tile<64x128xbf16>
    // CHECK-NEXT: %half = tile.take_columns %first[%part] of 2 : !tile.tile<64x128xbf16> -> !tile.tile<64x64xbf16>
    %half = tile.take_columns %first[%part] of 2 : !tile.tile<64x128xbf16> -> !tile.tile<64x64xbf16>
    %turned = tile.transpose %half : !tile.tile<64x64xbf16> -> !tile.tile<64x64xbf16>
    %zero = arith.constant 0.0 : f32
    %zeros = tile.full %zero : f32 -> !tile.tile<64x64xf32>
    %sum = tile.dot %turned, %half, %zeros : !tile.tile<64x64xbf16>, !tile.tile<64x64xbf16>, !tile.tile<64x64xf32> -> !tile.tile<64x64xf32>
    // CHECK: tile.add_to atomic %sum, %sums[%c0, %c0, %c0, %part] checked [0] : !tile.tile<64x64xf32>, memref<?x?x?x128xf32>
    tile.add_to atomic %sum, %sums[%c0, %c0, %c0, %part] checked [0] : !tile.tile<64x64xf32>, memref<?x?x?x128xf32>
    tile.end
  }
  tile.return
}

// -----

// CHECK-LABEL: tile.kernel @in_order
tile.kernel @in_order(%sums : memref<?x?x?x128xf32> #tile.param<argument 0>,
                      %progress : memref<?xi32> #tile.param<progress 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %c0 = arith.constant 0 : i32
  %zero = arith.constant 0.0 : f32
  %sum = tile.full %zero : f32 -> !tile.tile<64x64xf32>
  // CHECK: tile.add_to atomic %sum, %sums[%c0, %c0, %c0, %c0] progress %progress[%c0, %c0, %c0, %c0] : memref<?xi32> : !tile.tile<64x64xf32>, memref<?x?x?x128xf32>
  tile.add_to atomic %sum, %sums[%c0, %c0, %c0, %c0] progress %progress[%c0, %c0, %c0, %c0] : memref<?xi32> : !tile.tile<64x64xf32>, memref<?x?x?x128xf32>
  // CHECK-NEXT: %seen = tile.await_progress %progress[%c0] at_least %c0 known %c0 : memref<?xi32>
  %seen = tile.await_progress %progress[%c0] at_least %c0 known %c0 : memref<?xi32>
  // CHECK-NEXT: tile.report_progress %progress[%c0] %seen : memref<?xi32>
  tile.report_progress %progress[%c0] %seen : memref<?xi32>
  // CHECK-NEXT: tile.await_copies outstanding 1 written
  tile.await_copies outstanding 1 written
  tile.return
}

// -----

// CHECK-LABEL: tile.kernel @sums
tile.kernel @sums(%numbers : tensor<?x?x?xf32> #tile.param<argument 0>,
                  %sums : memref<?x?x?x64xf32> #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %c0 = arith.constant 0 : i32
  %slots = tile.shared : !tile.shared<1, !tile.tile<64x128xbf16>>
  %row = tile.shared : !tile.shared<1, !tile.tile<64xf32>>
  %out = tile.shared : !tile.shared<1, !tile.tile<64x64xf32>>
  %full = tile.barriers : !tile.barriers<1, 1>
  %empty = tile.barriers : !tile.barriers<1, 1>
  tile.roles {
    tile.role "consumer" copies 1 warps 4 registers 240 {
    ^bb0(%part : i32):
      tile.await %full[%c0] parity %c0 : !tile.barriers<1, 1>
      %k = tile.slot %slots[%c0] : !tile.shared<1, !tile.tile<64x128xbf16>> -> !tile.view<!tile.tile<64x128xbf16>>
      // CHECK: %half = tile.take_columns %k[%c0] of 2 : !tile.view<!tile.tile<64x128xbf16>> -> !tile.view<!tile.tile<64x64xbf16>>
      %half = tile.take_columns %k[%c0] of 2 : !tile.view<!tile.tile<64x128xbf16>> -> !tile.view<!tile.tile<64x64xbf16>>
      %v = tile.slot %row[%c0] : !tile.shared<1, !tile.tile<64xf32>> -> !tile.view<!tile.tile<64xf32>>
      // CHECK: %r = tile.read_view %v : !tile.view<!tile.tile<64xf32>> -> !tile.tile<64xf32>
      %r = tile.read_view %v : !tile.view<!tile.tile<64xf32>> -> !tile.tile<64xf32>
      // CHECK-NEXT: %a = tile.issue_dot %half, %half of
      %a = tile.issue_dot %half, %half of !tile.view<!tile.tile<64x64xbf16>>, !tile.view<!tile.tile<64x64xbf16>> -> !tile.pending<!tile.tile<64x64xf32>>
      // CHECK-NEXT: %b = tile.issue_dot %half, %half, %a : !tile.pending<!tile.tile<64x64xf32>>, of
      %b = tile.issue_dot %half, %half, %a : !tile.pending<!tile.tile<64x64xf32>>, of !tile.view<!tile.tile<64x64xbf16>>, !tile.view<!tile.tile<64x64xbf16>> -> !tile.pending<!tile.tile<64x64xf32>>
      %sum = tile.await_dot %b outstanding 0 : !tile.pending<!tile.tile<64x64xf32>> -> !tile.tile<64x64xf32>
      // CHECK: tile.arrive %empty[%c0] after_products : !tile.barriers<1, 1>
      tile.arrive %empty[%c0] after_products : !tile.barriers<1, 1>
      %place = tile.slot %out[%c0] : !tile.shared<1, !tile.tile<64x64xf32>> -> !tile.view<!tile.tile<64x64xf32>>
      tile.write_view %sum, %place : !tile.tile<64x64xf32>, !tile.view<!tile.tile<64x64xf32>>
      tile.fence_copies
      // CHECK: tile.copy_out %place to %sums[%c0, %c0, %c0, %c0] adds : !tile.view<!tile.tile<64x64xf32>>, memref<?x?x?x64xf32>
      tile.copy_out %place to %sums[%c0, %c0, %c0, %c0] adds : !tile.view<!tile.tile<64x64xf32>>, memref<?x?x?x64xf32>
      tile.await_copies outstanding 0
      tile.end
    }
    tile.role "producer" copies 1 warps 1 registers 24 {
    ^bb0(%part : i32):
      tile.expect %full[%c0] bytes 256 : !tile.barriers<1, 1>
      %v = tile.slot %row[%c0] : !tile.shared<1, !tile.tile<64xf32>> -> !tile.view<!tile.tile<64xf32>>
      tile.copy_in %numbers[%c0, %c0, %c0] to %v, %full[%c0] : tensor<?x?x?xf32>, !tile.view<!tile.tile<64xf32>>, !tile.barriers<1, 1>
      tile.end
    }
  }
  tile.return
}

// -----

// CHECK-LABEL: tile.kernel @turns
tile.kernel @turns() grid affine_map<(b, h, q_len) -> (q_len)> {
  %c2 = arith.constant 2 : i32
  tile.roles {
    tile.role "consumer" copies 3 warps 4 registers 160 {
    ^bb0(%part : i32):
      %is_last = arith.cmpi eq, %part, %c2 : i32
      // CHECK: scf.if %is_last {
      // CHECK-NEXT: tile.pass_turn %part
      // CHECK-NEXT: }
      scf.if %is_last {
        tile.pass_turn %part
      }
      // CHECK-NEXT: tile.take_turn %part
      tile.take_turn %part
      // CHECK-NEXT: tile.pass_turn %part
      tile.pass_turn %part
      tile.end
    }
  }
  tile.return
}
