// RUN: flexc-opt %s -p tile-read-diagonals | filecheck %s

!t = tensor<?x?xbf16, strided<[?, 1]>>
!rows = !tile.tile<64xi32>
!columns = !tile.tile<32xi32>
!full = !tile.tile<64x32xf32>

// The offset of the first element, and one read for each diagonal.
// CHECK-LABEL: tile.kernel @by_distance(
tile.kernel @by_distance(%t : !t #tile.param<argument 0>, %q : i32 #tile.param<argument 1>, %k : i32 #tile.param<argument 2>, %n : i64 #tile.param<argument 3>) grid affine_map<(b, h, q_len) -> (q_len, h, b)> {
  %row = tile.iota %q : !rows
  %column = tile.iota %k : !columns
  // CHECK: %first = tile.map({{.*}} = %q [] : i32, {{.*}} = %k [] : i32, {{.*}} = %n [] : i64) {
  // CHECK-NEXT: %[[D:.*]] = arith.subi %{{.*}}, %{{.*}} : i32
  // CHECK-NEXT: %[[N:.*]] = arith.trunci
  // CHECK-NEXT: %[[O:.*]] = arith.addi %[[D]], %[[N]] : i32
  // CHECK-NEXT: flex.yield %[[O]] : i32
  // CHECK: %x = tile.read_diagonals %t[%first] step 1 : tensor<?x?xbf16, strided<[?, 1]>>, i32 -> !tile.tile<64x32xf32>
  // CHECK-NEXT: tile.map({{.*}} : f32 = %x [0, 1] : !tile.tile<64x32xf32>
  // CHECK-NOT: tile.read %
  %a = tile.map(%i : i32 = %row [0] : !rows, %j : i32 = %column [1] : !columns, %m : i64 = %n [] : i64, %u : !t = %t [] : !t) {
    %d = arith.subi %i, %j : i32
    %c = arith.trunci %m : i64 to i32
    %o = arith.addi %d, %c : i32
    %x = tile.read %u[%o] : !t, i32 -> f32
    %y = arith.negf %x : f32
    flex.yield %y : f32
  } -> !full
  // The other way around, and in 64 bits: positions are extended exactly.
  // CHECK: arith.extsi
  // CHECK: tile.read_diagonals %t[%{{.*}}] step -1 : tensor<?x?xbf16, strided<[?, 1]>>, i64
  %b = tile.map(%i : i32 = %row [0] : !rows, %j : i32 = %column [1] : !columns, %m : i64 = %n [] : i64, %u : !t = %t [] : !t) {
    %i_64 = arith.extsi %i : i32 to i64
    %j_64 = arith.extsi %j : i32 to i64
    %s = arith.addi %j_64, %m : i64
    %o = arith.subi %s, %i_64 : i64
    %x = tile.read %u[%o] : !t, i64 -> f32
    flex.yield %x : f32
  } -> !full
  // A sum of 32 bits may wrap around, but its lower half is not changed by extension.
  // CHECK: tile.read_diagonals %t[%{{.*}}] step 1 : tensor<?x?xbf16, strided<[?, 1]>>, i32
  %c = tile.map(%i : i32 = %row [0] : !rows, %j : i32 = %column [1] : !columns, %m : i64 = %n [] : i64, %u : !t = %t [] : !t) {
    %d = arith.subi %i, %j : i32
    %d_64 = arith.extsi %d : i32 to i64
    %s = arith.addi %d_64, %m : i64
    %o = arith.trunci %s : i64 to i32
    %x = tile.read %u[%o] : !t, i32 -> f32
    flex.yield %x : f32
  } -> !full
  tile.return
}

// -----

// Positions are lowered to the last, beyond which nothing counts: counts, and sums of
// positions as they are.
// CHECK-LABEL: tile.kernel @edges(
tile.kernel @edges(%t : tensor<?xf32> #tile.param<argument 0>, %q : i32 #tile.param<argument 1>, %k : i32 #tile.param<argument 2>, %q_last : i32 #tile.param<argument 3>, %k_last : i32 #tile.param<argument 4>) grid affine_map<(b, h, q_len) -> (q_len, h, b)> {
  %row = tile.iota %q : !rows
  %column = tile.iota %k : !columns
  %row_1 = tile.map(%i : i32 = %row [0] : !rows, %l : i32 = %q_last [] : i32) {
    %m = arith.minsi %i, %l {idle_beyond} : i32
    flex.yield %m : i32
  } -> !rows
  // CHECK: %first = tile.map(%[[Q:.*]] : i32 = %q [] : i32, %[[K:.*]] : i32 = %k [] : i32) {
  // CHECK-NEXT: arith.subi %[[Q]], %[[K]] : i32
  // CHECK: %rows = tile.map(%[[Q:.*]] : i32 = %q [] : i32, %[[L:.*]] : i32 = %q_last [] : i32) {
  // CHECK-NEXT: %[[N:.*]] = arith.subi %[[L]], %[[Q]] : i32
  // CHECK-NEXT: %[[ONE:.*]] = arith.constant 1 : i32
  // CHECK-NEXT: arith.addi %[[N]], %[[ONE]] : i32
  // CHECK: %columns = tile.map(%[[K:.*]] : i32 = %k [] : i32, %[[L:.*]] : i32 = %k_last [] : i32) {
  // CHECK-NEXT: %[[N:.*]] = arith.subi %[[L]], %[[K]] : i32
  // CHECK: tile.read_diagonals %t[%first] step 1 rows %rows columns %columns : tensor<?xf32>, i32
  %a = tile.map(%i : i32 = %row_1 [0] : !rows, %j : i32 = %column [1] : !columns, %l : i32 = %k_last [] : i32, %u : tensor<?xf32> = %t [] : tensor<?xf32>) {
    %m = arith.minsi %j, %l {idle_beyond} : i32
    %o = arith.subi %i, %m : i32
    %x = tile.read %u[%o] : tensor<?xf32>, i32 -> f32
    flex.yield %x : f32
  } -> !full
  tile.return
}

// -----

// CHECK-LABEL: tile.kernel @others(
// CHECK-NOT: tile.read_diagonals
// CHECK: tile.return
tile.kernel @others(%t : tensor<?xf32> #tile.param<argument 0>, %q : i32 #tile.param<argument 1>, %k : i32 #tile.param<argument 2>, %n : i32 #tile.param<argument 3>, %h : tensor<?xbf16> #tile.param<argument 4>) grid affine_map<(b, h, q_len) -> (q_len, h, b)> {
  %row = tile.iota %q : !rows
  %column = tile.iota %k : !columns
  // Not a sum.
  %abs = tile.map(%i : i32 = %row [0] : !rows, %j : i32 = %column [1] : !columns, %u : tensor<?xf32> = %t [] : tensor<?xf32>) {
    %d = arith.subi %i, %j : i32
    %o = math.absi %d : i32
    %x = tile.read %u[%o] : tensor<?xf32>, i32 -> f32
    flex.yield %x : f32
  } -> !full
  // Several diagonals share an element, or a diagonal has several.
  %halves = tile.map(%i : i32 = %row [0] : !rows, %j : i32 = %column [1] : !columns, %u : tensor<?xf32> = %t [] : tensor<?xf32>) {
    %d = arith.subi %i, %j : i32
    %two = arith.constant 2 : i32
    %o = arith.divsi %d, %two : i32
    %x = tile.read %u[%o] : tensor<?xf32>, i32 -> f32
    flex.yield %x : f32
  } -> !full
  %doubled = tile.map(%i : i32 = %row [0] : !rows, %j : i32 = %column [1] : !columns, %u : tensor<?xf32> = %t [] : tensor<?xf32>) {
    %two = arith.constant 2 : i32
    %d = arith.muli %j, %two : i32
    %o = arith.subi %i, %d : i32
    %x = tile.read %u[%o] : tensor<?xf32>, i32 -> f32
    flex.yield %x : f32
  } -> !full
  %sum = tile.map(%i : i32 = %row [0] : !rows, %j : i32 = %column [1] : !columns, %u : tensor<?xf32> = %t [] : tensor<?xf32>) {
    %o = arith.addi %i, %j : i32
    %x = tile.read %u[%o] : tensor<?xf32>, i32 -> f32
    flex.yield %x : f32
  } -> !full
  // A stride that is not known to be 1.
  %strided = tile.map(%i : i32 = %row [0] : !rows, %j : i32 = %column [1] : !columns, %s : i32 = %n [] : i32, %u : tensor<?xf32> = %t [] : tensor<?xf32>) {
    %d = arith.subi %i, %j : i32
    %o = arith.muli %d, %s : i32
    %x = tile.read %u[%o] : tensor<?xf32>, i32 -> f32
    flex.yield %x : f32
  } -> !full
  // A sum of 32 bits may wrap around before it is extended.
  %wraps = tile.map(%i : i32 = %row [0] : !rows, %j : i32 = %column [1] : !columns, %u : tensor<?xf32> = %t [] : tensor<?xf32>) {
    %d = arith.subi %i, %j : i32
    %o = arith.extsi %d : i32 to i64
    %x = tile.read %u[%o] : tensor<?xf32>, i64 -> f32
    flex.yield %x : f32
  } -> !full
  // The lower half of a number of 64 bits is the same everywhere, but not its upper half.
  %shifted = tile.map(%i : i32 = %row [0] : !rows, %j : i32 = %column [1] : !columns, %s : i32 = %n [] : i32, %u : tensor<?xf32> = %t [] : tensor<?xf32>) {
    %added = arith.addi %i, %s : i32
    %added_64 = arith.extsi %added : i32 to i64
    %i_64 = arith.extsi %i : i32 to i64
    %s_64 = arith.subi %added_64, %i_64 : i64
    %one = arith.constant 1 : i64
    %half = arith.shrsi %s_64, %one : i64
    %half_32 = arith.trunci %half : i64 to i32
    %d = arith.subi %i, %j : i32
    %o = arith.addi %d, %half_32 : i32
    %x = tile.read %u[%o] : tensor<?xf32>, i32 -> f32
    flex.yield %x : f32
  } -> !full
  %compared = tile.map(%i : i32 = %row [0] : !rows, %j : i32 = %column [1] : !columns, %s : i32 = %n [] : i32, %u : tensor<?xf32> = %t [] : tensor<?xf32>) {
    %added = arith.addi %i, %s : i32
    %added_64 = arith.extsi %added : i32 to i64
    %n_64 = arith.extsi %s : i32 to i64
    %i_64 = arith.extsi %i : i32 to i64
    %exact = arith.addi %n_64, %i_64 : i64
    %fits = arith.cmpi eq, %added_64, %exact : i64
    %fits_32 = arith.extui %fits : i1 to i32
    %d = arith.subi %i, %j : i32
    %o = arith.addi %d, %fits_32 : i32
    %x = tile.read %u[%o] : tensor<?xf32>, i32 -> f32
    flex.yield %x : f32
  } -> !full
  // 0 outside.
  %guarded = tile.map(%i : i32 = %row [0] : !rows, %j : i32 = %column [1] : !columns, %s : i32 = %n [] : i32, %u : tensor<?xf32> = %t [] : tensor<?xf32>) {
    %o = arith.subi %i, %j : i32
    %v = arith.cmpi ult, %o, %s : i32
    %x = tile.read %u[%o] if %v : tensor<?xf32>, i32 -> f32
    flex.yield %x : f32
  } -> !full
  // A limit of the user's own, beyond which rows count.
  %limited = tile.map(%i : i32 = %row [0] : !rows, %j : i32 = %column [1] : !columns, %s : i32 = %n [] : i32, %u : tensor<?xf32> = %t [] : tensor<?xf32>) {
    %m = arith.minsi %i, %s : i32
    %o = arith.subi %m, %j : i32
    %x = tile.read %u[%o] : tensor<?xf32>, i32 -> f32
    flex.yield %x : f32
  } -> !full
  // Not widened, and rows that are not those of a group of warps.
  %narrow = tile.map(%i : i32 = %row [0] : !rows, %j : i32 = %column [1] : !columns, %u : tensor<?xbf16> = %h [] : tensor<?xbf16>) {
    %o = arith.subi %i, %j : i32
    %x = tile.read %u[%o] : tensor<?xbf16>, i32 -> bf16
    flex.yield %x : bf16
  } -> !tile.tile<64x32xbf16>
  %square = tile.map(%i : i32 = %column [0] : !columns, %j : i32 = %column [1] : !columns, %u : tensor<?xf32> = %t [] : tensor<?xf32>) {
    %o = arith.subi %i, %j : i32
    %x = tile.read %u[%o] : tensor<?xf32>, i32 -> f32
    flex.yield %x : f32
  } -> !tile.tile<32x32xf32>
  tile.return
}
