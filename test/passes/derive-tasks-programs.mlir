// The bodies of each program of a module are by its own clauses, not by those of the first one.
// RUN: pp-opt %s --pp-derive-tasks | FileCheck %s

!x = tensor<1x8x16xf32>
!w = tensor<16x32xf32>

func.func private @whole(%x: !x, %w: !w {nn.weight = #nn.weight<"w">}) -> !x {
  %pq = nn.linear %x, %w : (!x, !w) -> tensor<1x8x32xf32>
  %p, %q = nn.split %pq {widths = array<i64: 16, 16>} : (tensor<1x8x32xf32>) -> (!x, !x)
  %z = nn.swiglu %p, %q : (!x, !x) -> !x
  return %z : !x
}

// A mesh whose devices may have columns of both halves, and gradients that are clipped.
// CHECK: func.func private @a0.F(
// CHECK: nn.swiglu %{{.*}}, %{{.*}} :
// CHECK: func.func private @a0.U(
// CHECK-SAME: norm x 1
pipeline.program @a ranks 1 microbatches 4 slices 0 attributes {
    mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>, train = {optimizer = {clip = 1.0}}} {
  pipeline.piece @a0 <stage 0> parts [["whole", -1]]
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <B stage 0 mb 0> on [0]
}

// CHECK: func.func private @b0.F(
// CHECK: nn.swiglu {{.*}}packed
// CHECK: func.func private @b0.U(
// CHECK-NOT: norm x 1
// CHECK: return
pipeline.program @b ranks 1 microbatches 4 slices 0 attributes {train = {optimizer = {}}} {
  pipeline.piece @b0 <stage 0> parts [["whole", -1]]
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <B stage 0 mb 0> on [0]
}
