// A layer on three slices of a sequence of 8: positions, the chunks of keys that each body reads, sums it goes on with.
// RUN: pp-opt %s --pp-derive-tasks | FileCheck %s

!x = tensor<1x8x16xbf16>
!w = tensor<16x16xbf16>

func.func private @embed(%t: tensor<1x8xi32> {nn.data = "tokens"}, %e: !w {nn.weight = #nn.weight<"e">},
    %p: tensor<8x16xbf16> {nn.weight = #nn.weight<"p">}) -> !x {
  %a = nn.embedding %t, %e : (tensor<1x8xi32>, !w) -> !x
  %b = nn.positions %t, %p : (tensor<1x8xi32>, tensor<8x16xbf16>) -> !x
  %c = nn.add %a, %b : (!x, !x) -> !x
  return %c : !x
}
func.func private @attn(%x: !x, %wk: !w {nn.weight = #nn.weight<"wk">}) -> !x {
  %k = nn.linear %x, %wk : (!x, !w) -> !x
  %r = nn.rope %k {heads = 4 : i64} : (!x) -> !x
  %v = nn.gelu %x : (!x) -> !x
  %o, %lse = nn.attention %x, %r, %v {heads = 4 : i64, causal = true} : (!x, !x, !x) -> (!x, tensor<1x4x8xf32>)
  return %o : !x
}

// 8 tokens in 3 slices: 3, 3 and 2. Bodies are numbered by slice.
pipeline.program @p ranks 1 microbatches 2 slices 3 attributes {train = {sequence = 8 : i64}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1], ["attn", 0]]
  pipeline.unit <B stage 0 mb 0 slice 0> on [0]
}

// The first slice makes chunk 0 and sees nothing else; tokens are those of the slice alone.
// CHECK: func.func private @s0.F.0(%arg0: tensor<1x3xi32>
// CHECK-SAME: pipeline.results = #pipeline.groups<act x 1, kv[0] x 2,
// CHECK: nn.positions
// CHECK-NOT: offset
// CHECK: nn.attention %{{.*}}, %{{.*}}, %{{.*}} {causal = true, heads = 4 : i64}
// Its backward comes last: chunk 0 has the parts of slices 1 and 2, its own is added, and the sum is rounded, once.
// CHECK: func.func private @s0.B.0(
// CHECK-SAME: pipeline.inputs = #pipeline.groups<tokens x 1, stash x {{[0-9]+}}, weight x 3, kv[0] x 2, dkv[0] x 2, dact x 1, grad x 3>
// CHECK-SAME: pipeline.results = #pipeline.groups<dkv[0] x 2, grad x 3>, pipeline.ties = array<i64: 4, 6>
// CHECK: %{{.*}}, %[[SUM:.*]]:2 = nn.attention_bwd {{.*}} into_kv %{{.*}}, %{{.*}} {{.*}} -> (tensor<1x3x16xbf16>, tensor<1x3x16xf32>, tensor<1x3x16xf32>)
// CHECK-DAG: nn.round %[[SUM]]#0 to bf16
// CHECK-DAG: nn.round %[[SUM]]#1 to bf16
// CHECK: nn.positions_dw
// CHECK-NOT: offset
// CHECK: return

// The second slice reads chunk 0 where it is and makes chunk 1.
// CHECK: func.func private @s0.F.1(
// CHECK-SAME: pipeline.inputs = #pipeline.groups<tokens x 1, kv[0] x 2, weight x 3>
// CHECK-SAME: pipeline.results = #pipeline.groups<act x 1, kv[1] x 2,
// CHECK: nn.positions {{.*}} {offset = 3 : i64}
// CHECK: nn.rope {{.*}}offset = 3 : i64
// CHECK: nn.attention {{.*}}offset = 3 : i64
// It adds to both sums; that of its own keys is whole.
// CHECK: func.func private @s0.B.1(
// CHECK-SAME: kv[0] x 2, kv[1] x 2, dkv[0] x 2, dkv[1] x 2, dact x 1
// CHECK-SAME: pipeline.results = #pipeline.groups<dkv[0] x 2, dkv[1] x 2,
// CHECK: nn.attention_bwd {{.*}} into_kv %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}} {
// CHECK: nn.rope {{.*}}inverse = true, offset = 3 : i64

// The last slice, of two tokens, begins the sums of the chunks before it; nobody adds to those of its own keys.
// CHECK: func.func private @s0.F.2(%arg0: tensor<1x2xi32>
// CHECK: nn.attention {{.*}}offset = 6 : i64
// CHECK: func.func private @s0.B.2(
// CHECK-SAME: kv[0] x 2, kv[1] x 2, kv[2] x 2, dact x 1, grad x 3>
// CHECK-SAME: pipeline.results = #pipeline.groups<dkv[0] x 2, dkv[1] x 2, grad x 3>
// CHECK: nn.attention_bwd
// CHECK-NOT: into_kv
// CHECK-SAME: sums = true
