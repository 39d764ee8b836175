// RUN: not flexc-opt %s -p legalize-tile-for-cpp 2>&1 | filecheck %s

// CHECK: tile.load: has live rows, which loads of C++ have none of: use triton
tile.kernel @live(%t : tensor<?x64xf32> #tile.param<argument 0>, %n : i32 #tile.param<dim 0, 0>,
    %seen : i1 #tile.param<argument 1>, %out : memref<?x64xf32> #tile.param<argument 2>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %live = tile.full %seen : i1 -> !tile.tile<32xi1>
  %k = tile.load %t[%n, %n] live %live : !tile.tile<32xi1> : tensor<?x64xf32>, i32, i32 -> !tile.tile<32x64xf32>
  tile.store %k : !tile.tile<32x64xf32>, %out[%n, %n] : memref<?x64xf32>, i32, i32
  tile.return
}
