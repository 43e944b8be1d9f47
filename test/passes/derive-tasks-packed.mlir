// An attention reads q, k and v where one product leaves them, unless they are read elsewhere, too, or in another order.
// RUN: pp-opt %s --pp-derive-tasks | FileCheck %s

!x = tensor<1x8x16xf32>
!k = tensor<1x8x8xf32>
!w = tensor<16x32xf32>

// Two heads of keys for four of queries.
func.func private @fits(%x: !x, %w: !w {nn.weight = #nn.weight<"w">}) -> !x {
  %qkv = nn.linear %x, %w : (!x, !w) -> tensor<1x8x32xf32>
  %q, %k, %v = nn.split %qkv {widths = array<i64: 16, 8, 8>} : (tensor<1x8x32xf32>) -> (!x, !k, !k)
  %o, %lse = nn.attention %q, %k, %v {heads = 4 : i64, kv_heads = 2 : i64, causal = true} : (!x, !k, !k) -> (!x, tensor<1x4x8xf32>)
  return %o : !x
}
func.func private @elsewhere(%x: !x, %w: !w {nn.weight = #nn.weight<"w">}) -> !x {
  %qkv = nn.linear %x, %w : (!x, !w) -> tensor<1x8x32xf32>
  %q, %k, %v = nn.split %qkv {widths = array<i64: 16, 8, 8>} : (tensor<1x8x32xf32>) -> (!x, !k, !k)
  %o, %lse = nn.attention %q, %k, %v {heads = 4 : i64, kv_heads = 2 : i64, causal = true} : (!x, !k, !k) -> (!x, tensor<1x4x8xf32>)
  %y = nn.add %o, %q : (!x, !x) -> !x
  return %y : !x
}
func.func private @order(%x: !x, %w: !w {nn.weight = #nn.weight<"w">}) -> !x {
  %qkv = nn.linear %x, %w : (!x, !w) -> tensor<1x8x32xf32>
  %q, %k, %v = nn.split %qkv {widths = array<i64: 16, 8, 8>} : (tensor<1x8x32xf32>) -> (!x, !k, !k)
  %o, %lse = nn.attention %q, %v, %k {heads = 4 : i64, kv_heads = 2 : i64, causal = true} : (!x, !k, !k) -> (!x, tensor<1x4x8xf32>)
  return %o : !x
}

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["fits", 0]]
  pipeline.piece @s1 <stage 1> parts [["elsewhere", 0]]
  pipeline.piece @s2 <stage 2> parts [["order", 0]]
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <B stage 0 mb 0> on [0]
  pipeline.unit <F stage 1 mb 0> on [0]
  pipeline.unit <B stage 1 mb 0> on [0]
  pipeline.unit <F stage 2 mb 0> on [0]
  pipeline.unit <B stage 2 mb 0> on [0]
}

// CHECK: func.func private @s0.F(
// CHECK-NEXT: %[[QKV:.*]] = nn.linear
// CHECK-NEXT: %[[O:.*]], %[[LSE:.*]] = nn.attention %[[QKV]], %[[QKV]], %[[QKV]] {causal = true, heads = 4 : i64, kv_heads = 2 : i64, packed = true}
// CHECK: return %[[O]], %[[QKV]], %{{.*}}, %[[LSE]] :
// CHECK: func.func private @s0.B
// CHECK: %[[D:.*]] = nn.attention_bwd {{.*}}packed = true{{.*}} -> tensor<1x8x32xf32>
// CHECK: nn.linear_dx %[[D]]
// CHECK: func.func private @s1.F(
// CHECK-COUNT-3: nn.slice_columns
// CHECK-NOT: packed
// CHECK: func.func private @s2.F(
// CHECK-COUNT-3: nn.slice_columns
// CHECK-NOT: packed
