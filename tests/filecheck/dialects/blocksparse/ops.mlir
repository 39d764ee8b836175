// RUN: FLEXC_ROUNDTRIP
// RUN: FLEXC_GENERIC_ROUNDTRIP

// CHECK-LABEL: @every_part
// CHECK-GENERIC-LABEL: "every_part"
func.func @every_part(%q : tensor<?x?x?x64xf32>, %scale : f32, %slopes : tensor<?xf32>,
                      %num : tensor<?x?x?xi32>, %idx : tensor<?x?x?x?xi32>) {
  // CHECK: %out, %lse = blocksparse.attention %q, %q, %q
  // CHECK-SAME: captures(%slopes : tensor<?xf32>) tables(%num, %idx : tensor<?x?x?xi32>, tensor<?x?x?x?xi32>) -> out(tensor<?x?x?x64xf32>) lse(tensor<?x?x?xf32>)
  // CHECK-SAME: block_m = 64 : i32, block_n = 32 : i32, order = #blocksparse<order descending>
  // CHECK-SAME: score_mod(
  // CHECK-GENERIC: "blocksparse.attention"(%q, %q, %q, %scale, %slopes, %num, %idx) <{
  // CHECK-GENERIC-SAME: order = #blocksparse<order descending>
  %out, %lse = blocksparse.attention %q, %q, %q
      : tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>
      scale(%scale : f32) captures(%slopes : tensor<?xf32>)
      tables(%num, %idx : tensor<?x?x?xi32>, tensor<?x?x?x?xi32>)
      -> out(tensor<?x?x?x64xf32>) lse(tensor<?x?x?xf32>)
      {block_m = 64 : i32, block_n = 32 : i32, order = #blocksparse<order descending>}
      score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32,
                %slopes_ : tensor<?xf32>) {
    flex.yield %s : f32
  // CHECK: } segments {
  } segments {
    // CHECK-NEXT: blocksparse.segment full {inside} bounds(
    // CHECK-GENERIC: "blocksparse.segment"() <{kind = #blocksparse<kind full>, inside, regionSegmentSizes = array<i32: 1, 1, 0, 0>}> ({
    blocksparse.segment full {inside} bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32, %slopes_ : tensor<?xf32>,
        %num_ : tensor<?x?x?xi32>, %idx_ : tensor<?x?x?x?xi32>) {
      %zero = arith.constant 0 : i32
      // CHECK: flex.yield %zero, %kv_len : i32, i32
      flex.yield %zero, %kv_len : i32, i32
    // CHECK-NEXT: } block(
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32,
            %kv_len : i32, %slopes_ : tensor<?xf32>, %num_ : tensor<?x?x?xi32>,
            %idx_ : tensor<?x?x?x?xi32>) {
      flex.yield %i : i32
    }
    // CHECK: blocksparse.segment partial bounds(
    blocksparse.segment partial bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32, %slopes_ : tensor<?xf32>,
        %num_ : tensor<?x?x?xi32>, %idx_ : tensor<?x?x?x?xi32>) {
      flex.yield %kv_len, %kv_len : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32,
            %kv_len : i32, %slopes_ : tensor<?xf32>, %num_ : tensor<?x?x?xi32>,
            %idx_ : tensor<?x?x?x?xi32>) {
      flex.yield %i : i32
    // CHECK: } mask_mod(
    } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %slopes_ : tensor<?xf32>) {
      %c = arith.cmpi sge, %qi, %ki : i32
      // CHECK: flex.yield %c : i1
      flex.yield %c : i1
    }
    // CHECK: blocksparse.segment mixed bounds(
    blocksparse.segment mixed bounds(%b : i32, %h : i32, %q_start : i32,
        %q_len : i32, %kv_len : i32, %slopes_ : tensor<?xf32>,
        %num_ : tensor<?x?x?xi32>, %idx_ : tensor<?x?x?x?xi32>) {
      flex.yield %kv_len, %kv_len : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32,
            %kv_len : i32, %slopes_ : tensor<?xf32>, %num_ : tensor<?x?x?xi32>,
            %idx_ : tensor<?x?x?x?xi32>) {
      flex.yield %i : i32
    // CHECK: } partial_if(
    } partial_if(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32,
                %kv_len : i32, %slopes_ : tensor<?xf32>, %num_ : tensor<?x?x?xi32>,
                %idx_ : tensor<?x?x?x?xi32>) {
      %first = arith.cmpi sge, %q_start, %i : i32
      // CHECK: flex.yield %first : i1
      flex.yield %first : i1
    // CHECK: } mask_mod(
    } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %slopes_ : tensor<?xf32>) {
      %c = arith.cmpi sge, %qi, %ki : i32
      flex.yield %c : i1
    }
    // CHECK: blocksparse.segment full {inside, may_skip} bounds(
    blocksparse.segment full {inside, may_skip} bounds(%b : i32, %h : i32,
        %q_start : i32, %q_len : i32, %kv_len : i32, %slopes_ : tensor<?xf32>,
        %num_ : tensor<?x?x?xi32>, %idx_ : tensor<?x?x?x?xi32>) {
      flex.yield %kv_len, %kv_len : i32, i32
    } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32,
            %kv_len : i32, %slopes_ : tensor<?xf32>, %num_ : tensor<?x?x?xi32>,
            %idx_ : tensor<?x?x?x?xi32>) {
      // CHECK: flex.yield %i{{.*}}, %kv_len{{.*}} : i32, i32
      flex.yield %i, %kv_len : i32, i32
    }
  }
  func.return
}
