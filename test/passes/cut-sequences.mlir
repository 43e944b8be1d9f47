// A device has two runs of every sequence, and the keys of all; what counts positions knows that.
// RUN: pp-opt %s --pp-cut-sequences | FileCheck %s
// RUN: sed 's/, again inputs//' %s | pp-opt --pp-cut-sequences | FileCheck %s --check-prefix=KEPT
// RUN: sed 's/context 2/context 3/' %s | not pp-opt --pp-cut-sequences 2>&1 | FileCheck %s --check-prefix=ODD
// RUN: sed 's/causal = true/causal = false/' %s | not pp-opt --pp-cut-sequences 2>&1 | FileCheck %s --check-prefix=BOTH
// RUN: sed 's/slices 0/slices 4/' %s | not pp-opt --pp-cut-sequences 2>&1 | FileCheck %s --check-prefix=SLICES
// RUN: sed 's/again inputs/attention heads/' %s | pp-opt --pp-cut-sequences | FileCheck %s --check-prefix=HEADS
// RUN: sed 's/) -> !x {$/) -> !x attributes {nn.attention = "heads", nn.again = "nothing"} {/' %s | pp-opt --pp-cut-sequences \
// RUN:   | FileCheck %s --check-prefix=HEADS
// RUN: sed 's/) -> !x {$/) -> !x attributes {nn.attention = "gather", nn.again = "inputs"} {/; s/again inputs/attention heads/' %s \
// RUN:   | pp-opt --pp-cut-sequences | FileCheck %s --check-prefix=CHECK
// RUN: sed 's/context 2/context 4/; s/again inputs/attention heads/' %s \
// RUN:   | not pp-opt --pp-cut-sequences 2>&1 | FileCheck %s --check-prefix=FEW

!x = tensor<2x8x16xf32>
!t = tensor<2x8xi32>
!l = tensor<2x2x8xf32>

// CHECK-LABEL: func.func private @embed(
// CHECK-SAME: tensor<2x4xi32>
// CHECK-SAME: tensor<8x16xf32> {nn.weight
// CHECK-SAME: -> tensor<2x4x16xf32>
// CHECK-NEXT: nn.positions %{{.*}} {zigzag = 2 : i64} : (tensor<2x4xi32>, tensor<8x16xf32>) -> tensor<2x4x16xf32>
// CHECK-NEXT: nn.dropout %{{.*}} of %{{.*}} {{{.*}}zigzag = 2 : i64}
func.func private @embed(%tokens: !t {nn.data = "tokens"}, %rows: !t {nn.data = "rows"},
    %wpe: tensor<8x16xf32> {nn.weight = #nn.weight<"wpe">}) -> !x {
  %p = nn.positions %tokens, %wpe : (!t, tensor<8x16xf32>) -> !x
  %x = nn.dropout %p of %rows {rate = 0.1, sites = 1} : (!x, !t) -> !x
  return %x : !x
}

// Queries are the device's, keys and values those of all devices in the order of their positions.
// CHECK-LABEL: func.func private @attn(
// CHECK-SAME: %[[Q:[^:]*]]: tensor<2x4x16xf32>, %[[K:[^:]*]]: tensor<2x4x16xf32>, %[[V:[^:]*]]: tensor<2x4x16xf32>
// CHECK-NEXT: %[[P:.*]] = nn.rope %[[Q]] {heads = 2 : i64, zigzag = 2 : i64}
// CHECK-NEXT: %[[A:.*]] = nn.gather_runs %[[K]] over <context> {members = 2 : i64} : (tensor<2x4x16xf32>) -> tensor<2x8x16xf32>
// KEPT: nn.gather_runs %{{.*}} over <context> {kept, members = 2 : i64}
// CHECK-NEXT: %[[B:.*]] = nn.gather_runs %[[V]] over <context>
// CHECK-NEXT: nn.attention %[[P]], %[[A]], %[[B]] {causal = true, heads = 2 : i64, zigzag = 2 : i64}
// CHECK-SAME: -> (tensor<2x4x16xf32>, tensor<2x2x4xf32>)
// With heads exchanged it sees whole sequences, in one run.
// HEADS-LABEL: func.func private @attn(
// HEADS: %[[P:.*]] = nn.rope %{{.*}} {heads = 2 : i64, zigzag = 2 : i64}
// HEADS-NEXT: %[[Q:.*]] = nn.runs_to_heads %[[P]] over <context> {members = 2 : i64} : (tensor<2x4x16xf32>) -> tensor<2x8x8xf32>
// HEADS-NEXT: %[[K:.*]] = nn.runs_to_heads
// HEADS-NEXT: %[[V:.*]] = nn.runs_to_heads
// HEADS-NEXT: %[[O:.*]], %{{.*}} = nn.attention %[[Q]], %[[K]], %[[V]] {causal = true, heads = 1 : i64}
// HEADS-SAME: -> (tensor<2x8x8xf32>, tensor<2x1x8xf32>)
// HEADS-NEXT: %[[R:.*]] = nn.heads_to_runs %[[O]] over <context> {kept, members = 2 : i64} : (tensor<2x8x8xf32>) -> tensor<2x4x16xf32>
// HEADS-NEXT: return %[[R]]
// FEW: error: `attention = "heads"`: a device has 2 heads; `context = 4` does not divide them
// BOTH: error: `context = 2`: an `attention` that is not causal cannot be cut over context yet
func.func private @attn(%q: !x, %k: !x, %v: !x) -> !x {
  %p = nn.rope %q {heads = 2 : i64} : (!x) -> !x
  %o, %lse = nn.attention %p, %k, %v {causal = true, heads = 2 : i64} : (!x, !x, !x) -> (!x, !l)
  return %o : !x
}

// All else works on fewer rows.
// CHECK-LABEL: func.func private @head(
// CHECK-NEXT: nn.linear %{{.*}} : (tensor<2x4x16xf32>, tensor<16x32xf32>) -> tensor<2x4x32xf32>
// CHECK-NEXT: nn.cross_entropy %{{.*}} : (tensor<2x4x32xf32>, tensor<2x4xi32>) -> tensor<1xf32>
func.func private @head(%x: !x, %targets: !t {nn.data = "targets"},
    %w: tensor<16x32xf32> {nn.weight = #nn.weight<"w">}) -> tensor<1xf32> {
  %z = nn.linear %x, %w : (!x, tensor<16x32xf32>) -> tensor<2x8x32xf32>
  %loss = nn.cross_entropy %z, %targets : (tensor<2x8x32xf32>, !t) -> tensor<1xf32>
  return %loss : tensor<1xf32>
}

// ODD: error: a sequence of 8 tokens is not cut over `context = 3`: it needs a multiple of 6
// SLICES: error: slice 0 has 2 tokens, which are not cut over `context = 2`: it needs a multiple of 4
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {
    train = {"batch" = 2, "sequence" = 8}, mesh = #pipeline.mesh<tensor 1, context 2, data 1, pipeline 1, again inputs>} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1], ["attn", 0], ["head", -1]] at <[0]>
}
