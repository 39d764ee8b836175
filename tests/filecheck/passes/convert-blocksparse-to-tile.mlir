// RUN: flexc-opt %s -p 'convert-blocksparse-to-tile{target=cpp}' | filecheck %s
// RUN: flexc-opt %s -p 'convert-blocksparse-to-tile{target=triton}' | filecheck %s --check-prefix=TRITON

!t = tensor<?x?x?x20xf32>
!row = tensor<?x?x?xf32>
!num = tensor<?x?x?xi32>

// A loop of the online softmax for each segment; outputs follow the inputs.
// CHECK-LABEL: tile.kernel @segments(
func.func @segments(%q : !t, %k : !t, %v : !t,
    %scale : f32) {
  // CHECK-SAME: %out : memref<?x?x?x20xf32> #tile.param<argument 4>, %lse : memref<?x?x?xf32> #tile.param<argument 5>, %max_scores : memref<?x?x?xf32> #tile.param<argument 6>
  // CHECK-SAME: grid affine_map<(d0, d1, d2) -> ((d2 ceildiv 64), d1, d0)>
  // CHECK: %m_block = tile.program_id 0
  // CHECK: %kv_h = arith.divsi {{%.*}}, %q_heads : i32
  // CHECK: [[Q:%q[_0-9]*]] = tile.load %q[%b, %h, %q_start, {{%.*}}] checked [0] : {{.*}} -> !tile.tile<64x20xf32>
  // Nothing is tested in a segment that is inside.
  // CHECK: scf.for %i
  // CHECK: %k_1 = tile.load %k[%b, %kv_h, %kv_start, {{%.*}}] : {{.*}} -> !tile.tile<32x20xf32>
  // CHECK: %s = tile.dot [[Q]], %k_t, %zeros
  // CHECK-NOT: arith.cmpi
  // CHECK: %row_max = tile.reduce max %scores along 1
  // CHECK: math.exp2
  // CHECK: %row_sum = tile.reduce sum %p along 1
  // CHECK: %acc_next = tile.dot %p, %v_1, %acc_scaled
  // CHECK: {segment = #blocksparse<kind full>}
  // In a partial one the mask and the length decide.
  // CHECK: scf.for
  // CHECK: tile.load {{.*}}kv_start{{.*}} checked [0]
  // CHECK-DAG: arith.cmpi sge
  // CHECK-DAG: arith.cmpi slt
  // CHECK: arith.andi
  // CHECK: 0xff800000
  // CHECK: arith.select
  // CHECK: {segment = #blocksparse<kind partial>}
  // CHECK: tile.store %o : !tile.tile<64x20xf32>, %out[%b, %h, %q_start, {{%.*}}] checked [0]
  // CHECK: tile.store %lse{{.*}} : !tile.tile<64xf32>, %lse[%b, %h, %q_start] checked [0]
  // CHECK: tile.store {{.*}} : !tile.tile<64xf32>, %max_scores[%b, %h, %q_start] checked [0]
  // CHECK: tile.return
  // Triton's tiles are powers of two: columns are tested.
  // TRITON-LABEL: tile.kernel @segments(
  // TRITON: tile.load {{.*}} checked [0, 1] : {{.*}} -> !tile.tile<64x32xf32>
  // Without a known alignment the tile of values has 64.
  // TRITON: tile.store %o : !tile.tile<64x64xf32>, %out[{{.*}}] checked [0, 1]
  %out, %lse, %max_scores = blocksparse.attention %q, %k, %v : !t, !t, !t scale(%scale : f32)
      -> out(!t) lse(!row) max_scores(!row) {block_m = 64 : i32, block_n = 32 : i32}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } segments {
    blocksparse.segment full {inside} bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32) {
      %begin = arith.constant 0 : i32
      %end = arith.constant 3 : i32
      flex.yield %begin, %end : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32,
            %kv_len : i32) {
      %n = arith.constant 32 : i32
      %start = arith.muli %i, %n : i32
      flex.yield %start : i32
    }
    blocksparse.segment partial bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32) {
      %begin = arith.constant 0 : i32
      %end = arith.constant 3 : i32
      flex.yield %begin, %end : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32,
            %kv_len : i32) {
      %n = arith.constant 32 : i32
      %start = arith.muli %i, %n : i32
      flex.yield %start : i32
    } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
      %c = arith.cmpi sge, %qi, %ki : i32
      flex.yield %c : i1
    }
  }
  func.return
}

// A scale known to be positive moves past the maximum: no map over the scores.
// CHECK-LABEL: tile.kernel @positive_scale(
func.func @positive_scale(%q : !t, %k : !t, %v : !t,
    %scale : f32) {
  // CHECK: %qk_scale = arith.mulf %scale
  // CHECK: %s = tile.dot
  // CHECK-NOT: tile.map
  // CHECK: %row_max = tile.reduce max %s along 1
  %out = blocksparse.attention %q, %k, %v : !t, !t, !t scale(%scale : f32)
      -> out(!t) {block_m = 64 : i32, block_n = 32 : i32, scale_positive}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } segments {
    blocksparse.segment full {inside} bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32) {
      %begin = arith.constant 0 : i32
      %end = arith.constant 3 : i32
      flex.yield %begin, %end : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32,
            %kv_len : i32) {
      %n = arith.constant 32 : i32
      %start = arith.muli %i, %n : i32
      flex.yield %start : i32
    }
  }
  func.return
}

// With a score_mod it is applied to the scores, which the mod then changes.
// CHECK-LABEL: tile.kernel @score_mod(
func.func @score_mod(%q : !t, %k : !t, %v : !t,
    %scale : f32) {
  // CHECK-NOT: %qk_scale
  // CHECK: %scores = tile.map(
  // CHECK: %score = arith.mulf %s{{.*}}, %scale
  // CHECK-NEXT: math.tanh %score
  %out = blocksparse.attention %q, %k, %v : !t, !t, !t scale(%scale : f32)
      -> out(!t) {block_m = 64 : i32, block_n = 32 : i32, scale_positive}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    %r = math.tanh %s : f32
    flex.yield %r : f32
  } segments {
    blocksparse.segment full {inside} bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32) {
      %begin = arith.constant 0 : i32
      %end = arith.constant 3 : i32
      flex.yield %begin, %end : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32,
            %kv_len : i32) {
      %n = arith.constant 32 : i32
      %start = arith.muli %i, %n : i32
      flex.yield %start : i32
    }
  }
  func.return
}

// Known multiples need no tests; descending order starts with the last block.
// CHECK-LABEL: tile.kernel @facts(
func.func @facts(%q : !t, %k : !t, %v : !t,
    %scale : f32) {
  // CHECK-SAME: attributes {score = "s", mask = "none", segments = "full", alignment = 16 : i64, index_width = 32 : i64}
  // CHECK: [[LAST:%.*]] = arith.subi
  // CHECK: %m_block_1 = arith.subi [[LAST]], %m_block : i32
  // CHECK: arith.muli %m_block_1
  // CHECK: tile.load %q[%b, %h, %q_start, {{%.*}}] : tensor
  // CHECK: tile.store %o : !tile.tile<64x20xf32>, %out[%b, %h, %q_start, {{%.*}}] : memref
  %out = blocksparse.attention %q, %k, %v : !t, !t, !t scale(%scale : f32)
      -> out(!t) {block_m = 64 : i32, block_n = 32 : i32, q_len_multiple = 128, scale_positive, alignment = 16, index_width = 32, order = #blocksparse<order descending>}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } segments {
    blocksparse.segment full {inside} bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32) {
      %begin = arith.constant 0 : i32
      %end = arith.constant 3 : i32
      flex.yield %begin, %end : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32,
            %kv_len : i32) {
      %n = arith.constant 32 : i32
      %start = arith.muli %i, %n : i32
      flex.yield %start : i32
    }
  }
  func.return
}

// Half-precision weights meet half-precision values; sums stay wide.
// CHECK-LABEL: tile.kernel @narrow(
func.func @narrow(%q : tensor<?x?x?x64xbf16>, %k : tensor<?x?x?x64xbf16>, %v : tensor<?x?x?x64xbf16>,
    %scale : f32) {
  // CHECK: %s = tile.dot {{.*}} : !tile.tile<64x64xbf16>, !tile.tile<64x32xbf16>, !tile.tile<64x32xf32> -> !tile.tile<64x32xf32>
  // CHECK: %p_bf16 = tile.map(
  // CHECK: arith.truncf
  // CHECK: tile.dot %p_bf16, %v_1, %acc_{{[0-9]+}} : !tile.tile<64x32xbf16>, !tile.tile<32x64xbf16>, !tile.tile<64x64xf32>
  // CHECK: tile.store %o_bf16 : !tile.tile<64x64xbf16>
  %out = blocksparse.attention %q, %k, %v : tensor<?x?x?x64xbf16>, tensor<?x?x?x64xbf16>, tensor<?x?x?x64xbf16> scale(%scale : f32)
      -> out(tensor<?x?x?x64xbf16>) {block_m = 64 : i32, block_n = 32 : i32, scale_positive}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } segments {
    blocksparse.segment full {inside} bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32) {
      %begin = arith.constant 0 : i32
      %end = arith.constant 3 : i32
      flex.yield %begin, %end : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32,
            %kv_len : i32) {
      %n = arith.constant 32 : i32
      %start = arith.muli %i, %n : i32
      flex.yield %start : i32
    }
  }
  func.return
}

// Tables are read by the code of the segments.
// CHECK-LABEL: tile.kernel @tables(
func.func @tables(%q : !t, %k : !t, %v : !t,
    %scale : f32, %num : !num) {
  // CHECK: %num : tensor<?x?x?xi32> #tile.param<argument 4>
  // CHECK: %end = flex.load_capture %num[%b, %h, %begin] inside
  // CHECK: scf.for %i = %begin to %end
  %out = blocksparse.attention %q, %k, %v : !t, !t, !t scale(%scale : f32) tables(%num : !num)
      -> out(!t) {block_m = 64 : i32, block_n = 32 : i32}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } segments {
    blocksparse.segment full bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32, %num_ : !num) {
      %begin = arith.constant 0 : i32
      %end = flex.load_capture %num_[%b, %h, %begin] inside : !num, i32, i32, i32
      flex.yield %begin, %end : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32,
            %kv_len : i32, %num_ : !num) {
      %n = arith.constant 32 : i32
      %start = arith.muli %i, %n : i32
      flex.yield %start : i32
    }
  }
  func.return
}

// One tensor may be query, key and value.
// CHECK-LABEL: tile.kernel @one_tensor(
func.func @one_tensor(%q : !t, %scale : f32) {
  // CHECK: tile.load {{.*}} -> !tile.tile<64x20xf32>
  // CHECK: tile.load {{.*}} -> !tile.tile<32x20xf32>
  // CHECK: tile.load {{.*}} -> !tile.tile<32x20xf32>
  %out = blocksparse.attention %q, %q, %q : !t, !t, !t scale(%scale : f32)
      -> out(!t) {block_m = 64 : i32, block_n = 32 : i32}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } segments {
    blocksparse.segment full {inside} bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32) {
      %begin = arith.constant 0 : i32
      %end = arith.constant 3 : i32
      flex.yield %begin, %end : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32,
            %kv_len : i32) {
      %n = arith.constant 32 : i32
      %start = arith.muli %i, %n : i32
      flex.yield %start : i32
    }
  }
  func.return
}

// Scores with close bounds: a constant in the maximum's place, nothing to rescale.
// CHECK-LABEL: tile.kernel @bounded(
func.func @bounded(%q : !t, %k : !t, %v : !t,
    %scale : f32) {
  // CHECK: %l_i = tile.full
  // CHECK-NEXT: %acc = tile.full
  // CHECK-NOT: tile.reduce max
  // CHECK: scf.for {{.*}} iter_args(%l_i_2 = %l_i, %acc_2 = %acc)
  // CHECK: %p = tile.map
  // CHECK-NEXT: arith.constant -2.885390e+01 : f32
  // CHECK-NEXT: math.fma
  // CHECK-NEXT: math.exp2
  // CHECK: arith.addf %l_i
  // CHECK: tile.dot %p, {{%.*}}, %acc_2
  // An empty row is 0, and the logarithm of its sum -inf.
  // CHECK: scf.yield
  // CHECK: arith.cmpf oeq
  // CHECK: %lse{{.*}} = tile.map
  // CHECK-NEXT: arith.constant 2.000000e+01 : f32
  // CHECK-NEXT: math.log
  // CHECK-NEXT: arith.addf
  %out, %lse = blocksparse.attention %q, %k, %v : !t, !t, !t scale(%scale : f32)
      -> out(!t) lse(!row) {block_m = 64 : i32, block_n = 32 : i32, score_range = #flex.float_range<-20.0, 20.0>}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c = arith.constant 2.0 : f32
    %t = math.tanh %s : f32
    %r = arith.mulf %t, %c : f32
    flex.yield %r : f32
  } segments {
    blocksparse.segment full {inside} bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32) {
      %begin = arith.constant 0 : i32
      %end = arith.constant 3 : i32
      flex.yield %begin, %end : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32,
            %kv_len : i32) {
      %n = arith.constant 32 : i32
      %start = arith.muli %i, %n : i32
      flex.yield %start : i32
    }
  }
  func.return
}

// Weights of fp16 have fewer exponents: 2 * 20 is too far, 2 * 5 is shifted up.
// CHECK-LABEL: tile.kernel @bounded_weights_of_fp16(
func.func @bounded_weights_of_fp16(%q : tensor<?x?x?x64xf16>, %k : tensor<?x?x?x64xf16>, %v : tensor<?x?x?x64xf16>,
    %scale : f32) {
  // CHECK: tile.reduce max
  %out = blocksparse.attention %q, %k, %v : tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16> scale(%scale : f32)
      -> out(tensor<?x?x?x64xf16>) {block_m = 64 : i32, block_n = 32 : i32, score_range = #flex.float_range<-20.0, 20.0>}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c = arith.constant 2.0 : f32
    %t = math.tanh %s : f32
    %r = arith.mulf %t, %c : f32
    flex.yield %r : f32
  } segments {
    blocksparse.segment full {inside} bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32) {
      %begin = arith.constant 0 : i32
      %end = arith.constant 3 : i32
      flex.yield %begin, %end : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32,
            %kv_len : i32) {
      %n = arith.constant 32 : i32
      %start = arith.muli %i, %n : i32
      flex.yield %start : i32
    }
  }
  func.return
}

// Narrow values are widened to fp16, so their weights are of fp16 too.
// CHECK-LABEL: tile.kernel @bounded_weights_of_narrow_values(
func.func @bounded_weights_of_narrow_values(%q : tensor<?x?x?x64xf16>, %k : tensor<?x?x?x64xf16>, %v : tensor<?x?x?x64xf8E5M2>,
    %scale : f32) {
  // CHECK: tile.reduce max
  %out = blocksparse.attention %q, %k, %v : tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16>, tensor<?x?x?x64xf8E5M2> scale(%scale : f32)
      -> out(tensor<?x?x?x64xf16>) {block_m = 64 : i32, block_n = 32 : i32, score_range = #flex.float_range<-20.0, 20.0>}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c = arith.constant 2.0 : f32
    %t = math.tanh %s : f32
    %r = arith.mulf %t, %c : f32
    flex.yield %r : f32
  } segments {
    blocksparse.segment full {inside} bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32) {
      %begin = arith.constant 0 : i32
      %end = arith.constant 3 : i32
      flex.yield %begin, %end : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32,
            %kv_len : i32) {
      %n = arith.constant 32 : i32
      %start = arith.muli %i, %n : i32
      flex.yield %start : i32
    }
  }
  func.return
}

// CHECK-LABEL: tile.kernel @close_weights_of_fp16(
func.func @close_weights_of_fp16(%q : tensor<?x?x?x64xf16>, %k : tensor<?x?x?x64xf16>, %v : tensor<?x?x?x64xf16>,
    %scale : f32) {
  // CHECK-NOT: tile.reduce max
  // CHECK: arith.constant 7.7865{{[0-9]*}} : f32
  // CHECK-NEXT: math.fma
  %out = blocksparse.attention %q, %k, %v : tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16> scale(%scale : f32)
      -> out(tensor<?x?x?x64xf16>) {block_m = 64 : i32, block_n = 32 : i32, score_range = #flex.float_range<-5.0, 5.0>}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c = arith.constant 2.0 : f32
    %t = math.tanh %s : f32
    %r = arith.mulf %t, %c : f32
    flex.yield %r : f32
  } segments {
    blocksparse.segment full {inside} bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32) {
      %begin = arith.constant 0 : i32
      %end = arith.constant 3 : i32
      flex.yield %begin, %end : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32,
            %kv_len : i32) {
      %n = arith.constant 32 : i32
      %start = arith.muli %i, %n : i32
      flex.yield %start : i32
    }
  }
  func.return
}

// Wider bounds: the maximum starts at the lower one, over the factor, and weights have no
// guards.
// CHECK-LABEL: tile.kernel @maximum_from_bound(
func.func @maximum_from_bound(%q : !t, %k : !t, %v : !t,
    %scale : f32) {
  // CHECK: [[LEAST:%.*]] = arith.constant -2.500000e+01 : f32
  // CHECK: %m_i = tile.full [[LEAST]]
  // CHECK: %row_max = tile.reduce max
  // CHECK: %m = tile.map(
  // CHECK-NEXT: arith.select
  // CHECK-NOT: arith.cmpf
  // CHECK-NOT: arith.select
  // CHECK: scf.yield
  %out = blocksparse.attention %q, %k, %v : !t, !t, !t scale(%scale : f32)
      -> out(!t) {block_m = 64 : i32, block_n = 32 : i32, score_range = #flex.float_range<-50.0, 50.0>}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c = arith.constant 2.0 : f32
    %t = math.tanh %s : f32
    %r = arith.mulf %t, %c : f32
    flex.yield %r : f32
  } segments {
    blocksparse.segment full {inside} bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32) {
      %begin = arith.constant 0 : i32
      %end = arith.constant 3 : i32
      flex.yield %begin, %end : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32,
            %kv_len : i32) {
      %n = arith.constant 32 : i32
      %start = arith.muli %i, %n : i32
      flex.yield %start : i32
    }
  }
  func.return
}

// Who asks for the maximum gets the true one, -inf for a row that is empty.
// CHECK-LABEL: tile.kernel @maximum_is_asked_for(
func.func @maximum_is_asked_for(%q : !t, %k : !t, %v : !t,
    %scale : f32) {
  // CHECK: tile.reduce max
  // CHECK: scf.yield
  // CHECK: arith.cmpf oeq
  // CHECK: %max_scores_2 = tile.map
  // CHECK-NEXT: 0xff800000
  // CHECK: arith.cmpf oeq
  // CHECK-NEXT: arith.select
  %out, %max_scores = blocksparse.attention %q, %k, %v : !t, !t, !t scale(%scale : f32)
      -> out(!t) max_scores(!row) {block_m = 64 : i32, block_n = 32 : i32, score_range = #flex.float_range<-20.0, 20.0>}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c = arith.constant 2.0 : f32
    %t = math.tanh %s : f32
    %r = arith.mulf %t, %c : f32
    flex.yield %r : f32
  } segments {
    blocksparse.segment full {inside} bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32) {
      %begin = arith.constant 0 : i32
      %end = arith.constant 3 : i32
      flex.yield %begin, %end : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32,
            %kv_len : i32) {
      %n = arith.constant 32 : i32
      %start = arith.muli %i, %n : i32
      flex.yield %start : i32
    }
  }
  func.return
}

// Bounds that are too large for that change nothing.
// CHECK-LABEL: tile.kernel @huge_bounds(
func.func @huge_bounds(%q : !t, %k : !t, %v : !t,
    %scale : f32) {
  // CHECK: 0xff800000
  // CHECK: tile.reduce max
  // CHECK: arith.cmpf oeq
  %out = blocksparse.attention %q, %k, %v : !t, !t, !t scale(%scale : f32)
      -> out(!t) {block_m = 64 : i32, block_n = 32 : i32, score_range = #flex.float_range<-1.0e+30, 1.0e+30>}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c = arith.constant 2.0 : f32
    %t = math.tanh %s : f32
    %r = arith.mulf %t, %c : f32
    flex.yield %r : f32
  } segments {
    blocksparse.segment full {inside} bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32) {
      %begin = arith.constant 0 : i32
      %end = arith.constant 3 : i32
      flex.yield %begin, %end : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32,
            %kv_len : i32) {
      %n = arith.constant 32 : i32
      %start = arith.muli %i, %n : i32
      flex.yield %start : i32
    }
  }
  func.return
}

// Rows that are not empty, with scores that are not infinite, need no test, but for NaN,
// which maxima are found without.
// CHECK-LABEL: tile.kernel @never_empty(
func.func @never_empty(%q : !t, %k : !t, %v : !t,
    %scale : f32) {
  // CHECK-NOT: arith.cmpf o
  // CHECK: tile.return
  %out, %max_scores = blocksparse.attention %q, %k, %v : !t, !t, !t scale(%scale : f32)
      -> out(!t) max_scores(!row) {block_m = 64 : i32, block_n = 32 : i32, score_range = #flex.float_range<-20.0, 20.0>, scores_finite, rows_never_empty}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c = arith.constant 2.0 : f32
    %t = math.tanh %s : f32
    %r = arith.mulf %t, %c : f32
    flex.yield %r : f32
  } segments {
    blocksparse.segment full {inside} bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32) {
      %begin = arith.constant 0 : i32
      %end = arith.constant 3 : i32
      flex.yield %begin, %end : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32,
            %kv_len : i32) {
      %n = arith.constant 32 : i32
      %start = arith.muli %i, %n : i32
      flex.yield %start : i32
    }
  }
  func.return
}

// A row that the mask leaves something may be empty by its scores.
// CHECK-LABEL: tile.kernel @never_empty_by_the_mask(
func.func @never_empty_by_the_mask(%q : !t, %k : !t, %v : !t,
    %scale : f32) {
  // CHECK: scf.yield
  // CHECK: arith.cmpf oeq
  %out = blocksparse.attention %q, %k, %v : !t, !t, !t scale(%scale : f32)
      -> out(!t) {block_m = 64 : i32, block_n = 32 : i32, rows_never_empty}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c = arith.constant 2.0 : f32
    %t = math.tanh %s : f32
    %r = arith.mulf %t, %c : f32
    flex.yield %r : f32
  } segments {
    blocksparse.segment full {inside} bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32) {
      %begin = arith.constant 0 : i32
      %end = arith.constant 3 : i32
      flex.yield %begin, %end : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32,
            %kv_len : i32) {
      %n = arith.constant 32 : i32
      %start = arith.muli %i, %n : i32
      flex.yield %start : i32
    }
  }
  func.return
}

// Functions without attention are left alone.
// CHECK-LABEL: func.func @other
func.func @other(%a : f32) -> f32 {
  func.return %a : f32
}
