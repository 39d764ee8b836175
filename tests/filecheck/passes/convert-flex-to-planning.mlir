// RUN: flexc-opt %s -p convert-flex-to-planning | filecheck %s
// RUN: flexc-opt %s -p "convert-flex-to-planning{target=cpp}" | filecheck %s --check-prefix=CPP
// RUN: flexc-opt %s -p "convert-flex-to-planning{target=cpp part=tables}" | filecheck %s --check-prefix=TABLES
// RUN: flexc-opt %s -p "convert-flex-to-planning{target=cpp part=rows}" | filecheck %s --check-prefix=ROWS
// RUN: flexc-opt %s -p "convert-flex-to-planning{target=cpp part=classes}" | filecheck %s --check-prefix=CLASSES
// RUN: flexc-opt %s -p "convert-flex-to-planning{target=cpp part=pairs}" | filecheck %s --check-prefix=PAIRS

!t = tensor<?x?x?x64xf32>

// Documents: per block the least and the greatest id of rows and of columns, which
// the classifier compares; then unknown blocks pair by pair, in place.
// A program that lists rows may find these ids itself, of its rows and of all columns.
// CHECK-LABEL: tile.kernel @list_rows(
// CHECK: tile.reduce min %{{.*}} along 1 : !tile.tile<4x128xi32>
// CHECK: scf.for
// CHECK: tile.reduce max %{{.*}} along 1 : !tile.tile<32x128xi32>
// CHECK: tile.scan %partial{{.*}} : !tile.tile<4x32xi32>

// CHECK: tile.kernel @summarize(%ids_ : tensor<?xi32> #tile.param<argument 0>, %q_len
// CHECK-SAME: #tile.param<argument 1>
// CHECK: scf.for
// CHECK: tile.reduce min %{{.*}} along 1 : !tile.tile<8x128xi32>
// CHECK: tile.reduce max %{{.*}} along 1 : !tile.tile<8x128xi32>
// CHECK: tile.store %{{.*}} : !tile.tile<8xi32>

// Attention that plans for itself lists what the classifier leaves alive. The prefix
// sum of a kind of blocks is their place.
// CHECK: tile.kernel @list_blocks(
// CHECK: scf.for
// CHECK: flex.load_capture %row0_lo{{.*}} inside
// CHECK: tile.scan %partial{{.*}} : !tile.tile<4x128xi32>
// CHECK: tile.scatter %index{{.*}}, %tables_out[%indices + %offset] if %stored : !tile.tile<4x128xi1>
// CHECK: tile.scan %full{{.*}} : !tile.tile<4x128xi32>
// CHECK: tile.scatter %{{.*}}, %tables_out[%counts + %{{.*}}] if %{{.*}} : !tile.tile<4xi1>

// CHECK: tile.kernel @classify(
// A GPU takes samples of the mask as it classifies.
// CHECK: flex.load_capture %ids_
// CHECK: flex.load_capture %row0_lo{{.*}} inside
// CHECK: tile.store %{{.*}} : !tile.tile<8x128xi8>, %classes_out
// CHECK: tile.reduce max %{{.*}} along 1 : !tile.tile<8x128xi32>
// CHECK: tile.store %{{.*}} : !tile.tile<8xi32>, %flags_out
// CHECK-NOT: @sample

// CHECK: tile.kernel @refine(
// CHECK: scf.for
// CHECK: flex.load_capture %classes
// CHECK: tile.store %{{.*}} : !tile.tile<1xi8>, %classes_out

// Each part is lowered when it is needed.
// ROWS: tile.kernel @list_rows(
// ROWS-NOT: @summarize(
// TABLES-NOT: @list_rows(
// TABLES: tile.kernel @summarize(
// TABLES: tile.kernel @list_blocks(
// TABLES-NOT: @classify
// TABLES-NOT: @refine
// CLASSES-NOT: @summarize(
// CLASSES: tile.kernel @classify(
// CLASSES-NOT: @refine
// PAIRS-NOT: @classify(
// PAIRS: tile.kernel @sample(
// PAIRS: tile.kernel @refine(

// A CPU takes samples afterwards, where a flag is raised.
// CPP: tile.kernel @classify(
// CPP-NOT: flex.load_capture %ids_
// CPP: tile.kernel @sample(
// CPP: flex.load_capture %flags
// CPP: scf.for
// CPP: tile.store %{{.*}} : !tile.tile<1x128xi8>, %classes_out
// CPP: tile.kernel @refine(
func.func @documents(%q : !t, %k : !t, %v : !t, %scale : f32, %ids : tensor<?xi32>) {
  %out = flex.attention %q, %k, %v : !t, !t, !t scale(%scale : f32)
      captures(%ids : tensor<?xi32>) -> out(!t) {index_width = 32 : i64}
  score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32, %d : tensor<?xi32>) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %ids_ : tensor<?xi32>) {
    %x = flex.load_capture %ids_[%qi] : tensor<?xi32>, i32
    %y = flex.load_capture %ids_[%ki] : tensor<?xi32>, i32
    %same = arith.cmpi eq, %x, %y : i32
    flex.yield %same : i1
  }
  func.return
}

// Kernels of a second attention have names of their own. What the mask does not read
// by row or column needs no summaries.
// CHECK-NOT: @summarize_1
// CHECK: tile.kernel @classify_1(
// CHECK: tile.kernel @refine_1(
func.func @causal(%q : !t, %k : !t, %v : !t, %scale : f32) {
  %out = flex.attention %q, %k, %v : !t, !t, !t scale(%scale : f32) -> out(!t)
  score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32) {
    flex.yield %s : f32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32) {
    %c = arith.cmpi sge, %qi, %ki : i32
    flex.yield %c : i1
  }
  func.return
}

// A function without attention stays.
// CHECK: func.func @other(
func.func @other(%a : f32) -> f32 {
  func.return %a : f32
}
