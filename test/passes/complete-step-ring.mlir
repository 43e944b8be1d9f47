// What a schedule moves itself: weights stay values, a gradient share leaves whole and is added where it arrives.
// RUN: pp-opt %s --pp-derive-tasks --pp-complete-step | FileCheck %s

func.func private @all(%t: tensor<1x8xi32> {nn.data = "tokens"}, %y: tensor<1x8xi32> {nn.data = "targets"}, %w: tensor<32x16xf32> {nn.weight = #nn.weight<"w">}) -> tensor<1xf32> {
  %0 = nn.embedding %t, %w : (tensor<1x8xi32>, tensor<32x16xf32>) -> tensor<1x8x16xf32>
  %1 = nn.linear %0, %w {transposed = true} : (tensor<1x8x16xf32>, tensor<32x16xf32>) -> tensor<1x8x32xf32>
  %2 = nn.cross_entropy %1, %y : (tensor<1x8x32xf32>, tensor<1x8xi32>) -> tensor<1xf32>
  return %2 : tensor<1xf32>
}

// Two ranks pass the weight and its gradient round: 0 computes, both go to 1, 1 computes, the gradient goes back to 0.
// CHECK-LABEL: pipeline.program @p
pipeline.program @p ranks 2 microbatches 2 slices 0 attributes {train = {optimizer = {clip = 1.0}}} {
  pipeline.piece @s0 <stage 0> parts [["all", -1]] homes <[0]> owner <[0]>
  // Before the first backward the share is empty: zeros are sent.
  // CHECK:      %[[Z:.*]] = pipeline.task @s0.zero <U stage 0> on [1]() ties [-1]
  // CHECK-NEXT: %[[MZ:.*]] = pipeline.move <grad stage 0> %[[Z]] group 0 : !r1_grad -> <!r0_grad>
  pipeline.transfer <grad stage 0> from <[1]> to <[0]> anchors [1]
  // CHECK-NEXT: pipeline.task @s0.F <F stage 0 mb 0> on [0]
  pipeline.unit <F stage 0 mb 0> on [0]
  // What arrived is waited for when the rank next touches its share, and added to in place.
  // CHECK-NEXT: %[[AZ:.*]] = pipeline.wait %[[MZ]]
  // CHECK-NEXT: %[[G0:b_s0_m0_grad]], %{{.*}} = pipeline.task @s0.B <B stage 0 mb 0> on [0]({{.*}}, %weight_s0_r0, %[[AZ]]) ties [3, -1]
  pipeline.unit <B stage 0 mb 0> on [0]
  // One `together` is one group.
  // CHECK:      %[[MW:.*]] = pipeline.move <weight stage 0> %weight_s0_r0 group 1
  // CHECK-NEXT: %[[MG:.*]] = pipeline.move <grad stage 0> %[[G0]] group 1
  pipeline.together {
    pipeline.transfer <weight stage 0> from <[0]> to <[1]> anchors [0, 1]
    pipeline.transfer <grad stage 0> from <[0]> to <[1]> anchors [0, 1]
  }
  // Each is waited for where it is first used: this piece ends in the head, whose forward is in its backward.
  // CHECK-NEXT: pipeline.task @s0.F <F stage 0 mb 1> on [1]()
  pipeline.unit <F stage 0 mb 1> on [1]
  // CHECK-DAG:  %[[AG:.*]] = pipeline.wait %[[MG]]
  // CHECK-DAG:  %[[W1:.*]] = pipeline.wait %[[MW]]
  // CHECK-NEXT: %[[G1:b_s0_m1_grad]], %{{.*}} = pipeline.task @s0.B <B stage 0 mb 1> on [1]({{.*}}, %[[W1]], %[[AG]]) ties [3, -1]
  pipeline.unit <B stage 0 mb 1> on [1]
  // CHECK:      %[[MB:.*]] = pipeline.move <grad stage 0> %[[G1]] group 2
  pipeline.transfer <grad stage 0> from <[1]> to <[0]> anchors [1]
}
// The last arrival is the whole gradient; the owner updates its home in place, so nothing is returned.
// CHECK-NEXT: %[[AB:.*]] = pipeline.wait %[[MB]]
// CHECK-NEXT: %[[N:.*]] = pipeline.task @s0.norm.first <U stage 0> on [0](%[[AB]])
// CHECK-NEXT: pipeline.output <stat part "norm"> %[[N]]
// CHECK-NEXT: %[[NEW:.*]], %{{.*}} = pipeline.task @s0.U <U stage 0> on [0](%weight_s0_r0, %[[AB]], %opt_s0_r0, %[[N]]) ties [0, 2]
// CHECK-NOT:  pipeline.move
// CHECK:      pipeline.output <weight stage 0> %[[NEW]]
