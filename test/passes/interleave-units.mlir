// Two bodies of two equal products with a sum of devices behind each: while one waits for its sum, the other computes.
// A sum is taken for as long as a product, the mean of what is computed between two sums. The last turn only waits for the
// first body's last sum. Bodies without sums have none to hide, and run one after the other.
// RUN: pp-opt %s --pp-interleave-units | FileCheck %s

!x = tensor<8x8xf32>
!s = !pipeline.slot<tuple<!x>>

func.func private @sums(%x: !x, %w: !x) -> !x attributes {
    pipeline.inputs = #pipeline.groups<act x 1, dact x 1>, pipeline.results = #pipeline.groups<act x 1>,
    pipeline.ties = array<i64: -1>} {
  %a = nn.linear %x, %w : (!x, !x) -> !x
  %b = nn.all_reduce %a over <tensor> : (!x) -> !x
  %c = nn.linear %b, %w : (!x, !x) -> !x
  %d = nn.all_reduce %c over <tensor> : (!x) -> !x
  return %d : !x
}

func.func private @alone(%x: !x, %w: !x) -> !x attributes {
    pipeline.inputs = #pipeline.groups<act x 1, dact x 1>, pipeline.results = #pipeline.groups<act x 1>,
    pipeline.ties = array<i64: -1>} {
  %a = nn.linear %x, %w : (!x, !x) -> !x
  return %a : !x
}

// CHECK-LABEL: pipeline.program @p
pipeline.program @p ranks 1 microbatches 4 slices 0 attributes {train = {}, mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 {
    %x = pipeline.slot act "x" : !s
    %w = pipeline.slot act "w" : !s
    %y = pipeline.slot act "y" : !s
    %z = pipeline.slot act "z" : !s
    // CHECK: launch @sums <F stage 0 mb 0>{{.*}} beside [2, 2, 2, 2, 0] :
    pipeline.launch @sums <F stage 0 mb 0>(%x, %w) -> (%y) beside [] : (!s, !s) -> !s
    pipeline.launch @sums <F stage 0 mb 1>(%x, %w) -> (%z) : (!s, !s) -> !s
    // CHECK: launch @alone <F stage 0 mb 2>{{.*}} beside [1, 1] :
    pipeline.launch @alone <F stage 0 mb 2>(%x, %w) -> (%y) beside [] : (!s, !s) -> !s
    pipeline.launch @alone <F stage 0 mb 3>(%x, %w) -> (%z) : (!s, !s) -> !s
  }
}
