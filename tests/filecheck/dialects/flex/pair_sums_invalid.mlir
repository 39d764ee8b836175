// RUN: flexc-opt %s --split-input-file --verify-diagnostics --parsing-diagnostics | filecheck %s

!m = tensor<?x?x?x8xf32>
!r = tensor<?x?x?xf32>
!p = tensor<?x?x?x?xf32>

func.func @tile_origin(%q : !m, %v : tensor<?x?x?x4xf32>, %lse : !r, %i : i32, %scale : f32) {
  // CHECK: expects rows, and tile_origin of none, one or three values
  %x = flex.pair_sums rows(%q : !m) columns(%q : !m) tile_origin(%i, %i : i32, i32)
      scale(%scale : f32) -> !m {products = [array<i32: 0, 0>], sums = [#flex.sum<matrix [[0, 0]]>]}
      pairs(%qk : f32, %s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %qk : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

!m = tensor<?x?x?x8xf32>
!r = tensor<?x?x?xf32>
!p = tensor<?x?x?x?xf32>

func.func @rank(%q : !m, %v : tensor<?x?x?x4xf32>, %lse : !r, %i : i32, %scale : f32) {
  // CHECK: row_values expects 3 dimensions, got tensor<?x?x?x8xf32>
  %x = flex.pair_sums rows(%q : !m) columns(%q : !m) row_values(%q : !m)
      scale(%scale : f32) -> !m {products = [array<i32: 0, 0>], sums = [#flex.sum<matrix [[0, 0]]>]}
      pairs(%qk : f32, %s : f32, %l : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %qk : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

!m = tensor<?x?x?x8xf32>
!r = tensor<?x?x?xf32>
!p = tensor<?x?x?x?xf32>

func.func @products(%q : !m, %v : tensor<?x?x?x4xf32>, %lse : !r, %i : i32, %scale : f32) {
  // CHECK: products names operands that do not exist: [0, 1]
  %x = flex.pair_sums rows(%q : !m) columns(%q : !m) 
      scale(%scale : f32) -> !m {products = [array<i32: 0, 1>], sums = [#flex.sum<matrix [[0, 0]]>]}
      pairs(%qk : f32, %s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %qk : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

!m = tensor<?x?x?x8xf32>
!r = tensor<?x?x?xf32>
!p = tensor<?x?x?x?xf32>

func.func @head_dims(%q : !m, %v : tensor<?x?x?x4xf32>, %lse : !r, %i : i32, %scale : f32) {
  // CHECK: product [0, 1] expects equal head dims, got (8, 4)
  %x = flex.pair_sums rows(%q : !m) columns(%q, %v : !m, tensor<?x?x?x4xf32>) 
      scale(%scale : f32) -> !m {products = [array<i32: 0, 1>], sums = [#flex.sum<matrix [[0, 0]]>]}
      pairs(%qk : f32, %s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %qk : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

!m = tensor<?x?x?x8xf32>
!r = tensor<?x?x?xf32>
!p = tensor<?x?x?x?xf32>

func.func @pairs(%q : !m, %v : tensor<?x?x?x4xf32>, %lse : !r, %i : i32, %scale : f32) {
  // CHECK: pairs expects arguments (f32, f32, i32, i32, i32, i32), got (f32, i32, i32, i32, i32)
  %x = flex.pair_sums rows(%q : !m) columns(%q : !m) 
      scale(%scale : f32) -> !m {products = [array<i32: 0, 0>], sums = [#flex.sum<matrix [[0, 0]]>]}
      pairs(%qk : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %qk : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

!m = tensor<?x?x?x8xf32>
!r = tensor<?x?x?xf32>
!p = tensor<?x?x?x?xf32>

func.func @sums(%q : !m, %v : tensor<?x?x?x4xf32>, %lse : !r, %i : i32, %scale : f32) {
  // CHECK: sums expects 1 entries, one for each result, got 0
  %x = flex.pair_sums rows(%q : !m) columns(%q : !m) 
      scale(%scale : f32) -> !m {products = [array<i32: 0, 0>], sums = []}
      pairs(%qk : f32, %s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %qk : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

!m = tensor<?x?x?x8xf32>

func.func @per_query_head(%q : !m, %scale : f32) {
  // CHECK: per_query_head expects rows of keys, all of them, and a matrix sum
  %x = flex.pair_sums rows(%q : !m) columns(%q : !m)
      scale(%scale : f32) -> !m {products = [array<i32: 0, 0>], sums = [#flex.sum<matrix [[0, 0]]>], per_query_head}
      pairs(%qk : f32, %s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %qk : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

!m = tensor<?x?x?x8xf32>
!n = tensor<?x?x?x8xbf16>

func.func @per_query_head(%q : !m, %scale : f32) {
  // CHECK: per_query_head expects sums of f32, got bf16
  %x = flex.pair_sums rows(%q : !m) columns(%q : !m)
      scale(%scale : f32) -> !n {products = [array<i32: 0, 0>], sums = [#flex.sum<matrix [[0, 0]]>], transposed, per_query_head}
      pairs(%qk : f32, %s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %qk : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

!m = tensor<?x?x?x8xf32>

func.func @ordered(%q : !m, %scale : f32) {
  // CHECK: ordered expects rows of keys, and a sum by column
  %x = flex.pair_sums rows(%q : !m) columns(%q : !m) 
      scale(%scale : f32) -> !m {products = [array<i32: 0, 0>], sums = [#flex.sum<matrix [[0, 0]]>], ordered}
      pairs(%qk : f32, %s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %qk : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

!m = tensor<?x?x?x8xf32>
!r = tensor<?x?x?xf32>
!p = tensor<?x?x?x?xf32>

func.func @value(%q : !m, %v : tensor<?x?x?x4xf32>, %lse : !r, %i : i32, %scale : f32) {
  // CHECK: #flex.sum<matrix [[1, 0]]> has a term that is no index of 1 values
  %x = flex.pair_sums rows(%q : !m) columns(%q : !m) 
      scale(%scale : f32) -> !m {products = [array<i32: 0, 0>], sums = [#flex.sum<matrix [[1, 0]]>]}
      pairs(%qk : f32, %s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %qk : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

!m = tensor<?x?x?x8xf32>
!r = tensor<?x?x?xf32>
!p = tensor<?x?x?x?xf32>

func.func @matrix(%q : !m, %v : tensor<?x?x?x4xf32>, %lse : !r, %i : i32, %scale : f32) {
  // CHECK: #flex.sum<matrix [[0, 1]]> has a term that is no index of 1 matrices
  %x = flex.pair_sums rows(%q : !m) columns(%q : !m) 
      scale(%scale : f32) -> !m {products = [array<i32: 0, 0>], sums = [#flex.sum<matrix [[0, 1]]>]}
      pairs(%qk : f32, %s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %qk : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

!m = tensor<?x?x?x8xf32>
!r = tensor<?x?x?xf32>
!p = tensor<?x?x?x?xf32>

func.func @matrix_dim(%q : !m, %v : tensor<?x?x?x4xf32>, %lse : !r, %i : i32, %scale : f32) {
  // CHECK: #flex.sum<matrix [[0, 0]]> expects head dim 8, got tensor<?x?x?x4xf32>
  %x = flex.pair_sums rows(%q : !m) columns(%q : !m) 
      scale(%scale : f32) -> tensor<?x?x?x4xf32> {products = [array<i32: 0, 0>], sums = [#flex.sum<matrix [[0, 0]]>]}
      pairs(%qk : f32, %s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %qk : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

!m = tensor<?x?x?x8xf32>
!r = tensor<?x?x?xf32>
!p = tensor<?x?x?x?xf32>

func.func @total_rank(%q : !m, %v : tensor<?x?x?x4xf32>, %lse : !r, %i : i32, %scale : f32) {
  // CHECK: total sum expects 3 dimensions, got tensor<?x?x?x8xf32>
  %x = flex.pair_sums rows(%q : !m) columns(%q : !m) 
      scale(%scale : f32) -> !m {products = [array<i32: 0, 0>], sums = [#flex.sum<total [[0]]>]}
      pairs(%qk : f32, %s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %qk : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

!m = tensor<?x?x?x8xf32>
!r = tensor<?x?x?xf32>
!p = tensor<?x?x?x?xf32>

func.func @scaled_total(%q : !m, %v : tensor<?x?x?x4xf32>, %lse : !r, %i : i32, %scale : f32) {
  // CHECK: #flex.sum<total [[0]] scaled> is scaled, but is no sum of a matrix
  %x = flex.pair_sums rows(%q : !m) columns(%q : !m) 
      scale(%scale : f32) -> !r {products = [array<i32: 0, 0>], sums = [#flex.sum<total [[0]] scaled>]}
      pairs(%qk : f32, %s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %qk : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

!m = tensor<?x?x?x8xf32>
!r = tensor<?x?x?xf32>
!p = tensor<?x?x?x?xf32>

func.func @two_pairs(%q : !m, %v : tensor<?x?x?x4xf32>, %lse : !r, %i : i32, %scale : f32) {
  // CHECK: #flex.sum<pairs [[0], [0]]> expects one value, got 2
  %x = flex.pair_sums rows(%q : !m) columns(%q : !m) 
      scale(%scale : f32) -> !p {products = [array<i32: 0, 0>], sums = [#flex.sum<pairs [[0], [0]]>]}
      pairs(%qk : f32, %s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %qk : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

!m = tensor<?x?x?x8xf32>
!r = tensor<?x?x?xf32>
!p = tensor<?x?x?x?xf32>

func.func @block(%q : !m, %v : tensor<?x?x?x4xf32>, %lse : !r, %i : i32, %scale : f32) {
  // CHECK: sparse_block expects tables, and tables expect it
  %x = flex.pair_sums rows(%q : !m) columns(%q : !m) 
      scale(%scale : f32) -> !m {products = [array<i32: 0, 0>], sums = [#flex.sum<matrix [[0, 0]]>], sparse_block = array<i64: 64, 64>}
      pairs(%qk : f32, %s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %qk : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

func.func @dots(%q : tensor<?x?x?x8xf32>) {
  // CHECK: expects as many rhs as lhs, got 1 and 0
  %d = flex.map_rows lhs(%q : tensor<?x?x?x8xf32>) -> tensor<?x?x?xf32>
      code(%dot : f32) {
    flex.yield %dot : f32
  }
  func.return
}

// -----

func.func @scatter(%s : tensor<?x?x?xf32>, %t : tensor<?x?xf32>) {
  // CHECK: index expects to yield 2 values, got 1
  %d = flex.scatter_sums head %s, %t : tensor<?x?x?xf32>, tensor<?x?xf32>
      captures(%t : tensor<?x?xf32>)
      index(%b : i32, %h : i32, %qi : i32, %ki : i32, %t_ : tensor<?x?xf32>) {
    flex.yield %h : i32
  }
  func.return
}

// -----

func.func @scatter_args(%s : tensor<?x?x?xf32>, %t : tensor<?xf32>) {
  // CHECK: index expects b, h, q_idx, kv_idx and the captures
  %d = flex.scatter_sums head %s, %t : tensor<?x?x?xf32>, tensor<?xf32>
      captures(%t : tensor<?xf32>) index(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %h : i32
  }
  func.return
}

// -----

func.func @center(%s : tensor<?x?x?xf32>, %o : tensor<?x?x?x8xf32>) {
  // CHECK: total expects 3 dimensions, got tensor<?x?x?x8xf32>
  %d = flex.center_rows %o, %o, %o
      : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>
      -> tensor<?x?x?x8xf32>
  func.return
}

// -----

!m = tensor<?x?x?x8xf32>
!r = tensor<?x?x?xf32>

func.func @scatter_rank(%s : !r, %t : tensor<?xf32>) {
  // CHECK: sums expects 4 dimensions, got tensor<?x?x?xf32>
  %d = flex.scatter_sums pair %s, %t : !r, tensor<?xf32>
      captures(%t : tensor<?xf32>)
      index(%b : i32, %h : i32, %qi : i32, %ki : i32, %t_ : tensor<?xf32>) {
    flex.yield %qi : i32
  }
  func.return
}

// -----

!m = tensor<?x?x?x8xf32>
!r = tensor<?x?x?xf32>

func.func @scatter_target(%s : !r, %t : tensor<?xf32>, %u : tensor<?xf32>) {
  // CHECK: target expects to be one of the captures
  %d = flex.scatter_sums row %s, %t : !r, tensor<?xf32>
      captures(%u : tensor<?xf32>)
      index(%b : i32, %h : i32, %qi : i32, %ki : i32, %t_ : tensor<?xf32>) {
    flex.yield %qi : i32
  }
  func.return
}

// -----

!m = tensor<?x?x?x8xf32>
!r = tensor<?x?x?xf32>

func.func @scatter_plus_type(%s : !r, %t : tensor<?xf32>, %u : tensor<?xbf16>) {
  // CHECK: attribute tensor<?xf32> expected from variable 'T', but got tensor<?xbf16>
  %d = flex.scatter_sums row %s, %t : !r, tensor<?xf32>
      captures(%t : tensor<?xf32>) plus(%u : tensor<?xbf16>)
      index(%b : i32, %h : i32, %qi : i32, %ki : i32, %t_ : tensor<?xf32>) {
    flex.yield %qi : i32
  }
  func.return
}

// -----

!m = tensor<?x?x?x8xf32>
!r = tensor<?x?x?xf32>

func.func @scatter_float(%s : !r, %t : tensor<?xf32>) {
  // CHECK: index expects to yield integers, got f32
  %d = flex.scatter_sums row %s, %t : !r, tensor<?xf32>
      captures(%t : tensor<?xf32>)
      index(%b : i32, %h : i32, %qi : i32, %ki : i32, %t_ : tensor<?xf32>) {
    %x = arith.sitofp %qi : i32 to f32
    flex.yield %x : f32
  }
  func.return
}

// -----

func.func @center_dims(%s : tensor<?x?x?x8xf32>, %t : tensor<?x?x?xf32>,
                       %o : tensor<?x?x?x4xf32>) {
  // CHECK: sums expects head dim 4 as values have, got 8
  %d = flex.center_rows %s, %t, %o
      : tensor<?x?x?x8xf32>, tensor<?x?x?xf32>, tensor<?x?x?x4xf32>
      -> tensor<?x?x?x4xf32>
  func.return
}

// -----

func.func @zeros(%s : tensor<?xf32>) {
  // CHECK: attribute tensor<?xf32> expected from variable 'T', but got tensor<?xbf16>
  %d = flex.zeros_like %s : tensor<?xf32> -> tensor<?xbf16>
  func.return
}

// -----

func.func @launch(%s : tensor<?xf32>) {
  // CHECK: callee @nothing expects to be in the module
  %d = flex.launch @nothing(%s) : tensor<?xf32> -> tensor<?xf32>
  func.return
}

// -----

func.func @kernel(%s : tensor<?xf32>) -> tensor<?xf32> {
  func.return %s : tensor<?xf32>
}

func.func @launch_types(%s : tensor<?xf32>) {
  // CHECK: callee @kernel expects types (tensor<?xf32>) -> tensor<?xf32>
  %d = flex.launch @kernel(%s, %s) : tensor<?xf32>, tensor<?xf32> -> tensor<?xf32>
  func.return
}

// -----

func.func @kernel(%s : tensor<?xf32>) -> tensor<?xf32> {
  func.return %s : tensor<?xf32>
}

func.func @launch_plus(%s : tensor<?xf32>) {
  // CHECK: plus expects values without other uses
  %d = flex.launch @kernel(%s) plus(%s : tensor<?xf32>) : tensor<?xf32> -> tensor<?xf32>
  func.return
}

// -----

func.func @kernel(%s : tensor<?xf32>) -> tensor<?xf32> {
  func.return %s : tensor<?xf32>
}

func.func @launch_plus_argument(%s : tensor<?xf32>, %t : tensor<?xf32>) {
  // CHECK: plus expects results, not arguments of a function
  %d = flex.launch @kernel(%s) plus(%t : tensor<?xf32>) : tensor<?xf32> -> tensor<?xf32>
  func.return
}

// -----

func.func @kernel(%s : tensor<?xf32>) -> tensor<?xf32> {
  func.return %s : tensor<?xf32>
}

func.func @launch_plus_type(%s : tensor<?xf32>) {
  // CHECK: plus expects the types of the last outputs
  %t = "test.op"() : () -> tensor<?xf64>
  %d = flex.launch @kernel(%s) plus(%t : tensor<?xf64>) : tensor<?xf32> -> tensor<?xf32>
  func.return
}

// -----

func.func @dots_dims(%q : tensor<?x?x?x8xf32>, %o : tensor<?x?x?x4xf32>) {
  // CHECK: rhs expects head dim 8 as lhs has, got 4
  %d = flex.map_rows lhs(%q : tensor<?x?x?x8xf32>) rhs(%o : tensor<?x?x?x4xf32>)
      -> tensor<?x?x?xf32> code(%dot : f32) {
    flex.yield %dot : f32
  }
  func.return
}

// -----

func.func @map_dims(%q : tensor<?x?x?x8xf32>) {
  // CHECK: result expects head dim 8 as values have, got 4
  %d = flex.map_rows values(%q : tensor<?x?x?x8xf32>) -> tensor<?x?x?x4xf32>
      code(%x : f32) {
    flex.yield %x : f32
  }
  func.return
}

// -----

func.func @map_number(%q : tensor<?x?x?x8xf32>) {
  // CHECK: result of elements of a matrix expects 4 dimensions, got tensor<?x?x?xf32>
  %d = flex.map_rows values(%q : tensor<?x?x?x8xf32>) -> tensor<?x?x?xf32>
      code(%x : f32) {
    flex.yield %x : f32
  }
  func.return
}

// -----

func.func @map_types(%q : tensor<?x?x?x8xbf16>, %l : tensor<?x?x?xf64>) {
  // CHECK: code expects arguments (f64, f64), got (bf16, f64)
  %d = flex.map_rows values(%q, %l : tensor<?x?x?x8xbf16>, tensor<?x?x?xf64>)
      -> tensor<?x?x?xf64> code(%x : bf16, %y : f64) {
    flex.yield %y : f64
  }
  func.return
}

// -----

!m = tensor<?x?x?x8xf32>

func.func @odd_products(%q : !m, %scale : f32) {
  // CHECK: products expects pairs [row, column], got array<i32: 0>
  %s = flex.pair_sums rows(%q : !m) columns(%q : !m) scale(%scale : f32) -> !m
      {products = [array<i32: 0>], sums = [#flex.sum<matrix [[0, 0]]>]}
      pairs(%x : f32, %c : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %x : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

!m = tensor<?x?x?x8xf32>

func.func @column_rank(%q : !m, %v : tensor<?x?x?x4xf32>, %i : i32, %scale : f32) {
  // CHECK: column_matrix sum expects 5 dimensions, got tensor<?x?x?x8xf32>
  %x = flex.pair_sums rows(%q : !m) columns(%q : !m) 
      scale(%scale : f32) -> !m {products = [array<i32: 0, 0>], sums = [#flex.sum<column_matrix [[0, 0]]>]}
      pairs(%qk : f32, %s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %qk : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

!m = tensor<?x?x?x8xf32>

func.func @column_matrix(%q : !m, %v : tensor<?x?x?x4xf32>, %i : i32, %scale : f32) {
  // CHECK: has a term that is no index of 1 matrices
  %x = flex.pair_sums rows(%q : !m) columns(%q : !m) 
      scale(%scale : f32) -> tensor<?x?x?x?x8xf32> {products = [array<i32: 0, 0>], sums = [#flex.sum<column_matrix [[0, 1]]>]}
      pairs(%qk : f32, %s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %qk : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

!m = tensor<?x?x?x8xf32>

func.func @column_dim(%q : !m, %v : tensor<?x?x?x4xf32>, %i : i32, %scale : f32) {
  // CHECK: expects head dim 8, got tensor<?x?x?x?x4xf32>
  %x = flex.pair_sums rows(%q : !m) columns(%q : !m) 
      scale(%scale : f32) -> tensor<?x?x?x?x4xf32> {products = [array<i32: 0, 0>], sums = [#flex.sum<column_matrix [[0, 0]]>]}
      pairs(%qk : f32, %s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %qk : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

!m = tensor<?x?x?x8xf32>

func.func @column_type(%q : !m, %v : tensor<?x?x?x4xf32>, %i : i32, %scale : f32) {
  // CHECK: expects sums of f32, got tensor<?x?x?x?x8xbf16>
  %x = flex.pair_sums rows(%q : !m) columns(%q : !m) 
      scale(%scale : f32) -> tensor<?x?x?x?x8xbf16> {products = [array<i32: 0, 0>], sums = [#flex.sum<column_matrix [[0, 0]]>]}
      pairs(%qk : f32, %s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %qk : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

!m = tensor<?x?x?x8xf32>

func.func @column_of_keys(%q : !m, %v : tensor<?x?x?x4xf32>, %i : i32, %scale : f32) {
  // CHECK: column_matrix sum expects 4 dimensions
  %x = flex.pair_sums rows(%q : !m) columns(%q : !m) 
      scale(%scale : f32) -> tensor<?x?x?x?x8xf32> {products = [array<i32: 0, 0>], sums = [#flex.sum<column_matrix [[0, 0]]>], transposed}
      pairs(%qk : f32, %s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %qk : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

!m = tensor<?x?x?x8xf32>

func.func @column_of_part(%q : !m, %v : tensor<?x?x?x4xf32>, %i : i32, %scale : f32) {
  // CHECK: column_matrix sum expects 4 dimensions
  %x = flex.pair_sums rows(%q : !m) columns(%q : !m) tile_origin(%i, %i, %i : i32, i32, i32)
      scale(%scale : f32) -> tensor<?x?x?x?x8xf32> {products = [array<i32: 0, 0>], sums = [#flex.sum<column_matrix [[0, 0]]>]}
      pairs(%qk : f32, %s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %qk : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

!m = tensor<?x?x?x8xf32>

func.func @column_of_rows(%q : !m, %v : tensor<?x?x?x4xf32>, %i : i32, %scale : f32) {
  // CHECK: tile_origin expects a result with a dimension of rows
  %x = flex.pair_sums rows(%q : !m) columns(%q : !m) tile_origin(%i : i32)
      scale(%scale : f32) -> tensor<?x?x?x?x8xf32> {products = [array<i32: 0, 0>], sums = [#flex.sum<column_matrix [[0, 0]]>]}
      pairs(%qk : f32, %s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %qk : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

!m = tensor<?x?x?x8xf32>

func.func @shared_in_order(%q : !m, %scale : f32) {
  // CHECK: ordered expects paired_heads or per_query_head: a program has one query head
  %x = flex.pair_sums rows(%q : !m) columns(%q : !m)
      scale(%scale : f32) -> !m {products = [array<i32: 0, 0>], sums = [#flex.sum<column_matrix [[0, 0]]>], ordered, transposed}
      pairs(%qk : f32, %s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %qk : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

func.func @parts(%x : tensor<?x?x?x?x8xf32>) {
  // CHECK: result expects shape
  %y = flex.sum_parts %x : tensor<?x?x?x?x8xf32> -> tensor<?x?x?x4xf32>
  func.return
}
