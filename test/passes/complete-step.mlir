// The step in SSA: what a unit reads is an operand; what it lacks on its rank is moved there, sums and updates are added.
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

pipeline.program @p ranks 2 microbatches 2 slices 0 attributes {train = {optimizer = {clip = 1.0}}} {
  pipeline.piece @s0 <stage 0> parts [["first", -1]] at <[0]>
  pipeline.piece @s1 <stage 1> parts [["last", -1]] at <[1]>
  pipeline.limit stash 2 on [0, 1]
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <F stage 0 mb 1> on [0]
  pipeline.unit <F stage 1 mb 0> on [1]
  pipeline.unit <B stage 1 mb 0> on [1]
  pipeline.unit <F stage 1 mb 1> on [1]
  pipeline.unit <B stage 0 mb 0> on [0]
  pipeline.unit <B stage 1 mb 1> on [1]
  pipeline.unit <B stage 0 mb 1> on [0]
}

// What is there when the step begins: weights and optimizer state at home, data where a unit reads it. Values are named by
// what they are: `%b_s1_m0_dact` is made by `B(1, 0)`, `%act_s0_m0` has arrived, `%moving_act_s0_m0` has not.
// CHECK-LABEL: pipeline.program @p
// CHECK:      %weight_s0_r0 = pipeline.input <weight stage 0>
// CHECK-NEXT: %opt_s0_r0 = pipeline.input <opt stage 0>
// CHECK-NEXT: %weight_s1_r1 = pipeline.input <weight stage 1>
// CHECK-NEXT: %opt_s1_r1 = pipeline.input <opt stage 1>
// CHECK-NEXT: %data_tokens_m0_r0 = pipeline.input <data part "tokens" mb 0> "tokens"
// CHECK-NEXT: %data_tokens_m1_r0 = pipeline.input <data part "tokens" mb 1> "tokens"
// CHECK-NEXT: %data_targets_m0_r1 = pipeline.input <data part "targets" mb 0> "targets"
// CHECK-NEXT: %data_targets_m1_r1 = pipeline.input <data part "targets" mb 1> "targets"
// CHECK-NEXT: pipeline.limit stash 2 on [0, 1]

// The activation leaves right after the unit that makes it ..
// CHECK-NEXT: %f_s0_m0_act = pipeline.task @s0.F <F stage 0 mb 0> on [0](%data_tokens_m0_r0, %weight_s0_r0) ties [-1]
// CHECK-NEXT: %moving_act_s0_m0 = pipeline.move <act stage 0 mb 0> %f_s0_m0_act : !r0_act -> <!r1_act>
// CHECK-NEXT: %f_s0_m1_act = pipeline.task @s0.F <F stage 0 mb 1> on [0](%data_tokens_m1_r0, %weight_s0_r0)
// CHECK-NEXT: %moving_act_s0_m1 = pipeline.move <act stage 0 mb 1> %f_s0_m1_act
// .. and is waited for right before the unit that reads it: the head's forward is in its backward.
// CHECK-NEXT: pipeline.task @s1.F <F stage 1 mb 0> on [1]()
// CHECK-NEXT: %act_s0_m0 = pipeline.wait %moving_act_s0_m0
// The first gradient of a rank starts its share; the loss is read by the trainer.
// CHECK-NEXT: %b_s1_m0_dact, %b_s1_m0_grad, %b_s1_m0_stat = pipeline.task @s1.B.first <B stage 1 mb 0> on [1](%act_s0_m0, %data_targets_m0_r1, %weight_s1_r1) ties [-1, -1, -1]
// CHECK-NEXT: %moving_dact_s1_m0 = pipeline.move <dact stage 1 mb 0> %b_s1_m0_dact : !r1_dact -> <!r0_dact>
// CHECK-NEXT: pipeline.output <stat stage 1 mb 0> %b_s1_m0_stat
// CHECK-NEXT: pipeline.task @s1.F <F stage 1 mb 1> on [1]()
// CHECK-NEXT: %dact_s1_m0 = pipeline.wait %moving_dact_s1_m0
// CHECK-NEXT: %b_s0_m0_grad = pipeline.task @s0.B.first <B stage 0 mb 0> on [0](%data_tokens_m0_r0, %dact_s1_m0) ties [-1]
// Later ones are added to it in place.
// CHECK-NEXT: %act_s0_m1 = pipeline.wait %moving_act_s0_m1
// CHECK-NEXT: %b_s1_m1_dact, %b_s1_m1_grad, %b_s1_m1_stat = pipeline.task @s1.B <B stage 1 mb 1> on [1](%act_s0_m1, %data_targets_m1_r1, %weight_s1_r1, %b_s1_m0_grad) ties [-1, 3, -1]
// CHECK-NEXT: %moving_dact_s1_m1 = pipeline.move <dact stage 1 mb 1> %b_s1_m1_dact
// CHECK-NEXT: pipeline.output <stat stage 1 mb 1> %b_s1_m1_stat
// CHECK-NEXT: %dact_s1_m1 = pipeline.wait %moving_dact_s1_m1
// CHECK-NEXT: %b_s0_m1_grad = pipeline.task @s0.B <B stage 0 mb 1> on [0](%data_tokens_m1_r0, %dact_s1_m1, %b_s0_m0_grad) ties [2]

// Clipping needs the norm of all gradients: the squares of each owner, summed over the owners.
// CHECK-NEXT: %u_s0_stat = pipeline.task @s0.norm.first <U stage 0> on [0](%b_s0_m1_grad)
// CHECK-NEXT: %u_s1_stat = pipeline.task @s1.norm.first <U stage 1> on [1](%b_s1_m1_grad)
// CHECK-NEXT: %[[J:.*]] = pipeline.join %u_s0_stat, %u_s1_stat
// CHECK-NEXT: %moving_stat_norm = pipeline.move <stat part "norm"> %[[J]]
// CHECK-NEXT: %stat_norm = pipeline.wait %moving_stat_norm
// CHECK-NEXT: %[[R0:.*]] = pipeline.split %stat_norm
// CHECK-NEXT: %[[R1:.*]] = pipeline.split %stat_norm
// CHECK-NEXT: pipeline.output <stat part "norm"> %[[R0]]
// CHECK-NEXT: pipeline.output <stat part "norm"> %[[R1]]

// The updates in place, and their values as the step's last word.
// CHECK-NEXT: %u_s0_weight, %u_s0_opt = pipeline.task @s0.U <U stage 0> on [0](%weight_s0_r0, %b_s0_m1_grad, %opt_s0_r0, %[[R0]]) ties [0, 2]
// CHECK-NEXT: pipeline.output <opt stage 0> %u_s0_opt
// CHECK-NEXT: pipeline.output <grad stage 0> %b_s0_m1_grad
// CHECK-NEXT: %u_s1_weight, %u_s1_opt = pipeline.task @s1.U <U stage 1> on [1](%weight_s1_r1, %b_s1_m1_grad, %opt_s1_r1, %[[R1]]) ties [0, 2]
// CHECK-NEXT: pipeline.output <opt stage 1> %u_s1_opt
// CHECK-NEXT: pipeline.output <grad stage 1> %b_s1_m1_grad
// CHECK-NEXT: pipeline.output <weight stage 0> %u_s0_weight
// CHECK-NEXT: pipeline.output <weight stage 1> %u_s1_weight
// CHECK-NEXT: }
