// A gpt2 layer under an I/W split, phi = 2 (ffn 32), A = tensor<1x8x16>: W reads what I hands it, and no weight.
// RUN: pp-opt %s --pp-derive-tasks | FileCheck %s

!x = tensor<1x8x16xf32>
!u = tensor<1x8x32xf32>
!w = tensor<16xf32>
!row = tensor<1x8xf32>

func.func private @layer(%x: !x, %g1: !w {nn.weight = #nn.weight<"g1">}, %b1: !w {nn.weight = #nn.weight<"b1">},
    %wqkv: tensor<16x48xf32> {nn.weight = #nn.weight<"wqkv">}, %bqkv: tensor<48xf32> {nn.weight = #nn.weight<"bqkv">},
    %wo: tensor<16x16xf32> {nn.weight = #nn.weight<"wo">}, %g2: !w {nn.weight = #nn.weight<"g2">},
    %b2: !w {nn.weight = #nn.weight<"b2">}, %w1: tensor<16x32xf32> {nn.weight = #nn.weight<"w1">},
    %w2: tensor<32x16xf32> {nn.weight = #nn.weight<"w2">}) -> !x {
  %a, %m1, %r1 = nn.layernorm %x, %g1, %b1 : (!x, !w, !w) -> (!x, !row, !row)
  %qkv = nn.linear %a, %wqkv bias %bqkv : (!x, tensor<16x48xf32>, tensor<48xf32>) -> tensor<1x8x48xf32>
  %q, %k, %v = nn.split %qkv {parts = 3 : i64} : (tensor<1x8x48xf32>) -> (!x, !x, !x)
  %o, %lse = nn.attention %q, %k, %v {heads = 2 : i64, causal = true} : (!x, !x, !x) -> (!x, tensor<1x2x8xf32>)
  %p = nn.linear %o, %wo : (!x, tensor<16x16xf32>) -> !x
  %y = nn.add %x, %p : (!x, !x) -> !x
  %n, %m2, %r2 = nn.layernorm %y, %g2, %b2 : (!x, !w, !w) -> (!x, !row, !row)
  %u = nn.linear %n, %w1 : (!x, tensor<16x32xf32>) -> !u
  %g = nn.gelu %u : (!u) -> !u
  %d = nn.linear %g, %w2 : (!u, tensor<32x16xf32>) -> !x
  %z = nn.add %y, %d : (!x, !x) -> !x
  return %z : !x
}

pipeline.program @p ranks 1 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["layer", 0]]
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <I stage 0 mb 0> on [0]
  pipeline.unit <W stage 0 mb 0> on [0]
}

// Attention reads the columns of one linear's output; F saves 6 + phi = 8 A: x where it came, qkv (3 A), o, y, u.
// CHECK: func.func private @s0.F(
// CHECK: %[[QKV:.*]] = nn.linear
// CHECK-NEXT: %[[O:.*]], %[[LSE:.*]] = nn.attention %[[QKV]], %[[QKV]], %[[QKV]] {{.*}}packed = true
// CHECK: %[[Y:.*]] = nn.add
// CHECK: %[[U:.*]] = nn.linear
// CHECK: return %{{.*}}, %{{mean.*}}, %{{rstd.*}}, %[[QKV]], %[[O]], %[[LSE]], %[[Y]], %{{mean.*}}, %{{rstd.*}}, %[[U]] :

// I rebuilds a, n, g for W, writes no gradient of a weight but the norms' hands.
// CHECK: func.func private @s0.I(
// CHECK-SAME: pipeline.inputs = #pipeline.groups<act x 1, stash x 9, weight x 9, dact x 1>
// CHECK-SAME: pipeline.results = #pipeline.groups<dact x 1, pending x 11>
// CHECK-NOT: nn.linear_dw
// CHECK: %[[G:.*]] = nn.gelu
// CHECK: %[[DU:.*]] = nn.gelu_bwd
// CHECK: %[[N:.*]] = nn.layernorm_rebuild
// CHECK: %[[DY:[a-z0-9_]+]], %[[DG2:.*]], %[[DB2:.*]] = nn.layernorm_bwd
// CHECK: %[[DQKV:.*]] = nn.attention_bwd {{.*}}packed = true{{.*}} -> tensor<1x8x48xf32>
// CHECK: %[[A:.*]] = nn.layernorm_rebuild
// What W still needs goes on unharmed: the sum with the residual's gradient starts from a copy.
// CHECK: %[[COPY:.*]] = nn.copy %[[DY]]
// CHECK: %[[DX:[a-z0-9_]+]], %[[DG1:.*]], %[[DB1:.*]] = nn.layernorm_bwd {{.*}} into %[[COPY]]
// Pending: o, g, du, n, dy, dqkv, a = 7 + 2 phi = 11 A, with dact 8 + 2 phi (docs/derivatives.md), and the hands.
// The fourth of the stash, o, stays where it is.
// CHECK-NOT: nn.copy
// CHECK: return %[[DX]], %arg4, %[[G]], %[[DU]], %[[N]], %[[DY]], %[[DG2]], %[[DB2]], %[[DQKV]], %[[A]], %[[DG1]], %[[DB1]] :

// CHECK: func.func private @s0.W(
// CHECK-SAME: pipeline.inputs = #pipeline.groups<pending x 11, dact x 1, grad x 9>, pipeline.results = #pipeline.groups<grad x 9>, pipeline.ties = array<i64: 2>
// CHECK-NEXT: nn.linear_dw {{.*}} into
// CHECK-NEXT: nn.linear_dw {{.*}} into
// CHECK-NEXT: nn.accumulate
// CHECK-NEXT: nn.accumulate
// CHECK-NEXT: nn.linear_dw {{.*}} into
// CHECK-NEXT: nn.linear_dw {{.*}} into
// CHECK-NEXT: nn.bias_dw {{.*}} into
// CHECK-NEXT: nn.accumulate
// CHECK-NEXT: nn.accumulate
// CHECK-NEXT: return

// CHECK: func.func private @s0.W.first(
// CHECK-SAME: pipeline.inputs = #pipeline.groups<pending x 11, dact x 1>, pipeline.results = #pipeline.groups<grad x 9>, pipeline.ties = array<i64: -1>
// CHECK-NOT: into
// CHECK: return
