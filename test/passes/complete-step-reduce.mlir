// Gradient shares that lie on other ranks than the owner's come to it when the step ends; the new weights go home.
// RUN: pp-opt %s --pp-derive-tasks --pp-complete-step | FileCheck %s

func.func private @all(%t: tensor<1x8xi32> {nn.data = "tokens"}, %y: tensor<1x8xi32> {nn.data = "targets"}, %w: tensor<32x16xf32> {nn.weight = #nn.weight<"w">}) -> tensor<1xf32> {
  %0 = nn.embedding %t, %w : (tensor<1x8xi32>, tensor<32x16xf32>) -> tensor<1x8x16xf32>
  %1 = nn.linear %0, %w {transposed = true} : (tensor<1x8x16xf32>, tensor<32x16xf32>) -> tensor<1x8x32xf32>
  %2 = nn.cross_entropy %1, %y : (tensor<1x8x32xf32>, tensor<1x8xi32>) -> tensor<1xf32>
  return %2 : tensor<1xf32>
}

// Three ranks with a copy each run one microbatch each; rank 1 owns the weight and has no copy at the start.
// CHECK-LABEL: pipeline.program @p
// CHECK:       %weight_s0_r0 = pipeline.input <weight stage 0>
// CHECK-NEXT:  %weight_s0_r2 = pipeline.input <weight stage 0>
// CHECK-NEXT:  %opt_s0_r1 = pipeline.input <opt stage 0>
pipeline.program @p ranks 3 microbatches 2 slices 0 attributes {train = {optimizer = {clip = 1.0}}} {
  pipeline.piece @s0 <stage 0> parts [["all", -1]] homes <[0, 2]> owner <[1]>
  pipeline.transfer <weight stage 0> from <[0]> to <[1]> anchors [0]
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <B stage 0 mb 0> on [0]
  pipeline.unit <F stage 0 mb 1> on [2]
  pipeline.unit <B stage 0 mb 1> on [2]
}
// A weight moved by hand is a group of one.
// CHECK:       %moving_weight_s0 = pipeline.move <weight stage 0> %weight_s0_r0 group 0
// CHECK:       %[[G0:b_s0_m0_grad]], %{{.*}} = pipeline.task @s0.B.first <B stage 0 mb 0> on [0]
// CHECK:       %[[G2:b_s0_m1_grad]], %{{.*}} = pipeline.task @s0.B.first <B stage 0 mb 1> on [2]
// Both shares travel to the owner and are added there, in the memory of the first.
// CHECK:       %[[M0:.*]] = pipeline.move <grad stage 0> %[[G0]] : !r0_grad -> <!r1_grad>
// CHECK-NEXT:  %[[M2:.*]] = pipeline.move <grad stage 0> %[[G2]] : !r2_grad -> <!r1_grad>
// CHECK-NEXT:  %[[A0:.*]] = pipeline.wait %[[M0]]
// CHECK-NEXT:  %[[A2:.*]] = pipeline.wait %[[M2]]
// CHECK-NEXT:  %[[SUM:.*]] = pipeline.task @s0.sum <U stage 0> on [1](%[[A0]], %[[A2]]) ties [0]
// One owner: its norm is the norm.
// CHECK-NEXT:  %[[N:.*]] = pipeline.task @s0.norm.first <U stage 0> on [1](%[[SUM]])
// CHECK-NEXT:  pipeline.output <stat part "norm"> %[[N]]
// The update works on the copy that travelled.
// CHECK-NEXT:  %[[W:.*]] = pipeline.wait %moving_weight_s0
// CHECK-NEXT:  %[[NEW:.*]], %[[O:.*]] = pipeline.task @s0.U <U stage 0> on [1](%[[W]], %[[SUM]], %opt_s0_r1, %[[N]]) ties [0, 2]
// Both homes get the new version.
// CHECK:       %[[H0:.*]] = pipeline.move <weight stage 0> %[[NEW]] : !r1_weight -> <!r0_weight>
// CHECK-NEXT:  %[[H2:.*]] = pipeline.move <weight stage 0> %[[NEW]] : !r1_weight -> <!r2_weight>
// CHECK-NEXT:  %[[V0:.*]] = pipeline.wait %[[H0]]
// CHECK-NEXT:  pipeline.output <weight stage 0> %[[V0]]
// CHECK-NEXT:  %[[V2:.*]] = pipeline.wait %[[H2]]
// CHECK-NEXT:  pipeline.output <weight stage 0> %[[V2]]
// CHECK-NEXT:  }
