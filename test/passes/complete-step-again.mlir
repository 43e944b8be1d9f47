// Units that read an activation after the R of its maker read what R made: the one that F made does not wait for them.
// RUN: pp-opt %s --pp-derive-tasks --pp-complete-step | FileCheck %s

!x = tensor<1x8x16xf32>
func.func private @first(%t: tensor<1x8xi32> {nn.data = "tokens"}, %w: tensor<32x16xf32> {nn.weight = #nn.weight<"w">}) -> !x {
  %0 = nn.embedding %t, %w : (tensor<1x8xi32>, tensor<32x16xf32>) -> !x
  return %0 : !x
}
func.func private @up(%x: !x, %w: tensor<16x16xf32> {nn.weight = #nn.weight<"w">}) -> !x {
  %0 = nn.linear %x, %w : (!x, tensor<16x16xf32>) -> !x
  %1 = nn.gelu %0 : (!x) -> !x
  return %1 : !x
}
func.func private @loss(%x: !x, %t: tensor<1x8xi32> {nn.data = "targets"}, %w: tensor<16x32xf32> {nn.weight = #nn.weight<"w">}) -> tensor<1xf32> {
  %0 = nn.linear %x, %w : (!x, tensor<16x32xf32>) -> tensor<1x8x32xf32>
  %1 = nn.cross_entropy %0, %t : (tensor<1x8x32xf32>, tensor<1x8xi32>) -> tensor<1xf32>
  return %1 : tensor<1xf32>
}

pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @first <part "first"> parts [["first", -1]] at <[0]>
  pipeline.piece @up0 <part "up" 0> parts [["up", 0]] at <[0]>
  pipeline.piece @up1 <part "up" 1> parts [["up", 1]] at <[0]>
  pipeline.piece @loss <part "loss"> parts [["loss", -1]] at <[1]>
  pipeline.unit <F part "first" mb 0> on [0]
  // CHECK: %[[A0:.*]] = pipeline.task @up0.F.light <F part "up" 0 mb 0>
  pipeline.unit <F part "up" 0 mb 0> on [0]
  // CHECK: %[[A1:.*]] = pipeline.task @up0.F.light <F part "up" 1 mb 0> on [0](%[[A0]],
  pipeline.unit <F part "up" 1 mb 0> on [0]
  pipeline.unit <F part "loss" mb 0> on [1]
  // CHECK: %[[AGAIN:.*]], %[[S0:.*]] = pipeline.task @up0.R.act <R part "up" 0 mb 0>
  pipeline.unit <R part "up" 0 mb 0> on [0]
  // The activation of this one is read on another rank only.
  // CHECK: %[[S1:.*]] = pipeline.task @up0.R <R part "up" 1 mb 0> on [0](%[[AGAIN]],
  pipeline.unit <R part "up" 1 mb 0> on [0]
  pipeline.unit <B part "loss" mb 0> on [1]
  // CHECK: pipeline.task @up0.B.first <B part "up" 1 mb 0> on [0](%[[AGAIN]], %[[S1]],
  pipeline.unit <B part "up" 1 mb 0> on [0]
  pipeline.unit <B part "up" 0 mb 0> on [0]
  pipeline.unit <B part "first" mb 0> on [0]
}
