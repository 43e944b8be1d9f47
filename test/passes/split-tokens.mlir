// A head whose losses are formulas of tokens, cut by the schedule's shards, over `tensor`, and over `context`.
// RUN: pp-opt %s --pp-split-vocabulary | FileCheck %s --check-prefix=SHARDS
// RUN: pp-opt %s --pp-split-parts | FileCheck %s --check-prefix=TENSOR
// RUN: sed 's/tensor 2, context 1/tensor 1, context 2/' %s | pp-opt --pp-cut-sequences | FileCheck %s --check-prefix=CONTEXT

!x = tensor<1x8x16xf32>
!t = tensor<1x8xi32>
!r = tensor<1x8xf32>
!z = tensor<1x8x34xf32>

func.func private @post(%x: !x) -> !x {
  return %x : !x
}

// What precedes the logits joins the piece before. Each shard makes statistics of its columns, which are of a formula of
// each logit; from those of all shards it makes the rest alike, and the last one gives losses and reports.
// SHARDS-LABEL: func.func private @head.before(
// SHARDS: nn.rmsnorm
// SHARDS-NEXT: return
// SHARDS-LABEL: func.func private @head.0(
// SHARDS-SAME: %[[X:[^:]*]]: tensor<1x8x16xf32>, %[[T:[^:]*]]: tensor<1x8xi32> {nn.data = "targets"}
// SHARDS-SAME: %[[IDS:[^:]*]]: tensor<1x8x4xi32> {{{[^}]*}}nn.data = "column"}, %[[S:[^:]*]]: tensor<1x8xi32> {nn.data = "starts"}
// SHARDS-SAME: tensor<16x17xf32> {nn.weight
// SHARDS-SAME: %{{[^:]*}}: tensor<1x8x4xf32> {nn.stats}, %{{[^:]*}}: tensor<1x8x7xf32> {nn.stats}, %[[A:[^:]*]]: tensor<1x8x4xf32> {nn.stats}, %[[B:[^:]*]]: tensor<1x8x7xf32> {nn.stats}) {
// SHARDS-NEXT: %[[Z:.*]] = nn.linear %[[X]]
// SHARDS-NEXT: %[[H:.*]] = nn.map reads(%[[Z]]
// SHARDS: %[[P:.*]] = nn.cross_entropy_stats %[[H]], %[[T]] picks %[[T]] {softcap = 3.000000e+01 : f64, vocab = 34 : i64} : {{.*}} -> tensor<1x8x4xf32>
// SHARDS-NEXT: %[[Q:.*]] = nn.cross_entropy_stats %[[Z]], %[[T]] picks %[[IDS]] {vocab = 34 : i64} : {{.*}} -> tensor<1x8x7xf32>
// SHARDS-NEXT: %[[M:.*]] = nn.cross_entropy_merge %[[P]], %[[A]]
// SHARDS-NEXT: %[[L:.*]], %{{.*}}, %{{.*}}, %{{.*}} = nn.token_rows %[[M]], %[[T]], %[[T]]
// SHARDS-NEXT: %[[N:.*]] = nn.cross_entropy_merge %[[Q]], %[[B]]
// SHARDS-NEXT: nn.token_rows %[[N]], %[[T]], %[[IDS]] : {{.*}}tensor<1x8x4xf32>)
// SHARDS-NEXT: nn.segment_sum %[[L]], %[[T]], %[[S]]
// SHARDS-NEXT: nn.token_mean
// SHARDS: return{{$}}
// SHARDS-LABEL: func.func private @head.1(
// SHARDS: nn.cross_entropy_stats %{{.*}} {first = 17 : i64, softcap = 3.000000e+01 : f64, vocab = 34 : i64}
// SHARDS: %[[M0:.*]] = nn.token_mean %{{.*}} from
// SHARDS-NEXT: %[[M1:.*]] = nn.token_mean %{{.*}} {report = 0 : i64}
// SHARDS-NEXT: return %[[M0]], %[[M1]]

// Each device has its columns; what devices hand each other is one row of numbers for each token.
// TENSOR-LABEL: func.func private @head(
// TENSOR: %[[Z:.*]] = nn.linear {{.*}} -> tensor<1x8x17xf32>
// TENSOR-NEXT: %[[H:.*]] = nn.map reads(%[[Z]]
// TENSOR: %[[P:.*]] = nn.cross_entropy_stats %[[H]], %[[T:.*]] picks %[[T]] {first_by = #nn.axes<tensor>, softcap = 3.000000e+01 : f64, vocab = 34 : i64}
// TENSOR-NEXT: %[[ALL:.*]] = nn.all_gather %[[P]] over <tensor> {dim = 0 : i64, members = 2 : i64} : (tensor<1x8x4xf32>) -> tensor<2x8x4xf32>
// TENSOR: %[[M:.*]] = nn.cross_entropy_merge
// TENSOR-NEXT: nn.token_rows %[[M]]
// TENSOR: nn.cross_entropy_stats %[[Z]]
// TENSOR-SAME: first_by
// TENSOR-NOT: nn.all_gather {{.*}}x17xf32

// Sums over documents see whole rows of numbers, gathered, and so do means over documents with their targets.
// CONTEXT-LABEL: func.func private @head(
// CONTEXT: %[[L:.*]], %{{.*}}, %{{.*}}, %{{.*}} = nn.token_stats {{.*}}tensor<1x4xi32>, tensor<1x4xi32>)
// CONTEXT: %[[V:.*]] = nn.gather_runs %[[L]] over <context> {{.*}} : (tensor<1x4xf32>) -> tensor<1x8xf32>
// CONTEXT-NEXT: %[[T:.*]] = nn.gather_runs %{{.*}} : (tensor<1x4xi32>) -> tensor<1x8xi32>
// CONTEXT-NEXT: %[[S:.*]] = nn.gather_runs
// CONTEXT-NEXT: %[[Y:.*]] = nn.segment_sum %[[V]], %[[T]], %[[S]] {zigzag = 2 : i64} : {{.*}} -> tensor<1x4xf32>
// CONTEXT-NEXT: nn.token_mean %[[Y]], %[[T]] from %[[S]] {counted, divisor = 20 : i64, zigzag = 2 : i64}
// CONTEXT-NEXT: nn.token_mean %[[L]], %{{.*}} {report = 0 : i64} : (tensor<1x4xf32>, tensor<1x4xi32>)
func.func private @head(%x: !x, %targets: !t {nn.data = "targets"},
    %ids: tensor<1x8x4xi32> {nn.data = "column", nn.column = 0 : i64}, %starts: !t {nn.data = "starts"},
    %g: tensor<16xf32> {nn.weight = #nn.weight<"g">}, %w: tensor<16x34xf32> {nn.weight = #nn.weight<"w">})
    -> (tensor<1xf32>, tensor<1xf32>) {
  %n, %r = nn.rmsnorm %x, %g : (!x, tensor<16xf32>) -> (!x, !r)
  %z = nn.linear %n, %w : (!x, tensor<16x34xf32>) -> !z
  %h = nn.map reads(%z: "thd") makes("thd") heads 1 {
  ^bb0(%c: f32):
    %d = arith.mulf %c, %c : f32
    nn.give %d : f32
  } : (!z) -> !z
  %a:4 = nn.token_stats %h, %targets, %targets {softcap = 30.0} : (!z, !t, !t) -> (!r, !r, !r, !r)
  %b:4 = nn.token_stats %z, %targets, %ids : (!z, !t, tensor<1x8x4xi32>) -> (!r, !r, !r, tensor<1x8x4xf32>)
  %y = nn.segment_sum %a#0, %targets, %starts : (!r, !t, !t) -> !r
  %loss = nn.token_mean %y, %targets from %starts {counted, divisor = 20} : (!r, !t, !t) -> tensor<1xf32>
  %told = nn.token_mean %a#0, %targets {report = 0} : (!r, !t) -> tensor<1xf32>
  return %loss, %told : tensor<1xf32>, tensor<1xf32>
}

pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {sequence = 8}, mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 2>} {
  pipeline.piece @s0 <stage 0> parts [["post", 0]] at <[0] full> homes <[0] full> owner <[0] full>
  pipeline.piece @head <part "head"> parts [["head", -1]] at <[0, 1] shard> homes <[0, 1] shard> owner <[0, 1] shard>
}
