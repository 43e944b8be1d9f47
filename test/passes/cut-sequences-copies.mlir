// With fewer heads of keys than devices of context, neighbours get copies of the head that their queries read.
// RUN: pp-opt %s --pp-cut-sequences | FileCheck %s
// RUN: sed 's/tensor 1/tensor 2/' %s | pp-opt --pp-cut-sequences --pp-split-parts | FileCheck %s --check-prefix=TWO
// RUN: sed 's/kv_heads = 2/kv_heads = 1/; s/heads = 2/heads = 1/; s/!k = .*/!k = tensor<2x8x4xf32>/; s/32x8x/32x4x/; s/tensor 1/tensor 2/' %s \
// RUN:   | pp-opt --pp-cut-sequences --pp-split-parts | FileCheck %s --check-prefix=SHARED
// RUN: pp-opt %s --pp-cut-sequences --pp-derive-tasks | FileCheck %s --check-prefix=BACK
// RUN: sed 's/context 4/context 2/' %s | pp-opt --pp-cut-sequences | FileCheck %s --check-prefix=ENOUGH

!x = tensor<2x8x32xf32>
!k = tensor<2x8x8xf32>
!w = tensor<32x32xf32>
!v = tensor<32x8xf32>
!l = tensor<2x8x8xf32>

// Two heads of keys for four devices, each twice: 0 0 1 1. A device has two heads of queries and one of keys.
// CHECK-LABEL: func.func private @layer(
// CHECK: %[[R:.*]] = nn.rope %{{.*}} {heads = 2 : i64, zigzag = 4 : i64}
// CHECK: %[[A:.*]] = nn.runs_to_heads %{{.*}} over <context> {members = 4 : i64} : (tensor<2x2x32xf32>) -> tensor<2x8x8xf32>
// CHECK-NEXT: %[[C:.*]] = nn.repeat_heads %[[R]] {heads = 2 : i64, times = 2 : i64} : (tensor<2x2x8xf32>) -> tensor<2x2x16xf32>
// CHECK-NEXT: %[[B:.*]] = nn.runs_to_heads %[[C]] over <context> {members = 4 : i64} : (tensor<2x2x16xf32>) -> tensor<2x8x4xf32>
// CHECK-NEXT: %[[D:.*]] = nn.repeat_heads %{{.*}} {heads = 2 : i64, times = 2 : i64}
// CHECK-NEXT: %[[E:.*]] = nn.runs_to_heads %[[D]]
// CHECK-NEXT: nn.attention %[[A]], %[[B]], %[[E]] {causal = true, heads = 2 : i64, kv_heads = 1 : i64}
// A device of two of the tensor axis has one head of keys, of which its four of context get copies.
// TWO: nn.repeat_heads %{{.*}} {heads = 1 : i64, times = 4 : i64} : (tensor<2x2x4xf32>) -> tensor<2x2x16xf32>
// TWO: nn.attention {{.*}} {causal = true, heads = 1 : i64, kv_heads = 1 : i64}
// So it is where both devices of the tensor axis have copies of one head.
// SHARED: nn.repeat_heads %{{.*}} {heads = 1 : i64, times = 4 : i64} : (tensor<2x2x4xf32>) -> tensor<2x2x16xf32>
// SHARED: nn.attention {{.*}} {causal = true, heads = 1 : i64, kv_heads = 1 : i64}
// F keeps one head of keys of whole sequences. What comes back of two neighbours is the gradient of one head.
// BACK-LABEL: func.func private @s0.F(
// BACK: return {{.*}} : tensor<2x2x32xf32>, tensor<2x8x8xf32>, tensor<2x8x4xf32>, tensor<2x8x4xf32>, tensor<2x8x8xf32>,
// BACK-LABEL: func.func private @s0.B(
// BACK-NOT: nn.repeat_heads
// BACK: %{{.*}}, %[[DKV:.*]]:2 = nn.attention_bwd
// BACK: %[[M:[0-9]+]] = nn.heads_to_runs %[[DKV]]#0 over <context> {kept, members = 4 : i64} : (tensor<2x8x4xf32>) -> tensor<2x2x16xf32>
// BACK: %[[DK:.*]] = nn.sum_heads %[[M]] {heads = 2 : i64, times = 2 : i64} : (tensor<2x2x16xf32>) -> tensor<2x2x8xf32>
// BACK: nn.rope %[[DK]] {{.*}}inverse = true
// ENOUGH-NOT: repeat_heads
// ENOUGH: nn.attention {{.*}} {causal = true, heads = 4 : i64, kv_heads = 1 : i64}
func.func private @layer(%x: !x, %wq: !w {nn.weight = #nn.weight<"wq">}, %wk: !v {nn.weight = #nn.weight<"wk">},
    %wv: !v {nn.weight = #nn.weight<"wv">}, %wo: !w {nn.weight = #nn.weight<"wo">}) -> !x {
  %q = nn.linear %x, %wq : (!x, !w) -> !x
  %k = nn.linear %x, %wk : (!x, !v) -> !k
  %v = nn.linear %x, %wv : (!x, !v) -> !k
  %r = nn.rope %k {heads = 2 : i64} : (!k) -> !k
  %o, %lse = nn.attention %q, %r, %v {causal = true, heads = 8 : i64, kv_heads = 2 : i64} : (!x, !k, !k) -> (!x, !l)
  %y = nn.linear %o, %wo : (!x, !w) -> !x
  return %y : !x
}

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {
    train = {"batch" = 2, "sequence" = 8}, mesh = #pipeline.mesh<tensor 1, context 4, data 1, pipeline 1, attention heads>} {
  pipeline.piece @s0 <stage 0> parts [["layer", 0]] at <[0]>
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <B stage 0 mb 0> on [0]
}
