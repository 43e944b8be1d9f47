// Two layers of gpt2 of which R runs all but the attention: F keeps {o, lse} and the residual between the layers.
// RUN: pp-opt %s --pp-derive-tasks | FileCheck %s

!x = tensor<1x8x16xf32>
!u = tensor<1x8x32xf32>
!w = tensor<16xf32>
!row = tensor<1x8xf32>

func.func private @pre(%x: !x, %g: !w {nn.weight = #nn.weight<"g1">}, %b: !w {nn.weight = #nn.weight<"b1">}) -> (!x, !x) {
  %a, %m, %r = nn.layernorm %x, %g, %b : (!x, !w, !w) -> (!x, !row, !row)
  return %a, %x : !x, !x
}
func.func private @qkv(%a: !x, %x: !x, %w: tensor<16x48xf32> {nn.weight = #nn.weight<"wqkv">}) -> (!x, !x, !x, !x) {
  %qkv = nn.linear %a, %w : (!x, tensor<16x48xf32>) -> tensor<1x8x48xf32>
  %q, %k, %v = nn.split %qkv {parts = 3 : i64} : (tensor<1x8x48xf32>) -> (!x, !x, !x)
  return %q, %k, %v, %x : !x, !x, !x, !x
}
func.func private @attn(%q: !x, %k: !x, %v: !x, %x: !x) -> (!x, !x) {
  %o, %lse = nn.attention %q, %k, %v {heads = 2 : i64, causal = true} : (!x, !x, !x) -> (!x, tensor<1x2x8xf32>)
  return %o, %x : !x, !x
}
func.func private @post(%o: !x, %x: !x, %wo: tensor<16x16xf32> {nn.weight = #nn.weight<"wo">},
    %g: !w {nn.weight = #nn.weight<"g2">}, %b: !w {nn.weight = #nn.weight<"b2">},
    %w1: tensor<16x32xf32> {nn.weight = #nn.weight<"w1">}, %w2: tensor<32x16xf32> {nn.weight = #nn.weight<"w2">}) -> !x {
  %p = nn.linear %o, %wo : (!x, tensor<16x16xf32>) -> !x
  %y = nn.add %x, %p : (!x, !x) -> !x
  %n, %m, %r = nn.layernorm %y, %g, %b : (!x, !w, !w) -> (!x, !row, !row)
  %u = nn.linear %n, %w1 : (!x, tensor<16x32xf32>) -> !u
  %h = nn.gelu %u : (!u) -> !u
  %d = nn.linear %h, %w2 : (!u, tensor<32x16xf32>) -> !x
  %z = nn.add %y, %d : (!x, !x) -> !x
  return %z : !x
}

pipeline.program @p ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["pre", 0], ["qkv", 0], ["attn", 0], ["post", 0], ["pre", 1], ["qkv", 1], ["attn", 1], ["post", 1]] recompute ["pre", "qkv", "post"]
  // The same parts and no R: bodies of its own, without what R needs.
  pipeline.piece @s1 <stage 1> parts [["pre", 2], ["qkv", 2], ["attn", 2], ["post", 2], ["pre", 3], ["qkv", 3], ["attn", 3], ["post", 3]]
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <R stage 0 mb 0> on [0]
  pipeline.unit <B stage 0 mb 0> on [0]
  pipeline.unit <F stage 1 mb 0> on [1]
  pipeline.unit <B stage 1 mb 0> on [1]
}

// An F that no R follows makes both: what is kept, and per layer mean, rstd, qkv, y, mean, rstd, u.
// CHECK: func.func private @s0.F(
// CHECK-SAME: pipeline.results = #pipeline.groups<act x 1, kept x 5, stash x 14>

// 2A + lse a layer (docs/derivatives.md, "4bsh"); the first x is the activation that came in.
// CHECK: func.func private @s0.F.light(
// CHECK-SAME: pipeline.results = #pipeline.groups<act x 1, kept x 5>
// CHECK: %[[O0:.*]], %[[LSE0:.*]] = nn.attention
// CHECK: nn.gelu
// CHECK: %[[X1:.*]] = nn.add
// CHECK: %[[O1:.*]], %[[LSE1:.*]] = nn.attention
// CHECK: %[[Z:.*]] = nn.add {{.*}}
// CHECK: return %{{.*}}, %[[O0]], %[[LSE0]], %[[X1]], %[[O1]], %[[LSE1]] :

// R runs no attention and no second linear of an MLP: qkv, wo, w1 twice.
// CHECK: func.func private @s0.R(
// CHECK-SAME: pipeline.inputs = #pipeline.groups<act x 1, weight x 16, kept x 5>, pipeline.results = #pipeline.groups<stash x 14>
// CHECK-NOT: nn.attention
// CHECK-NOT: nn.gelu
// CHECK: nn.linear {{.*}} -> tensor<1x8x48xf32>
// CHECK-NOT: nn.attention
// CHECK: nn.linear {{.*}} -> tensor<1x8x16xf32>
// CHECK: nn.linear {{.*}} -> tensor<1x8x32xf32>
// CHECK-NOT: nn.gelu
// CHECK: nn.linear {{.*}} -> tensor<1x8x48xf32>
// CHECK-NOT: nn.attention
// CHECK: nn.linear {{.*}} -> tensor<1x8x16xf32>
// CHECK: nn.linear {{.*}} -> tensor<1x8x32xf32>
// CHECK-NOT: nn.gelu
// CHECK: return

// CHECK: func.func private @s0.B(
// CHECK-SAME: pipeline.inputs = #pipeline.groups<act x 1, kept x 5, stash x 14, weight x 16, dact x 1, grad x 16>

// CHECK: func.func private @s1.F(
// CHECK-SAME: pipeline.results = #pipeline.groups<act x 1, stash x 19>
// CHECK-NOT: @s1.F.light
// CHECK-NOT: @s1.R
