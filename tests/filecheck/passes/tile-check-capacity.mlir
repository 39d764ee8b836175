// RUN: flexc-opt %s -p tile-check-capacity --split-input-file --verify-diagnostics | filecheck %s

// CHECK-LABEL: @fits
tile.kernel @fits(%c : i1 #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> attributes {max_registers = 80 : i32, residents = 3 : i32} {
  %slots = tile.shared : !tile.shared<9, !tile.tile<64x64xbf16>>
  tile.roles {
    tile.role "a" copies 1 warps 4 registers 136 {
    ^bb0(%part : i32):
      tile.end
    }
    tile.role "b" copies 1 warps 1 registers 24 {
    ^bb0(%part : i32):
      tile.end
    }
  }
  tile.return
}

// -----

// Two roles of one warp share a group of four.
// CHECK: tile.role "writer"
tile.roles {
  tile.role "consumer" copies 2 warps 4 registers 240 {
  ^bb0(%part : i32):
    tile.end
  }
  tile.role "producer" copies 1 warps 1 registers 24 {
  ^bb0(%part : i32):
    tile.end
  }
  tile.role "writer" copies 1 warps 1 registers 24 {
  ^bb0(%part : i32):
    tile.end
  }
}

// -----

// CHECK: registers expects a multiple of 8 from 24 to 240, got 100
tile.roles {
  tile.role "a" copies 1 warps 4 registers 100 {
  ^bb0(%part : i32):
    tile.end
  }
}

// -----

// CHECK: registers expects a multiple of 8 from 24 to 240, got 248
tile.roles {
  tile.role "a" copies 1 warps 4 registers 248 {
  ^bb0(%part : i32):
    tile.end
  }
}

// -----

// A producer of one warp takes a whole group of four.
// CHECK: expects at most 65536 registers of all roles, got 67584
tile.roles {
  tile.role "consumer" copies 2 warps 4 registers 240 {
  ^bb0(%part : i32):
    tile.end
  }
  tile.role "producer" copies 1 warps 1 registers 48 {
  ^bb0(%part : i32):
    tile.end
  }
}

// -----

// CHECK: expects at most 1024 threads, got 1152
tile.roles {
  tile.role "a" copies 9 warps 4 registers 24 {
  ^bb0(%part : i32):
    tile.end
  }
}

// -----

tile.kernel @too_many_slots(%c : i1 #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: expects at most 232448 bytes of shared memory, got 262160
  %slots = tile.shared : !tile.shared<8, !tile.tile<128x128xbf16>>
  %full = tile.barriers : !tile.barriers<2, 1>
  tile.return
}

// -----

tile.kernel @starts_with_too_few(%c : i1 #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> attributes {max_registers = 72 : i32} {
  // CHECK: max_registers expects as many registers as roles have, 20480 in all, got 18432
  tile.roles {
    tile.role "a" copies 1 warps 4 registers 136 {
    ^bb0(%part : i32):
      tile.end
    }
    tile.role "b" copies 1 warps 1 registers 24 {
    ^bb0(%part : i32):
      tile.end
    }
  }
  tile.return
}

// -----

tile.kernel @starts_with_too_many(%c : i1 #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> attributes {max_registers = 80 : i32, residents = 4 : i32} {
  // CHECK: expects at most 65536 registers of 4 programs, got 81920
  tile.roles {
    tile.role "a" copies 1 warps 4 registers 136 {
    ^bb0(%part : i32):
      tile.end
    }
    tile.role "b" copies 1 warps 1 registers 24 {
    ^bb0(%part : i32):
      tile.end
    }
  }
  tile.return
}

// -----

tile.kernel @residents_without_registers(%c : i1 #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> attributes {residents = 4 : i32} {
  // CHECK: expects at most 65536 registers of 4 programs, got 81920
  tile.roles {
    tile.role "a" copies 1 warps 4 registers 136 {
    ^bb0(%part : i32):
      tile.end
    }
    tile.role "b" copies 1 warps 1 registers 24 {
    ^bb0(%part : i32):
      tile.end
    }
  }
  tile.return
}

// -----

tile.kernel @residents_without_memory(%c : i1 #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> attributes {residents = 3 : i32} {
  // CHECK: expects at most 76800 bytes of shared memory, as 3 programs are resident, got 81920
  %slots = tile.shared : !tile.shared<10, !tile.tile<64x64xbf16>>
  tile.roles {
    tile.role "a" copies 1 warps 4 registers 136 {
    ^bb0(%part : i32):
      tile.end
    }
    tile.role "b" copies 1 warps 1 registers 24 {
    ^bb0(%part : i32):
      tile.end
    }
  }
  tile.return
}

// -----

tile.kernel @no_resident(%c : i1 #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> attributes {residents = 0 : i32} {
  // CHECK: residents expects 1 or more, got 0
  tile.roles {
    tile.role "a" copies 1 warps 4 registers 136 {
    ^bb0(%part : i32):
      tile.end
    }
    tile.role "b" copies 1 warps 1 registers 24 {
    ^bb0(%part : i32):
      tile.end
    }
  }
  tile.return
}

// -----

tile.kernel @no_number(%c : i1 #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> attributes {max_registers = "all"} {
  // CHECK: max_registers expects an integer, got "all"
  tile.roles {
    tile.role "a" copies 1 warps 4 registers 136 {
    ^bb0(%part : i32):
      tile.end
    }
    tile.role "b" copies 1 warps 1 registers 24 {
    ^bb0(%part : i32):
      tile.end
    }
  }
  tile.return
}
