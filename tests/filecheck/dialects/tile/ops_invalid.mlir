// RUN: flexc-opt %s --split-input-file --verify-diagnostics --parsing-diagnostics | filecheck %s

// CHECK: params expects 1 entries, one for each argument, got 0
"tile.kernel"() <{sym_name = "k", grid = affine_map<(b, h, q_len) -> (q_len)>, params = []}> ({
^bb0(%t : tensor<?xf32>):
  tile.return
}) : () -> ()

// -----

// CHECK: body expects tile.return as its last op
tile.kernel @no_return(%t : tensor<?xf32> #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  "test.termop"() : () -> ()
}

// -----

// CHECK: residents expects 1 or more, got 0
tile.kernel @no_resident() grid affine_map<(b, h, q_len) -> (q_len)>
    attributes {residents = 0 : i32} {
  tile.return
}

// -----

// CHECK: max_registers expects an integer, got "all"
tile.kernel @no_number() grid affine_map<(b, h, q_len) -> (q_len)>
    attributes {max_registers = "all"} {
  tile.return
}

// -----

// CHECK: a tile holds numbers, got index
"test.op"() : () -> !tile.tile<4xindex>

// -----

// CHECK: a tile has one or two positive dimensions, got (4, 4, 4)
"test.op"() : () -> !tile.tile<4x4x4xf32>

// -----

// CHECK: a tile has one or two positive dimensions, got (0,)
"test.op"() : () -> !tile.tile<0xf32>

// -----

tile.kernel @map_no_result(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<4x8xf32>
  // CHECK: tile.map expects one result or more
  "tile.map"(%x) <{spans = [array<i32: 0, 1>]}> ({
  ^bb0(%e : f32):
    flex.yield
  }) : (!tile.tile<4x8xf32>) -> ()
  tile.return
}

// -----

tile.kernel @map_spans(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<4x8xf32>
  // CHECK: spans expects 1 entries, got 2
  %m = "tile.map"(%x) <{spans = [array<i32: 0, 1>, array<i32: 0>]}> ({
  ^bb0(%e : f32):
    flex.yield %e : f32
  }) : (!tile.tile<4x8xf32>) -> !tile.tile<4x8xf32>
  tile.return
}

// -----

tile.kernel @map_operand(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %y = tile.full %z : f32 -> !tile.tile<8x4xf32>
  // CHECK: operand 0 expects shape (4, 8), got !tile.tile<8x4xf32>
  %m = "tile.map"(%y) <{spans = [array<i32: 0, 1>]}> ({
  ^bb0(%e : f32):
    flex.yield %e : f32
  }) : (!tile.tile<8x4xf32>) -> !tile.tile<4x8xf32>
  tile.return
}

// -----

tile.kernel @map_results(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<4x8xf32>
  // CHECK: results expect shape (4, 8), got !tile.tile<8x4xf32>
  %m, %n = "tile.map"(%x) <{spans = [array<i32: 0, 1>]}> ({
  ^bb0(%e : f32):
    flex.yield %e, %e : f32, f32
  }) : (!tile.tile<4x8xf32>) -> (!tile.tile<4x8xf32>, !tile.tile<8x4xf32>)
  tile.return
}

// -----

tile.kernel @map_arguments(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<4x8xf32>
  // CHECK: tile.map expects arguments (f32), got (f64)
  %m = "tile.map"(%x) <{spans = [array<i32: 0, 1>]}> ({
  ^bb0(%e : f64):
    %f = arith.truncf %e : f64 to f32
    flex.yield %f : f32
  }) : (!tile.tile<4x8xf32>) -> !tile.tile<4x8xf32>
  tile.return
}

// -----

tile.kernel @map_yield(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<4x8xf32>
  // CHECK: tile.map expects to yield (f32), got (i32)
  %m = "tile.map"(%x) <{spans = [array<i32: 0, 1>]}> ({
  ^bb0(%e : f32):
    %c = arith.constant 0 : i32
    flex.yield %c : i32
  }) : (!tile.tile<4x8xf32>) -> !tile.tile<4x8xf32>
  tile.return
}

// -----

tile.kernel @dot_inner(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<4x8xf32>
  // CHECK: rhs expects 8 rows, as many as lhs has columns, got 4
  %d = tile.dot %x, %x, %x : !tile.tile<4x8xf32>, !tile.tile<4x8xf32>, !tile.tile<4x8xf32> -> !tile.tile<4x8xf32>
  tile.return
}

// -----

tile.kernel @dot_acc(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<4x8xf32>
  %y = tile.full %z : f32 -> !tile.tile<8x4xf32>
  // CHECK: acc expects shape (4, 4), got !tile.tile<4x8xf32>
  %d = tile.dot %x, %y, %x : !tile.tile<4x8xf32>, !tile.tile<8x4xf32>, !tile.tile<4x8xf32> -> !tile.tile<4x8xf32>
  tile.return
}

// -----

tile.kernel @product_inner(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<4x8xf32>
  // CHECK: lhs expects shape (4, 4), got !tile.tile<4x8xf32>
  %d = tile.register_product %x, %x by <4 x 1> : !tile.tile<4x8xf32>, !tile.tile<4x8xf32> -> !tile.tile<4x8xf32>
  tile.return
}

// -----

tile.kernel @product_result(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<4x8xf32>
  %y = tile.full %z : f32 -> !tile.tile<8x4xf32>
  // CHECK: result expects 4 columns, as many as rhs, got 8
  %d = tile.register_product %x, %y by <4 x 1> : !tile.tile<4x8xf32>, !tile.tile<8x4xf32> -> !tile.tile<4x8xf32>
  tile.return
}

// -----

tile.kernel @load_indices(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: expects 2 indices, got 1
  %d = tile.load %t[%i] : tensor<?x?xf32>, i32 -> !tile.tile<4x8xf32>
  tile.return
}

// -----

tile.kernel @load_depth(%t : tensor<?xf32> #tile.param<argument 0>,
    %i : i32 #tile.param<argument 1>) grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: expects a tile of at most as many dimensions as tensor<?xf32>, got !tile.tile<4x8xf32>
  %d = tile.load %t[%i] : tensor<?xf32>, i32 -> !tile.tile<4x8xf32>
  tile.return
}

// -----

tile.kernel @store_below(%out : memref<?x?xf32> #tile.param<argument 0>,
    %i : i32 #tile.param<argument 1>, %z : f32 #tile.param<argument 2>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<4x8xf32>
  // CHECK: below expects dimension 0 to be checked
  tile.store %x : !tile.tile<4x8xf32>, %out[%i, %i] checked [1] below %i
      : memref<?x?xf32>, i32, i32
  tile.return
}

// -----

tile.kernel @store_indices(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<4x8xf32>
  // CHECK: expects 2 indices, got 1
  tile.store %x : !tile.tile<4x8xf32>, %out[%i] : memref<?x?xf32>, i32
  tile.return
}

// -----

tile.kernel @load_strides(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: strides expects 2 values, got 1
  %d = tile.load_strided %t[%b] strides [%b] extents [%i, %i] : tensor<?x?xf32> -> !tile.tile<4x8xf32>
  tile.return
}

// -----

tile.kernel @store_extents(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<4x8xf32>
  // CHECK: extents expects 2 values, got 1
  tile.store_strided %x, %out[%b] strides [%b, %b] extents [%i] : !tile.tile<4x8xf32>, memref<?x?xf32>
  tile.return
}

// -----

tile.kernel @store_counted(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<4x8xf32>
  // CHECK: counted expects a dimension below 2, got 2
  tile.store_strided %x, %out[%b] strides [%b, %b] extents [%i, %i] counted 2 : !tile.tile<4x8xf32>, memref<?x?xf32>
  tile.return
}

// -----

tile.kernel @diagonals(%z : f32 #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<4x8xf32>
  // CHECK: result expects 12 elements, got !tile.tile<8xf32>
  %d = tile.diagonals %x : !tile.tile<4x8xf32> -> !tile.tile<8xf32>
  tile.return
}

// -----

tile.kernel @diagonals_elements(%z : f32 #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<4x8xf32>
  // CHECK: result expects the element type of !tile.tile<4x8xf32>, got !tile.tile<12xf16>
  %d = tile.diagonals %x : !tile.tile<4x8xf32> -> !tile.tile<12xf16>
  tile.return
}

// -----

tile.kernel @diagonals_of_a_row(%z : f32 #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<8xf32>
  // CHECK: expects a tile of two dimensions, got (8,)
  %d = tile.diagonals %x : !tile.tile<8xf32> -> !tile.tile<8xf32>
  tile.return
}

// -----

tile.kernel @add_to_indices(%z : f32 #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<8xf32>
  // CHECK: expects 2 indices, got 1
  tile.add_to %x, %out[%i] : !tile.tile<8xf32>, memref<?x?xf32>
  tile.return
}

// -----

tile.kernel @add_to_turn(%z : f32 #tile.param<argument 0>,
    %out : memref<?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %progress : memref<?xi32> #tile.param<progress 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<8xf32>
  // CHECK: progress expects an atomic addition, and four numbers
  tile.add_to atomic %x, %out[%i] progress %progress[%i, %i, %i] : memref<?xi32> : !tile.tile<8xf32>, memref<?xf32>
  tile.return
}

// -----

tile.kernel @progress_type(%progress : memref<?xf32> #tile.param<argument 0>,
    %i : i32 #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: progress expects memref<?xi32>, got memref<?xf32>
  tile.report_progress %progress[%i] %i : memref<?xf32>
  tile.return
}

// -----

tile.kernel @progress_of_warps(%progress : memref<?xi32> #tile.param<progress 0>,
    %i : i32 #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  tile.roles {
    tile.role "writer" copies 1 warps 4 registers 24 {
    ^bb0(%part : i32):
      // CHECK: expects a role of one warp, got 4 in role "writer"
      tile.report_progress %progress[%i] %i : memref<?xi32>
      tile.end
    }
  }
  tile.return
}

// -----

tile.kernel @diagonal_step(%t : tensor<?xf32> #tile.param<argument 0>, %i : i32 #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: step expects 1 or -1, got 2
  %x = tile.read_diagonals %t[%i] step 2 : tensor<?xf32>, i32 -> !tile.tile<64x32xf32>
  tile.return
}

// -----

tile.kernel @diagonal_first(%t : tensor<?xf32> #tile.param<argument 0>, %i : i16 #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: first expects type i32 or i64: i16
  %x = tile.read_diagonals %t[%i] step 1 : tensor<?xf32>, i16 -> !tile.tile<64x32xf32>
  tile.return
}

// -----

tile.kernel @diagonal_element(%t : tensor<?xf64> #tile.param<argument 0>, %i : i32 #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: tensor expects f32, i32, bf16 or f16: f64
  %x = tile.read_diagonals %t[%i] step 1 : tensor<?xf64>, i32 -> !tile.tile<64x32xf64>
  tile.return
}

// -----

tile.kernel @diagonal_result(%t : tensor<?xbf16> #tile.param<argument 0>, %i : i32 #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: result expects a matrix of f32, got !tile.tile<64x32xbf16>
  %x = tile.read_diagonals %t[%i] step 1 : tensor<?xbf16>, i32 -> !tile.tile<64x32xbf16>
  tile.return
}

// -----

tile.kernel @diagonal_vector(%t : tensor<?xf32> #tile.param<argument 0>, %i : i32 #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: result expects a matrix of f32, got !tile.tile<64xf32>
  %x = tile.read_diagonals %t[%i] step 1 : tensor<?xf32>, i32 -> !tile.tile<64xf32>
  tile.return
}

// -----

tile.kernel @diagonal_layout(%t : tensor<?xf32> #tile.param<argument 0>, %i : i32 #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: result expects the layout of a product: 
  %x = tile.read_diagonals %t[%i] step 1 : tensor<?xf32>, i32 -> !tile.tile<64x32xf32, #tile.operand<#tile.product<32>>>
  tile.return
}

// -----

tile.kernel @add_register_product_rows(%z : f32 #tile.param<argument 0>,
    %i : i64 #tile.param<argument 1>, %out : memref<?x?xf32> #tile.param<argument 2>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<8x8xf32>
  %y = tile.full %z : f32 -> !tile.tile<4x8xf32>
  // CHECK: rhs expects 8 rows, as many as lhs has columns, got 4
  tile.add_register_product %out[%i] stride %i, %x, %y by <8 x 2> : memref<?x?xf32>, !tile.tile<8x8xf32>, !tile.tile<4x8xf32>
  tile.return
}

// -----

tile.kernel @add_register_product_type(%z : f32 #tile.param<argument 0>,
    %i : i64 #tile.param<argument 1>, %out : memref<?x?xbf16> #tile.param<argument 2>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<8x8xf32>
  // CHECK: lhs expects elements of bf16
  tile.add_register_product %out[%i] stride %i, %x, %x by <8 x 2> : memref<?x?xbf16>, !tile.tile<8x8xf32>, !tile.tile<8x8xf32>
  tile.return
}

// -----

tile.kernel @add_register_product_lhs(%z : f32 #tile.param<argument 0>, %w : f64 #tile.param<argument 3>,
    %i : i64 #tile.param<argument 1>, %out : memref<?x?xf32> #tile.param<argument 2>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<8x8xf32>
  %y = tile.full %w : f64 -> !tile.tile<8x8xf64>
  // CHECK: lhs expects elements of f32
  tile.add_register_product %out[%i] stride %i, %y, %x by <8 x 2> : memref<?x?xf32>, !tile.tile<8x8xf64>, !tile.tile<8x8xf32>
  tile.return
}

// -----

tile.kernel @register_product_rhs(%z : f32 #tile.param<argument 0>, %w : f64 #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<8x8xf32>
  %y = tile.full %w : f64 -> !tile.tile<8x8xf64>
  // CHECK: rhs expects elements of f32
  %p = tile.register_product %x, %y by <8 x 2> : !tile.tile<8x8xf32>, !tile.tile<8x8xf64> -> !tile.tile<8x8xf32>
  tile.return
}

// -----

tile.kernel @register_product_lhs(%z : f32 #tile.param<argument 0>, %w : f64 #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<8x8xf32>
  %y = tile.full %w : f64 -> !tile.tile<8x8xf64>
  // CHECK: lhs expects elements of f32
  %p = tile.register_product %y, %x by <8 x 2> : !tile.tile<8x8xf64>, !tile.tile<8x8xf32> -> !tile.tile<8x8xf32>
  tile.return
}

// -----

tile.kernel @counted(%k : tensor<?x8xf32> #tile.param<argument 0>, %n : i32 #tile.param<dim 0, 0>,
    %i : i64 #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: counted expects a dimension below 2, got 2
  %x = tile.load_strided %k[%i] strides [%i, %i] extents [%n, %n] counted 2 : tensor<?x8xf32> -> !tile.tile<8x8xf32>
  tile.return
}

// -----

tile.kernel @stream_product_lhs(%k : tensor<?x8xf32> #tile.param<argument 0>, %w : f64 #tile.param<argument 1>,
    %i : i64 #tile.param<argument 2>, %n : i32 #tile.param<dim 0, 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %w : f64 -> !tile.tile<4x8xf64>
  // CHECK: lhs expects elements of f32
  %p = tile.stream_product %x, %k[%i] stride %i count %n transposed ahead 0 by <4 x 4> : !tile.tile<4x8xf64>, tensor<?x8xf32> -> !tile.tile<4x64xf32>
  tile.return
}

// -----

tile.kernel @map_span_beyond(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<4xf32>
  // CHECK: operand 0 expects to span dimensions of (4,), got [1]
  %m = tile.map(%e : f32 = %x [1] : !tile.tile<4xf32>) {
    flex.yield %e : f32
  } -> !tile.tile<4xf32>
  tile.return
}

// -----

tile.kernel @map_span_of_numbers(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: operand 0 expects to span dimensions of (), got [0]
  %m = tile.map(%e : f32 = %z [0] : f32) {
    flex.yield %e : f32
  } -> f32
  tile.return
}

// -----

tile.kernel @map_span_twice(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<4x4xf32>
  // CHECK: operand 0 expects to span dimensions of (4, 4), got [0, 0]
  %m = tile.map(%e : f32 = %x [0, 0] : !tile.tile<4x4xf32>) {
    flex.yield %e : f32
  } -> !tile.tile<4x4xf32>
  tile.return
}

// -----

tile.kernel @map_of_memref(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: operand 0 expects a tile, a number or a tensor, got memref<?x?xf32>
  %m = tile.map(%m_ : memref<?x?xf32> = %out [] : memref<?x?xf32>, %e : f32 = %z [] : f32) {
    flex.yield %e : f32
  } -> f32
  tile.return
}

// -----

tile.kernel @map_to_tensor(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: results expect tiles or numbers, got tensor<?x?xf32>
  %m = tile.map(%e : tensor<?x?xf32> = %t [] : tensor<?x?xf32>) {
    flex.yield %e : tensor<?x?xf32>
  } -> tensor<?x?xf32>
  tile.return
}

// -----

tile.kernel @map_with_branch(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: tile.map expects scalar ops only, got scf.if
  %m = tile.map(%e : f32 = %z [] : f32) {
    %c = arith.constant true
    %r = scf.if %c -> (f32) {
      scf.yield %e : f32
    } else {
      scf.yield %e : f32
    }
    flex.yield %r : f32
  } -> f32
  tile.return
}

// -----

tile.kernel @map_with_store(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %y = tile.full %z : f32 -> !tile.tile<4xf32>
  // CHECK: tile.map expects scalar ops only, got test.op
  %m = tile.map(%e : f32 = %z [] : f32) {
    %r = "test.op"(%e) : (f32) -> f32
    flex.yield %r : f32
  } -> f32
  tile.return
}

// -----

tile.kernel @iota(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: result expects one dimension of i32, got !tile.tile<4x4xi32>
  %x = tile.iota %i : !tile.tile<4x4xi32>
  tile.return
}

// -----

tile.kernel @full(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: result expects elements of f32, got !tile.tile<4xf64>
  %x = tile.full %z : f32 -> !tile.tile<4xf64>
  tile.return
}

// -----

tile.kernel @reduce_dim(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<4x8xf32>
  // CHECK: dim expects a dimension below 2, got 2
  %r = "tile.reduce"(%x) <{kind = #tile<reduce_kind sum>, dim = 2 : i32}> : (!tile.tile<4x8xf32>) -> !tile.tile<4xf32>
  tile.return
}

// -----

tile.kernel @reduce_row(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<4xf32>
  // CHECK: input expects a matrix, got !tile.tile<4xf32>
  %r = tile.reduce sum %x along 0 : !tile.tile<4xf32>
  tile.return
}

// -----

tile.kernel @reduce_result(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<4x8xf32>
  // CHECK: result expects !tile.tile<4xf32>, got !tile.tile<8xf32>
  %r = "tile.reduce"(%x) <{kind = #tile<reduce_kind sum>, dim = 1 : i32}> : (!tile.tile<4x8xf32>) -> !tile.tile<8xf32>
  tile.return
}

// -----

tile.kernel @partial_sums_columns(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<4x24xf32>
  // CHECK: result expects 4 rows and a power of 2 that divides 24 as columns, got !tile.tile<4x12xf32>
  %r = tile.partial_sums %x : !tile.tile<4x24xf32> -> !tile.tile<4x12xf32>
  tile.return
}

// -----

tile.kernel @partial_sums_element(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<4x8xf32>
  // CHECK: result expects elements of f32, got !tile.tile<4x8xf16>
  %r = tile.partial_sums %x : !tile.tile<4x8xf32> -> !tile.tile<4x8xf16>
  tile.return
}

// -----

tile.kernel @pairs_of_wide(%out : memref<?x?xf32> #tile.param<argument 0>,
    %z : f32 #tile.param<argument 1>) grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<4x8xf32>
  // CHECK: pairs expect an even number of bf16 or f16, got !tile.tile<4x8xf32>
  %r = tile.pack_pairs %x : !tile.tile<4x8xf32> -> !tile.tile<4x4xi32>
  tile.return
}

// -----

tile.kernel @pairs_of_a_shape(%out : memref<?x?xf32> #tile.param<argument 0>,
    %z : bf16 #tile.param<argument 1>) grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : bf16 -> !tile.tile<4x8xbf16>
  // CHECK: pairs of !tile.tile<4x8xbf16> expect !tile.tile<4x4xi32>, got !tile.tile<4x8xi32>
  %r = tile.pack_pairs %x : !tile.tile<4x8xbf16> -> !tile.tile<4x8xi32>
  tile.return
}

// -----

tile.kernel @keep_columns_rows(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<4x8xf32>
  %n = tile.full %i : i32 -> !tile.tile<4xi32>
  %m = tile.full %i : i32 -> !tile.tile<8xi32>
  // CHECK: end expects 4 numbers of i32, got !tile.tile<8xi32>
  %r = tile.keep_columns %x from %n to %m else 0.0 : f32 : !tile.tile<4x8xf32>, !tile.tile<4xi32>, !tile.tile<8xi32>
  tile.return
}

// -----

tile.kernel @scan_row(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<4xf32>
  // CHECK: input expects a matrix, got !tile.tile<4xf32>
  %r = tile.scan %x : !tile.tile<4xf32>
  tile.return
}

// -----

tile.kernel @transpose(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<4x8xf32>
  // CHECK: result expects a tile like !tile.tile<8x4xf32>, got !tile.tile<4x8xf32>
  %r = tile.transpose %x : !tile.tile<4x8xf32> -> !tile.tile<4x8xf32>
  tile.return
}

// -----

tile.kernel @dot_of_row(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<4xf32>
  %y = tile.full %z : f32 -> !tile.tile<4x4xf32>
  // CHECK: lhs expects a matrix, got !tile.tile<4xf32>
  %r = tile.dot %x, %y, %y : !tile.tile<4xf32>, !tile.tile<4x4xf32>, !tile.tile<4x4xf32> -> !tile.tile<4x4xf32>
  tile.return
}

// -----

tile.kernel @load_elements(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: result expects elements of f32, got !tile.tile<4x4xf16>
  %x = tile.load %t[%i, %i] : tensor<?x?xf32>, i32, i32 -> !tile.tile<4x4xf16>
  tile.return
}

// -----

tile.kernel @load_checked(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: checked expects a dimension below 1, got 1
  %x = tile.load %t[%i, %i] checked [1] : tensor<?x?xf32>, i32, i32 -> !tile.tile<4xf32>
  tile.return
}

// -----

tile.kernel @gather_shape(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %at = tile.iota %i : !tile.tile<4xi32>
  // CHECK: result expects the shape (4,) of offsets, got !tile.tile<8xf32>
  %x = tile.gather %t[%b + %at] : tensor<?x?xf32>, !tile.tile<4xi32> -> !tile.tile<8xf32>
  tile.return
}

// -----

tile.kernel @scatter_mask(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %at = tile.iota %i : !tile.tile<4xi32>
  %x = tile.full %z : f32 -> !tile.tile<4xf32>
  // CHECK: mask expects a tile like !tile.tile<4xi1>, got !tile.tile<4xi32>
  tile.scatter %x, %out[%b + %at] if %at : !tile.tile<4xi32> : !tile.tile<4xf32>, memref<?x?xf32>, !tile.tile<4xi32>
  tile.return
}

// -----

tile.kernel @scatter_offsets(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<4xf32>
  // CHECK: offsets expects integers, got !tile.tile<4xf32>
  tile.scatter_add %x, %out[%b + %x] : !tile.tile<4xf32>, memref<?x?xf32>, !tile.tile<4xf32>
  tile.return
}

// -----

tile.kernel @dim(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: dim expects a dimension below 2, got 2
  %n = tile.dim %t, 2 : tensor<?x?xf32> -> i32
  tile.return
}

// -----

tile.kernel @axis(%t : tensor<?x?xf32> #tile.param<argument 0>,
    %out : memref<?x?xf32> #tile.param<argument 1>, %i : i32 #tile.param<argument 2>,
    %z : f32 #tile.param<argument 3>, %b : i64 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: axis expects a dimension below 3, got 3
  %n = tile.program_id 3
  tile.return
}

// -----

// CHECK: grid expects a map from (b, h, q_len) to at most three numbers: (d0) -> (d0)
tile.kernel @grid() grid affine_map<(b) -> (b)> {
  tile.return
}

// -----

// CHECK: expects at least one row and one vector, got 0 x 2
"test.op"() {by = #tile.register_tile<0 x 2>} : () -> ()

// -----

tile.kernel @unpacked_rhs(%z : bf16 #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : bf16 -> !tile.tile<8x8xbf16>
  // CHECK: rhs expects layout #tile.pairs, got !tile.tile<8x8xbf16>
  %p = tile.register_product %x, %x by <8 x 2 x 2> : !tile.tile<8x8xbf16>, !tile.tile<8x8xbf16> -> !tile.tile<8x8xf32>
  tile.return
}

// -----

tile.kernel @packed_rhs(%z : bf16 #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : bf16 -> !tile.tile<8x8xbf16>
  %y = tile.pack %x : !tile.tile<8x8xbf16> -> !tile.tile<8x8xbf16, #tile.pairs>
  // CHECK: rhs expects layout None, got !tile.tile<8x8xbf16, #tile.pairs>
  %p = tile.register_product %x, %y by <8 x 2> : !tile.tile<8x8xbf16>, !tile.tile<8x8xbf16, #tile.pairs> -> !tile.tile<8x8xf32>
  tile.return
}

// -----

tile.kernel @packed_lhs(%z : bf16 #tile.param<argument 0>,
    %k : tensor<?x8xbf16> #tile.param<argument 1>, %s : i64 #tile.param<argument 2>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : bf16 -> !tile.tile<8x8xbf16>
  %y = tile.pack %x : !tile.tile<8x8xbf16> -> !tile.tile<8x8xbf16, #tile.pairs>
  // CHECK: strides expects adjacent columns of a packed lhs
  %p = tile.register_product %k[%s] strides [%s, %s], %y by <8 x 2 x 2> : tensor<?x8xbf16>, !tile.tile<8x8xbf16, #tile.pairs> -> !tile.tile<8x8xf32>
  tile.return
}

// -----

tile.kernel @packed_lhs_element(%z : bf16 #tile.param<argument 0>,
    %k : tensor<?x8xf32> #tile.param<argument 1>, %s : i64 #tile.param<argument 2>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %one = arith.constant 1 : i64
  %x = tile.full %z : bf16 -> !tile.tile<8x8xbf16>
  %y = tile.pack %x : !tile.tile<8x8xbf16> -> !tile.tile<8x8xbf16, #tile.pairs>
  // CHECK: lhs expects elements of bf16
  %p = tile.register_product %k[%s] strides [%s, %one], %y by <8 x 2 x 2> : tensor<?x8xf32>, !tile.tile<8x8xbf16, #tile.pairs> -> !tile.tile<8x8xf32>
  tile.return
}

// -----

tile.kernel @pack_odd(%z : f32 #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<7x8xf32>
  // CHECK: result expects pairs, got !tile.tile<7x8xbf16, #tile.pairs>
  %y = tile.pack %x : !tile.tile<7x8xf32> -> !tile.tile<7x8xbf16, #tile.pairs>
  tile.return
}

// -----

tile.kernel @register_tile_depth(%z : f32 #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<8x8xf32>
  // CHECK: expects depth 1, 2 or 32, got 4
  %p = tile.register_product %x, %x by <8 x 2 x 4> : !tile.tile<8x8xf32>, !tile.tile<8x8xf32> -> !tile.tile<8x8xf32>
  tile.return
}

// -----

tile.kernel @register_tile_sums(%z : f32 #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<8x8xf32>
  // CHECK: expects at most 4 registers of sums
  %p = tile.register_product %x, %x by <64 x 2 x 32> : !tile.tile<8x8xf32>, !tile.tile<8x8xf32> -> !tile.tile<8x8xf32>
  tile.return
}

// -----

tile.kernel @keep_columns_element(%z : bf16 #tile.param<argument 0>,
    %i : i32 #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : bf16 -> !tile.tile<4x8xbf16>
  %n = tile.full %i : i32 -> !tile.tile<4xi32>
  // CHECK: input expects elements of f32, got !tile.tile<4x8xbf16>
  %r = tile.keep_columns %x from %n to %n else 0.0 : f32 : !tile.tile<4x8xbf16>, !tile.tile<4xi32>, !tile.tile<4xi32>
  tile.return
}

// -----

%x = "test.op"() : () -> !tile.tile<8x8xi1>
// CHECK: expects a row of flags, got !tile.tile<8x8xi1>
%first, %length = tile.live_range %x : !tile.tile<8x8xi1>

// -----

%x = "test.op"() : () -> !tile.tile<8xf32>
// CHECK: expects a row of flags, got !tile.tile<8xf32>
%first, %length = tile.live_range %x : !tile.tile<8xf32>

// -----

%x, %sums, %base = "test.op"() : () -> (!tile.tile<8x8xf32>, memref<?xf32>, i64)
// CHECK: strides expects 2 values, got 1
tile.add_strided %x, %sums[%base] strides [%base] : !tile.tile<8x8xf32>, memref<?xf32>

// -----

%t, %offset = "test.op"() : () -> (tensor<?xi32>, i32)
// CHECK: result expects type i32, got f32
%x = tile.read %t[%offset] : tensor<?xi32>, i32 -> f32

// -----

%x = "test.op"() : () -> !tile.tile<8x8xf32>
// CHECK: result expects a tile as !tile.tile<8x8xf32>, got !tile.tile<8x16xf32>
%y = tile.convert_layout %x : !tile.tile<8x8xf32> -> !tile.tile<8x16xf32>

// -----

%x, %y = "test.op"() : () -> (!tile.tile<8x8xf32>, !tile.tile<8x4xf32>)
// CHECK: acc expects type !tile.tile<8x8xf32>
%d = tile.register_product %x, %x onto %y by <4 x 1> : !tile.tile<8x8xf32>, !tile.tile<8x8xf32> onto !tile.tile<8x4xf32> -> !tile.tile<8x8xf32>

// -----

%x, %i = "test.op"() : () -> (!tile.tile<8x8xf32>, i64)
// CHECK: a tensor lhs expects a base and two strides, a tile neither
%d = tile.register_product %x[%i] strides [%i, %i], %x by <4 x 1> : !tile.tile<8x8xf32>, !tile.tile<8x8xf32> -> !tile.tile<8x8xf32>

// -----

%x, %i = "test.op"() : () -> (!tile.tile<8x8xf32>, i64)
// CHECK: next expects a tensor
%d = tile.register_product %x next %i, %x by <4 x 1> : !tile.tile<8x8xf32>, !tile.tile<8x8xf32> -> !tile.tile<8x8xf32>

// -----

tile.kernel @live_rows(%t : tensor<?x64xf32> #tile.param<argument 0>,
    %i : i32 #tile.param<argument 1>, %b : i1 #tile.param<argument 2>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %live = tile.full %b : i1 -> !tile.tile<16xi1>
  // CHECK: live expects !tile.tile<32xi1> and no count, got !tile.tile<16xi1>
  %k = tile.load %t[%i, %i] live %live : !tile.tile<16xi1> : tensor<?x64xf32>, i32, i32 -> !tile.tile<32x64xf32>
  tile.return
}

// -----

%x = "test.op"() : () -> !tile.tile<8x8xf32>
// CHECK: beside expects a register tile of a matrix unit
%d = tile.register_product %x, %x by <4 x 1> beside : !tile.tile<8x8xf32>, !tile.tile<8x8xf32> -> !tile.tile<8x8xf32>

// -----

// CHECK: 'tile.await_kernels' expects parent op 'tile.kernel'
tile.await_kernels
