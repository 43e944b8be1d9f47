// A formula in F, I and W: a number of each row is saved, and a vector of this unit is handed to W.
// RUN: pp-opt %s --pp-derive-tasks | FileCheck %s

!x = tensor<1x8x16xbf16>
!g = tensor<16xbf16>

func.func private @mlp(%x: !x, %g: !g {nn.weight = #nn.weight<"g">}, %w: tensor<16x16xbf16> {nn.weight = #nn.weight<"w">}) -> !x {
  %n:2 = nn.map reads(%x: "thd", %g: "hd") makes("thd", "t") heads 1 {
  ^bb0(%a: f32, %b: f32):
    %s = arith.mulf %a, %a : f32
    %m = nn.reduce "mean" "hd" %s : f32
    %q = math.sqrt %m : f32
    %d = arith.divf %a, %q : f32
    %y = arith.mulf %d, %b : f32
    nn.give %y, %q : f32, f32
  } : (!x, !g) -> (!x, tensor<1x8xf32>)
  %z = nn.linear %n#0, %w : (!x, tensor<16x16xbf16>) -> !x
  %y = nn.add %x, %z : (!x, !x) -> !x
  return %y : !x
}

pipeline.program @p ranks 1 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["mlp", 0]]
  pipeline.piece @s1 <stage 1> parts [["mlp", 1]]
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <I stage 1 mb 0> on [0]
  pipeline.unit <W stage 1 mb 0> on [0]
}

// The row is the stash; the output of the formula is not.
// CHECK: func.func private @s0.F(%[[X:[a-z0-9]+]]: tensor<1x8x16xbf16>,
// CHECK: %[[N:.*]]:2 = nn.map reads(%[[X]]: "thd", %{{.*}}: "hd") makes("thd", "t") heads 1
// CHECK: nn.reduce
// CHECK: %[[Y:.*]] = nn.add
// CHECK: return %[[Y]], %[[N]]#1 : tensor<1x8x16xbf16>, tensor<1x8xf32>

// I makes n again of the row, dx in the element type, and dg in the type of sums, of the operands and the row.
// CHECK: func.func private @s0.I(%[[X:[a-z0-9]+]]: tensor<1x8x16xbf16>, %[[R:[a-z0-9]+]]: tensor<1x8xf32>, %[[G:[a-z0-9]+]]: tensor<16xbf16>,
// CHECK: %[[AGAIN:.*]] = nn.map reads(%[[X]]: "thd", %[[G]]: "hd", %[[R]]: "t") makes("thd") heads 1
// CHECK-NOT: nn.reduce
// CHECK: %[[DN:.*]] = nn.linear_dx
// CHECK: %[[MADE:.*]]:2 = nn.map reads(%[[X]]: "thd", %[[G]]: "hd", %[[DN]]: "thd", %[[R]]: "t") makes("thd", "hd")
// CHECK: nn.add %{{.*}}, %[[MADE]]#0
// CHECK: return %{{.*}}, %[[AGAIN]], %[[MADE]]#1 :
// CHECK: func.func private @s0.W(%[[N:[a-z0-9]+]]: tensor<1x8x16xbf16>, %[[DG:[a-z0-9]+]]: tensor<16xf32>,
// CHECK: nn.linear_dw %[[N]]
// CHECK: nn.accumulate %[[DG]]
