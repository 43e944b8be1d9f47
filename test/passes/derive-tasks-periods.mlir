// Columns of two heads: a key that both share stands behind each, zeros fill values, and what nothing reads has no gradient.
// RUN: pp-opt %s --pp-derive-tasks | FileCheck %s

!a = tensor<1x8x6xf32>
!b = tensor<1x8x8xf32>

// CHECK-LABEL: func.func private @s0.F(
// CHECK-SAME: %[[X:[^:]*]]: tensor<1x8x8xf32>
// CHECK-DAG: %[[K:.*]] = nn.slice_columns %[[X]] {start = 0 : i64, width = 6 : i64}
// CHECK-DAG: %[[T:.*]] = nn.slice_columns %[[X]] {start = 6 : i64, width = 2 : i64}
// CHECK: %[[P:.*]] = nn.place_columns %[[K]] {periods = 2 : i64, start = 0 : i64, total = 10 : i64}
// CHECK-NEXT: %[[Q:.*]] = nn.place_columns %[[T]] into %[[P]] {periods = 2 : i64, shared = true, start = 3 : i64, total = 10 : i64}
// CHECK: %[[F:.*]] = nn.slice_columns %[[Q]] {periods = 2 : i64, start = 0 : i64, width = 4 : i64}
// CHECK: %[[Z:.*]] = nn.place_columns %[[F]] {periods = 2 : i64, start = 0 : i64, total = 12 : i64, zeros = true}
// CHECK: return %[[Z]]

// CHECK-LABEL: func.func private @s0.B(
// CHECK-SAME: %[[DZ:[^:]*]]: tensor<1x8x12xf32>
// CHECK: %[[DF:.*]] = nn.slice_columns %[[DZ]] {periods = 2 : i64, start = 0 : i64, width = 4 : i64}
// CHECK: %[[DQ:.*]] = nn.place_columns %[[DF]] {periods = 2 : i64, start = 0 : i64, total = 10 : i64, zeros = true}
// CHECK-DAG: %[[DK:.*]] = nn.slice_columns %[[DQ]] {periods = 2 : i64, start = 0 : i64, width = 3 : i64}
// CHECK-DAG: %[[DT:.*]] = nn.sum_columns %[[DQ]] {periods = 2 : i64, start = 3 : i64, width = 2 : i64}
// CHECK: %[[DX:.*]] = nn.place_columns %[[DK]] {start = 0 : i64, total = 8 : i64}
// CHECK: nn.place_columns %[[DT]] into %[[DX]] {start = 6 : i64, total = 8 : i64}
func.func private @a(%x: !b) -> tensor<1x8x12xf32> {
  %k, %t = nn.split %x {widths = array<i64: 6, 2>} : (!b) -> (!a, tensor<1x8x2xf32>)
  %q = nn.concat %k, %t {periods = 2 : i64, shared = true} : (!a, tensor<1x8x2xf32>) -> tensor<1x8x10xf32>
  %f, %rest = nn.split %q {periods = 2 : i64, widths = array<i64: 4, 1>} : (tensor<1x8x10xf32>) -> (!b, tensor<1x8x2xf32>)
  %z = nn.pad %f {columns = 2 : i64, periods = 2 : i64} : (!b) -> tensor<1x8x12xf32>
  return %z : tensor<1x8x12xf32>
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]]
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <B stage 0 mb 0> on [0]
}
