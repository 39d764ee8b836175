// RUN: flexc-opt %s --split-input-file --verify-diagnostics --parsing-diagnostics | filecheck %s

func.func @rank(%q : tensor<?x?x8xf32>, %k : tensor<?x?x?x8xf32>, %scale : f32) {
  // CHECK: query expects 4 dimensions, got tensor<?x?x8xf32>
  %out = flex.attention %q, %k, %k
      : tensor<?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>
      scale(%scale : f32) -> out(tensor<?x?x?x8xf32>)
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

func.func @key_dim(%q : tensor<?x?x?x8xf32>, %k : tensor<?x?x?x16xf32>, %scale : f32) {
  // CHECK: key expects head dim 8 as the query has, got 16
  %out = flex.attention %q, %k, %k
      : tensor<?x?x?x8xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>
      scale(%scale : f32) -> out(tensor<?x?x?x16xf32>)
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

func.func @value_dim(%q : tensor<?x?x?x8xf32>, %v : tensor<?x?x?x4xf32>, %scale : f32) {
  // CHECK: out expects head dim 4 as the value has, got 8
  %out = flex.attention %q, %q, %v
      : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x4xf32>
      scale(%scale : f32) -> out(tensor<?x?x?x8xf32>)
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

func.func @scale_type(%q : tensor<?x?x?x8xbf16>, %scale : f64) {
  // CHECK: scale expects type f32, got f64
  %out = flex.attention %q, %q, %q
      : tensor<?x?x?x8xbf16>, tensor<?x?x?x8xbf16>, tensor<?x?x?x8xbf16>
      scale(%scale : f64) -> out(tensor<?x?x?x8xbf16>)
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

func.func @capture_type(%q : tensor<?x?x?x8xf32>, %scale : f32, %i : index) {
  // CHECK: captures expects scalars and tensors, got index
  %out = flex.attention %q, %q, %q
      : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>
      scale(%scale : f32) captures(%i : index) -> out(tensor<?x?x?x8xf32>)
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32, %i_ : index) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %i_ : index) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

func.func @score_arguments(%q : tensor<?x?x?x8xf32>, %scale : f32) {
  // CHECK: score_mod expects arguments (f32, i32, i32, i32, i32), got (f32, i32, i32)
  %out = flex.attention %q, %q, %q
      : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>
      scale(%scale : f32) -> out(tensor<?x?x?x8xf32>)
      score_mod(%s : f32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

func.func @terminator(%q : tensor<?x?x?x8xf32>, %scale : f32) {
  // CHECK: score_mod expects flex.yield as its last op
  %out = flex.attention %q, %q, %q
      : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>
      scale(%scale : f32) -> out(tensor<?x?x?x8xf32>)
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    "test.termop"() : () -> ()
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

func.func @mask_result(%q : tensor<?x?x?x8xf32>, %scale : f32) {
  // CHECK: mask_mod expects to yield (i1), got (i32)
  %out = flex.attention %q, %q, %q
      : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>
      scale(%scale : f32) -> out(tensor<?x?x?x8xf32>)
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %ki : i32
  }
  func.return
}

// -----

func.func @tensor_op(%q : tensor<?x?x?x8xf32>, %scale : f32, %t : tensor<4xf32>) {
  // CHECK: score_mod expects scalar ops only, got arith.addf of type tensor<4xf32>
  %out = flex.attention %q, %q, %q
      : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>
      scale(%scale : f32) captures(%t : tensor<4xf32>) -> out(tensor<?x?x?x8xf32>)
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32,
                %t_ : tensor<4xf32>) {
    %u = arith.addf %t_, %t_ : tensor<4xf32>
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %t_ : tensor<4xf32>) {
    %c = arith.constant true
    flex.yield %c : i1
  }
  func.return
}

// -----

func.func @table_count(%q : tensor<?x?x?x8xf32>, %scale : f32, %num : tensor<?x?x?xi32>) {
  // CHECK: tables expects kv_num_blocks and kv_indices, with or without their full counterparts, got 1 tensors
  %out = flex.attention %q, %q, %q
      : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>
      scale(%scale : f32) tables(%num : tensor<?x?x?xi32>)
      -> out(tensor<?x?x?x8xf32>) {sparse_block = array<i64: 128, 128>}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

func.func @tables_without_block(%q : tensor<?x?x?x8xf32>, %scale : f32) {
  // CHECK: sparse_block expects tables, and tables expect it
  %out = flex.attention %q, %q, %q
      : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>
      scale(%scale : f32) -> out(tensor<?x?x?x8xf32>)
      {sparse_block = array<i64: 128, 128>}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

func.func @range_without_order(%q : tensor<?x?x?x8xf32>, %scale : f32) {
  // CHECK: float_range expects finite bounds, the lower one first, got 1.0 and -1.0
  %out = flex.attention %q, %q, %q
      : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>
      scale(%scale : f32) -> out(tensor<?x?x?x8xf32>)
      {score_range = #flex.float_range<1.0, -1.0>}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

func.func @sequences_of_no_captures(%q : tensor<?x?x?x8xf32>, %scale : f32) {
  // CHECK: sequences expects the numbers of four captures, got [0, 0, 1, 1]
  %out = flex.attention %q, %q, %q
      : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>
      scale(%scale : f32) -> out(tensor<?x?x?x8xf32>)
      {sequences = array<i64: 0, 0, 1, 1>}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

func.func @sequences_of_floats(%q : tensor<?x?x?x8xf32>, %scale : f32,
                               %t : tensor<?xf32>) {
  // CHECK: sequences expects tensors of i32 of one dimension, got tensor<?xf32>
  %out = flex.attention %q, %q, %q
      : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>
      scale(%scale : f32) captures(%t : tensor<?xf32>) -> out(tensor<?x?x?x8xf32>)
      {sequences = array<i64: 0, 0, 0, 0>}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32,
                %c : tensor<?xf32>) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %c : tensor<?xf32>) {
    %true = arith.constant true
    flex.yield %true : i1
  }
  func.return
}

// -----

func.func @load_rank(%t : tensor<?x?xf32>, %i : i32) {
  // CHECK: tensor expects 1 dimensions, got tensor<?x?xf32>
  %a = flex.load_capture %t[%i] : tensor<?x?xf32>, i32
  func.return
}

// -----

func.func @load_type(%t : tensor<?xf32>, %i : i32) {
  // CHECK: attribute f32 expected from variable 'T', but got f64
  %a = "flex.load_capture"(%t, %i) : (tensor<?xf32>, i32) -> f64
  func.return
}

// -----

func.func @no_length(%q : tensor<1x1x?x8xf32>, %scale : f32) {
  // CHECK: max_length expects a positive number, got 0
  %out = flex.attention %q, %q, %q : tensor<1x1x?x8xf32>, tensor<1x1x?x8xf32>, tensor<1x1x?x8xf32> scale(%scale : f32) -> out(tensor<1x1x?x8xf32>) {max_length = 0 : i64}
  score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

func.func @odd_width(%q : tensor<1x1x?x8xf32>, %scale : f32) {
  // CHECK: index_width expects 32 or 64, got 7
  %out = flex.attention %q, %q, %q : tensor<1x1x?x8xf32>, tensor<1x1x?x8xf32>, tensor<1x1x?x8xf32> scale(%scale : f32) -> out(tensor<1x1x?x8xf32>) {index_width = 7 : i64}
  score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

%t, %i = "test.op"() : () -> (tensor<?x?xf32>, i32)
// CHECK: dim expects a dimension below 2, got 2
%n = flex.dim %t, 2 : tensor<?x?xf32> -> i32

// -----

%t, %i = "test.op"() : () -> (f32, i32)
// CHECK: f32 should be of base attribute tensor
%x = flex.load_capture %t[%i] : f32, i32

// -----

func.func @block_of_one_number(%q : tensor<?x?x?x8xf32>, %scale : f32,
                               %num : tensor<?x?x?xi32>, %idx : tensor<?x?x?x?xi32>) {
  // CHECK: sparse_block expects two positive numbers, got array<i64: 128>
  %out = flex.attention %q, %q, %q
      : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>
      scale(%scale : f32)
      tables(%num, %idx : tensor<?x?x?xi32>, tensor<?x?x?x?xi32>)
      -> out(tensor<?x?x?x8xf32>) {sparse_block = array<i64: 128>}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

func.func @comparison_of_two_types(%q : tensor<?x?x?x8xf32>, %scale : f32) {
  // CHECK: arith.cmpi expects operands of one type, got i32 and i1
  %out = flex.attention %q, %q, %q
      : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>
      scale(%scale : f32) -> out(tensor<?x?x?x8xf32>)
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    %c = "arith.cmpi"(%ki, %t) {predicate = 2 : i64} : (i32, i1) -> i1
    flex.yield %c : i1
  }
  func.return
}

// -----

func.func @growth(%q : tensor<?x?x?x8xf32>, %scale : f32) {
  // CHECK: growth expects one of none, positive, negative, got some
  %out = flex.attention %q, %q, %q
      : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>
      scale(%scale : f32) -> out(tensor<?x?x?x8xf32>)
      {key_ranges = #flex.key_ranges<live "all", dead "none", growth "some",
                                     moving "none", remainders []>}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %t = arith.constant true
    flex.yield %t : i1
  }
  func.return
}

// -----

!q = tensor<?x?x?x8xf16>
!k = tensor<?x?x?x8xi16>

func.func @stored(%q : !q, %k : !k, %scale : f32, %ks : tensor<?x?xf32>) {
  // CHECK: key expects elements of f16, got i16
  %out = flex.attention %q, %k, %q : !q, !k, !q scale(%scale : f32)
      key_scale(%ks : tensor<?x?xf32>) -> out(!q)
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %true = arith.constant true
    flex.yield %true : i1
  }
  func.return
}

// -----

!q = tensor<?x?x?x8xf16>
!k = tensor<?x?x?x8xi8>

func.func @scale_rank(%q : !q, %k : !k, %scale : f32, %ks : tensor<?xf32>) {
  // CHECK: key_scale expects f32 of 2 or 3 dimensions, got tensor<?xf32>
  %out = flex.attention %q, %k, %q : !q, !k, !q scale(%scale : f32)
      key_scale(%ks : tensor<?xf32>) -> out(!q)
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %true = arith.constant true
    flex.yield %true : i1
  }
  func.return
}

// -----

!q = tensor<?x?x?x8xf16>
!k = tensor<?x?x?x8xi8>

func.func @scale_type(%q : !q, %k : !k, %scale : f32, %ks : tensor<?x?xf16>) {
  // CHECK: key_scale expects f32 of 2 or 3 dimensions, got tensor<?x?xf16>
  %out = flex.attention %q, %k, %q : !q, !k, !q scale(%scale : f32)
      key_scale(%ks : tensor<?x?xf16>) -> out(!q)
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %true = arith.constant true
    flex.yield %true : i1
  }
  func.return
}

// -----

func.func @page_table_type(%q : tensor<?x?x?x8xf16>, %k : tensor<?x?x16x8xf16>, %scale : f32, %table : tensor<?x?xi64>) {
  // CHECK: page_table expects i32, got tensor<?x?xi64>
  %out = flex.attention %q, %k, %k : tensor<?x?x?x8xf16>, tensor<?x?x16x8xf16>, tensor<?x?x16x8xf16>
      scale(%scale : f32) page_table(%table : tensor<?x?xi64>) -> out(tensor<?x?x?x8xf16>)
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %true = arith.constant true
    flex.yield %true : i1
  }
  func.return
}

// -----

func.func @page_size(%q : tensor<?x?x?x8xf16>, %k : tensor<?x?x?x8xf16>, %scale : f32, %table : tensor<?x?xi32>) {
  // CHECK: page_table expects pages of one static size, got tensor<?x?x?x8xf16> and tensor<?x?x?x8xf16>
  %out = flex.attention %q, %k, %k : tensor<?x?x?x8xf16>, tensor<?x?x?x8xf16>, tensor<?x?x?x8xf16>
      scale(%scale : f32) page_table(%table : tensor<?x?xi32>) -> out(tensor<?x?x?x8xf16>)
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %true = arith.constant true
    flex.yield %true : i1
  }
  func.return
}
