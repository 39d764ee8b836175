// RUN: flexc-opt %s -p legalize-tile-for-triton | filecheck %s
// RUN: flexc-opt %s -p 'legalize-tile-for-triton{f32-precision=tf32}' | filecheck %s --check-prefix=TF32
// RUN: flexc-opt %s -p 'legalize-tile-for-triton{widens-bytes=true}' | filecheck %s --check-prefix=BYTES

!q = tensor<?x?x?x20xf32, strided<[?, ?, ?, 1]>>
!out = memref<?x?xf32>

// CHECK-LABEL: tile.kernel @memory(
tile.kernel @memory(%q : !q #tile.param<argument 0>, %out : !out #tile.param<argument 1>,
                    %b : i32 #tile.param<argument 2>, %m : i32 #tile.param<argument 3>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %c0 = arith.constant 0 : i32
  // The base is 64 bits wide, a term for each index but 0.
  // CHECK: %q_stride0 = tile.stride %q, 0
  // CHECK: %q_b_offset = tile.map(
  // CHECK: arith.extsi {{%.*}} : i32 to i64
  // CHECK: } -> i64
  // CHECK: %q_stride2 = tile.stride %q, 2
  // CHECK: %q_m_offset = tile.map(
  // CHECK: %q_base = arith.addi %q_b_offset, %q_m_offset : i64
  // Offsets in the tile are 32 bits wide; the last stride is known to be 1.
  // CHECK: %q_stride2_i32 = tile.stride %q, 2 : {{.*}} -> i32
  // CHECK: %q_offsets = tile.map(
  // CHECK-NEXT: arith.muli
  // CHECK-NEXT: arith.addi
  // CHECK-NEXT: flex.yield
  // CHECK-NEXT: } -> !tile.tile<16x32xi32>
  // Both dimensions are tested, one against a size that the type says.
  // CHECK: %q_size2 = tile.dim %q, 2
  // CHECK: arith.constant 20 : i32
  // CHECK: %q_inside = tile.map(
  // CHECK: arith.cmpi slt
  // CHECK: arith.cmpi slt
  // CHECK: arith.andi
  // CHECK: %x = tile.gather %q[%q_base + %q_offsets] if %q_inside : !tile.tile<16x32xi1> : {{.*}} -> !tile.tile<16x32xf32>
  %x = tile.load %q[%b, %c0, %m, %c0] checked [0, 1]
      : !q, i32, i32, i32, i32 -> !tile.tile<16x32xf32>
  // Nothing is tested where nothing can be outside.
  // CHECK: %y = tile.gather %q[{{%.*}} + {{%.*}}] : {{.*}} -> !tile.tile<16x32xf32>
  %y = tile.load %q[%b, %c0, %m, %c0] : !q, i32, i32, i32, i32 -> !tile.tile<16x32xf32>
  %row = tile.reduce sum %x along 1 : !tile.tile<16x32xf32>
  // CHECK: tile.scatter %row, %out[%out_base + %out_offsets] if %out_inside
  tile.store %row : !tile.tile<16xf32>, %out[%b, %m] checked [0] : !out, i32, i32
  // CHECK: tile.scatter %sum, %out[{{%.*}} + {{%.*}}] : !tile.tile<16xf32>
  %sum = tile.reduce sum %y along 1 : !tile.tile<16x32xf32>
  tile.store %sum : !tile.tile<16xf32>, %out[%b, %m] : !out, i32, i32
  // A store that ends below an index has 64-bit offsets.
  // CHECK: %[[BELOW:.*]] = tile.map(%{{.*}} : i32 = %{{.*}} [0] : !tile.tile<16xi32>, %{{.*}} : i32 = %c0 [] : i32)
  // CHECK-NEXT: arith.cmpi slt
  // CHECK: tile.scatter %sum, %out[{{%.*}} + {{%.*}}] if %[[BELOW]] : !tile.tile<16xi1> : !tile.tile<16xf32>, {{.*}}, !tile.tile<16xi64>
  tile.store %sum : !tile.tile<16xf32>, %out[%b, %m] checked [0] below %c0 : !out, i32, i32
  // CHECK: tile.scatter_add %sum, %out[{{%.*}} + {{%.*}}] : !tile.tile<16xf32>
  tile.add_to %sum, %out[%b, %m] : !tile.tile<16xf32>, !out
  // CHECK-NOT: tile.load
  // CHECK-NOT: tile.store
  // CHECK-NOT: tile.add_to
  // CHECK: tile.return
  tile.return
}

// How products of fp32 are computed is an option; other products have one way,
// and a product that says how keeps it.
// CHECK-LABEL: tile.kernel @precision(
// TF32-LABEL: tile.kernel @precision(
tile.kernel @precision(%z : f32 #tile.param<argument 0>, %n : bf16 #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  %x = tile.full %z : f32 -> !tile.tile<16x16xf32>
  %y = tile.full %n : bf16 -> !tile.tile<16x16xbf16>
  // CHECK: %a = tile.dot %x, %x, %x {precision = "ieee"}
  // TF32: %a = tile.dot %x, %x, %x {precision = "tf32"}
  %a = tile.dot %x, %x, %x : !tile.tile<16x16xf32>, !tile.tile<16x16xf32>, !tile.tile<16x16xf32> -> !tile.tile<16x16xf32>
  // CHECK-NEXT: %b = tile.dot %y, %y, %x : !tile
  %b = tile.dot %y, %y, %x : !tile.tile<16x16xbf16>, !tile.tile<16x16xbf16>, !tile.tile<16x16xf32> -> !tile.tile<16x16xf32>
  // CHECK-NEXT: %c = tile.dot %x, %x, %x {precision = "tf32x3"}
  // TF32: %c = tile.dot %x, %x, %x {precision = "tf32x3"}
  %c = tile.dot %x, %x, %x {precision = "tf32x3"} : !tile.tile<16x16xf32>, !tile.tile<16x16xf32>, !tile.tile<16x16xf32> -> !tile.tile<16x16xf32>
  "test.op"(%a, %b, %c) : (!tile.tile<16x16xf32>, !tile.tile<16x16xf32>, !tile.tile<16x16xf32>) -> ()
  tile.return
}

!i = tensor<?x?x?x32xi8, strided<[?, ?, ?, 1]>>
!f = tensor<?x?x?x32xf8E5M2, strided<[?, ?, ?, 1]>>

// Elements are gathered as memory holds them, and then converted.
// CHECK-LABEL: tile.kernel @narrow(
tile.kernel @narrow(%i : !i #tile.param<argument 0>, %f : !f #tile.param<argument 1>,
                    %b : i32 #tile.param<argument 2>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // CHECK: %x_stored = tile.gather %i{{.*}} -> !tile.tile<16x32xi8>
  // CHECK: arith.sitofp {{%.*}} : i8 to bf16
  // CHECK: -> !tile.tile<16x32xbf16>
  %x = tile.load %i[%b, %b, %b, %b] : !i, i32, i32, i32, i32 -> !tile.tile<16x32xbf16>
  // CHECK: %y_stored = tile.gather %f{{.*}} -> !tile.tile<16x32xf8E5M2>
  // CHECK: arith.extf {{%.*}} : f8E5M2 to f16
  // CHECK: -> !tile.tile<16x32xf16>
  %y = tile.load %f[%b, %b, %b, %b] : !f, i32, i32, i32, i32 -> !tile.tile<16x32xf16>
  %sum = tile.reduce sum %x along 1 : !tile.tile<16x32xbf16>
  %other = tile.reduce sum %y along 1 : !tile.tile<16x32xf16>
  tile.return
}

// Several at a time to 16 bits; before they move, if they move to be a product's rhs.
// BYTES-LABEL: tile.kernel @bytes(
tile.kernel @bytes(%i : !i #tile.param<argument 0>, %f : !f #tile.param<argument 1>,
                   %b : i32 #tile.param<argument 2>)
    grid affine_map<(b, h, q_len) -> (q_len)> {
  // BYTES: tile.widen_bytes %{{.*}} : i8 to bf16
  %x = tile.load %i[%b, %b, %b, %b] : !i, i32, i32, i32, i32 -> !tile.tile<16x32xbf16>
  %t = tile.transpose %x : !tile.tile<16x32xbf16> -> !tile.tile<32x16xbf16>
  // BYTES: tile.widen_bytes staged %{{.*}} : f8E5M2 to bf16
  %y = tile.load %f[%b, %b, %b, %b] : !f, i32, i32, i32, i32 -> !tile.tile<16x32xbf16>
  // BYTES: tile.widen_bytes %{{.*}} : f8E5M2 to f16
  %z = tile.load %f[%b, %b, %b, %b] : !f, i32, i32, i32, i32 -> !tile.tile<16x32xf16>
  // BYTES: arith.extf
  %w = tile.load %f[%b, %b, %b, %b] : !f, i32, i32, i32, i32 -> !tile.tile<16x32xf32>
  %zero = arith.constant 0.0 : f32
  %s = tile.full %zero : f32 -> !tile.tile<32x32xf32>
  %d = tile.dot %t, %y, %s : !tile.tile<32x16xbf16>, !tile.tile<16x32xbf16>, !tile.tile<32x32xf32> -> !tile.tile<32x32xf32>
  %other = tile.reduce sum %z along 1 : !tile.tile<16x32xf16>
  %wide = tile.reduce sum %w along 1 : !tile.tile<16x32xf32>
  tile.return
}
