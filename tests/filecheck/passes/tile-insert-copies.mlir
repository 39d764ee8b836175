// RUN: flexc-opt %s -p tile-insert-copies | filecheck %s

// CHECK-LABEL: tile.kernel @in_place
// CHECK-NOT: tile.copy
// CHECK: tile.return
tile.kernel @in_place(%n : i32 #tile.param<argument 0>) grid affine_map<(b, h, q_len) -> (1)> {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %zero = arith.constant 0.0 : f32
  %acc = tile.full %zero : f32 -> !tile.tile<8x8xf32>
  %a = tile.full %zero : f32 -> !tile.tile<8x8xf32>
  %r = scf.for %i = %c0 to %n step %c1 iter_args(%acc_i = %acc) -> (!tile.tile<8x8xf32>) : i32 {
    %scaled = tile.map(%x : f32 = %acc_i [0, 1] : !tile.tile<8x8xf32>) {
      %y = arith.addf %x, %x : f32
      flex.yield %y : f32
    } -> !tile.tile<8x8xf32>
    %next = tile.register_product %a, %a onto %scaled by <6 x 2> : !tile.tile<8x8xf32>, !tile.tile<8x8xf32> onto !tile.tile<8x8xf32> -> !tile.tile<8x8xf32>
    scf.yield %next : !tile.tile<8x8xf32>
  }
  tile.return
}

// %m_i is still needed after %m is computed; %zeros starts two loops.
// CHECK-LABEL: tile.kernel @copies
// CHECK: %zeros = tile.full
// CHECK: %zeros_1 = tile.full
// CHECK-NEXT: scf.for %{{.*}} iter_args(%m_i = %zeros_1)
// CHECK: %m = tile.map
// CHECK: %late = tile.map
// CHECK: %m_1 = tile.copy %m
// CHECK-NEXT: scf.yield %m_1
// CHECK: scf.for %{{.*}} iter_args(%{{.*}} = %zeros)
tile.kernel @copies(%n : i32 #tile.param<argument 0>) grid affine_map<(b, h, q_len) -> (1)> {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %zero = arith.constant 0.0 : f32
  %zeros = tile.full %zero : f32 -> !tile.tile<8xf32>
  %r = scf.for %i = %c0 to %n step %c1 iter_args(%m_i = %zeros) -> (!tile.tile<8xf32>) : i32 {
    %m = tile.map(%x : f32 = %m_i [0] : !tile.tile<8xf32>) {
      %y = arith.addf %x, %x : f32
      flex.yield %y : f32
    } -> !tile.tile<8xf32>
    %late = tile.map(%x : f32 = %m_i [0] : !tile.tile<8xf32>, %z : f32 = %m [0] : !tile.tile<8xf32>) {
      %y = arith.addf %x, %z : f32
      flex.yield %y : f32
    } -> !tile.tile<8xf32>
    scf.yield %m : !tile.tile<8xf32>
  }
  %q = scf.for %i = %c0 to %n step %c1 iter_args(%s = %zeros) -> (!tile.tile<8xf32>) : i32 {
    scf.yield %s : !tile.tile<8xf32>
  }
  tile.return
}

// A branch may leave a tile where it lies, if the other one computes its own in place
// and nothing uses the old one later.
// CHECK-LABEL: tile.kernel @branch_in_place
// CHECK-NOT: tile.copy
// CHECK: tile.return
tile.kernel @branch_in_place(%n : i32 #tile.param<argument 0>, %c : i1 #tile.param<argument 1>)
    grid affine_map<(b, h, q_len) -> (1)> {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %zero = arith.constant 0.0 : f32
  %acc = tile.full %zero : f32 -> !tile.tile<8x8xf32>
  %a = tile.full %zero : f32 -> !tile.tile<8x8xf32>
  %r = scf.for %i = %c0 to %n step %c1 iter_args(%acc_i = %acc) -> (!tile.tile<8x8xf32>) : i32 {
    %s = scf.if %c -> (!tile.tile<8x8xf32>) {
      %scaled = tile.map(%x : f32 = %acc_i [0, 1] : !tile.tile<8x8xf32>) {
        %y = arith.addf %x, %x : f32
        flex.yield %y : f32
      } -> !tile.tile<8x8xf32>
      scf.yield %scaled : !tile.tile<8x8xf32>
    } else {
      scf.yield %acc_i : !tile.tile<8x8xf32>
    }
    %next = tile.register_product %a, %a onto %s by <6 x 2> : !tile.tile<8x8xf32>, !tile.tile<8x8xf32> onto !tile.tile<8x8xf32> -> !tile.tile<8x8xf32>
    scf.yield %next : !tile.tile<8x8xf32>
  }
  tile.return
}

// Here %old is used after the branches; %both is read again after its successor; and
// what a loop carries is needed after %m, which may be it, so that %m is copied too.
// CHECK-LABEL: tile.kernel @branch_copies
// CHECK: } else {
// CHECK-NEXT: [[COPY:%[a-z_0-9]+]] = tile.full
// CHECK-NEXT: scf.yield [[COPY]]
// CHECK: } else {
// CHECK-NEXT: [[COPY2:%[a-z_0-9]+]] = tile.copy %both
// CHECK-NEXT: scf.yield [[COPY2]]
// CHECK: scf.for
// CHECK: } else {
// CHECK-NEXT: [[COPY3:%[a-z_0-9]+]] = tile.copy %m_i
// CHECK: tile.store_strided %late
// CHECK-NEXT: tile.copy %m :
tile.kernel @branch_copies(%n : i32 #tile.param<argument 0>, %c : i1 #tile.param<argument 1>,
    %out : memref<?xf32> #tile.param<argument 2>)
    grid affine_map<(b, h, q_len) -> (1)> {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %c8 = arith.constant 8 : i32
  %at = arith.constant 0 : i64
  %one = arith.constant 1 : i64
  %zero = arith.constant 0.0 : f32
  %old = tile.full %zero : f32 -> !tile.tile<8xf32>
  %r = scf.if %c -> (!tile.tile<8xf32>) {
    %twice = tile.map(%x : f32 = %old [0] : !tile.tile<8xf32>) {
      %y = arith.addf %x, %x : f32
      flex.yield %y : f32
    } -> !tile.tile<8xf32>
    scf.yield %twice : !tile.tile<8xf32>
  } else {
    scf.yield %old : !tile.tile<8xf32>
  }
  tile.store_strided %old, %out[%at] strides [%one] extents [%c8] : !tile.tile<8xf32>, memref<?xf32>
  %both = tile.map(%x : f32 = %r [0] : !tile.tile<8xf32>) {
    %y = arith.addf %x, %x : f32
    flex.yield %y : f32
  } -> !tile.tile<8xf32>
  %q = scf.if %c -> (!tile.tile<8xf32>) {
    %made = tile.map(%x : f32 = %both [0] : !tile.tile<8xf32>) {
      %y = arith.addf %x, %x : f32
      flex.yield %y : f32
    } -> !tile.tile<8xf32>
    tile.store_strided %both, %out[%at] strides [%one] extents [%c8] : !tile.tile<8xf32>, memref<?xf32>
    scf.yield %made : !tile.tile<8xf32>
  } else {
    scf.yield %both : !tile.tile<8xf32>
  }
  %z = scf.for %i = %c0 to %n step %c1 iter_args(%m_i = %q) -> (!tile.tile<8xf32>) : i32 {
    %m = scf.if %c -> (!tile.tile<8xf32>) {
      %more = tile.map(%x : f32 = %m_i [0] : !tile.tile<8xf32>) {
        %y = arith.addf %x, %x : f32
        flex.yield %y : f32
      } -> !tile.tile<8xf32>
      scf.yield %more : !tile.tile<8xf32>
    } else {
      scf.yield %m_i : !tile.tile<8xf32>
    }
    %late = tile.map(%x : f32 = %m_i [0] : !tile.tile<8xf32>) {
      %y = arith.addf %x, %x : f32
      flex.yield %y : f32
    } -> !tile.tile<8xf32>
    tile.store_strided %late, %out[%at] strides [%one] extents [%c8] : !tile.tile<8xf32>, memref<?xf32>
    scf.yield %m : !tile.tile<8xf32>
  }
  tile.return
}

// A carried tile that the next one is computed beside moves: no rows are copied.
// CHECK-LABEL: tile.kernel @moves
// CHECK: %late = tile.map
// CHECK: %next_1 = tile.copy %next moves : !tile.tile<8x8xf32>
// CHECK-NEXT: scf.yield %next_1
tile.kernel @moves(%n : i32 #tile.param<argument 0>) grid affine_map<(b, h, q_len) -> (1)> {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %zero = arith.constant 0.0 : f32
  %a = tile.full %zero : f32 -> !tile.tile<8x8xf32>
  %first = tile.full %zero : f32 -> !tile.tile<8x8xf32>
  %r = scf.for %i = %c0 to %n step %c1 iter_args(%s = %first) -> (!tile.tile<8x8xf32>) : i32 {
    %next = tile.register_product %a, %a by <6 x 2> : !tile.tile<8x8xf32>, !tile.tile<8x8xf32> -> !tile.tile<8x8xf32>
    %late = tile.map(%x : f32 = %s [0, 1] : !tile.tile<8x8xf32>) {
      flex.yield %x : f32
    } -> !tile.tile<8x8xf32>
    scf.yield %next : !tile.tile<8x8xf32>
  }
  tile.return
}
