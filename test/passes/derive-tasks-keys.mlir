// Keys of slices that the piece before the attention makes: F gives them, attentions read them all, backwards make shares.
// RUN: pp-opt %s --pp-derive-tasks | FileCheck %s

!x = tensor<1x8x16xbf16>
!w = tensor<16x16xbf16>

func.func private @qkv(%x: !x, %wk: !w {nn.weight = #nn.weight<"wk">}) -> (!x, !x, !x) {
  %k = nn.linear %x, %wk : (!x, !w) -> !x
  %r = nn.rope %k {heads = 4 : i64} : (!x) -> !x
  %v = nn.gelu %x : (!x) -> !x
  return %r, %x, %v : !x, !x, !x
}
func.func private @attn(%k: !x, %q: !x, %v: !x) -> !x {
  %o, %lse = nn.attention %q, %k, %v {heads = 4 : i64, causal = true} : (!x, !x, !x) -> (!x, tensor<1x4x8xf32>)
  return %o : !x
}
// Its keys come from the piece before, too, but something else reads them.
func.func private @reads_keys(%k: !x, %q: !x, %v: !x) -> !x {
  %o, %lse = nn.attention %q, %k, %v {heads = 4 : i64, causal = true} : (!x, !x, !x) -> (!x, tensor<1x4x8xf32>)
  %s = nn.add %o, %k : (!x, !x) -> !x
  return %s : !x
}

pipeline.program @p ranks 1 microbatches 1 slices 2 attributes {train = {sequence = 8 : i64}} {
  pipeline.piece @qkv0 <part "qkv" 0> parts [["qkv", 0]]
  pipeline.piece @attn0 <part "attn" 0> parts [["attn", 0]]
  pipeline.unit <B part "qkv" 0 mb 0 slice 0> on [0]
  pipeline.unit <B part "attn" 0 mb 0 slice 0> on [0]
}

// Of the three values that go on the second is the activation, the others are keys. Their gradient comes in the type of sums
// and is rounded once.
// CHECK: func.func private @qkv0.F.0(%arg0: tensor<1x4x16xbf16>
// CHECK-SAME: pipeline.results = #pipeline.groups<act x 1, keys x 2
// CHECK: func.func private @qkv0.B.0(
// CHECK-SAME: tensor<1x4x16xf32>, %{{[a-z0-9]*}}: tensor<1x4x16xf32>
// CHECK-SAME: dact x 1, dkeys x 2, grad x 1>
// CHECK: nn.round
// CHECK: nn.round

// The first slice reads its own chunk; the gradient of one chunk is in the type of sums as that of several.
// CHECK: func.func private @attn0.F.0(
// CHECK-SAME: pipeline.inputs = #pipeline.groups<act x 1, kv[0] x 2>
// CHECK-SAME: pipeline.results = #pipeline.groups<act x 1, stash x {{[0-9]}}>
// CHECK: func.func private @attn0.B.0(
// CHECK-SAME: -> (tensor<1x4x16xbf16>, tensor<1x4x16xf32>, tensor<1x4x16xf32>)
// CHECK-SAME: pipeline.results = #pipeline.groups<dact x 1, dkv[0] x 2>, pipeline.ties = array<i64: -1, -1>
// The second reads both chunks and makes a share of both gradients.
// CHECK: func.func private @attn0.F.1(
// CHECK-SAME: pipeline.inputs = #pipeline.groups<act x 1, kv[0] x 2, kv[1] x 2>
// CHECK-SAME: pipeline.results = #pipeline.groups<act x 1, stash x {{[0-9]}}>
// CHECK: func.func private @attn0.B.1(
// CHECK-SAME: pipeline.results = #pipeline.groups<dact x 1, dkv[0] x 2, dkv[1] x 2>, pipeline.ties = array<i64: -1, -1, -1>

pipeline.program @q ranks 1 microbatches 1 slices 2 attributes {train = {sequence = 8 : i64}} {
  pipeline.piece @qkv1 <part "qkv" 1> parts [["qkv", 1]]
  pipeline.piece @reads1 <part "attn" 1> parts [["reads_keys", 1]]
  pipeline.unit <B part "qkv" 1 mb 0 slice 0> on [0]
  pipeline.unit <B part "attn" 1 mb 0 slice 0> on [0]
}
// CHECK: func.func private @qkv1.F.0(
// CHECK-SAME: pipeline.results = #pipeline.groups<act x 3
// CHECK: func.func private @reads1.F.0(
// CHECK-SAME: pipeline.inputs = #pipeline.groups<act x 3>
// CHECK-SAME: pipeline.results = #pipeline.groups<act x 1, kv[0] x 2
