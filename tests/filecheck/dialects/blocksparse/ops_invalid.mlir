// RUN: flexc-opt %s --split-input-file --verify-diagnostics | filecheck %s

func.func @no_rows(%q : tensor<?x?x?x8xf32>, %scale : f32) {
  // CHECK: block_m expects a positive number, got 0
  %out = blocksparse.attention %q, %q, %q
      : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>
      scale(%scale : f32) -> out(tensor<?x?x?x8xf32>)
      {block_m = 0 : i32, block_n = 16 : i32}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } segments {
    blocksparse.segment full bounds(%b : i32, %h : i32, %s : i32, %m : i32, %n : i32) {
      flex.yield %n, %n : i32, i32
    } block(%b : i32, %h : i32, %s : i32, %i : i32, %m : i32, %n : i32) {
      flex.yield %i : i32
    }
  }
  func.return
}

// -----

func.func @no_sequences(%q : tensor<?x?x?x8xf32>, %scale : f32) {
  // CHECK: sequence_blocks expects long sequences
  %out = blocksparse.attention %q, %q, %q
      : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>
      scale(%scale : f32) -> out(tensor<?x?x?x8xf32>)
      {block_m = 64 : i32, sequence_blocks, block_n = 16 : i32}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } segments {
    blocksparse.segment full bounds(%b : i32, %h : i32, %s : i32, %m : i32, %n : i32) {
      flex.yield %n, %n : i32, i32
    } block(%b : i32, %h : i32, %s : i32, %i : i32, %m : i32, %n : i32) {
      flex.yield %i : i32
    }
  }
  func.return
}

// -----

func.func @other_ops(%q : tensor<?x?x?x8xf32>, %scale : f32) {
  // CHECK: segments expects blocksparse.segment ops only, got arith.constant
  %out = blocksparse.attention %q, %q, %q
      : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>
      scale(%scale : f32) -> out(tensor<?x?x?x8xf32>)
      {block_m = 16 : i32, block_n = 16 : i32}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } segments {
    %c = arith.constant 0 : i32
  }
  func.return
}

// -----

func.func @bounds_arguments(%q : tensor<?x?x?x8xf32>, %scale : f32) {
  // CHECK: bounds expects arguments (i32, i32, i32, i32, i32), got (i32)
  %out = blocksparse.attention %q, %q, %q
      : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>
      scale(%scale : f32) -> out(tensor<?x?x?x8xf32>)
      {block_m = 16 : i32, block_n = 16 : i32}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } segments {
    blocksparse.segment full bounds(%n : i32) {
      flex.yield %n, %n : i32, i32
    } block(%b : i32, %h : i32, %s : i32, %i : i32, %m : i32, %n : i32) {
      flex.yield %i : i32
    }
  }
  func.return
}

// -----

func.func @bounds_result(%q : tensor<?x?x?x8xf32>, %scale : f32) {
  // CHECK: bounds expects to yield (i32, i32), got (i32)
  %out = blocksparse.attention %q, %q, %q
      : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>
      scale(%scale : f32) -> out(tensor<?x?x?x8xf32>)
      {block_m = 16 : i32, block_n = 16 : i32}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } segments {
    blocksparse.segment full bounds(%b : i32, %h : i32, %s : i32, %m : i32, %n : i32) {
      flex.yield %n : i32
    } block(%b : i32, %h : i32, %s : i32, %i : i32, %m : i32, %n : i32) {
      flex.yield %i : i32
    }
  }
  func.return
}

// -----

func.func @block_result(%q : tensor<?x?x?x8xf32>, %scale : f32) {
  // CHECK: block expects to yield (i32, i32), got (i32, i32, i32)
  %out = blocksparse.attention %q, %q, %q
      : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>
      scale(%scale : f32) -> out(tensor<?x?x?x8xf32>)
      {block_m = 16 : i32, block_n = 16 : i32}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } segments {
    blocksparse.segment full bounds(%b : i32, %h : i32, %s : i32, %m : i32, %n : i32) {
      flex.yield %n, %n : i32, i32
    } block(%b : i32, %h : i32, %s : i32, %i : i32, %m : i32, %n : i32) {
      flex.yield %i, %i, %i : i32, i32, i32
    }
  }
  func.return
}

// -----

func.func @trimmed_sticks_out(%q : tensor<?x?x?x8xf32>, %scale : f32) {
  // CHECK: a trimmed segment expects the property inside
  %out = blocksparse.attention %q, %q, %q
      : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>
      scale(%scale : f32) -> out(tensor<?x?x?x8xf32>)
      {block_m = 16 : i32, block_n = 16 : i32}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } segments {
    blocksparse.segment full bounds(%b : i32, %h : i32, %s : i32, %m : i32, %n : i32) {
      flex.yield %n, %n : i32, i32
    } block(%b : i32, %h : i32, %s : i32, %i : i32, %m : i32, %n : i32) {
      flex.yield %i, %n : i32, i32
    }
  }
  func.return
}

// -----

func.func @trimmed_and_padded(%q : tensor<?x?x?x8xf32>, %scale : f32) {
  // CHECK: a trimmed segment is neither padded nor mixed
  %out = blocksparse.attention %q, %q, %q
      : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>
      scale(%scale : f32) -> out(tensor<?x?x?x8xf32>)
      {block_m = 16 : i32, block_n = 16 : i32}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } segments {
    blocksparse.segment full {inside, padded} bounds(%b : i32, %h : i32, %s : i32, %m : i32, %n : i32) {
      flex.yield %n, %n : i32, i32
    } block(%b : i32, %h : i32, %s : i32, %i : i32, %m : i32, %n : i32) {
      flex.yield %i, %n : i32, i32
    }
  }
  func.return
}

// -----

func.func @skips_without_count(%q : tensor<?x?x?x8xf32>, %scale : f32) {
  // CHECK: a segment that may_skip expects a count
  %out = blocksparse.attention %q, %q, %q
      : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>
      scale(%scale : f32) -> out(tensor<?x?x?x8xf32>)
      {block_m = 16 : i32, block_n = 16 : i32}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } segments {
    blocksparse.segment full {may_skip} bounds(%b : i32, %h : i32, %s : i32, %m : i32, %n : i32) {
      flex.yield %n, %n : i32, i32
    } block(%b : i32, %h : i32, %s : i32, %i : i32, %m : i32, %n : i32) {
      flex.yield %i : i32
    }
  }
  func.return
}

// -----

func.func @full_with_mask(%q : tensor<?x?x?x8xf32>, %scale : f32) {
  // CHECK: a full segment expects no mask_mod, got one
  %out = blocksparse.attention %q, %q, %q
      : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>
      scale(%scale : f32) -> out(tensor<?x?x?x8xf32>)
      {block_m = 16 : i32, block_n = 16 : i32}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } segments {
    blocksparse.segment full bounds(%b : i32, %h : i32, %s : i32, %m : i32, %n : i32) {
      flex.yield %n, %n : i32, i32
    } block(%b : i32, %h : i32, %s : i32, %i : i32, %m : i32, %n : i32) {
      flex.yield %i : i32
    } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
      %c = arith.cmpi sge, %qi, %ki : i32
      flex.yield %c : i1
    }
  }
  func.return
}

// -----

func.func @mask_result(%q : tensor<?x?x?x8xf32>, %scale : f32) {
  // CHECK: mask_mod expects to yield (i1), got (i32)
  %out = blocksparse.attention %q, %q, %q
      : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>
      scale(%scale : f32) -> out(tensor<?x?x?x8xf32>)
      {block_m = 16 : i32, block_n = 16 : i32}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } segments {
    blocksparse.segment partial bounds(%b : i32, %h : i32, %s : i32, %m : i32, %n : i32) {
      flex.yield %n, %n : i32, i32
    } block(%b : i32, %h : i32, %s : i32, %i : i32, %m : i32, %n : i32) {
      flex.yield %i : i32
    } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
      flex.yield %ki : i32
    }
  }
  func.return
}

// -----

func.func @full_blocks_of_full(%q : tensor<?x?x?x8xf32>, %scale : f32) {
  // CHECK: full_inside expects a mixed segment
  %out = blocksparse.attention %q, %q, %q
      : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>
      scale(%scale : f32) -> out(tensor<?x?x?x8xf32>)
      {block_m = 16 : i32, block_n = 16 : i32}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } segments {
    blocksparse.segment full {full_inside} bounds(%b : i32, %h : i32, %s : i32, %m : i32, %n : i32) {
      flex.yield %n, %n : i32, i32
    } block(%b : i32, %h : i32, %s : i32, %i : i32, %m : i32, %n : i32) {
      flex.yield %i : i32
    }
  }
  func.return
}

// -----

func.func @choice_of_full(%q : tensor<?x?x?x8xf32>, %scale : f32) {
  // CHECK: a full segment expects no partial_if, got one
  %out = blocksparse.attention %q, %q, %q
      : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>
      scale(%scale : f32) -> out(tensor<?x?x?x8xf32>)
      {block_m = 16 : i32, block_n = 16 : i32}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } segments {
    blocksparse.segment full bounds(%b : i32, %h : i32, %s : i32, %m : i32, %n : i32) {
      flex.yield %n, %n : i32, i32
    } block(%b : i32, %h : i32, %s : i32, %i : i32, %m : i32, %n : i32) {
      flex.yield %i : i32
    } partial_if(%b : i32, %h : i32, %s : i32, %i : i32, %m : i32, %n : i32) {
      %c = arith.cmpi sge, %i, %m : i32
      flex.yield %c : i1
    }
  }
  func.return
}

// -----

func.func @mixed_without_partial_if(%q : tensor<?x?x?x8xf32>, %scale : f32) {
  // CHECK: a mixed segment expects a partial_if, got none
  %out = blocksparse.attention %q, %q, %q
      : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>
      scale(%scale : f32) -> out(tensor<?x?x?x8xf32>)
      {block_m = 16 : i32, block_n = 16 : i32}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } segments {
    blocksparse.segment mixed bounds(%b : i32, %h : i32, %s : i32, %m : i32, %n : i32) {
      flex.yield %n, %n : i32, i32
    } block(%b : i32, %h : i32, %s : i32, %i : i32, %m : i32, %n : i32) {
      flex.yield %i : i32
    }
  }
  func.return
}

// -----

// CHECK: expects as parent an op over pairs of positions
blocksparse.segment full bounds(%b : i32, %h : i32, %s : i32, %m : i32, %n : i32) {
  flex.yield %n, %n : i32, i32
} block(%b : i32, %h : i32, %s : i32, %i : i32, %m : i32, %n : i32) {
  flex.yield %i : i32
}

// -----

func.func @sums_of_other_ops(%q : tensor<?x?x?x8xf32>, %scale : f32) {
  // CHECK: segments expects blocksparse.segment ops only, got test.op
  %x = blocksparse.pair_sums rows(%q : tensor<?x?x?x8xf32>)
      columns(%q : tensor<?x?x?x8xf32>) scale(%scale : f32) -> tensor<?x?x?x8xf32>
      {block_m = 64 : i32, block_n = 32 : i32, products = [array<i32: 0, 0>],
       sums = [#flex.sum<matrix [[0, 0]]>]}
      pairs(%qk : f32, %s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %qk : f32
  } segments {
    "test.op"() : () -> ()
  }
  func.return
}

// -----

func.func @sums_without_rows_in_a_tile(%q : tensor<?x?x?x8xf32>, %scale : f32) {
  // CHECK: block_m expects a positive number, got 0
  %x = blocksparse.pair_sums rows(%q : tensor<?x?x?x8xf32>)
      columns(%q : tensor<?x?x?x8xf32>) scale(%scale : f32) -> tensor<?x?x?x8xf32>
      {block_m = 0 : i32, block_n = 32 : i32, products = [array<i32: 0, 0>],
       sums = [#flex.sum<matrix [[0, 0]]>]}
      pairs(%qk : f32, %s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %qk : f32
  } segments {
  ^bb0:
  }
  func.return
}
