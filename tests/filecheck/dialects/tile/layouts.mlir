// RUN: FLEXC_ROUNDTRIP
// RUN: FLEXC_GENERIC_ROUNDTRIP

// CHECK: %s = "test.op"() : () -> !tile.tile<64x128xf32, #tile.product<128>>
// CHECK-GENERIC: %s = "test.op"() : () -> !tile.tile<64x128xf32, #tile.product<128>>
%s = "test.op"() : () -> !tile.tile<64x128xf32, #tile.product<128>>

// A reduction's result belongs to the rows of what was reduced.
// CHECK: %m = tile.reduce max %s along 1 : !tile.tile<64x128xf32, #tile.product<128>>
// CHECK-GENERIC: -> !tile.tile<64xf32, #tile.along<0, #tile.product<128>>>
%m = tile.reduce max %s along 1 : !tile.tile<64x128xf32, #tile.product<128>>

// CHECK: tile.convert_layout %m : !tile.tile<64xf32, #tile.along<0, #tile.product<128>>> -> !tile.tile<64xf32, #tile.along<0, #tile.product<64>>>
%c = tile.convert_layout %m : !tile.tile<64xf32, #tile.along<0, #tile.product<128>>> -> !tile.tile<64xf32, #tile.along<0, #tile.product<64>>>

// CHECK: #tile.operand<#tile.product<64>>
// CHECK-SAME: #tile.param<descriptor 0 box 64x128>
"test.op"() {layout = #tile.operand<#tile.product<64>>, param = #tile.param<descriptor 0 box 64x128>} : () -> ()
