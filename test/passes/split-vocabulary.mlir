// An embedding and a head at `shard(ranks)`: a function, a piece and units for every rank; the rest joins the neighbours.
// RUN: pp-opt %s --pp-split-vocabulary | FileCheck %s

!x = tensor<1x8x16xf32>
!t = tensor<1x8xi32>
!table = tensor<33x16xf32>

// Rows [0, 16) of 33 on rank 0, the other 17 on rank 1; positions are added once, to the sum, in the piece behind.
// CHECK-LABEL: func.func private @embed.after(
// CHECK-SAME: %[[E:.*]]: tensor<1x8x16xf32>, %[[T:.*]]: tensor<1x8xi32> {nn.data = "tokens"}, %[[P:.*]]: tensor<8x16xf32> {nn.weight = #nn.weight<"wpe" normal 0.000000e+00>}) -> tensor<1x8x16xf32>
// CHECK-NEXT: %[[Q:.*]] = nn.positions %[[T]], %[[P]]
// CHECK-NEXT: %[[S:.*]] = nn.add %[[E]], %[[Q]]
// CHECK-NEXT: return %[[S]]
// CHECK-LABEL: func.func private @embed.0(
// CHECK-SAME: tensor<16x16xf32> {nn.weight = #nn.weight<"wte" as "wte" normal 0.000000e+00 shared>}
// CHECK-NEXT: %[[R:.*]] = nn.embedding %{{.*}} {first = 0 : i64, whole = 33 : i64}
// CHECK-NEXT: return %[[R]]
// CHECK-LABEL: func.func private @embed.1(
// CHECK-SAME: tensor<17x16xf32>
// CHECK-NEXT: nn.embedding %{{.*}} {first = 16 : i64, whole = 33 : i64}
func.func private @embed(%tokens: !t {nn.data = "tokens"}, %p: tensor<8x16xf32> {nn.weight = #nn.weight<"wpe">},
    %wte: !table {nn.weight = #nn.weight<"wte" as "wte" shared>}) -> !x {
  %0 = nn.embedding %tokens, %wte : (!t, !table) -> !x
  %1 = nn.positions %tokens, %p : (!t, tensor<8x16xf32>) -> !x
  %2 = nn.add %0, %1 : (!x, !x) -> !x
  return %2 : !x
}

func.func private @post(%x: !x) -> !x {
  return %x : !x
}

// The norm joins the piece before. Each shard caps its logits, and merges its own statistics with those of the others; the last gives the loss.
// CHECK-LABEL: func.func private @head.before(
// CHECK-SAME: %[[X:.*]]: tensor<1x8x16xf32>, %[[G:.*]]: tensor<16xf32> {nn.weight = #nn.weight<"g" normal 0.000000e+00>}) -> tensor<1x8x16xf32>
// CHECK-NEXT: %[[N:.*]], %{{.*}} = nn.rmsnorm %[[X]], %[[G]]
// CHECK-NEXT: return %[[N]]
// CHECK-LABEL: func.func private @head.0(
// CHECK-SAME: %[[O:.*]]: tensor<1x8x3xf32> {nn.stats}, %[[OTHER:.*]]: tensor<1x8x3xf32> {nn.stats}) {
// CHECK-NEXT: %[[Z:.*]] = nn.linear %{{.*}}, %{{.*}} {transposed = true} : (tensor<1x8x16xf32>, tensor<16x16xf32>) -> tensor<1x8x16xf32>
// CHECK-NEXT: %[[OWN:.*]] = nn.cross_entropy_stats %[[Z]], %{{.*}} {softcap = 3.000000e+01 : f64, vocab = 33 : i64}
// CHECK-NEXT: %[[M:.*]] = nn.cross_entropy_merge %[[OWN]], %[[OTHER]]
// CHECK-NEXT: nn.cross_entropy_loss %[[M]]
// CHECK-NEXT: return{{$}}
// CHECK-LABEL: func.func private @head.1(
// CHECK: %[[L:.*]] = nn.cross_entropy_loss
// CHECK-NEXT: return %[[L]]
func.func private @head(%x: !x, %targets: !t {nn.data = "targets"}, %g: tensor<16xf32> {nn.weight = #nn.weight<"g">},
    %wte: !table {nn.weight = #nn.weight<"wte" as "wte" shared>}) -> tensor<1xf32> {
  %n, %r = nn.rmsnorm %x, %g : (!x, tensor<16xf32>) -> (!x, tensor<1x8xf32>)
  %w = nn.transpose %wte : (!table) -> tensor<16x33xf32>
  %z = nn.linear %n, %w : (!x, tensor<16x33xf32>) -> tensor<1x8x33xf32>
  %loss = nn.cross_entropy %z, %targets {softcap = 30.0} : (tensor<1x8x33xf32>, !t) -> tensor<1xf32>
  return %loss : tensor<1xf32>
}

pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  // CHECK: pipeline.piece @embed0 <part "embed" 0> parts {{\[\[}}"embed.0", -1]] at <[0]> homes <[0]> owner <[0]> vocabulary <first 0 of tensor<33x16xf32> in 2 shards>
  // CHECK-NEXT: pipeline.piece @embed1 <part "embed" 1> parts {{\[\[}}"embed.1", -1]] at <[1]>
  pipeline.piece @embed <part "embed"> parts [["embed", -1]] at <[1, 0] shard> homes <[1, 0] shard> owner <[1, 0] shard>
  // CHECK-NEXT: pipeline.piece @s0 <stage 0> parts {{\[\[}}"embed.after", -1], ["post", 0], ["head.before", -1]]
  pipeline.piece @s0 <stage 0> parts [["post", 0]] at <[0] full> homes <[0] full> owner <[0] full>
  // CHECK-NEXT: pipeline.piece @head0
  // CHECK-NEXT: pipeline.piece @head1
  pipeline.piece @head <part "head"> parts [["head", -1]] at <[0, 1] shard> homes <[0, 1] shard> owner <[0, 1] shard>
  // Outside `on` all shards at once.
  // CHECK: pipeline.together {
  // CHECK-NEXT: pipeline.unit <F part "embed" 0 mb 0> on [0]
  // CHECK-NEXT: pipeline.unit <F part "embed" 1 mb 0> on [1]
  // CHECK-NEXT: }
  pipeline.unit <F part "embed" mb 0> on [0, 1]
  // Inside `on 1` that rank's alone.
  // CHECK-NEXT: pipeline.unit <F part "head" 1 mb 0> on [1]
  pipeline.unit <F part "head" mb 0> on [1]
}
