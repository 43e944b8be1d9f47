// What is computed in parts: attention over chunks of keys and merged parts, and a loss over shards of the vocabulary.
// RUN: pp-opt %s --pp-derive-tasks | FileCheck %s

!x = tensor<1x8x16xbf16>
!lse = tensor<1x4x8xf32>
!sum = tensor<1x8x16xf32>
!w = tensor<16x16xbf16>

// The second slice of a sequence: the first one's keys arrive, its own are made here.
func.func private @second(%x: !x, %k0: !x, %v0: !x, %wk: !w {nn.weight = #nn.weight<"wk">}) -> !x {
  %k1 = nn.linear %x, %wk : (!x, !w) -> !x
  %q = nn.rope %x {heads = 4 : i64, offset = 8 : i64} : (!x) -> !x
  %v1 = nn.gelu %x : (!x) -> !x
  %o, %lse = nn.attention %q, %k0, %v0, %k1, %v1 {heads = 4 : i64, causal = true, offset = 8 : i64}
      : (!x, !x, !x, !x, !x) -> (!x, !lse)
  return %o : !x
}
// Gradients of its own keys are complete and rounded, those of the first slice's stay sums, to which that slice adds.
// CHECK: func.func private @s0.B(
// CHECK-SAME: -> (tensor<1x8x16xbf16>, tensor<1x8x16xf32>, tensor<1x8x16xf32>, tensor<16x16xf32>)
// CHECK: %[[D:.*]] = nn.attention_delta %[[DO:.*]], %{{.*}}
// CHECK: %{{.*}}, %[[DKV:.*]]:4 = nn.attention_bwd %[[DO]], {{.*}}, %[[D]], %arg1, %arg2, {{.*}} {causal = true, heads = 4 : i64, offset = 8 : i64, sums = true}
// CHECK-DAG: %[[DK:.*]] = nn.round %[[DKV]]#2 to bf16
// CHECK-DAG: %[[DV:.*]] = nn.round %[[DKV]]#3 to bf16
// CHECK: nn.gelu_bwd %[[DV]]
// CHECK: nn.linear_dw %{{.*}}, %[[DK]]
// CHECK: return %{{.*}}, %[[DKV]]#0, %[[DKV]]#1, %{{.*}}

// Two slices in one part, in f32: the first one's backward comes last and goes on with the sums of the second's.
!y = tensor<1x8x16xf32>
func.func private @both(%q0: !y, %k0: !y, %v0: !y, %q1: !y, %k1: !y, %v1: !y) -> (!y, !y) {
  %o0, %l0 = nn.attention %q0, %k0, %v0 {heads = 4 : i64, causal = true} : (!y, !y, !y) -> (!y, !lse)
  %o1, %l1 = nn.attention %q1, %k0, %v0, %k1, %v1 {heads = 4 : i64, causal = true, offset = 8 : i64}
      : (!y, !y, !y, !y, !y) -> (!y, !lse)
  return %o0, %o1 : !y, !y
}
// CHECK: func.func private @s1.B(
// CHECK: %{{.*}}, %[[BOTH:.*]]:4 = nn.attention_bwd {{.*}}sums = true
// CHECK: nn.attention_bwd {{.*}} into_kv %[[BOTH]]#0, %[[BOTH]]#1 {causal = true, heads = 4 : i64

// Parts that are merged: each part's gradient is made from the merged lse and delta, the second goes on with the first's
// dq. A part that came from elsewhere (o and lse as they arrive) gets none here: what it reads is differentiated there.
func.func private @parts(%q: !y, %k0: !y, %v0: !y, %k1: !y, %v1: !y) -> !y {
  %o0, %l0 = nn.attention %q, %k0, %v0 {heads = 4 : i64} : (!y, !y, !y) -> (!y, !lse)
  %o1, %l1 = nn.attention %q, %k1, %v1 {heads = 4 : i64, causal = true, offset = 8 : i64, kv_offsets = array<i64: 8>}
      : (!y, !y, !y) -> (!y, !lse)
  %o, %lse = nn.attention_merge %o0, %l0, %o1, %l1 {heads = 4 : i64} : (!y, !lse, !y, !lse) -> (!y, !lse)
  return %o : !y
}
// CHECK: func.func private @s2.F(
// CHECK: %[[O:.*]], %[[LSE:.*]] = nn.attention_merge
// Only the merged o and lse are saved.
// CHECK: return %[[O]], %{{.*}}, %[[LSE]] :
// CHECK: func.func private @s2.B(
// CHECK-NEXT: %[[D:.*]] = nn.attention_delta %[[DO:.*]], %[[SAVED:.*]] {heads = 4 : i64}
// CHECK-NEXT: %[[DQ:[a-z0-9_]+]], %{{.*}} = nn.attention_bwd %[[DO]], %arg0, %[[L:.*]], %[[D]], %arg1, %arg2 {heads = 4 : i64
// CHECK-NEXT: nn.attention_bwd %[[DO]], %arg0, %[[L]], %[[D]], %arg3, %arg4 into %[[DQ]] {causal = true, {{.*}}kv_offsets = array<i64: 8>, offset = 8 : i64

pipeline.program @p ranks 1 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["second", 0]]
  pipeline.piece @s1 <stage 1> parts [["both", 0]]
  pipeline.piece @s2 <stage 2> parts [["parts", 0]]
  pipeline.piece @s3 <stage 3> parts [["head", 0]]
  pipeline.unit <B stage 0 mb 0> on [0]
  pipeline.unit <B stage 1 mb 0> on [0]
  pipeline.unit <B stage 2 mb 0> on [0]
  pipeline.unit <B stage 3 mb 0> on [0]
}

// Two shards of the vocabulary: dz of each from the statistics of both, and one loss.
func.func private @head(%x: !y, %e0: tensor<16x12xf32> {nn.weight = #nn.weight<"e0">}, %e1: tensor<16x12xf32> {nn.weight = #nn.weight<"e1">},
    %t: tensor<1x8xi32> {nn.data = "targets"}) -> tensor<1xf32> {
  %z0 = nn.linear %x, %e0 : (!y, tensor<16x12xf32>) -> tensor<1x8x12xf32>
  %z1 = nn.linear %x, %e1 : (!y, tensor<16x12xf32>) -> tensor<1x8x12xf32>
  %s0 = nn.cross_entropy_stats %z0, %t {vocab = 24 : i64} : (tensor<1x8x12xf32>, tensor<1x8xi32>) -> tensor<1x8x3xf32>
  %s1 = nn.cross_entropy_stats %z1, %t {first = 12 : i64, vocab = 24 : i64} : (tensor<1x8x12xf32>, tensor<1x8xi32>) -> tensor<1x8x3xf32>
  %s = nn.cross_entropy_merge %s0, %s1 : (tensor<1x8x3xf32>, tensor<1x8x3xf32>) -> tensor<1x8x3xf32>
  %loss = nn.cross_entropy_loss %s, %t : (tensor<1x8x3xf32>, tensor<1x8xi32>) -> tensor<1xf32>
  return %loss : tensor<1xf32>
}
// The loss and all of its statistics are late: F keeps x, which stays where it came, and 1/16 is 1 / tokens of the step.
// CHECK: func.func private @s3.F({{.*}}) attributes {{{.*}}pipeline.results = #pipeline.groups<>
// CHECK: func.func private @s3.B(
// CHECK: %[[S:.*]] = nn.cross_entropy_merge
// CHECK: %[[Z1:.*]] = nn.cross_entropy_dz %{{.*}}, %{{.*}}, %[[S]] {{.*}}scale = 6.250000e-02
// CHECK: %[[Z0:.*]] = nn.cross_entropy_dz %{{.*}}, %{{.*}}, %[[S]] {{.*}}scale = 6.250000e-02
// CHECK: %[[LOSS:.*]] = nn.cross_entropy_loss %[[S]], %{{.*}} {scale = 6.250000e-02 : f64}
// CHECK: nn.linear_dw %arg0, %{{.*}}
// CHECK: return {{.*}}%[[LOSS]] :
