// RUN: flexc-opt %s -p 'tile-expand-math' | filecheck %s
// RUN: flexc-opt %s -p 'tile-expand-math{tanh=nvidia}' | filecheck %s --check-prefix=NVIDIA
// RUN: flexc-opt %s -p 'tile-expand-math{tanh=exp2}' | filecheck %s --check-prefix=EXP2

// Regions of maps, of mods and the bodies of functions are all rewritten.

// CHECK-LABEL: @softcap
// CHECK-NOT:     math.tanh
// CHECK:         math.exp2
// CHECK:         math.fma
// CHECK:         %t = arith.bitcast
// CHECK-NEXT:    flex.yield %t : f32

// NVIDIA-LABEL: @softcap
// NVIDIA:         %t = tile.tanh_approx %{{.*}} : f32
// NVIDIA-NEXT:    flex.yield %t : f32

// EXP2-LABEL: @softcap
// EXP2:         %[[LOG:.*]] = arith.constant 2.885390e+00 : f32
// EXP2-NEXT:    %[[SCALED:.*]] = arith.mulf %{{.*}}, %[[LOG]] : f32
// EXP2-NEXT:    %[[EXP:.*]] = math.exp2 %[[SCALED]] : f32
// EXP2-NOT:     math.fma
// EXP2:         %t = arith.subf
// EXP2-NEXT:    flex.yield %t : f32
func.func @softcap(%x: !tile.tile<64x32xf32>) -> !tile.tile<64x32xf32> {
  %y = tile.map(%e : f32 = %x [0, 1] : !tile.tile<64x32xf32>) {
    %t = math.tanh %e : f32
    flex.yield %t : f32
  } -> !tile.tile<64x32xf32>
  func.return %y : !tile.tile<64x32xf32>
}

// CHECK-LABEL: @floor_division
// CHECK-SAME:    (%a: i32, %b: i32)
// CHECK-NEXT:    %[[Q:.*]] = arith.divsi %a, %b : i32
// CHECK-NEXT:    %[[P:.*]] = arith.muli %[[Q]], %b : i32
// CHECK-NEXT:    %[[R:.*]] = arith.subi %a, %[[P]] : i32
// CHECK:         arith.cmpi ne, %[[R]]
// CHECK:         arith.xori %[[R]], %b : i32
// CHECK:         %d = arith.select
// CHECK-NEXT:    func.return %d
func.func @floor_division(%a: i32, %b: i32) -> i32 {
  %d = arith.floordivsi %a, %b : i32
  func.return %d : i32
}

// Half precision is computed in f32, tile.tanh_approx included.

// CHECK-LABEL: @half_precision
// CHECK:         %[[WIDE:.*]] = arith.extf %x : bf16 to f32
// CHECK-NEXT:    %[[EXP:.*]] = math.exp %[[WIDE]] : f32
// CHECK-NEXT:    %y = arith.truncf %[[EXP]] : f32 to bf16
// CHECK-NEXT:    %z = math.absf %y : bf16

// NVIDIA-LABEL: @half_precision
// NVIDIA:         %[[WIDE:.*]] = arith.extf %z : bf16 to f32
// NVIDIA-NEXT:    %[[TANH:.*]] = tile.tanh_approx %[[WIDE]] : f32
// NVIDIA-NEXT:    %w = arith.truncf %[[TANH]] : f32 to bf16
func.func @half_precision(%x: bf16) -> bf16 {
  %y = math.exp %x : bf16
  %z = math.absf %y : bf16
  %w = math.tanh %z : bf16
  func.return %w : bf16
}

// What Triton spells stays.

// CHECK-LABEL: @unchanged
// CHECK-NEXT:    %a = math.exp2 %x : f32
// CHECK-NEXT:    %b = math.erf %a : f32
// CHECK-NEXT:    %c = arith.fptosi %b : f32 to i32
// CHECK-NEXT:    %d = math.absi %c : i32
// CHECK-NEXT:    func.return %d : i32
func.func @unchanged(%x: f32) -> i32 {
  %a = math.exp2 %x : f32
  %b = math.erf %a : f32
  %c = arith.fptosi %b : f32 to i32
  %d = math.absi %c : i32
  func.return %d : i32
}
