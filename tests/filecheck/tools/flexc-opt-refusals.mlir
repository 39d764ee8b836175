// RUN: not flexc-opt %s 2>&1 | filecheck %s
// RUN: sed "s/full %later/full %x/" %s > %t.mlir
// RUN: not flexc-opt %t.mlir -p flex-differentiate 2>&1 | filecheck %s --check-prefix=PASS
// RUN: not flexc-opt %t.mlir -t cpp 2>&1 | filecheck %s --check-prefix=BUFFERS
// RUN: sed -e 's/"test.op"/"test.op/' %s > %t.open.mlir
// RUN: not flexc-opt %t.open.mlir 2>&1 | filecheck %s --check-prefix=OPEN
// RUN: not flexc-opt %s -p 'flexc-to-cpp{block_m=-3}' 2>&1 | filecheck %s --check-prefix=SIZE
// RUN: not flexc-opt %s -p 'convert-flex-to-blocksparse{block_m=true}' 2>&1 | filecheck %s --check-prefix=FLAG

// Values are computed before they are used: the error shows the op.
// CHECK-NOT: Traceback
// CHECK: "tile.full"(%later)
// CHECK-NEXT: ^^^
// CHECK-NEXT: operand 0 expects a value computed before it
// CHECK: flexc-opt: operand 0 expects a value computed before it

// A pass says what it expects of a module.
// PASS-NOT: Traceback
// PASS: flexc-opt: builtin.module: a derivative expects one flex.attention, got 0

// So does a printer.
// BUFFERS-NOT: Traceback
// BUFFERS: | expects buffers: run tile-assign-buffers first
// BUFFERS: flexc-opt: tile.kernel: expects buffers: run tile-assign-buffers first

// A string that is not closed ends the search at once.
// OPEN-NOT: Traceback
// OPEN: flexc-opt: {{.*}}.mlir:
// OPEN: expected a string that ends in this line

// Sizes are checked before a pass runs.
// SIZE: flexc-opt: -p block_m expects a positive i32, got -3
// FLAG: block_m expects a positive i32, got True

tile.kernel @order(%x : f32 #tile.param<argument 0>, %i : i32 #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %t = tile.full %later : f32 -> !tile.tile<4xf32>
  %later = "test.op"() : () -> f32
  tile.return
}
