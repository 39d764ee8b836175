// RUN: not flexc-opt %s -p flexc-to-tiles 2>&1 | filecheck %s --check-prefix=UNKNOWN
// RUN: not flexc-opt %s -p 'flexc-to-tile{block-k=1}' 2>&1 | filecheck %s --check-prefix=OPTION
// RUN: not flexc-opt %s 2>&1 | filecheck %s
// RUN: flexc-opt --help | filecheck %s --check-prefix=HELP

// UNKNOWN-NOT: Traceback
// UNKNOWN: flexc-opt: -p 'flexc-to-tiles': no pass or pipeline is called 'flexc-to-tiles'; did you mean flexc-to-tile

// OPTION-NOT: Traceback
// OPTION: flexc-opt: -p 'flexc-to-tile{block-k=1}': Provided arguments ["block_k"] not found

// CHECK-NOT: Traceback
// CHECK: flexc-opt: {{.*}}flexc-opt-errors.mlir:14
"end of string

// HELP: pipelines of flexc:
// HELP-NEXT: flexc-to-blocksparse
// HELP: passes of flexc:
// HELP: tile-split-maps
// HELP: targets of flexc:
// HELP-NEXT: cpp, triton
