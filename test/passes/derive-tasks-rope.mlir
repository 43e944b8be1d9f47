// A rope behind a norm of heads is made again from what the norm's gradient needs anyway; one behind a linear is saved.
// RUN: pp-opt %s --pp-derive-tasks | FileCheck %s

!x = tensor<1x8x16xf32>
!square = tensor<16x16xf32>
func.func private @attn(%x: !x, %wq: !square {nn.weight = #nn.weight<"wq">}, %wk: !square {nn.weight = #nn.weight<"wk">},
                        %g: tensor<16xf32> {nn.weight = #nn.weight<"g">}) -> !x {
  %q = nn.linear %x, %wq : (!x, !square) -> !x
  %n, %r = nn.rmsnorm %q, %g : (!x, tensor<16xf32>) -> (!x, tensor<1x8xf32>)
  %qr = nn.rope %n {heads = 4 : i64} : (!x) -> !x
  %k = nn.linear %x, %wk : (!x, !square) -> !x
  %kr = nn.rope %k {heads = 4 : i64} : (!x) -> !x
  %o, %lse = nn.attention %qr, %kr, %x {heads = 4 : i64, causal = true} : (!x, !x, !x) -> (!x, tensor<1x4x8xf32>)
  return %o : !x
}
pipeline.program @p ranks 1 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["attn", 0]]
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <B stage 0 mb 0> on [0]
}

// Saved are q, 1 / rms, the turned k, o and its statistic: not the normed q, nor the turned one.
// CHECK: func.func private @s0.F(
// CHECK-SAME: pipeline.results = #pipeline.groups<act x 1, stash x 5>
// CHECK: %[[Q:.*]] = nn.linear
// CHECK: %[[N:.*]], %[[R:.*]] = nn.rmsnorm %[[Q]]
// CHECK: nn.rope %[[N]]
// CHECK: func.func private @s0.B(
// CHECK: %[[AGAIN:.*]] = nn.rmsnorm_rebuild
// CHECK-NEXT: %[[TURNED:.*]] = nn.rope %[[AGAIN]] {heads = 4 : i64}
// CHECK-NOT: nn.rope
// CHECK: nn.attention_bwd %{{[^,]*}}, %[[TURNED]],
