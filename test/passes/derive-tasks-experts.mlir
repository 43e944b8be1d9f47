// A mixture of experts between a norm and a sum, with R and B, and apart in I and W: what is kept, made again, and summed.
// RUN: pp-opt %s --pp-derive-tasks | FileCheck %s

!x = tensor<1x8x16xf32>
!k = tensor<1x8x2xf32>
!i = tensor<1x8x2xi32>
!p = tensor<1x8x4xf32>
!rows = tensor<1x16x16xf32>
!u = tensor<1x16x12xf32>
!wr = tensor<16x4xf32>
!we = tensor<4x16x12xf32>
!wd = tensor<4x12x16xf32>

func.func private @moe(%y: !x, %g: tensor<16xf32> {nn.weight = #nn.weight<"g">}, %wr: !wr {nn.weight = #nn.weight<"wr">},
    %bias: tensor<4xf32> {nn.weight = #nn.weight<"bias" zero steer 0.001>}, %wg: !we {nn.weight = #nn.weight<"wg">},
    %wu: !we {nn.weight = #nn.weight<"wu">}, %wd: !wd {nn.weight = #nn.weight<"wd">}) -> !x {
  %n, %rstd = nn.rmsnorm %y, %g : (!x, tensor<16xf32>) -> (!x, tensor<1x8xf32>)
  %r = nn.router %n, %wr : (!x, !wr) -> !p
  %w, %sel, %p, %lse, %places, %counts = nn.route %r bias %bias {top = 2, balance = 0.5, score = "sigmoid"}
      : (!p, tensor<4xf32>) -> (!k, !i, !p, tensor<1x8xf32>, !i, tensor<4xi32>)
  %rows = nn.dispatch %n, %places : (!x, !i) -> !rows
  %a = nn.expert_linear %rows, %wg, %counts : (!rows, !we, tensor<4xi32>) -> !u
  %b = nn.expert_linear %rows, %wu, %counts : (!rows, !we, tensor<4xi32>) -> !u
  %s = nn.swiglu %a, %b : (!u, !u) -> !u
  %t = nn.scale_rows %s, %w, %places : (!u, !k, !i) -> !u
  %d = nn.expert_linear %t, %wd, %counts : (!u, !wd, tensor<4xi32>) -> !rows
  %c = nn.combine %d, %places : (!rows, !i) -> !x
  %z = nn.add %y, %c : (!x, !x) -> !x
  return %z : !x
}

pipeline.program @p ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["moe", 0]] recompute ["moe"]
  pipeline.piece @s1 <stage 1> parts [["moe", 1]]
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <R stage 0 mb 0> on [0]
  pipeline.unit <B stage 0 mb 0> on [0]
  pipeline.unit <F stage 1 mb 0> on [1]
  pipeline.unit <I stage 1 mb 0> on [1]
  pipeline.unit <W stage 1 mb 0> on [1]
}

// What was chosen is kept where the rest is made again: w, sel, p, places, counts; lse only with z.
// CHECK: func.func private @s0.F(
// CHECK-SAME: pipeline.results = #pipeline.groups<act x 1, kept x 5, stash x 3>
// CHECK: func.func private @s0.F.light(
// CHECK-SAME: pipeline.results = #pipeline.groups<act x 1, kept x 5>

// R chooses nothing, and no output of an expert is needed again.
// CHECK: func.func private @s0.R(
// CHECK-NOT: nn.rout
// CHECK: %[[Y:.*]], %[[RSTD:.*]] = nn.rmsnorm
// CHECK-NEXT: %[[ROWS:.*]] = nn.dispatch %[[Y]],
// CHECK-NEXT: %[[A:.*]] = nn.expert_linear %[[ROWS]],
// CHECK-NEXT: %[[B:.*]] = nn.expert_linear %[[ROWS]],
// CHECK-NEXT: return %[[RSTD]], %[[A]], %[[B]] :

// B makes the cheap ones again: what goes into the last product, and the rows of the norm's output.
// CHECK: func.func private @s0.B(
// CHECK: %[[DROWS:.*]] = nn.dispatch
// CHECK-NEXT: %[[S:.*]] = nn.swiglu
// CHECK-NEXT: %[[T:.*]] = nn.scale_rows %[[S]],
// CHECK-NEXT: nn.expert_linear_dw %[[T]], %[[DROWS]],
// CHECK-NEXT: %[[DT:.*]] = nn.expert_linear_dx %[[DROWS]],
// CHECK-NEXT: %[[DS:.*]], %[[DW:.*]] = nn.scale_rows_bwd %[[DT]], %[[S]],
// CHECK-NEXT: %[[DP:.*]], %[[DQ:.*]] = nn.swiglu_bwd %[[DS]],
// CHECK-NEXT: %[[N:.*]] = nn.rmsnorm_rebuild
// CHECK-NEXT: %[[R:.*]] = nn.dispatch %[[N]],
// CHECK-NEXT: nn.expert_linear_dw %[[R]], %[[DQ]],
// CHECK-NEXT: %[[X1:.*]] = nn.expert_linear_dx %[[DQ]],
// CHECK-NEXT: nn.expert_linear_dw %[[R]], %[[DP]],
// CHECK-NEXT: %[[X2:.*]] = nn.expert_linear_dx %[[DP]], {{.*}} into %[[X1]]
// CHECK-NEXT: %[[X3:.*]] = nn.combine %[[X2]],
// The balance of a sequence of 8 tokens, of 2 microbatches: 0.5 * 4 / 2 / 8 / 8 / 2.
// CHECK-NEXT: %[[DR:.*]] = nn.route_bwd %[[DW]], {{.*}} {balance = 5.000000e-01 : f64, group = 8 : i64, sigmoid = true}
// CHECK-NEXT: nn.expert_load {{.*}} into {{.*}} {sum = f32, top = 2 : i64}
// CHECK-NEXT: nn.router_dw %[[N]], %[[DR]]
// CHECK-NEXT: nn.router_dx %[[DR]], {{.*}} into %[[X3]]

// Counts are in no norm, and no optimizer moves the bias: three matrices of experts, the router's and the gain.
// CHECK: func.func private @s0.norm.first(
// CHECK-COUNT-5: nn.sum_squares
// CHECK-NEXT: return
// CHECK: func.func private @s0.U(
// CHECK-COUNT-2: nn.adamw
// CHECK-NEXT: nn.steer %{{.*}} into %{{.*}} {rate = 1.000000e-03 : f64}
// CHECK-COUNT-3: nn.adamw

// I has no gradient of a weight, W nothing else.
// CHECK: func.func private @s1.I(
// CHECK-NOT: nn.{{.*}}_dw
// CHECK-NOT: nn.expert_load
// CHECK: func.func private @s1.W(
// CHECK-COUNT-3: nn.expert_linear_dw
// CHECK-NEXT: nn.expert_load
// CHECK-NEXT: nn.router_dw
// CHECK-NEXT: nn.accumulate
// CHECK-NEXT: return
