// A value that a piece takes and reads no more has a gradient of zero, which the pieces before add to.
// RUN: pp-opt %s --pp-derive-tasks | FileCheck %s

!x = tensor<1x8x16xbf16>

func.func private @last(%x: !x, %e: !x) -> !x {
  %g = nn.gelu %x : (!x) -> !x
  return %g : !x
}

// CHECK: func.func private @s0.B(
// CHECK-DAG: %[[Z:.*]] = nn.zero : tensor<1x8x16xbf16>
// CHECK-DAG: %[[D:.*]] = nn.gelu_bwd
// CHECK: return %[[D]], %[[Z]] : tensor<1x8x16xbf16>, tensor<1x8x16xbf16>
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["last", 0]]
  pipeline.unit <B stage 0 mb 0> on [0]
}
