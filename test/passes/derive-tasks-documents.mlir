// Attention and rotary positions over documents, whole and on two slices: the forward and the backward read `starts`.
// RUN: pp-opt %s --pp-derive-tasks --split-input-file | FileCheck %s

!x = tensor<1x8x16xf32>
func.func private @embed(%t: tensor<1x8xi32> {nn.data = "tokens"}, %e: tensor<16x16xf32> {nn.weight = #nn.weight<"e">}) -> !x {
  %a = nn.embedding %t, %e : (tensor<1x8xi32>, tensor<16x16xf32>) -> !x
  return %a : !x
}
func.func private @attn(%x: !x, %s: tensor<1x8xi32> {nn.data = "starts"}) -> !x {
  %r = nn.rope %x from %s {heads = 4 : i64} : (!x, tensor<1x8xi32>) -> !x
  %v = nn.gelu %x : (!x) -> !x
  %o, %lse = nn.attention %r, %r, %v, %s {heads = 4 : i64, causal = true, window = 3 : i64} : (!x, !x, !x, tensor<1x8xi32>) -> (!x, tensor<1x4x8xf32>)
  return %o : !x
}
pipeline.program @whole ranks 1 microbatches 2 slices 0 attributes {train = {sequence = 8 : i64}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1], ["attn", 0]]
  pipeline.unit <B stage 0 mb 0> on [0]
}

// CHECK: func.func private @s0.F(%{{.*}}: tensor<1x8xi32>, %[[S:.*]]: tensor<1x8xi32>,
// CHECK-SAME: pipeline.inputs = #pipeline.groups<tokens x 1, starts x 1, weight x 1>
// CHECK: nn.rope %{{.*}} from %[[S]] {heads = 4 : i64}
// CHECK: nn.attention %{{.*}}, %[[S]] {causal = true, heads = 4 : i64, window = 3 : i64}
// The window bounds the backward, too, and q and k turn back by the positions in their documents.
// CHECK: func.func private @s0.B(
// CHECK-SAME: pipeline.inputs = #pipeline.groups<tokens x 1, starts x 1,
// CHECK: nn.attention_bwd {{.*}}, %[[S2:arg1]] {causal = true, heads = 4 : i64, window = 3 : i64}
// CHECK: nn.rope %{{.*}} from %[[S2]] {heads = 4 : i64, inverse = true}

// -----

!x = tensor<1x8x16xf32>
func.func private @embed(%t: tensor<1x8xi32> {nn.data = "tokens"}, %e: tensor<16x16xf32> {nn.weight = #nn.weight<"e">}) -> !x {
  %a = nn.embedding %t, %e : (tensor<1x8xi32>, tensor<16x16xf32>) -> !x
  return %a : !x
}
func.func private @attn(%x: !x, %s: tensor<1x8xi32> {nn.data = "starts"}) -> !x {
  %k = nn.gelu %x {exact = true} : (!x) -> !x
  %v = nn.gelu %x : (!x) -> !x
  %o, %lse = nn.attention %x, %k, %v, %s {heads = 4 : i64, causal = true} : (!x, !x, !x, tensor<1x8xi32>) -> (!x, tensor<1x4x8xf32>)
  return %o : !x
}
pipeline.program @sliced ranks 1 microbatches 2 slices 2 attributes {train = {sequence = 8 : i64}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1], ["attn", 0]]
  pipeline.unit <B stage 0 mb 0 slice 0> on [0]
}

// Each slice has the starts of its own tokens; they stand behind the chunks of keys.
// CHECK: func.func private @s0.F.1(%{{.*}}: tensor<1x4xi32>, %[[S3:.*]]: tensor<1x4xi32>,
// CHECK: nn.attention %{{[^,]*}}, %{{[^,]*}}, %{{[^,]*}}, %{{[^,]*}}, %{{[^,]*}}, %[[S3]] {causal = true, heads = 4 : i64, offset = 4 : i64}
// CHECK-SAME: tensor<1x4xi32>) -> (tensor<1x4x16xf32>
// CHECK: func.func private @s0.B.1(
// CHECK: nn.attention_bwd {{.*}} {causal = true, heads = 4 : i64, offset = 4 : i64
