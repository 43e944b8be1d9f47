// A unit with an R runs the light F: the stash is R's, only the inputs wait; one without keeps its stash itself.
// RUN: pp-opt %s --pp-derive-tasks --pp-complete-step | FileCheck %s

!x = tensor<1x8x16xf32>
func.func private @up(%x: !x, %w: tensor<16x16xf32> {nn.weight = #nn.weight<"w">}) -> !x {
  %0 = nn.linear %x, %w : (!x, tensor<16x16xf32>) -> !x
  %1 = nn.gelu %0 : (!x) -> !x
  return %1 : !x
}
func.func private @last(%t: tensor<1x8xi32> {nn.data = "tokens"}, %w: tensor<32x16xf32> {nn.weight = #nn.weight<"w">}) -> !x {
  %0 = nn.embedding %t, %w : (tensor<1x8xi32>, tensor<32x16xf32>) -> !x
  return %0 : !x
}
func.func private @loss(%x: !x, %t: tensor<1x8xi32> {nn.data = "targets"}, %w: tensor<16x32xf32> {nn.weight = #nn.weight<"w">}) -> tensor<1xf32> {
  %0 = nn.linear %x, %w : (!x, tensor<16x32xf32>) -> tensor<1x8x32xf32>
  %1 = nn.cross_entropy %0, %t : (tensor<1x8x32xf32>, tensor<1x8xi32>) -> tensor<1xf32>
  return %1 : tensor<1xf32>
}

pipeline.program @p ranks 1 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["last", -1]] at <[0]>
  pipeline.piece @s1 <stage 1> parts [["up", 0]] at <[0]>
  pipeline.piece @s2 <stage 2> parts [["loss", -1]] at <[0]>
  // CHECK: %[[A0:.*]] = pipeline.task @s0.F <F stage 0 mb 0>
  // CHECK: %[[A1:.*]] = pipeline.task @s0.F <F stage 0 mb 1>
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <F stage 0 mb 1> on [0]
  // CHECK: %{{.*}} = pipeline.task @s1.F.light <F stage 1 mb 0> on [0](%[[A0]], %{{.*}}) ties [-1]
  pipeline.unit <F stage 1 mb 0> on [0]
  // CHECK: %{{.*}}, %[[S1:.*]] = pipeline.task @s1.F <F stage 1 mb 1> on [0](%[[A1]], %{{.*}}) ties [-1, -1]
  pipeline.unit <F stage 1 mb 1> on [0]
  pipeline.unit <F stage 2 mb 0> on [0]
  pipeline.unit <F stage 2 mb 1> on [0]
  pipeline.unit <B stage 2 mb 0> on [0]
  pipeline.unit <B stage 2 mb 1> on [0]
  // CHECK: %[[S0:.*]] = pipeline.task @s1.R <R stage 1 mb 0> on [0](%[[A0]], %{{.*}}) ties [-1]
  pipeline.unit <R stage 1 mb 0> on [0]
  // CHECK: pipeline.task @s1.B.first <B stage 1 mb 0> on [0](%[[A0]], %[[S0]],
  pipeline.unit <B stage 1 mb 0> on [0]
  // CHECK: pipeline.task @s1.B <B stage 1 mb 1> on [0](%[[A1]], %[[S1]],
  pipeline.unit <B stage 1 mb 1> on [0]
  pipeline.unit <B stage 0 mb 0> on [0]
  pipeline.unit <B stage 0 mb 1> on [0]
}
