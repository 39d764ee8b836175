// RUN: not flexc-opt %s -p flexc-to-tiles 2>&1 | filecheck %s --check-prefix=UNKNOWN
// RUN: not flexc-opt %s -p 'flexc-to-tile{block-k=1}' 2>&1 | filecheck %s --check-prefix=OPTION
// RUN: not flexc-opt %s 2>&1 | filecheck %s
// RUN: printf '\377' | not flexc-opt 2>&1 | filecheck %s --check-prefix=TEXT
// RUN: cp %s %t.txt; not flexc-opt %t.txt 2>&1 | filecheck %s --check-prefix=KIND
// RUN: not flexc-opt %s --print-ir-after=cse -p canonicalize 2>&1 | filecheck %s --check-prefix=AFTER
// RUN: flexc-opt --help | filecheck %s --check-prefix=HELP

// UNKNOWN-NOT: Traceback
// UNKNOWN: flexc-opt: -p 'flexc-to-tiles': no pass or pipeline is called 'flexc-to-tiles'; did you mean 'flexc-to-tile'

// OPTION-NOT: Traceback
// OPTION: flexc-opt: -p 'flexc-to-tile{block-k=1}': Provided arguments ["block_k"] not found

// TEXT-NOT: Traceback
// TEXT: flexc-opt: 'utf-8' codec can't decode

// AFTER-NOT: Traceback
// AFTER: flexc-opt: no pass of -p is called 'cse'

// KIND-NOT: Traceback
// KIND: flexc-opt: {{.*}}: Unrecognized file extension 'txt'

// CHECK-NOT: Traceback
// CHECK: flexc-opt: {{.*}}flexc-opt-errors.mlir:26
"end of string

// HELP: pipelines of flexc:
// HELP-NEXT: flexc-to-blocksparse
// HELP: passes of flexc:
// HELP: tile-split-maps
// HELP: targets of flexc:
// HELP-NEXT: cpp, gluon, triton
// HELP: passes of xDSL and of plug-ins:
