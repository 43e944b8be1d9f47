// A gradient that an op would go on with in place is copied first where views of it are read behind that op.
// RUN: pp-opt %s --pp-derive-tasks | FileCheck %s

!x = tensor<1x16x8xf32>
!r = tensor<1x8x8xf32>
!w = tensor<8x8xf32>
func.func private @part(%x: !x, %g: tensor<8xf32> {nn.weight = #nn.weight<"g">}, %w: !w {nn.weight = #nn.weight<"w">},
    %v: !w {nn.weight = #nn.weight<"v">}) -> !x {
  %r0, %r1 = nn.split_rows %x {counts = array<i64: 8, 8>} : (!x) -> (!r, !r)
  %l0 = nn.linear %r0, %w : (!r, !w) -> !r
  %l1 = nn.linear %r1, %w : (!r, !w) -> !r
  %n, %s = nn.rmsnorm %x, %g : (!x, tensor<8xf32>) -> (!x, tensor<1x16xf32>)
  %p = nn.linear %n, %v : (!x, !w) -> !x
  %j = nn.join_rows %l0, %l1 {batch = 1} : (!r, !r) -> !x
  %y = nn.add %x, %j : (!x, !x) -> !x
  %z = nn.add %y, %p : (!x, !x) -> !x
  %o = nn.gelu %z : (!x) -> !x
  return %o : !x
}
// The runs of rows lie in the gradient of z, and their linears' gradients come after the norm's, which adds to it.
// CHECK: func.func private @s0.B(
// CHECK: %[[DZ:.*]] = nn.gelu_bwd
// CHECK-NEXT: %[[D0:.*]] = nn.rows %[[DZ]] {{.*}}start = 0
// CHECK-NEXT: %[[D1:.*]] = nn.rows %[[DZ]] {{.*}}start = 8
// CHECK: %[[COPY:.*]] = nn.copy %[[DZ]]
// CHECK-NEXT: nn.rmsnorm_bwd {{.*}} into %[[COPY]]
// CHECK: nn.linear_dx %[[D1]]
// CHECK: nn.linear_dx %[[D0]]

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["part", 0]]
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <B stage 0 mb 0> on [0]
}
