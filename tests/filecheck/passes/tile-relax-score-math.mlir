// RUN: flexc-opt %s -p tile-relax-score-math | filecheck %s
// RUN: flexc-opt %s -p 'tile-relax-score-math{narrow=true}' | filecheck %s --check-prefix=NARROW

// CHECK-LABEL: tile.kernel @relaxed(
tile.kernel @relaxed(%start : i32 #tile.param<dim 0, 0>, %cap : f32 #tile.param<argument 1>, %scale : f32 #tile.param<argument 2>) grid affine_map<(b, h, q_len) -> (q_len, h, b)> attributes {max_length = 16777216 : i64} {
  %zero = arith.constant 0.0 : f32
  %s = tile.full %zero : f32 -> !tile.tile<64x32xf32>
  %q = tile.iota %start : !tile.tile<64xi32>
  %k = tile.iota %start : !tile.tile<32xi32>
  // A score by a scalar: the reciprocal is that of a scalar. Factors do not meet: their
  // product may overflow where the scores do not, and the other way around.
  // CHECK: [[SCALED:%.*]] = arith.mulf %x{{.*}}, %scale
  // CHECK: [[INVERSE:%.*]] = arith.divf %{{.*}}, %cap
  // CHECK: arith.mulf [[SCALED]], [[INVERSE]]
  %a = tile.map(%x : f32 = %s [0, 1] : !tile.tile<64x32xf32>, %cap_ : f32 = %cap [] : f32, %scale_ : f32 = %scale [] : f32) {
    %scaled = arith.mulf %x, %scale_ : f32
    %r = arith.divf %scaled, %cap_ : f32
    flex.yield %r : f32
  } -> !tile.tile<64x32xf32>
  // By another score: nothing is gained, but it may be approximated.
  // CHECK: arith.divf %{{.*}}, %{{.*}} fastmath<{{.*}}arcp{{.*}}> : f32
  %b = tile.map(%x : f32 = %s [0, 1] : !tile.tile<64x32xf32>, %y : f32 = %a [0, 1] : !tile.tile<64x32xf32>) {
    %r = arith.divf %x, %y : f32
    flex.yield %r : f32
  } -> !tile.tile<64x32xf32>
  // Positions are converted by rows and columns, and their quotient stays exact.
  // CHECK: arith.sitofp %q_{{.*}} : i32 to f32
  // CHECK: arith.sitofp %k_{{.*}} : i32 to f32
  // CHECK: [[D:%.*]] = arith.subf
  // CHECK: arith.divf [[D]], %cap_{{.*}} : f32
  %c = tile.map(%q_ : i32 = %q [0] : !tile.tile<64xi32>, %k_ : i32 = %k [1] : !tile.tile<32xi32>, %cap_ : f32 = %cap [] : f32) {
    %d = arith.subi %q_, %k_ : i32
    %f = arith.sitofp %d : i32 to f32
    %r = arith.divf %f, %cap_ : f32
    flex.yield %r : f32
  } -> !tile.tile<64x32xf32>
  // Functions of scores may be approximated, those of rows may not.
  // CHECK: math.tanh %{{.*}} fastmath<{{.*}}afn{{.*}}> : f32
  // CHECK: math.exp2 %{{.*}} fastmath<{{.*}}afn{{.*}}> : f32
  // CHECK: math.exp2 %{{[^ ]*}} : f32
  %d = tile.map(%x : f32 = %s [0, 1] : !tile.tile<64x32xf32>) {
    %t = math.tanh %x : f32
    %e = math.exp2 %t : f32
    flex.yield %e : f32
  } -> !tile.tile<64x32xf32>
  %row = tile.full %zero : f32 -> !tile.tile<64xf32>
  %e = tile.map(%x : f32 = %row [0] : !tile.tile<64xf32>) {
    %e = math.exp2 %x : f32
    flex.yield %e : f32
  } -> !tile.tile<64xf32>
  tile.return
}

// Weights are packed: with `narrow`, this kernel is the only one that is rewritten.
// NARROW-LABEL: tile.kernel @relaxed(
// NARROW-NOT: fastmath<
// NARROW-LABEL: tile.kernel @narrow(
// NARROW: math.exp2 %{{.*}} fastmath<{{.*}}afn{{.*}}> : f32
tile.kernel @narrow(%z : f32 #tile.param<argument 0>, %w : bf16 #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (1)> {
  %s = tile.full %z : f32 -> !tile.tile<32x32xf32>
  %v = tile.full %w : bf16 -> !tile.tile<32x32xbf16>
  %p = tile.map(%x : f32 = %s [0, 1] : !tile.tile<32x32xf32>) {
    %e = math.exp2 %x : f32
    flex.yield %e : f32
  } -> !tile.tile<32x32xf32>
  %pairs = tile.pack %p : !tile.tile<32x32xf32> -> !tile.tile<32x32xbf16, #tile.pairs>
  %o = tile.dot %v, %pairs, %s : !tile.tile<32x32xbf16>, !tile.tile<32x32xbf16, #tile.pairs>, !tile.tile<32x32xf32> -> !tile.tile<32x32xf32>
  tile.return
}
