// RUN: flexc-opt %s -p tile-launch-early | filecheck %s
// RUN: flexc-opt %s -p tile-launch-early -t triton | filecheck %s --check-prefix=SOURCE

// CHECK-LABEL: tile.kernel @first(
// CHECK-NEXT:    tile.await_kernels
// CHECK-NEXT:    %n = tile.program_id 0
// CHECK-LABEL: tile.kernel @second(
// CHECK-NEXT:    tile.await_kernels
// CHECK-NEXT:    tile.return

// SOURCE:        from flexc.codegen.triton.support import await_kernels
// SOURCE:        def first(
// SOURCE:          await_kernels()
// SOURCE-NEXT:     n = tl.program_id(0)
tile.kernel @first(%x : tensor<?xf32> #tile.param<argument 0>) grid affine_map<(b, h, q_len) -> (q_len, h, b)> {
  %n = tile.program_id 0
  tile.return
}

tile.kernel @second(%x : tensor<?xf32> #tile.param<argument 0>) grid affine_map<(b, h, q_len) -> (q_len, h, b)> {
  tile.return
}
