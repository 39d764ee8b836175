// RUN: flexc-opt %s --split-input-file --verify-diagnostics --parsing-diagnostics | filecheck %s

tile.kernel @load_table(%key : tensor<?x?x16x64xbf16> #tile.param<argument 0>,
    %table : tensor<?x?xi64> #tile.param<argument 1>,
    %i : i32 #tile.param<dim 0, 0>, %s : i64 #tile.param<argument 2>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: pages expects a tensor of i32 of rank 2, got tensor<?x?xi64>
  %k = tile.load %key[%i, %i, %i, %i] pages %table : tensor<?x?xi64> : tensor<?x?x16x64xbf16>, i32, i32, i32, i32 -> !tile.tile<32x64xbf16>
  tile.return
}

// -----

tile.kernel @load_page_size(%key : tensor<?x?x?x64xbf16> #tile.param<argument 0>,
    %table : tensor<?x?xi32> #tile.param<argument 1>,
    %i : i32 #tile.param<dim 0, 0>, %s : i64 #tile.param<argument 2>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: pages expects pages of a static size, got tensor<?x?x?x64xbf16>
  %k = tile.load %key[%i, %i, %i, %i] pages %table : tensor<?x?xi32> : tensor<?x?x?x64xbf16>, i32, i32, i32, i32 -> !tile.tile<32x64xbf16>
  tile.return
}

// -----

tile.kernel @load_row(%key : tensor<?x?x16x64xbf16> #tile.param<argument 0>,
    %table : tensor<?x?xi32> #tile.param<argument 1>,
    %i : i32 #tile.param<dim 0, 0>, %s : i64 #tile.param<argument 2>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: pages expects a tile of two dimensions, got !tile.tile<64xbf16>
  %k = tile.load %key[%i, %i, %i, %i] pages %table : tensor<?x?xi32> : tensor<?x?x16x64xbf16>, i32, i32, i32, i32 -> !tile.tile<64xbf16>
  tile.return
}

// -----

tile.kernel @collect_strides(%key : tensor<?x?x16x64xbf16> #tile.param<argument 0>,
    %table : tensor<?x?xi32> #tile.param<argument 1>,
    %i : i32 #tile.param<dim 0, 0>, %s : i64 #tile.param<argument 2>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: strides expects 3 values, got 1
  %rows, %step = tile.collect %key[%s] strides [%s] pages %table[%s] of %i from %i count %i : tensor<?x?x16x64xbf16>, tensor<?x?xi32> -> tensor<32x64xbf16, strided<[?, 1]>>
  tile.return
}

// -----

tile.kernel @collect_table(%key : tensor<?x?x16x64xbf16> #tile.param<argument 0>,
    %table : tensor<?x?xi64> #tile.param<argument 1>,
    %i : i32 #tile.param<dim 0, 0>, %s : i64 #tile.param<argument 2>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: pages expects a tensor of i32 of rank 2, got tensor<?x?xi64>
  %rows, %step = tile.collect %key[%s] strides [%s, %s, %s] pages %table[%s] of %i from %i count %i : tensor<?x?x16x64xbf16>, tensor<?x?xi64> -> tensor<32x64xbf16, strided<[?, 1]>>
  tile.return
}

// -----

tile.kernel @collect_page_size(%key : tensor<?x?x?x64xbf16> #tile.param<argument 0>,
    %table : tensor<?x?xi32> #tile.param<argument 1>,
    %i : i32 #tile.param<dim 0, 0>, %s : i64 #tile.param<argument 2>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: pages expects pages of a static size, got tensor<?x?x?x64xbf16>
  %rows, %step = tile.collect %key[%s] strides [%s, %s, %s] pages %table[%s] of %i from %i count %i : tensor<?x?x?x64xbf16>, tensor<?x?xi32> -> tensor<32x64xbf16, strided<[?, 1]>>
  tile.return
}

// -----

tile.kernel @collect_columns(%key : tensor<?x?x16x64xbf16> #tile.param<argument 0>,
    %table : tensor<?x?xi32> #tile.param<argument 1>,
    %i : i32 #tile.param<dim 0, 0>, %s : i64 #tile.param<argument 2>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: rows expects a matrix of 64 columns of bf16, got tensor<32x32xbf16, strided<[?, 1]>>
  %rows, %step = tile.collect %key[%s] strides [%s, %s, %s] pages %table[%s] of %i from %i count %i : tensor<?x?x16x64xbf16>, tensor<?x?xi32> -> tensor<32x32xbf16, strided<[?, 1]>>
  tile.return
}

// -----

tile.kernel @collect_elements(%key : tensor<?x?x16x64xbf16> #tile.param<argument 0>,
    %table : tensor<?x?xi32> #tile.param<argument 1>,
    %i : i32 #tile.param<dim 0, 0>, %s : i64 #tile.param<argument 2>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: rows expects a matrix of 64 columns of bf16, got tensor<32x64xf32, strided<[?, 1]>>
  %rows, %step = tile.collect %key[%s] strides [%s, %s, %s] pages %table[%s] of %i from %i count %i : tensor<?x?x16x64xbf16>, tensor<?x?xi32> -> tensor<32x64xf32, strided<[?, 1]>>
  tile.return
}
