// A weight that two pieces use: the later one hands its share of the gradient over and gets the new value back.
// RUN: pp-opt %s --pp-derive-tasks --pp-complete-step | FileCheck %s

!x = tensor<1x8x16xf32>
!wte = tensor<32x16xf32>
func.func private @first(%t: tensor<1x8xi32> {nn.data = "tokens"}, %w: !wte {nn.weight = #nn.weight<"wte" as "wte" shared>}) -> !x {
  %0 = nn.embedding %t, %w : (tensor<1x8xi32>, !wte) -> !x
  return %0 : !x
}
func.func private @last(%x: !x, %t: tensor<1x8xi32> {nn.data = "targets"}, %w: !wte {nn.weight = #nn.weight<"wte" as "wte" shared>}) -> tensor<1xf32> {
  %0 = nn.linear %x, %w {transposed = true} : (!x, !wte) -> tensor<1x8x32xf32>
  %1 = nn.cross_entropy %0, %t : (tensor<1x8x32xf32>, tensor<1x8xi32>) -> tensor<1xf32>
  return %1 : tensor<1xf32>
}

// CHECK-LABEL: pipeline.program @p
// CHECK:       %[[B1:b_s1_m0_dact]], %[[G1:.*]], %{{.*}} = pipeline.task @s1.B.first
// CHECK:       %[[G0:.*]] = pipeline.task @s0.B.first
// CHECK-NEXT:  %[[OUT:.*]] = pipeline.task @s1.tie.out <U stage 1> on [1](%[[G1]]) ties [-1]
// CHECK-NEXT:  %[[M:.*]] = pipeline.move <grad stage 1> %[[OUT]] : !r1_grad -> <!r0_grad>
// CHECK-NEXT:  %[[SHARE:.*]] = pipeline.wait %[[M]]
// CHECK-NEXT:  %[[SUM:.*]] = pipeline.task @s0.tie.in.0 <U stage 0> on [0](%[[G0]], %[[SHARE]]) ties [0]
// Only now is the norm taken: of the sum.
// CHECK-NEXT:  %{{.*}} = pipeline.task @s0.norm.first <U stage 0> on [0](%[[SUM]])
// CHECK:       %[[W0:.*]], %{{.*}} = pipeline.task @s0.U <U stage 0> on [0](%weight_s0_r0, %[[SUM]],
// CHECK:       %[[NEW:.*]] = pipeline.task @s0.tie.fresh.0 <U stage 0> on [0](%[[W0]]) ties [-1]
// CHECK-NEXT:  %[[MN:.*]] = pipeline.move <weight stage 1> %[[NEW]] : !r0_weight -> <!r1_weight>
// CHECK-NEXT:  %[[FRESH:.*]] = pipeline.wait %[[MN]]
// The later piece has no weight of its own here: its update is the copy of what came.
// CHECK-NEXT:  %[[W1:.*]] = pipeline.task @s1.U <U stage 1> on [1](%weight_s1_r1, %[[FRESH]]) ties [0]
// CHECK:       pipeline.output <weight stage 0> %[[W0]]
// CHECK-NEXT:  pipeline.output <weight stage 1> %[[W1]]
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {optimizer = {clip = 1.0}}} {
  pipeline.piece @s0 <stage 0> parts [["first", -1]] at <[0]>
  pipeline.piece @s1 <stage 1> parts [["last", -1]] at <[1]>
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <F stage 1 mb 0> on [1]
  pipeline.unit <B stage 1 mb 0> on [1]
  pipeline.unit <B stage 0 mb 0> on [0]
}
