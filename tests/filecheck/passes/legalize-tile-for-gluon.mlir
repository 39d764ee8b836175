// RUN: flexc-opt %s -p legalize-tile-for-gluon | filecheck %s

!t = tensor<?x?x?x64xbf16, strided<[?, ?, ?, 1]>>
!o = memref<?x?x?x64xbf16, strided<[?, ?, ?, 1]>>
!slot = !tile.shared<1, !tile.tile<64x64xbf16>>
!view = !tile.view<!tile.tile<64x64xbf16>>

// What only copies read or write is described; its sizes are still asked for. What is
// read by pointers too is given twice. A kernel starts with its first role's warps.
// CHECK: tile.kernel @copies(
// CHECK-SAME: %key : tensor<{{.*}}> #tile.param<descriptor 0 box 64x64>
// CHECK-SAME: %value : tensor<{{.*}}> #tile.param<argument 1>
// CHECK-SAME: %out : memref<{{.*}}> #tile.param<descriptor 2 box 64x64>
// CHECK-SAME: %value_tiles : tensor<{{.*}}> #tile.param<descriptor 1 box 64x64>
// CHECK-SAME: num_warps = 4 : i32
tile.kernel @copies(%key : !t #tile.param<argument 0>,
                    %value : !t #tile.param<argument 1>,
                    %out : !o #tile.param<argument 2>)
    grid affine_map<(b, h, q_len) -> (q_len)> attributes {num_warps = 8 : i32, num_stages = 2 : i32} {
  // CHECK: %kv_len = tile.dim %key, 2
  %kv_len = tile.dim %key, 2 : !t -> i32
  %slots = tile.shared : !slot
  %full = tile.barriers : !tile.barriers<1, 1>
  %c0 = arith.constant 0 : i32
  tile.roles {
    tile.role "consumer" copies 1 warps 4 registers 240 {
    ^bb0(%part : i32):
      tile.await %full[%c0] parity %c0 : !tile.barriers<1, 1>
      %k = tile.slot %slots[%c0] : !slot -> !view
      // CHECK: %v = tile.gather %value[
      %v = tile.load %value[%c0, %c0, %c0, %c0] : !t, i32, i32, i32, i32 -> !tile.tile<64x64xbf16>
      tile.write_view %v, %k : !tile.tile<64x64xbf16>, !view
      tile.fence_copies
      // CHECK: tile.copy_out %k to %out
      tile.copy_out %k to %out[%c0, %c0, %kv_len, %c0] : !view, !o
      tile.await_copies outstanding 0
      tile.end
    }
    tile.role "producer" copies 1 warps 1 registers 24 {
    ^bb0(%part : i32):
      %k = tile.slot %slots[%c0] : !slot -> !view
      tile.expect %full[%c0] bytes 16384 : !tile.barriers<1, 1>
      // CHECK: tile.copy_in %key[
      tile.copy_in %key[%c0, %c0, %c0, %c0] to %k, %full[%c0] : !t, !view, !tile.barriers<1, 1>
      // CHECK: tile.copy_in %value_tiles[
      tile.copy_in %value[%c0, %c0, %c0, %c0] to %k, %full[%c0] : !t, !view, !tile.barriers<1, 1>
      tile.end
    }
  }
  tile.return
}
