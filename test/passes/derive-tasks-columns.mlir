// A column of the dataset in F, B, I and W of two slices: each has the rows of its slice, and no gradient is made of it.
// RUN: pp-opt %s --pp-derive-tasks | FileCheck %s

!x = tensor<1x8x16xf32>
func.func private @head(%x: !x, %t: tensor<1x8xi32> {nn.data = "targets"},
    %c: tensor<1x8xf32> {nn.data = "column", nn.column = 0 : i64},
    %k: tensor<1x8x16xf32> {nn.data = "column", nn.column = 2 : i64},
    %w: tensor<16x32xf32> {nn.weight = #nn.weight<"w">}) -> tensor<1xf32> {
  %h = nn.map reads(%x: "thd", %c: "t", %k: "thd") makes("thd") heads 1 {
  ^bb0(%a: f32, %b: f32, %d: f32):
    %m = arith.mulf %a, %b : f32
    %n = arith.mulf %m, %d : f32
    nn.give %n : f32
  } : (!x, tensor<1x8xf32>, !x) -> !x
  %z = nn.linear %h, %w : (!x, tensor<16x32xf32>) -> tensor<1x8x32xf32>
  %l = nn.cross_entropy %z, %t : (tensor<1x8x32xf32>, tensor<1x8xi32>) -> tensor<1xf32>
  return %l : tensor<1xf32>
}

pipeline.program @p ranks 1 microbatches 2 slices 2 attributes {train = {sequence = 8 : i64}} {
  pipeline.piece @s0 <stage 0> parts [["head", -1]]
  pipeline.unit <B stage 0 mb 0 slice 0> on [0]
}

// The first column has the group column[0], the third one column[2]; a slice has 4 of 8 rows.
// CHECK: func.func private @s0.B.1(
// CHECK-SAME: tensor<1x4xf32>, %{{[a-z0-9]+}}: tensor<1x4x16xf32>
// CHECK-SAME: column[0] x 1, column[2] x 1
// CHECK: nn.map reads(%[[X:[a-z0-9]+]]: "thd", %[[C:[a-z0-9]+]]: "t", %[[K:[a-z0-9]+]]: "thd") makes("thd")
// CHECK: %[[DH:.*]] = nn.linear_dx
// One result: of x.
// CHECK: nn.map reads({{.*}}%[[DH]]: "thd"{{.*}}) makes("thd") heads 1
