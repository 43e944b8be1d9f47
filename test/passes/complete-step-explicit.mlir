// Whoever moves a thing once, moves it always: an activation that the schedule moves is not moved again.
// RUN: pp-opt %s --pp-derive-tasks --pp-complete-step | FileCheck %s

!x = tensor<1x8x16xf32>
func.func private @first(%t: tensor<1x8xi32> {nn.data = "tokens"}, %w: tensor<32x16xf32> {nn.weight = #nn.weight<"w">}) -> !x {
  %0 = nn.embedding %t, %w : (tensor<1x8xi32>, tensor<32x16xf32>) -> !x
  return %0 : !x
}
func.func private @last(%x: !x, %t: tensor<1x8xi32> {nn.data = "targets"}, %w: tensor<16x32xf32> {nn.weight = #nn.weight<"w">}) -> tensor<1xf32> {
  %0 = nn.linear %x, %w : (!x, tensor<16x32xf32>) -> tensor<1x8x32xf32>
  %1 = nn.cross_entropy %0, %t : (tensor<1x8x32xf32>, tensor<1x8xi32>) -> tensor<1xf32>
  return %1 : tensor<1xf32>
}


// CHECK-LABEL: pipeline.program @p
// CHECK:       %[[A:.*]] = pipeline.task @s0.F <F stage 0 mb 0>
// CHECK-NEXT:  %[[M:.*]] = pipeline.move <act stage 0 mb 0> %[[A]] group 0
// CHECK-NEXT:  pipeline.task @s1.F
// CHECK-NEXT:  %[[X:.*]] = pipeline.wait %[[M]]
// CHECK-NEXT:  {{.*}} = pipeline.task @s1.B.first <B stage 1 mb 0> on [1](%[[X]],
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {optimizer = {clip = 1.0}}} {
  pipeline.piece @s0 <stage 0> parts [["first", -1]] at <[0]>
  pipeline.piece @s1 <stage 1> parts [["last", -1]] at <[1]>
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.transfer <act stage 0 mb 0> from <[0]> to <[1]> anchors [0]
  pipeline.unit <F stage 1 mb 0> on [1]
  pipeline.unit <B stage 1 mb 0> on [1]
  pipeline.unit <B stage 0 mb 0> on [0]
}
