// What a sum of devices does not need stands behind it, as much as hides it.
// Without a cluster the two sums together take as long as all that is computed, one then 4.8 products. So five of six
// gradients of weights stand behind the first sum, and one keeps its place. What is made for later (gelu) does not pass
// the second sum.
// RUN: pp-opt %s --pp-hide-exchanges | FileCheck %s
// RUN: pp-opt %s --pp-hide-exchanges --pp-plan-bodies | FileCheck %s --check-prefix=PLANNED

!x = tensor<1x8x8xf32>
!w = tensor<8x8xf32>

// CHECK-LABEL: func.func private @s0.B
// CHECK:         nn.linear_dw %arg0, %arg3
// CHECK-NEXT:    %[[DX:.*]] = nn.linear_dx %arg3, %arg1
// CHECK-NEXT:    %[[SUM:.*]] = nn.all_reduce %[[DX]]
// CHECK-NEXT:    nn.linear_dw %arg3, %arg0
// CHECK-NEXT:    nn.linear_dw %arg0, %arg0
// CHECK-NEXT:    nn.linear_dw %arg3, %arg3
// CHECK-NEXT:    nn.linear_dw %arg0, %arg3
// CHECK-NEXT:    nn.linear_dw %arg3, %arg0
// CHECK-NEXT:    %[[DX2:.*]] = nn.linear_dx %[[SUM]], %arg2
// CHECK-NEXT:    %[[SUM2:.*]] = nn.all_reduce %[[DX2]]
// CHECK-NEXT:    %[[R:.*]] = nn.gelu %arg0
// CHECK-NEXT:    nn.add %[[R]], %[[SUM2]]

// Gradients lie in slots, and touch no memory of the sum. The first %sum is made in the place of what is summed, in
// scratch memory; gelu writes elsewhere.
// PLANNED-LABEL: func.func private @s0.B
// PLANNED:         nn.all_reduce
// PLANNED-NEXT:    nn.linear_dw {{.*}}pipeline.overlaps
// PLANNED-NEXT:    nn.linear_dw {{.*}}pipeline.overlaps
// PLANNED-NEXT:    nn.linear_dw {{.*}}pipeline.overlaps
// PLANNED-NEXT:    nn.linear_dw {{.*}}pipeline.overlaps
// PLANNED-NEXT:    nn.linear_dw {{.*}}pipeline.overlaps
// PLANNED-NEXT:    nn.linear_dx {{.*}}{pipeline.buffers = array<i64: {{[-0-9]+, [0-9]+}}>}
// PLANNED-NEXT:    nn.all_reduce
// PLANNED-NEXT:    nn.gelu {{.*}}pipeline.overlaps
// PLANNED-NEXT:    nn.add {{.*}}{pipeline.buffers = array<i64: {{[-0-9]+, [0-9]+}}>}
func.func private @s0.B(%x: !x, %w: !w, %v: !w, %dy: !x) -> (!x, !w, !w, !w, !w, !w, !w) attributes {
    pipeline.inputs = #pipeline.groups<act x 1, weight x 2, dact x 1>, pipeline.results = #pipeline.groups<dact x 1, grad x 6>,
    pipeline.ties = array<i64: -1, -1>} {
  %dw0 = nn.linear_dw %x, %dy : (!x, !x) -> !w
  %dw1 = nn.linear_dw %dy, %x : (!x, !x) -> !w
  %dw2 = nn.linear_dw %x, %x : (!x, !x) -> !w
  %dw3 = nn.linear_dw %dy, %dy : (!x, !x) -> !w
  %dw4 = nn.linear_dw %x, %dy : (!x, !x) -> !w
  %dw5 = nn.linear_dw %dy, %x : (!x, !x) -> !w
  %dx = nn.linear_dx %dy, %w : (!x, !w) -> !x
  %sum = nn.all_reduce %dx over <tensor> : (!x) -> !x
  %dx2 = nn.linear_dx %sum, %v : (!x, !w) -> !x
  %sum2 = nn.all_reduce %dx2 over <tensor> : (!x) -> !x
  %r = nn.gelu %x : (!x) -> !x
  %end = nn.add %r, %sum2 : (!x, !x) -> !x
  return %end, %dw0, %dw1, %dw2, %dw3, %dw4, %dw5 : !x, !w, !w, !w, !w, !w, !w
}

// Without exchanges nothing moves.
// CHECK-LABEL: func.func private @s0.F
// CHECK:         nn.linear_dw
// CHECK-NEXT:    nn.linear
// PLANNED-LABEL: func.func private @s0.F
// PLANNED-NOT:     pipeline.overlaps
func.func private @s0.F(%x: !x, %w: !w) -> (!x, !w) attributes {
    pipeline.inputs = #pipeline.groups<act x 1, weight x 1>, pipeline.results = #pipeline.groups<act x 1, grad x 1>,
    pipeline.ties = array<i64: -1, -1>} {
  %dw = nn.linear_dw %x, %x : (!x, !x) -> !w
  %y = nn.linear %x, %w : (!x, !w) -> !x
  return %y, %dw : !x, !w
}

!a = !pipeline.val<act, tuple<!x>, [0]>
!d = !pipeline.val<dact, tuple<!x>, [0]>
!v1 = !pipeline.val<weight, tuple<!w>, [0]>
!v2 = !pipeline.val<weight, tuple<!w, !w>, [0]>
!g = !pipeline.val<grad, tuple<!w, !w, !w, !w, !w, !w>, [0]>
!h = !pipeline.val<grad, tuple<!w>, [0]>
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  %x = pipeline.input <act stage 0 mb 0> : !a
  %w = pipeline.input <weight stage 0> : !v1
  %w2 = pipeline.input <weight stage 0> : !v2
  %y, %h = pipeline.task @s0.F <F stage 0 mb 0> on [0](%x, %w) ties [-1, -1] : (!a, !v1) -> (!a, !h)
  %dy = pipeline.input <dact stage 0 mb 0> : !d
  %dx, %g = pipeline.task @s0.B <B stage 0 mb 0> on [0](%x, %w2, %dy) ties [-1, -1] : (!a, !v2, !d) -> (!d, !g)
}
