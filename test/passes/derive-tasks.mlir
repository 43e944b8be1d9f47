// A llama layer as one piece, kappa = 1/2, phi = 3/2, A = tensor<1x8x16>: what F saves, and how B uses it.
// RUN: pp-opt %s --pp-derive-tasks | FileCheck %s

!x = tensor<1x8x16xf32>
!kv = tensor<1x8x8xf32>
!ffn = tensor<1x8x24xf32>
!row = tensor<1x8xf32>
!square = tensor<16x16xf32>

func.func private @attn(%x: !x, %g: tensor<16xf32> {nn.weight = #nn.weight<"g" as "layers.{l}.norm" one>},
    %wq: !square {nn.weight = #nn.weight<"wq" as "layers.{l}.q" normal 0.02 transposed>},
    %wk: tensor<16x8xf32> {nn.weight = #nn.weight<"wk">}, %wv: tensor<16x8xf32> {nn.weight = #nn.weight<"wv">}) -> (!x, !x) {
  %a, %r = nn.rmsnorm %x, %g : (!x, tensor<16xf32>) -> (!x, !row)
  %q = nn.linear %a, %wq : (!x, !square) -> !x
  %k = nn.linear %a, %wk : (!x, tensor<16x8xf32>) -> !kv
  %v = nn.linear %a, %wv : (!x, tensor<16x8xf32>) -> !kv
  %qr = nn.rope %q {heads = 4 : i64} : (!x) -> !x
  %kr = nn.rope %k {heads = 2 : i64} : (!kv) -> !kv
  %o, %lse = nn.attention %qr, %kr, %v {heads = 4 : i64, kv_heads = 2 : i64, causal = true} : (!x, !kv, !kv) -> (!x, tensor<1x4x8xf32>)
  return %o, %x : !x, !x
}
func.func private @mlp(%o: !x, %x: !x, %wo: !square {nn.weight = #nn.weight<"wo">}, %g: tensor<16xf32> {nn.weight = #nn.weight<"g">},
    %wg: tensor<16x24xf32> {nn.weight = #nn.weight<"gate">}, %wu: tensor<16x24xf32> {nn.weight = #nn.weight<"up">},
    %wd: tensor<24x16xf32> {nn.weight = #nn.weight<"down">}) -> !x {
  %p = nn.linear %o, %wo : (!x, !square) -> !x
  %y = nn.add %x, %p : (!x, !x) -> !x
  %n, %r = nn.rmsnorm %y, %g : (!x, tensor<16xf32>) -> (!x, !row)
  %gate = nn.linear %n, %wg : (!x, tensor<16x24xf32>) -> !ffn
  %up = nn.linear %n, %wu : (!x, tensor<16x24xf32>) -> !ffn
  %s = nn.swiglu %gate, %up : (!ffn, !ffn) -> !ffn
  %d = nn.linear %s, %wd : (!ffn, tensor<24x16xf32>) -> !x
  %z = nn.add %y, %d : (!x, !x) -> !x
  return %z : !x
}

// The second piece shares the bodies of the first; its weights carry its own layer's names.
// CHECK: pipeline.piece @s0 {{.*}} bodies "s0"
// CHECK-SAME: <"layers.0.norm" : tensor<16xf32> declared <"g"{{.*}} one>
// CHECK-SAME: <"layers.0.q" : tensor<16x16xf32> declared <"wq"{{.*}} normal 2.000000e-02 transposed>
// CHECK-SAME: <"attn.0.wk" :
// CHECK: pipeline.piece @s1 {{.*}} bodies "s0"{{.*}}<"layers.1.norm" :
pipeline.program @p ranks 1 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["attn", 0], ["mlp", 0]]
  pipeline.piece @s1 <stage 1> parts [["attn", 1], ["mlp", 1]]
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <B stage 1 mb 0> on [0]
}

// F saves 4 + 2 kappa + 2 phi = 8 A, one of them x, which stays where it came: 7 A and the statistics (docs/derivatives.md).
// CHECK: func.func private @s0.F(
// CHECK-SAME: -> (tensor<1x8x16xf32>, tensor<1x8xf32>, tensor<1x8x8xf32>, tensor<1x8x16xf32>, tensor<1x8x8xf32>,
// CHECK-SAME: tensor<1x8x16xf32>, tensor<1x4x8xf32>, tensor<1x8x16xf32>, tensor<1x8xf32>, tensor<1x8x24xf32>, tensor<1x8x24xf32>)
// CHECK-SAME: pipeline.inputs = #pipeline.groups<act x 1, weight x 9>, pipeline.results = #pipeline.groups<act x 1, stash x 10>, pipeline.ties = array<i64: -1, -1>
// CHECK-NOT: nn.rmsnorm_rebuild

// B makes again what elementwise kernels can, right before the gradient that reads it, weights before activations.
// CHECK: func.func private @s0.B(
// CHECK-SAME: pipeline.inputs = #pipeline.groups<act x 1, stash x 10, weight x 9, dact x 1, grad x 9>
// CHECK-SAME: pipeline.results = #pipeline.groups<dact x 1, grad x 9>, pipeline.ties = array<i64: -1, 4>
// CHECK-NEXT: %[[S:.*]] = nn.swiglu
// CHECK-NEXT: nn.linear_dw %[[S]], %[[DZ:arg[0-9]+]] into
// CHECK-NEXT: %[[DS:.*]] = nn.linear_dx
// CHECK-NEXT: nn.swiglu_bwd %[[DS]]
// CHECK-NEXT: %[[N:.*]] = nn.rmsnorm_rebuild
// CHECK-NEXT: nn.linear_dw %[[N]]
// CHECK-NEXT: %[[UP:.*]] = nn.linear_dx
// CHECK-NEXT: nn.linear_dw %[[N]]
// CHECK-NEXT: %[[DN:.*]] = nn.linear_dx {{.*}} into %[[UP]]
// The residual's gradient goes on in place; what arrived may not be written, so it is copied.
// CHECK-NEXT: %[[COPY:.*]] = nn.copy %[[DZ]]
// CHECK-NEXT: %[[DY:[a-z0-9]+]], %[[HAND:.*]] = nn.rmsnorm_bwd %[[DN]], {{.*}} into %[[COPY]]
// CHECK-NEXT: nn.accumulate %[[HAND]] into
// CHECK-NEXT: nn.linear_dw {{.*}}, %[[DY]] into
// CHECK-NEXT: %[[DO:.*]] = nn.linear_dx %[[DY]]
// CHECK-NEXT: %[[DELTA:.*]] = nn.attention_delta %[[DO]]
// CHECK-NEXT: %{{.*}}, %[[DKV:.*]]:2 = nn.attention_bwd %[[DO]], {{.*}}, %[[DELTA]],
// CHECK-NEXT: nn.rope %[[DKV]]#0 {heads = 2 : i64, inverse = true}
// CHECK-NEXT: nn.rope {{.*}} {heads = 4 : i64, inverse = true}
// CHECK-NEXT: %[[A:.*]] = nn.rmsnorm_rebuild %arg0
// CHECK-NEXT: nn.linear_dw %[[A]], %[[DKV]]#1
// CHECK: nn.rmsnorm_bwd {{.*}} into %[[DY]]

// The first backward of a step writes its gradients: no operand to add to.
// CHECK: func.func private @s0.B.first(
// CHECK-SAME: dact x 1>, pipeline.results = #pipeline.groups<dact x 1, grad x 9>, pipeline.ties = array<i64: -1, -1>
// CHECK-NOT: nn.accumulate
// CHECK: return

// No I, W or R in the program, no such bodies.
// CHECK-NOT: @s0.{{[IWR]}}
