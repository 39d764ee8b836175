// RUN: flexc-opt %s -p tile-read-in-place | filecheck %s

// CHECK-LABEL: tile.kernel @reads(
tile.kernel @reads(%t : tensor<?xbf16> #tile.param<argument 0>, %start : i32 #tile.param<dim 0, 0>) grid affine_map<(b, h, q_len) -> (q_len, h, b)> {
  %q = tile.iota %start : !tile.tile<64xi32>
  %k = tile.iota %start : !tile.tile<32xi32>
  // Against the columns: read where it is needed, and widened at once.
  // CHECK: tile.read %{{.*}}[%{{.*}}] {in_place} : tensor<?xbf16>, i32 -> f32
  // CHECK-NOT: arith.extf
  %a = tile.map(%q_ : i32 = %q [0] : !tile.tile<64xi32>, %k_ : i32 = %k [1] : !tile.tile<32xi32>, %t_ : tensor<?xbf16> = %t [] : tensor<?xbf16>) {
    %d = arith.subi %q_, %k_ : i32
    %x = tile.read %t_[%d] : tensor<?xbf16>, i32 -> bf16
    %y = arith.extf %x : bf16 to f32
    flex.yield %y : f32
  } -> !tile.tile<64x32xf32>
  // Along the columns, but each row begins an element further: no vectors either.
  // CHECK: arith.addi
  // CHECK-NEXT: tile.read %{{.*}}[%{{.*}}] {in_place} : tensor<?xbf16>, i32 -> f32
  %e = tile.map(%q_ : i32 = %q [0] : !tile.tile<64xi32>, %k_ : i32 = %k [1] : !tile.tile<32xi32>, %t_ : tensor<?xbf16> = %t [] : tensor<?xbf16>) {
    %d = arith.addi %q_, %k_ : i32
    %x = tile.read %t_[%d] : tensor<?xbf16>, i32 -> bf16
    %y = arith.extf %x : bf16 to f32
    flex.yield %y : f32
  } -> !tile.tile<64x32xf32>
  // Along the columns of a matrix: contiguous, and left to be coalesced.
  // CHECK: arith.muli
  // CHECK-NEXT: arith.addi
  // CHECK-NEXT: tile.read %{{.*}}[%{{.*}}] : tensor<?xbf16>, i32 -> bf16
  %b = tile.map(%q_ : i32 = %q [0] : !tile.tile<64xi32>, %k_ : i32 = %k [1] : !tile.tile<32xi32>, %n : i32 = %start [] : i32, %t_ : tensor<?xbf16> = %t [] : tensor<?xbf16>) {
    %m = arith.muli %q_, %n : i32
    %d = arith.addi %m, %k_ : i32
    %x = tile.read %t_[%d] : tensor<?xbf16>, i32 -> bf16
    %y = arith.extf %x : bf16 to f32
    flex.yield %y : f32
  } -> !tile.tile<64x32xf32>
  // By row alone: one vector load.
  // CHECK: tile.read %{{.*}}[%{{.*}}] : tensor<?xbf16>, i32 -> bf16
  %c = tile.map(%q_ : i32 = %q [0] : !tile.tile<64xi32>, %t_ : tensor<?xbf16> = %t [] : tensor<?xbf16>) {
    %x = tile.read %t_[%q_] : tensor<?xbf16>, i32 -> bf16
    flex.yield %x : bf16
  } -> !tile.tile<64xbf16>
  tile.return
}
