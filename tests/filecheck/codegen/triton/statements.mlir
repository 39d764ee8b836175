// RUN: flexc-opt %s -t triton | filecheck %s

// Spans become broadcasts; a result that is only passed on takes the map's shape.
// CHECK: def spans(
// CHECK-NEXT: t, out, n: tl.int32
// CHECK-NEXT: ):
// CHECK-NEXT: rows = n + tl.arange(0, 32)
// CHECK-NEXT: columns = 0 + tl.arange(0, 16)
// CHECK-NEXT: sum = rows[:, None] + columns[None, :]
// CHECK-NEXT: x = sum * n
// CHECK-NEXT: same = tl.broadcast_to(rows[:, None], [32, 16])
// CHECK-NEXT: three = tl.full([32, 16], 3, tl.int32)
// CHECK-NEXT: y = x + same
// CHECK-NEXT: z = y + three
// CHECK-NEXT: sums = tl.cumsum(z, 1)
// CHECK-NEXT: total = tl.sum(sums, 1)
// CHECK-NEXT: tl.store(out + 0 + rows, total)
tile.kernel @spans(%t : tensor<?xi32> #tile.param<argument 0>,
                   %out : memref<?xi32> #tile.param<argument 1>,
                   %n : i32 #tile.param<dim 0, 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %zero = arith.constant 0 : i32
  %base = arith.constant 0 : i64
  %rows = tile.iota %n : !tile.tile<32xi32>
  %columns = tile.iota %zero : !tile.tile<16xi32>
  %x, %same, %three = tile.map(%i : i32 = %rows [0] : !tile.tile<32xi32>,
                               %j : i32 = %columns [1] : !tile.tile<16xi32>,
                               %m : i32 = %n [] : i32) {
    %c = arith.constant 3 : i32
    %sum = arith.addi %i, %j : i32
    %product = arith.muli %sum, %m : i32
    flex.yield %product, %i, %c : i32, i32, i32
  } -> !tile.tile<32x16xi32>, !tile.tile<32x16xi32>, !tile.tile<32x16xi32>
  %z = tile.map(%a : i32 = %x [0, 1] : !tile.tile<32x16xi32>,
                %b : i32 = %same [0, 1] : !tile.tile<32x16xi32>,
                %c : i32 = %three [0, 1] : !tile.tile<32x16xi32>) {
    %y = arith.addi %a, %b : i32
    %w = arith.addi %y, %c : i32
    flex.yield %w : i32
  } -> !tile.tile<32x16xi32>
  %sums = tile.scan %z : !tile.tile<32x16xi32>
  %total = tile.reduce sum %sums along 1 : !tile.tile<32x16xi32>
  tile.scatter %total, %out[%base + %rows] : !tile.tile<32xi32>, memref<?xi32>, !tile.tile<32xi32>
  tile.return
}

// Names that Python or the prologue have are avoided; literals read as unsigned
// integers are typed; booleans in memory are bytes.
// CHECK: def names(
// CHECK-NEXT: tl_1, for_1: tl.int64, scale: tl.float64
// CHECK-NEXT: ):
// CHECK-NEXT: lambda_1 = tl.cast(for_1, tl.uint64, bitcast=True) < tl.full([], 8, tl.uint64)
// CHECK-NEXT: read = tl.load(tl_1 + for_1, mask=lambda_1, other=0) != 0
// CHECK-NEXT: x = tl.where(read, tl.full([], 1.0, tl.float32), 2.0)
// CHECK-NEXT: y = tl.cast(scale, tl.float32)
tile.kernel @names(%tl : tensor<?xi1> #tile.param<argument 0>,
                   %for : i64 #tile.param<argument 1>,
                   %scale : f64 #tile.param<argument 2>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %r = tile.map(%u : tensor<?xi1> = %tl [] : tensor<?xi1>, %i : i64 = %for [] : i64,
                %s : f64 = %scale [] : f64) {
    %eight = arith.constant 8 : i64
    %one = arith.constant 1.0 : f32
    %two = arith.constant 2.0 : f32
    %lambda = arith.cmpi ult, %i, %eight : i64
    %read = tile.read %u[%i] if %lambda : tensor<?xi1>, i64 -> i1
    %x = arith.select %read, %one, %two : f32
    %y = arith.truncf %s : f64 to f32
    %sum = arith.addf %x, %y : f32
    flex.yield %sum : f32
  } -> f32
  tile.return
}

// The bits of a literal are those of its own type.
// CHECK: def bits(
// CHECK: zero = tl.cast(tl.full([], 0.0, tl.float64), tl.int64, bitcast=True)
// CHECK-NEXT: some = tl.cast(x, tl.int32, bitcast=True)
tile.kernel @bits(%x : f32 #tile.param<argument 0>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %float = arith.constant 0.0 : f64
  %zero = arith.bitcast %float : f64 to i64
  %some = arith.bitcast %x : f32 to i32
  tile.return
}

// What Triton has no function for is imported, and its names are not given away.
// CHECK: from flexc.codegen.triton.support import add_to, diagonals
// CHECK: def sums(
// CHECK: x = tl.full([16, 16], z, tl.float32)
// CHECK-NEXT: diagonals_1 = diagonals(x)
// CHECK: if not some:
// CHECK-NEXT: return
// CHECK: add_to(out + 0 + at, diagonals_1)
// CHECK-NEXT: tl.atomic_add(out + 0 + at, diagonals_1, mask=within, sem="relaxed")
// CHECK-NEXT: tl.atomic_add(out + 0 + at, diagonals_1, sem="relaxed")
tile.kernel @sums(%z : f32 #tile.param<argument 0>,
                  %out : memref<?xf32> #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %zero = arith.constant 0 : i32
  %base = arith.constant 0 : i64
  %at = tile.iota %zero : !tile.tile<32xi32>
  %x = tile.full %z : f32 -> !tile.tile<16x16xf32>
  %diagonals = tile.diagonals %x : !tile.tile<16x16xf32> -> !tile.tile<32xf32>
  %some = arith.cmpi eq, %base, %base : i64
  tile.return_unless %some
  %within = tile.full %some : i1 -> !tile.tile<32xi1>
  tile.scatter_add %diagonals, %out[%base + %at] : !tile.tile<32xf32>, memref<?xf32>, !tile.tile<32xi32>
  tile.scatter_add atomic %diagonals, %out[%base + %at] if %within : !tile.tile<32xi1> : !tile.tile<32xf32>, memref<?xf32>, !tile.tile<32xi32>
  tile.scatter_add atomic %diagonals, %out[%base + %at] : !tile.tile<32xf32>, memref<?xf32>, !tile.tile<32xi32>
  tile.return
}
