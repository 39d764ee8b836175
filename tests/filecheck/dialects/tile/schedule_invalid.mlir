// RUN: flexc-opt %s --split-input-file --verify-diagnostics --parsing-diagnostics | filecheck %s

// CHECK: expects one slot or more, got 0
"test.op"() : () -> !tile.shared<0, !tile.tile<64x64xbf16>>

// -----

// CHECK: expects one barrier and one arrival or more, got 1 and 0
"test.op"() : () -> !tile.barriers<1, 0>

// -----

// CHECK: expects one part or more, got 0
"tile.parts"() <{count = 0 : i32}> ({
^bb0(%part : i32):
  tile.end
}) : () -> ()

// -----

// CHECK: body expects one argument of type i32, got ()
"tile.parts"() <{count = 2 : i32}> ({
  tile.end
}) : () -> ()

// -----

// CHECK: body expects tile.end as its last op
tile.parts 2 {
^bb0(%part : i32):
  "test.termop"() : () -> ()
}

// -----

// CHECK: expects tile.role ops only, got test.op
tile.roles {
  "test.op"() : () -> ()
}

// -----

// CHECK: expects one role or more with labels that differ, got ['a', 'a']
tile.roles {
  tile.role "a" copies 1 warps 4 registers 24 {
  ^bb0(%part : i32):
    tile.end
  }
  tile.role "a" copies 1 warps 4 registers 24 {
  ^bb0(%part : i32):
    tile.end
  }
}

// -----

// CHECK: copies expects 1 or more, got 0
tile.roles {
  tile.role "a" copies 0 warps 4 registers 24 {
  ^bb0(%part : i32):
    tile.end
  }
}

// -----

// CHECK: warps expects a power of two, got 3
tile.roles {
  tile.role "a" copies 1 warps 3 registers 24 {
  ^bb0(%part : i32):
    tile.end
  }
}

// -----

%tile = "test.op"() : () -> !tile.tile<64x64xf32>
// CHECK: roles expect numbers, tensors, memrefs, shared memory and barriers from outside, got !tile.tile<64x64xf32> in test.op
tile.roles {
  tile.role "a" copies 1 warps 4 registers 24 {
  ^bb0(%part : i32):
    "test.op"(%tile) : (!tile.tile<64x64xf32>) -> ()
    tile.end
  }
}

// -----

%slots, %i = "test.op"() : () -> (!tile.shared<2, !tile.tile<64x64xbf16>>, i32)
// CHECK: result expects a tile like !tile.tile<64x64xbf16>, got !tile.tile<64x32xbf16>
%view = tile.slot %slots[%i] : !tile.shared<2, !tile.tile<64x64xbf16>> -> !tile.view<!tile.tile<64x32xbf16>>

// -----

%slots = "test.op"() : () -> !tile.shared<2, !tile.tile<64x64xbf16>>
%two = arith.constant 2 : i32
// CHECK: index expects 0 to 1, got 2
%view = tile.slot %slots[%two] : !tile.shared<2, !tile.tile<64x64xbf16>> -> !tile.view<!tile.tile<64x64xbf16>>

// -----

%barriers = "test.op"() : () -> !tile.barriers<1, 1>
%one = arith.constant 1 : i32
// CHECK: index expects 0 to 0, got 1
tile.arrive %barriers[%one] : !tile.barriers<1, 1>

// -----

%barriers, %i = "test.op"() : () -> (!tile.barriers<1, 1>, i32)
// CHECK: expects a positive number of bytes, got 0
tile.expect %barriers[%i] bytes 0 : !tile.barriers<1, 1>

// -----

%view = "test.op"() : () -> !tile.view<!tile.tile<64x32xbf16>>
// CHECK: result expects a tile like !tile.tile<32x64xbf16>, got !tile.tile<64x32xbf16>
%turned = tile.transpose_view %view : !tile.view<!tile.tile<64x32xbf16>> -> !tile.view<!tile.tile<64x32xbf16>>

// -----

%t, %view, %barriers, %i = "test.op"() : () -> (tensor<?x?x64xbf16>, !tile.view<!tile.tile<64x64xbf16>>, !tile.barriers<1, 1>, i32)
// CHECK: expects 3 indices, got 2
tile.copy_in %t[%i, %i] to %view, %barriers[%i] : tensor<?x?x64xbf16>, !tile.view<!tile.tile<64x64xbf16>>, !tile.barriers<1, 1>

// -----

%t, %view, %barriers, %i = "test.op"() : () -> (tensor<?xbf16>, !tile.view<!tile.tile<64x64xbf16>>, !tile.barriers<1, 1>, i32)
// CHECK: expects a tile of at most as many dimensions as tensor<?xbf16>, got !tile.tile<64x64xbf16>
tile.copy_in %t[%i] to %view, %barriers[%i] : tensor<?xbf16>, !tile.view<!tile.tile<64x64xbf16>>, !tile.barriers<1, 1>

// -----

%t, %view, %barriers, %i = "test.op"() : () -> (tensor<?x?xf16>, !tile.view<!tile.tile<64x64xbf16>>, !tile.barriers<1, 1>, i32)
// CHECK: view expects elements of f16 as tensor<?x?xf16> has, got !tile.tile<64x64xbf16>
tile.copy_in %t[%i, %i] to %view, %barriers[%i] : tensor<?x?xf16>, !tile.view<!tile.tile<64x64xbf16>>, !tile.barriers<1, 1>

// -----

%view, %out, %i = "test.op"() : () -> (!tile.view<!tile.tile<64x96xbf16>>, memref<?x?xbf16>, i32)
// CHECK: expects dimensions of powers of two, got !tile.tile<64x96xbf16>
tile.copy_out %view to %out[%i, %i] : !tile.view<!tile.tile<64x96xbf16>>, memref<?x?xbf16>

// -----

%x, %view, %out, %i = "test.op"() : () -> (i32, !tile.view<!tile.tile<64x32xbf16>>, memref<?x?xbf16>, i32)
%turned = tile.transpose_view %view : !tile.view<!tile.tile<64x32xbf16>> -> !tile.view<!tile.tile<32x64xbf16>>
// CHECK: expects a view of a whole slot, got tile.transpose_view
tile.copy_out %turned to %out[%i, %i] : !tile.view<!tile.tile<32x64xbf16>>, memref<?x?xbf16>

// -----

%tile, %view = "test.op"() : () -> (!tile.tile<64x64xf32>, !tile.view<!tile.tile<64x64xbf16>>)
// CHECK: view expects a tile like !tile.tile<64x64xf32>, got !tile.tile<64x64xbf16>
tile.write_view %tile, %view : !tile.tile<64x64xf32>, !tile.view<!tile.tile<64x64xbf16>>

// -----

// CHECK: outstanding expects 0 or more, got -1
tile.await_copies outstanding -1

// -----

%a, %b = "test.op"() : () -> (!tile.tile<64x32xbf16>, !tile.view<!tile.tile<64x64xbf16>>)
// CHECK: rhs expects 32 rows, as many as lhs has columns, got 64
%s = tile.issue_dot %a, %b of !tile.tile<64x32xbf16>, !tile.view<!tile.tile<64x64xbf16>> -> !tile.pending<!tile.tile<64x64xf32>>

// -----

%a, %b = "test.op"() : () -> (!tile.tile<64xbf16>, !tile.view<!tile.tile<64x64xbf16>>)
// CHECK: lhs expects a matrix, got !tile.tile<64xbf16>
%s = tile.issue_dot %a, %b of !tile.tile<64xbf16>, !tile.view<!tile.tile<64x64xbf16>> -> !tile.pending<!tile.tile<64x64xf32>>

// -----

%a, %b = "test.op"() : () -> (!tile.tile<64x64xf32>, !tile.view<!tile.tile<64x64xbf16>>)
// CHECK: rhs expects the element type of !tile.tile<64x64xf32>, got !tile.tile<64x64xbf16>
%s = tile.issue_dot %a, %b of !tile.tile<64x64xf32>, !tile.view<!tile.tile<64x64xbf16>> -> !tile.pending<!tile.tile<64x64xf32>>

// -----

%a, %b = "test.op"() : () -> (!tile.tile<64x64xbf16>, !tile.view<!tile.tile<64x128xbf16>>)
// CHECK: result expects shape (64, 128), got !tile.tile<64x64xf32>
%s = tile.issue_dot %a, %b of !tile.tile<64x64xbf16>, !tile.view<!tile.tile<64x128xbf16>> -> !tile.pending<!tile.tile<64x64xf32>>

// -----

%a, %b, %c = "test.op"() : () -> (!tile.tile<64x64xbf16>, !tile.view<!tile.tile<64x64xbf16>>, !tile.tile<64x64xf16>)
// CHECK: acc expects a tile like !tile.tile<64x64xf32>, got !tile.tile<64x64xf16>
%s = tile.issue_dot %a, %b, %c : !tile.tile<64x64xf16>, of !tile.tile<64x64xbf16>, !tile.view<!tile.tile<64x64xbf16>> -> !tile.pending<!tile.tile<64x64xf32>>

// -----

%a, %b = "test.op"() : () -> (!tile.tile<64x64xbf16>, !tile.view<!tile.tile<64x64xbf16>>)
// CHECK: result expects one use, a tile.await_dot in the same block, got none
%s = tile.issue_dot %a, %b of !tile.tile<64x64xbf16>, !tile.view<!tile.tile<64x64xbf16>> -> !tile.pending<!tile.tile<64x64xf32>>

// -----

%a, %b, %i = "test.op"() : () -> (!tile.tile<64x64xbf16>, !tile.view<!tile.tile<64x64xbf16>>, i1)
// CHECK: result expects one use, a tile.await_dot in the same block, got tile.await_dot in another block
%s = tile.issue_dot %a, %b of !tile.tile<64x64xbf16>, !tile.view<!tile.tile<64x64xbf16>> -> !tile.pending<!tile.tile<64x64xf32>>
scf.if %i {
  %x = tile.await_dot %s outstanding 0 : !tile.pending<!tile.tile<64x64xf32>> -> !tile.tile<64x64xf32>
}

// -----

// Nothing is in flight over a back edge.
%a, %b, %c, %first = "test.op"() : () -> (!tile.tile<64x64xbf16>, !tile.view<!tile.tile<64x64xbf16>>, i32, !tile.pending<!tile.tile<64x64xf32>>)
// CHECK: pending expects the result of a tile.issue_dot
%last = scf.for %i = %c to %c step %c iter_args(%before = %first) -> (!tile.pending<!tile.tile<64x64xf32>>) : i32 {
  %x = tile.await_dot %before outstanding 0 : !tile.pending<!tile.tile<64x64xf32>> -> !tile.tile<64x64xf32>
  %s = tile.issue_dot %a, %b of !tile.tile<64x64xbf16>, !tile.view<!tile.tile<64x64xbf16>> -> !tile.pending<!tile.tile<64x64xf32>>
  scf.yield %s : !tile.pending<!tile.tile<64x64xf32>>
}

// -----

%a, %b, %i, %other = "test.op"() : () -> (!tile.tile<64x64xbf16>, !tile.view<!tile.tile<64x64xbf16>>, i1, !tile.pending<!tile.tile<64x64xf32>>)
// CHECK: result expects one use, a tile.await_dot in the same block, got scf.yield
%r = scf.if %i -> (!tile.pending<!tile.tile<64x64xf32>>) {
  %s = tile.issue_dot %a, %b of !tile.tile<64x64xbf16>, !tile.view<!tile.tile<64x64xbf16>> -> !tile.pending<!tile.tile<64x64xf32>>
  scf.yield %s : !tile.pending<!tile.tile<64x64xf32>>
} else {
  scf.yield %other : !tile.pending<!tile.tile<64x64xf32>>
}

// -----

%a, %b = "test.op"() : () -> (!tile.tile<64x64xbf16>, !tile.view<!tile.tile<64x64xbf16>>)
%s = tile.issue_dot %a, %b of !tile.tile<64x64xbf16>, !tile.view<!tile.tile<64x64xbf16>> -> !tile.pending<!tile.tile<64x64xf32>>
%t = tile.issue_dot %a, %b of !tile.tile<64x64xbf16>, !tile.view<!tile.tile<64x64xbf16>> -> !tile.pending<!tile.tile<64x64xf32>>
%y = tile.await_dot %t outstanding 0 : !tile.pending<!tile.tile<64x64xf32>> -> !tile.tile<64x64xf32>
// CHECK: outstanding expects 0 to 1, the products issued after this one, got 2
%x = tile.await_dot %s outstanding 2 : !tile.pending<!tile.tile<64x64xf32>> -> !tile.tile<64x64xf32>

// -----

%a, %b = "test.op"() : () -> (!tile.tile<64x64xbf16>, !tile.view<!tile.tile<64x64xbf16>>)
%s = tile.issue_dot %a, %b of !tile.tile<64x64xbf16>, !tile.view<!tile.tile<64x64xbf16>> -> !tile.pending<!tile.tile<64x64xf32>>
// CHECK: result expects a tile like !tile.tile<64x64xf32>, got !tile.tile<64x64xf16>
%x = tile.await_dot %s outstanding 0 : !tile.pending<!tile.tile<64x64xf32>> -> !tile.tile<64x64xf16>

// -----

tile.kernel @awaited_by_all_signalled_by_none(%i : i32 #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %full = tile.barriers : !tile.barriers<1, 1>
  // CHECK: %full expects a tile.expect or tile.arrive, as it is awaited, got none
  tile.await %full[%i] parity %i : !tile.barriers<1, 1>
  tile.return
}

// -----

tile.kernel @expects_by_warps(%i : i32 #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: %full expects arrivals of warps, got a tile.expect, which is one arrival
  %full = tile.barriers by_warps 4 : !tile.barriers<1, 1>
  tile.expect %full[%i] bytes 8 : !tile.barriers<1, 1>
  tile.return
}

// -----

tile.kernel @two_copies_arrive(%i : i32 #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: %empty has 2 arrivals of its roles in a phase, but expects 1
  %empty = tile.barriers : !tile.barriers<1, 1>
  tile.roles {
    tile.role "consumer" copies 2 warps 4 registers 240 {
    ^bb0(%part : i32):
      tile.arrive %empty[%i] : !tile.barriers<1, 1>
      tile.end
    }
  }
  tile.return
}

// -----

tile.kernel @bytes(%t : tensor<?x?xbf16> #tile.param<argument 0>,
                   %i : i32 #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %slots = tile.shared : !tile.shared<2, !tile.tile<64x64xbf16>>
  // CHECK: %full expects 8192 bytes, as the copies after it bring, got 4096
  %full = tile.barriers : !tile.barriers<1, 1>
  %view = tile.slot %slots[%i] : !tile.shared<2, !tile.tile<64x64xbf16>> -> !tile.view<!tile.tile<64x64xbf16>>
  tile.expect %full[%i] bytes 4096 : !tile.barriers<1, 1>
  tile.copy_in %t[%i, %i] to %view, %full[%i] : tensor<?x?xbf16>, !tile.view<!tile.tile<64x64xbf16>>, !tile.barriers<1, 1>
  tile.return
}

// -----

tile.kernel @bytes_of_a_copy_that_nobody_expects(%t : tensor<?x?xbf16> #tile.param<argument 0>,
                                                 %i : i32 #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %slots = tile.shared : !tile.shared<2, !tile.tile<64x64xbf16>>
  // CHECK: %full expects a tile.expect, as a copy completes there, got none
  %full = tile.barriers : !tile.barriers<1, 1>
  %view = tile.slot %slots[%i] : !tile.shared<2, !tile.tile<64x64xbf16>> -> !tile.view<!tile.tile<64x64xbf16>>
  tile.copy_in %t[%i, %i] to %view, %full[%i] : tensor<?x?xbf16>, !tile.view<!tile.tile<64x64xbf16>>, !tile.barriers<1, 1>
  tile.return
}

// -----

tile.kernel @slots_in_a_branch(%c : i1 #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: tile.shared expects to be in the kernel's block
  scf.if %c {
    %slots = tile.shared : !tile.shared<2, !tile.tile<64x64xbf16>>
  }
  tile.return
}

// -----

tile.kernel @roles_twice(%c : i1 #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: expects one tile.roles at most, got 2
  tile.roles {
    tile.role "a" copies 1 warps 4 registers 24 {
    ^bb0(%part : i32):
      tile.end
    }
  }
  tile.roles {
    tile.role "a" copies 1 warps 4 registers 24 {
    ^bb0(%part : i32):
      tile.end
    }
  }
  tile.return
}

// -----

tile.kernel @products_of_one_warp(%c : i1 #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: role "a" expects a multiple of 4 warps, as it issues products, got 1
  tile.roles {
    tile.role "a" copies 1 warps 1 registers 24 {
    ^bb0(%part : i32):
      %a, %b = "test.op"() : () -> (!tile.tile<64x64xbf16>, !tile.view<!tile.tile<64x64xbf16>>)
      %s = tile.issue_dot %a, %b of !tile.tile<64x64xbf16>, !tile.view<!tile.tile<64x64xbf16>> -> !tile.pending<!tile.tile<64x64xf32>>
      %x = tile.await_dot %s outstanding 0 : !tile.pending<!tile.tile<64x64xf32>> -> !tile.tile<64x64xf32>
      tile.end
    }
  }
  tile.return
}

// -----

%a, %b, %c = "test.op"() : () -> (!tile.tile<64x64xbf16>, !tile.view<!tile.tile<32x64xbf16>>, !tile.tile<64x64xf32>)
// CHECK: rhs expects 64 rows, as many as lhs has columns, got 32
%s = tile.dot %a, %b, %c : !tile.tile<64x64xbf16>, !tile.view<!tile.tile<32x64xbf16>>, !tile.tile<64x64xf32> -> !tile.tile<64x64xf32>

// -----

%a, %b = "test.op"() : () -> (!tile.tile<64x64xf32>, !tile.view<!tile.tile<64x64xf32>>)
// CHECK: lhs expects elements of f16 or bf16, got !tile.tile<64x64xf32>
%s = tile.issue_dot %a, %b of !tile.tile<64x64xf32>, !tile.view<!tile.tile<64x64xf32>> -> !tile.pending<!tile.tile<64x64xf32>>

// -----

%a, %b = "test.op"() : () -> (!tile.tile<64x64xbf16>, !tile.view<!tile.tile<64x64xbf16>>)
// CHECK: result expects elements of f32, got !tile.tile<64x64xbf16>
%s = tile.issue_dot %a, %b of !tile.tile<64x64xbf16>, !tile.view<!tile.tile<64x64xbf16>> -> !tile.pending<!tile.tile<64x64xbf16>>

// -----

%a, %b = "test.op"() : () -> (!tile.view<!tile.tile<32x64xbf16>>, !tile.view<!tile.tile<64x64xbf16>>)
// CHECK: lhs expects multiples of 64 rows and 16 columns, got 32 x 64
%s = tile.issue_dot %a, %b of !tile.view<!tile.tile<32x64xbf16>>, !tile.view<!tile.tile<64x64xbf16>> -> !tile.pending<!tile.tile<32x64xf32, #tile.product<64>>>

// -----

%a, %b = "test.op"() : () -> (!tile.view<!tile.tile<64x8xbf16>>, !tile.view<!tile.tile<8x64xbf16>>)
// CHECK: lhs expects multiples of 64 rows and 16 columns, got 64 x 8
%s = tile.issue_dot %a, %b of !tile.view<!tile.tile<64x8xbf16>>, !tile.view<!tile.tile<8x64xbf16>> -> !tile.pending<!tile.tile<64x64xf32, #tile.product<64>>>

// -----

%a, %b = "test.op"() : () -> (!tile.view<!tile.tile<64x64xbf16>>, !tile.view<!tile.tile<64x512xbf16>>)
// CHECK: rhs expects a multiple of 8 columns up to 256, got 512
%s = tile.issue_dot %a, %b of !tile.view<!tile.tile<64x64xbf16>>, !tile.view<!tile.tile<64x512xbf16>> -> !tile.pending<!tile.tile<64x512xf32, #tile.product<512>>>

// -----

%a, %b = "test.op"() : () -> (!tile.view<!tile.tile<64x64xbf16>>, !tile.view<!tile.tile<64x64xbf16>>)
// CHECK: result expects layout #tile.product<64>, got #tile.product<32>
%s = tile.issue_dot %a, %b of !tile.view<!tile.tile<64x64xbf16>>, !tile.view<!tile.tile<64x64xbf16>> -> !tile.pending<!tile.tile<64x64xf32, #tile.product<32>>>

// -----

%a, %b = "test.op"() : () -> (!tile.tile<64x32xbf16, #tile.operand<#tile.product<32>>>, !tile.view<!tile.tile<32x64xbf16>>)
// CHECK: lhs expects layout #tile.operand<#tile.product<64>>, got #tile.operand<#tile.product<32>>
%s = tile.issue_dot %a, %b of !tile.tile<64x32xbf16, #tile.operand<#tile.product<32>>>, !tile.view<!tile.tile<32x64xbf16>> -> !tile.pending<!tile.tile<64x64xf32, #tile.product<64>>>

// -----

%a, %b, %c = "test.op"() : () -> (!tile.view<!tile.tile<64x64xbf16>>, !tile.view<!tile.tile<64x64xbf16>>, !tile.tile<64x64xf32>)
// CHECK: acc expects layout #tile.product<64>, got None
%s = tile.issue_dot %a, %b, %c : !tile.tile<64x64xf32>, of !tile.view<!tile.tile<64x64xbf16>>, !tile.view<!tile.tile<64x64xbf16>> -> !tile.pending<!tile.tile<64x64xf32, #tile.product<64>>>

// -----

%a, %b = "test.op"() : () -> (!tile.view<!tile.tile<64x64xbf16>>, !tile.view<!tile.tile<64x64xbf16>>)
%s = tile.issue_dot %a, %b of !tile.view<!tile.tile<64x64xbf16>>, !tile.view<!tile.tile<64x64xbf16>> -> !tile.pending<!tile.tile<64x64xf32, #tile.product<64>>>
// CHECK: result expects layout #tile.product<64>, got None
%x = tile.await_dot %s outstanding 0 : !tile.pending<!tile.tile<64x64xf32, #tile.product<64>>> -> !tile.tile<64x64xf32>

// -----

%m = "test.op"() : () -> !tile.tile<64xf32, #tile.along<1, #tile.product<64>>>
// CHECK: operand 0 expects layout #tile.along<0, #tile.product<64>>, got !tile.tile<64xf32, #tile.along<1, #tile.product<64>>>
%y = tile.map(%e : f32 = %m [0] : !tile.tile<64xf32, #tile.along<1, #tile.product<64>>>) {
  flex.yield %e : f32
} -> !tile.tile<64x64xf32, #tile.product<64>>

// -----

%m = "test.op"() : () -> !tile.tile<64x64xf32, #tile.operand<#tile.product<64>>>
// CHECK: operand 0 expects layout #tile.product<64>, got !tile.tile<64x64xf32, #tile.operand<#tile.product<64>>>
%y = tile.map(%e : f32 = %m [0, 1] : !tile.tile<64x64xf32, #tile.operand<#tile.product<64>>>) {
  flex.yield %e : f32
} -> !tile.tile<64x64xf32, #tile.product<64>>

// -----

tile.kernel @rows_of_two_groups(%c : i1 #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: role "a" expects products of a multiple of 128 rows, got !tile.tile<64x64xf32, #tile.product<64>>
  tile.roles {
    tile.role "a" copies 1 warps 8 registers 24 {
    ^bb0(%part : i32):
      %a, %b = "test.op"() : () -> (!tile.view<!tile.tile<64x64xbf16>>, !tile.view<!tile.tile<64x64xbf16>>)
      %s = tile.issue_dot %a, %b of !tile.view<!tile.tile<64x64xbf16>>, !tile.view<!tile.tile<64x64xbf16>> -> !tile.pending<!tile.tile<64x64xf32, #tile.product<64>>>
      %x = tile.await_dot %s outstanding 0 : !tile.pending<!tile.tile<64x64xf32, #tile.product<64>>> -> !tile.tile<64x64xf32, #tile.product<64>>
      tile.end
    }
  }
  tile.return
}

// -----

// CHECK: expects one part or more, got 0
"test.op"() : () -> !tile.shares<0, !tile.tile<64x64xbf16>>

// -----

%x, %part = "test.op"() : () -> (!tile.tile<64x64xbf16>, i32)
// CHECK: result expects a tile like !tile.tile<64x64xf32>, got !tile.tile<64x64xbf16>
%all = tile.share %x of %part : !tile.tile<64x64xbf16> -> !tile.shares<2, !tile.tile<64x64xf32>>

// -----

%all, %part = "test.op"() : () -> (!tile.shares<2, !tile.tile<64x64xbf16>>, i32)
// CHECK: result expects a tile like !tile.tile<64x64xbf16>, got !tile.tile<64x32xbf16>
%x = tile.of_part %all[%part] : !tile.shares<2, !tile.tile<64x64xbf16>> -> !tile.tile<64x32xbf16>

// -----

%x, %i = "test.op"() : () -> (!tile.tile<64x64xbf16>, i32)
// CHECK: count expects a divisor of 64 columns, got 3
%some = tile.take_columns %x[%i] of 3 : !tile.tile<64x64xbf16> -> !tile.tile<64x21xbf16>

// -----

%x, %i = "test.op"() : () -> (!tile.tile<64x64xbf16>, i32)
// CHECK: expects a view of a view, or a tile of a tile
%some = tile.take_columns %x[%i] of 2 : !tile.tile<64x64xbf16> -> !tile.view<!tile.tile<64x32xbf16>>

// -----

%x, %i = "test.op"() : () -> (!tile.tile<64x64xbf16>, i32)
// CHECK: result expects a tile like !tile.tile<64x32xbf16>, got !tile.tile<64x64xbf16>
%some = tile.take_columns %x[%i] of 2 : !tile.tile<64x64xbf16> -> !tile.tile<64x64xbf16>

// -----

%view = "test.op"() : () -> !tile.view<!tile.tile<64x64xbf16>>
// CHECK: result expects a tile like !tile.tile<64x64xbf16>, got !tile.tile<64x64xf32>
%x = tile.read_view %view : !tile.view<!tile.tile<64x64xbf16>> -> !tile.tile<64x64xf32>

// -----

%part = "test.op"() : () -> i32
// CHECK: part expects the number of a role's copy
tile.take_turn %part

// -----

tile.kernel @two_roles() grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: expects turns of one role only
  tile.roles {
    tile.role "consumer" copies 2 warps 4 registers 160 {
    ^bb0(%part : i32):
      tile.pass_turn %part
      tile.end
    }
    tile.role "producer" copies 2 warps 4 registers 160 {
    ^bb0(%part : i32):
      tile.pass_turn %part
      tile.end
    }
  }
  tile.return
}
