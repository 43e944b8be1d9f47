// Updates, norms and a weight that two pieces share: its first user owns it, the other hands its gradient over.
// RUN: pp-opt %s --pp-derive-tasks | FileCheck %s
// In f16 updates read the norm without clipping too: it tells that gradients overflowed.
// RUN: sed 's/bf16/f16/g; s/optimizer = {clip = 1.0}/precision = "f16"/' %s | pp-opt --pp-derive-tasks | FileCheck %s

!x = tensor<1x8x16xbf16>
!t = tensor<1x8xi32>
!table = tensor<32x16xbf16>

func.func private @embed(%tokens: !t {nn.data = "tokens"}, %p: tensor<8x16xbf16> {nn.weight = #nn.weight<"wpe">},
    %wte: !table {nn.weight = #nn.weight<"wte" as "wte" shared>}) -> !x {
  %0 = nn.embedding %tokens, %wte : (!t, !table) -> !x
  %1 = nn.positions %tokens, %p : (!t, tensor<8x16xbf16>) -> !x
  %2 = nn.add %0, %1 : (!x, !x) -> !x
  return %2 : !x
}
func.func private @head(%x: !x, %targets: !t {nn.data = "targets"}, %g: tensor<16xbf16> {nn.weight = #nn.weight<"g">},
    %wte: !table {nn.weight = #nn.weight<"wte" as "wte" shared>}) -> tensor<1xf32> {
  %n, %r = nn.rmsnorm %x, %g : (!x, tensor<16xbf16>) -> (!x, tensor<1x8xf32>)
  %w = nn.transpose %wte : (!table) -> tensor<16x32xbf16>
  %z = nn.linear %n, %w : (!x, tensor<16x32xbf16>) -> tensor<1x8x32xbf16>
  %loss = nn.cross_entropy %z, %targets : (tensor<1x8x32xbf16>, !t) -> tensor<1xf32>
  return %loss : tensor<1xf32>
}

// CHECK: pipeline.piece @s0 {{.*}}<"wte" : tensor<32x16x{{b?}}f16> declared
// CHECK: pipeline.piece @s1 {{.*}}<"wte" : tensor<32x16x{{b?}}f16> tied declared
pipeline.program @p ranks 2 microbatches 4 slices 0 attributes {train = {optimizer = {clip = 1.0}}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]]
  pipeline.piece @s1 <stage 1> parts [["head", -1]]
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <B stage 0 mb 0> on [0]
  pipeline.unit <F stage 1 mb 0> on [1]
  pipeline.unit <B stage 1 mb 0> on [1]
}

// Nothing before the tokens needs a gradient, and no table is read.
// CHECK: func.func private @s0.B(
// CHECK-SAME: pipeline.inputs = #pipeline.groups<tokens x 1, dact x 1, grad x 2>, pipeline.results = #pipeline.groups<grad x 2>
// CHECK-NEXT: nn.positions_dw %arg1 into %arg2
// CHECK-NEXT: nn.embedding_dw %arg0, %arg1 into %arg3

// CHECK: func.func private @s0.norm.first(
// CHECK-NEXT: %[[SUM:.*]] = nn.sum_squares %arg0 : (tensor<8x16xf32>)
// CHECK-NEXT: nn.sum_squares %arg1 into %[[SUM]]
// CHECK: func.func private @s0.norm(
// CHECK-SAME: pipeline.ties = array<i64: 1>
// CHECK-NEXT: nn.sum_squares %arg0 into %arg2

// A matrix decays, and a weight of 16 bits has a master copy in f32: m, v, master of each.
// CHECK: func.func private @s0.U(
// CHECK-SAME: #pipeline.groups<weight x 2, grad x 2, opt x 6, norm x 1>, pipeline.results = #pipeline.groups<weight x 2, opt x 6>, pipeline.ties = array<i64: 0, 2>
// CHECK-NEXT: nn.adamw %arg2 norm %arg10 into %arg0, %arg4, %arg5, %arg6 {decay = true}
// CHECK-NEXT: nn.adamw %arg3 norm %arg10 into %arg1, %arg7, %arg8, %arg9 {decay = true}

// CHECK: func.func private @s0.zero() -> (tensor<8x16xf32>, tensor<32x16xf32>)
// CHECK: func.func private @s0.tie.in.0(
// CHECK-SAME: #pipeline.groups<grad x 2, share x 1>, pipeline.results = #pipeline.groups<grad x 2>, pipeline.ties = array<i64: 0>
// CHECK-NEXT: %[[WTE:.*]] = nn.accumulate %arg2 into %arg1
// CHECK-NEXT: return %arg0, %[[WTE]]
// CHECK: func.func private @s0.tie.fresh.0(
// CHECK-NEXT: nn.copy %arg1

// The head is late: F of its piece does nothing, B makes logits, loss (1 / 4 microbatches of 8 tokens) and gradients.
// CHECK: func.func private @s1.F()
// CHECK-NEXT: return
// CHECK: func.func private @s1.B(
// CHECK-SAME: #pipeline.groups<act x 1, targets x 1, weight x 2, grad x 2>, pipeline.results = #pipeline.groups<dact x 1, grad x 2, loss x 1>
// CHECK-NEXT: %[[N:[a-z0-9]+]], %{{.*}} = nn.rmsnorm
// CHECK-NEXT: %[[Z:.*]] = nn.linear %[[N]], %arg3 {transposed = true}
// CHECK-NEXT: %[[DZ:.*]], %[[LOSS:.*]] = nn.cross_entropy_bwd %[[Z]], %arg1 {scale = 3.125000e-02 : f64}
// CHECK-NEXT: nn.linear_dw %[[N]], %[[DZ]] into %arg5 {transposed = true}
// CHECK-NEXT: nn.linear_dx %[[DZ]], %arg3 {transposed = true}
// CHECK: return {{.*}}, %[[LOSS]] :

// The owner counts a shared weight's gradient; here it is neither counted nor updated, its new value is copied in.
// CHECK: func.func private @s1.norm.first(
// CHECK-NEXT: %[[SUM:.*]] = nn.sum_squares %arg0 : (tensor<16xf32>)
// CHECK-NEXT: return %[[SUM]]
// CHECK: func.func private @s1.U(
// CHECK-SAME: #pipeline.groups<weight x 2, grad x 2, opt x 3, norm x 1, fresh x 1>
// CHECK-NEXT: nn.adamw %arg2 norm %arg7 into %arg0, %arg4, %arg5, %arg6 :
// CHECK-NEXT: nn.copy %arg8 into %arg1
// CHECK: func.func private @s1.tie.out(
// CHECK-SAME: #pipeline.groups<grad x 2>, pipeline.results = #pipeline.groups<share x 1>, pipeline.ties = array<i64: -1>
// CHECK-NEXT: nn.copy %arg1
