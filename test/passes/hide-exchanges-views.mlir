// What reads rows of a tensor stays before the op that writes over the tensor, also where a sum does not need it.
// So the product of the upper rows (%dw) is not held back behind the sum, and that of %x (%held) is.
// RUN: pp-opt %s --pp-hide-exchanges --pp-plan-bodies | FileCheck %s

!x = tensor<1x8x8xf32>
!half = tensor<1x4x8xf32>
!w = tensor<8x8xf32>

// CHECK-LABEL: func.func private @s0.B
// CHECK:         %[[T:.*]] = nn.linear_dx %arg2, %arg1 {
// CHECK:         %[[HALF:.*]] = nn.rows %[[T]]
// CHECK:         nn.linear_dw %{{.*}}, %[[HALF]]
// CHECK:         nn.linear_dx %arg0, %arg1 into %[[T]]
// CHECK-NEXT:    nn.all_reduce
// CHECK-NEXT:    nn.linear_dw %arg0, %arg2
func.func private @s0.B(%x: !x, %w: !w, %dy: !x) -> (!x, !w, !w) attributes {
    pipeline.inputs = #pipeline.groups<act x 1, weight x 1, dact x 1>, pipeline.results = #pipeline.groups<dact x 1, grad x 2>,
    pipeline.ties = array<i64: -1, -1>} {
  %t = nn.linear_dx %dy, %w : (!x, !w) -> !x
  %held = nn.linear_dw %x, %dy : (!x, !x) -> !w
  %xs = nn.rows %x {start = 4 : i64, count = 4 : i64} : (!x) -> !half
  %ts = nn.rows %t {start = 4 : i64, count = 4 : i64} : (!x) -> !half
  %dw = nn.linear_dw %xs, %ts : (!half, !half) -> !w
  %dx = nn.linear_dx %x, %w into %t : (!x, !w, !x) -> !x
  %sum = nn.all_reduce %dx over <tensor> : (!x) -> !x
  return %sum, %held, %dw : !x, !w, !w
}

!a = !pipeline.val<act, tuple<!x>, [0]>
!d = !pipeline.val<dact, tuple<!x>, [0]>
!v = !pipeline.val<weight, tuple<!w>, [0]>
!g = !pipeline.val<grad, tuple<!w, !w>, [0]>
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  %x = pipeline.input <act stage 0 mb 0> : !a
  %w = pipeline.input <weight stage 0> : !v
  %dy = pipeline.input <dact stage 0 mb 0> : !d
  %dx, %g = pipeline.task @s0.B <B stage 0 mb 0> on [0](%x, %w, %dy) ties [-1, -1] : (!a, !v, !d) -> (!d, !g)
}
