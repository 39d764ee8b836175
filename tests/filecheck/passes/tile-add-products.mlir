// RUN: flexc-opt %s -p 'tile-add-products{machine=avx512}' | filecheck %s
// RUN: flexc-opt %s -p 'tile-add-products{machine=avx2}' | filecheck %s --check-prefix=AVX2

// What is only added to memory is summed there, as many rows as are added.
// CHECK-LABEL: tile.kernel @adds
// CHECK: tile.add_register_product %out[%base] stride %stride rows %n, %x inner %m, %y by <8 x 2> : memref<?x16xf32>, !tile.tile<24x32xf32>, !tile.tile<32x16xf32>
// CHECK-NEXT: tile.add_register_product %out[%base] stride %stride, %x, %y by <8 x 2>
// CHECK-NEXT: tile.return
tile.kernel @adds(%z : f32 #tile.param<argument 0>, %n : i32 #tile.param<argument 1>,
    %m : i32 #tile.param<argument 2>, %base : i64 #tile.param<argument 3>,
    %stride : i64 #tile.param<argument 4>, %out : memref<?x16xf32> #tile.param<argument 5>)
    grid affine_map<(b, h, q_len) -> (1)> {
  %one = arith.constant 1 : i64
  %x = tile.full %z : f32 -> !tile.tile<24x32xf32>
  %y = tile.full %z : f32 -> !tile.tile<32x16xf32>
  %p = tile.register_product %x inner %m, %y by <8 x 2> : !tile.tile<24x32xf32>, !tile.tile<32x16xf32> -> !tile.tile<24x16xf32>
  tile.add_strided %p, %out[%base] strides [%stride, %one] count %n : !tile.tile<24x16xf32>, memref<?x16xf32>
  %w = tile.register_product %x, %y by <8 x 2> : !tile.tile<24x32xf32>, !tile.tile<32x16xf32> -> !tile.tile<24x16xf32>
  tile.add_strided %w, %out[%base] strides [%stride, %one] : !tile.tile<24x16xf32>, memref<?x16xf32>
  tile.return
}

// A tile stays one if rows are no whole vectors, or not of adjacent elements; if the
// product adds to something itself; if something else needs it; and in a loop that the
// product is not in.
// CHECK-LABEL: tile.kernel @tiles
// CHECK-NOT: tile.add_register_product
// AVX2-LABEL: tile.kernel @tiles
// AVX2: tile.add_register_product %out[%base] stride %stride, %x, %narrow by <8 x 1>
// AVX2-NOT: tile.add_register_product
tile.kernel @tiles(%z : f32 #tile.param<argument 0>, %n : i32 #tile.param<argument 4>, %base : i64 #tile.param<argument 1>,
    %stride : i64 #tile.param<argument 2>, %out : memref<?x?xf32> #tile.param<argument 3>)
    grid affine_map<(b, h, q_len) -> (1)> {
  %one = arith.constant 1 : i64
  %x = tile.full %z : f32 -> !tile.tile<24x32xf32>
  %narrow = tile.full %z : f32 -> !tile.tile<32x8xf32>
  %y = tile.full %z : f32 -> !tile.tile<32x16xf32>
  %a = tile.register_product %x, %narrow by <8 x 1> : !tile.tile<24x32xf32>, !tile.tile<32x8xf32> -> !tile.tile<24x8xf32>
  tile.add_strided %a, %out[%base] strides [%stride, %one] : !tile.tile<24x8xf32>, memref<?x?xf32>
  %b = tile.register_product %x, %y by <8 x 2> : !tile.tile<24x32xf32>, !tile.tile<32x16xf32> -> !tile.tile<24x16xf32>
  tile.add_strided %b, %out[%base] strides [%stride, %stride] : !tile.tile<24x16xf32>, memref<?x?xf32>
  %c = tile.register_product %x, %y onto %b by <8 x 2> : !tile.tile<24x32xf32>, !tile.tile<32x16xf32> onto !tile.tile<24x16xf32> -> !tile.tile<24x16xf32>
  tile.add_strided %c, %out[%base] strides [%stride, %one] : !tile.tile<24x16xf32>, memref<?x?xf32>
  %d = tile.register_product %x, %y by <8 x 2> : !tile.tile<24x32xf32>, !tile.tile<32x16xf32> -> !tile.tile<24x16xf32>
  tile.add_strided %d, %out[%base] strides [%stride, %one] : !tile.tile<24x16xf32>, memref<?x?xf32>
  tile.store_strided %d, %out[%base] strides [%stride, %one] extents [%n, %n] : !tile.tile<24x16xf32>, memref<?x?xf32>
  %e = tile.register_product %x, %y by <8 x 2> : !tile.tile<24x32xf32>, !tile.tile<32x16xf32> -> !tile.tile<24x16xf32>
  scf.for %i = %n to %n step %n : i32 {
    tile.add_strided %e, %out[%base] strides [%stride, %one] : !tile.tile<24x16xf32>, memref<?x?xf32>
  }
  tile.return
}
