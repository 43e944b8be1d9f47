// Pieces of single parts: a relayed residual is copied on, a piece without weights has no update, R is F without dead code.
// RUN: pp-opt %s --pp-derive-tasks | FileCheck %s

!x = tensor<1x8x16xf32>
!w = tensor<16x16xf32>

func.func private @pre(%x: !x, %g: tensor<16xf32> {nn.weight = #nn.weight<"g">}) -> (!x, !x) {
  %a, %r = nn.rmsnorm %x, %g : (!x, tensor<16xf32>) -> (!x, tensor<1x8xf32>)
  return %a, %x : !x, !x
}
func.func private @attn(%q: !x, %x: !x) -> (!x, !x) {
  %o, %lse = nn.attention %q, %q, %q {heads = 2 : i64, causal = true} : (!x, !x, !x) -> (!x, tensor<1x2x8xf32>)
  return %o, %x : !x, !x
}
func.func private @post(%o: !x, %x: !x, %w1: !w {nn.weight = #nn.weight<"w1">}, %w2: !w {nn.weight = #nn.weight<"w2">}) -> !x {
  %u = nn.linear %o, %w1 : (!x, !w) -> !x
  %g = nn.gelu %u : (!x) -> !x
  %d = nn.linear %g, %w2 : (!x, !w) -> !x
  %z = nn.add %d, %x : (!x, !x) -> !x
  return %z : !x
}

pipeline.program @p ranks 1 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @pre0 <part "pre" 0> parts [["pre", 0]]
  pipeline.piece @attn0 <part "attn" 0> parts [["attn", 0]]
  pipeline.piece @post0 <part "post" 0> parts [["post", 0]]
  pipeline.together {
    pipeline.unit <B part "pre" 0 mb 0> on [0]
    pipeline.unit <B part "attn" 0 mb 0> on [0]
  }
  pipeline.unit <R part "post" 0 mb 0> on [0]
  pipeline.unit <B part "post" 0 mb 0> on [0]
}

// CHECK: func.func private @pre0.F(
// CHECK-NEXT: %[[A:[a-z0-9]+]], %[[R:.*]] = nn.rmsnorm
// CHECK-NEXT: %[[X:.*]] = nn.copy %arg0
// CHECK-NEXT: return %[[A]], %[[X]], %[[R]] :

// o is both sent on and saved; q, of the two values that arrive the one that the backward reads, is saved, so that x need
// not wait with it. Three gradients of one value are summed.
// CHECK: func.func private @attn0.F(
// CHECK-SAME: pipeline.inputs = #pipeline.groups<act x 2>, pipeline.results = #pipeline.groups<act x 2, stash x 3>
// CHECK-NEXT: %[[Q:.*]] = nn.copy %arg0
// CHECK-NEXT: %[[O:[a-z0-9]+]], %[[LSE:.*]] = nn.attention %arg0, %arg0, %arg0
// CHECK-NEXT: %[[X:.*]] = nn.copy %arg1
// CHECK-NEXT: %[[SAVED:.*]] = nn.copy %[[O]]
// CHECK-NEXT: return %[[O]], %[[X]], %[[Q]], %[[SAVED]], %[[LSE]] :
// CHECK: func.func private @attn0.B(
// CHECK-SAME: pipeline.inputs = #pipeline.groups<stash x 3, dact x 2>, pipeline.results = #pipeline.groups<dact x 2>
// CHECK: %[[DQ:[a-z0-9]+]], %[[DKV:.*]]:2 = nn.attention_bwd
// CHECK-NEXT: %[[SUM:.*]] = nn.add %[[DQ]], %[[DKV]]#0
// CHECK-NEXT: nn.add %[[SUM]], %[[DKV]]#1
// CHECK-NOT: @attn0.{{U|norm|zero|B.first}}

// With R there is an F that saves nothing; R makes u again and leaves out the last linear.
// CHECK: func.func private @post0.F.light(
// CHECK-SAME: pipeline.results = #pipeline.groups<act x 1>
// CHECK: func.func private @post0.R(
// CHECK-SAME: -> tensor<1x8x16xf32>
// CHECK-SAME: pipeline.inputs = #pipeline.groups<act x 2, weight x 2>, pipeline.results = #pipeline.groups<stash x 1>
// CHECK-NEXT: %[[U:.*]] = nn.linear %arg0, %arg2
// CHECK-NEXT: return %[[U]]
