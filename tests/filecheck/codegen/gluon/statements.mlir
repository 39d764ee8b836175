// RUN: flexc-opt %s -t gluon --split-input-file | filecheck %s

// Values, whole or by row, column and number, are spelled as in Triton.
// CHECK: import triton.language as tl
// CHECK: from flexc.codegen.gluon.support import (
// CHECK-NEXT: add_pairs, read_f32, tanh_approx
// CHECK: def maps_worker(
// CHECK-NEXT: t, out, n
// CHECK-NEXT: ):
// CHECK: rows = n + gl.arange(0, 64, ROWS_32)
// CHECK-NEXT: columns = 0 + gl.arange(0, 32, COLUMNS_32)
// CHECK-NEXT: sum = rows[:, None] + columns[None, :]
// CHECK-NEXT: x = read_f32(t + sum)
// CHECK-NEXT: y = tanh_approx(x)
// CHECK-NEXT: z = gl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)
// CHECK-NEXT: inside = rows[:, None] < columns[None, :]
// CHECK-NEXT: same = gl.where(gl.full([64, 32], True, gl.int1, PRODUCT_32), rows[:, None], rows[:, None])
// CHECK-NEXT: three = gl.full([64, 32], 3.0, gl.float32, PRODUCT_32)
// CHECK: add_pairs(out + 0 + same, z, mask=inside)
// CHECK-NEXT: total = gl.sum(z, 1)
// CHECK-NEXT: gl.store(out + 0 + rows, total)
// CHECK: def maps(
// CHECK: (maps_worker, (
// CHECK-NEXT: t, out, n
// CHECK-NEXT: )),
// CHECK-NEXT: ],
// CHECK-NEXT: [],
// CHECK-NEXT: [],
!matrix = !tile.tile<64x32xf32, #tile.product<32>>
!rows = !tile.tile<64xi32, #tile.along<0, #tile.product<32>>>
tile.kernel @maps(%t : tensor<?xf32> #tile.param<argument 0>,
                  %out : memref<?xf32> #tile.param<argument 1>,
                  %n : i32 #tile.param<dim 0, 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  tile.roles {
    tile.role "worker" copies 1 warps 4 registers 128 {
    ^bb0(%part : i32):
      %zero = arith.constant 0 : i32
      %base = arith.constant 0 : i64
      %rows = tile.iota %n : !rows
      %columns = tile.iota %zero : !tile.tile<32xi32, #tile.along<1, #tile.product<32>>>
      %z, %same, %three, %inside = tile.map(%p : tensor<?xf32> = %t [] : tensor<?xf32>,
                            %i : i32 = %rows [0] : !rows,
                            %j : i32 = %columns [1] : !tile.tile<32xi32, #tile.along<1, #tile.product<32>>>) {
        %c = arith.constant 3.0 : f32
        %sum = arith.addi %i, %j : i32
        %x = tile.read %p[%sum] {in_place} : tensor<?xf32>, i32 -> f32
        %y = tile.tanh_approx %x : f32
        %most = arith.maximumf %x, %y : f32
        %less = arith.cmpi slt, %i, %j : i32
        flex.yield %most, %i, %c, %less : f32, i32, f32, i1
      } -> !matrix, !tile.tile<64x32xi32, #tile.product<32>>, !matrix, !tile.tile<64x32xi1, #tile.product<32>>
      tile.scatter_add atomic %z, %out[%base + %same] if %inside : !tile.tile<64x32xi1, #tile.product<32>> : !matrix, memref<?xf32>, !tile.tile<64x32xi32, #tile.product<32>>
      %total = tile.reduce sum %z along 1 : !matrix
      tile.scatter %total, %out[%base + %rows] : !tile.tile<64xf32, #tile.along<0, #tile.product<32>>>, memref<?xf32>, !rows
      tile.end
    }
  }
  tile.return
}
