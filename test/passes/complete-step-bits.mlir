// A share that comes bit by bit: before the next may come, those before it are added, so that few wait in slots of their own.
// RUN: pp-opt %s --pp-derive-tasks --pp-complete-step | FileCheck %s

func.func private @all(%t: tensor<1x8xi32> {nn.data = "tokens"}, %y: tensor<1x8xi32> {nn.data = "targets"}, %w: tensor<32x16xf32> {nn.weight = #nn.weight<"w">}) -> tensor<1xf32> {
  %0 = nn.embedding %t, %w : (tensor<1x8xi32>, tensor<32x16xf32>) -> tensor<1x8x16xf32>
  %1 = nn.linear %0, %w {transposed = true} : (tensor<1x8x16xf32>, tensor<32x16xf32>) -> tensor<1x8x32xf32>
  %2 = nn.cross_entropy %1, %y : (tensor<1x8x32xf32>, tensor<1x8xi32>) -> tensor<1xf32>
  return %2 : tensor<1xf32>
}

// CHECK-LABEL: pipeline.program @bits
pipeline.program @bits ranks 2 microbatches 3 slices 0 attributes {train = {optimizer = {clip = 1.0}}} {
  pipeline.piece @s0 <stage 0> parts [["all", -1]] homes <[0]> owner <[0]>
  pipeline.transfer <weight stage 0> from <[0]> to <[1]> anchors [0]
  pipeline.unit <F stage 0 mb 0> on [1]
  // CHECK:      %[[G0:b_s0_m0_grad]], %{{.*}} = pipeline.task @s0.B.first
  pipeline.unit <B stage 0 mb 0> on [1]
  // CHECK:      %[[M0:.*]] = pipeline.move <grad stage 0> %[[G0]]
  pipeline.transfer <grad stage 0> from <[1]> to <[0]> anchors [1]
  pipeline.unit <F stage 0 mb 1> on [1]
  // CHECK:      %[[G1:b_s0_m1_grad]], %{{.*}} = pipeline.task @s0.B.first
  pipeline.unit <B stage 0 mb 1> on [1]
  // CHECK:      %[[M1:.*]] = pipeline.move <grad stage 0> %[[G1]]
  // CHECK-NEXT: pipeline.task @s0.F
  pipeline.transfer <grad stage 0> from <[1]> to <[0]> anchors [1]
  pipeline.unit <F stage 0 mb 2> on [1]
  // CHECK:      %[[G2:b_s0_m2_grad]], %{{.*}} = pipeline.task @s0.B.first
  pipeline.unit <B stage 0 mb 2> on [1]
  // CHECK:      %[[A0:.*]] = pipeline.wait %[[M0]]
  // CHECK-NEXT: %[[A1:.*]] = pipeline.wait %[[M1]]
  // CHECK-NEXT: %[[SUM:.*]] = pipeline.task @s0.sum <U stage 0> on [0](%[[A0]], %[[A1]]) ties [0]
  // CHECK-NEXT: %[[M2:.*]] = pipeline.move <grad stage 0> %[[G2]]
  pipeline.transfer <grad stage 0> from <[1]> to <[0]> anchors [1]
}
// CHECK-NEXT: %[[A2:.*]] = pipeline.wait %[[M2]]
// CHECK-NEXT: pipeline.task @s0.sum <U stage 0> on [0](%[[SUM]], %[[A2]]) ties [0]
