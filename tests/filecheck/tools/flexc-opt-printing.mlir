// RUN: flexc-opt - -p flexc-to-tile --print-ir-after-all < %s 2>&1 >/dev/null | filecheck %s --check-prefix=ALL
// RUN: flexc-opt %s -p flexc-to-tile --print-ir-before=convert-flex-to-blocksparse,convert-blocksparse-to-tile 2>&1 >/dev/null | filecheck %s --check-prefix=SOME
// RUN: flexc-opt %s -p flexc-to-blocksparse --print-ir-after=convert-flex-to-blocksparse --time-passes 2>&1 >/dev/null | filecheck %s --check-prefix=TIME
// RUN: flexc-opt %s -p flexc-to-tile --print-ir-after-all --time-passes 2>/dev/null | flexc-opt | filecheck %s --check-prefix=RESULT
// RUN: flexc-opt --version | filecheck %s --check-prefix=VERSION

// The passes of a pipeline are seen one by one.
// ALL: // -----// IR Dump After flex-trust-captures //----- //
// ALL-NEXT: builtin.module
// ALL: flex.attention
// ALL: IR Dump After flex-simplify-mods
// ALL: IR Dump After convert-blocksparse-to-tile
// ALL: tile.kernel
// ALL: IR Dump After cse

// SOME-NOT: IR Dump After
// SOME: IR Dump Before convert-flex-to-blocksparse
// SOME: flex.attention
// SOME: IR Dump Before convert-blocksparse-to-tile
// SOME: blocksparse.attention
// SOME-NOT: IR Dump

// TIME: Pass flex-trust-captures took {{[0-9.]+}} seconds
// TIME: Pass convert-flex-to-blocksparse took
// TIME-NEXT: IR Dump After convert-flex-to-blocksparse
// TIME: Pass flex-simplify-mods took

// The result alone is on stdout.
// RESULT-NOT: Pass
// RESULT: tile.kernel

// VERSION: flexc-opt {{[0-9.]+}}, xDSL {{[0-9.]+}}

!t = tensor<?x?x?x64xbf16, strided<[?, ?, ?, 1]>>

func.func @attention(%query : !t, %key : !t, %value : !t, %scale : f32) -> !t {
  %out = flex.attention %query, %key, %value : !t, !t, !t scale(%scale : f32)
      -> out(!t) {scale_positive}
      score_mod(%score : f32, %b : i32, %h : i32, %q_idx : i32, %kv_idx : i32) {
    flex.yield %score : f32
  } mask_mod(%b : i32, %h : i32, %q_idx : i32, %kv_idx : i32) {
    %ge = arith.cmpi sge, %q_idx, %kv_idx : i32
    flex.yield %ge : i1
  }
  func.return %out : !t
}
