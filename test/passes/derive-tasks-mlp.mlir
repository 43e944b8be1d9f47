// An MLP in two runs of 8 rows: `mlp chunks = 2`. Views cut and join; what lies between the linears is a run's.
// RUN: pp-opt %s --pp-derive-tasks --split-input-file | FileCheck %s

!x = tensor<1x16x16xf32>
!u = tensor<1x16x32xf32>
!w = tensor<16xf32>
!row = tensor<1x16xf32>

func.func private @post(%x: !x, %g: !w {nn.weight = #nn.weight<"g">}, %w1: tensor<16x32xf32> {nn.weight = #nn.weight<"w1">},
    %w2: tensor<32x16xf32> {nn.weight = #nn.weight<"w2">}) -> !x {
  %n, %r = nn.rmsnorm %x, %g : (!x, !w) -> (!x, !row)
  %u = nn.linear %n, %w1 : (!x, tensor<16x32xf32>) -> !u
  %h = nn.gelu %u : (!u) -> !u
  %d = nn.linear %h, %w2 : (!u, tensor<32x16xf32>) -> !x
  %z = nn.add %x, %d : (!x, !x) -> !x
  return %z : !x
}

pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {mlp = {chunks = 2 : i64}}} {
  pipeline.piece @s0 <stage 0> parts [["post", 0]] recompute ["post"]
  pipeline.piece @s1 <stage 1> parts [["post", 1]]
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <R stage 0 mb 0> on [0]
  pipeline.unit <B stage 0 mb 0> on [0]
  pipeline.unit <F stage 1 mb 0> on [1]
  pipeline.unit <I stage 1 mb 0> on [1]
  pipeline.unit <W stage 1 mb 0> on [1]
}

// With R nothing of the MLP is saved but the statistic of the norm before it ..
// CHECK: func.func private @s0.F({{.*}}act x 1, stash x 1>
// CHECK: func.func private @s0.R({{.*}}stash x 1>
// CHECK-NOT: nn.linear
// CHECK: return
// .. for B makes u again, a run at a time, right before the gradients that read it; the last run comes first.
// CHECK-LABEL: func.func private @s0.B(
// CHECK-SAME: %[[DZ:[a-z0-9]+]]: tensor<1x16x16xf32>, %[[G1:[a-z0-9]+]]: tensor<16xf32>
// CHECK-DAG: %[[D1:.*]] = nn.rows %[[DZ]] {count = 8 : i64, start = 8 : i64}
// CHECK-DAG: %[[N1:.*]] = nn.rows %{{.*}} {count = 8 : i64, start = 8 : i64}
// CHECK: %[[U1:.*]] = nn.linear %[[N1]], %{{.*}} -> tensor<1x8x32xf32>
// CHECK: %[[H1:.*]] = nn.gelu %[[U1]]
// CHECK: %[[S1:.*]] = nn.linear_dw %[[H1]], %[[D1]]
// CHECK: %[[DU1:.*]] = nn.gelu_bwd %{{.*}}, %[[U1]]
// CHECK: %[[T1:.*]] = nn.linear_dw %[[N1]], %[[DU1]]
// CHECK: %[[DN1:.*]] = nn.linear_dx %[[DU1]]
// CHECK: %[[U0:.*]] = nn.linear
// CHECK: nn.linear_dw %{{.*}} into %[[S1]]
// CHECK: nn.linear_dw %{{.*}} into %[[T1]]
// CHECK: %[[DN0:.*]] = nn.linear_dx
// CHECK: nn.join_rows %[[DN0]], %[[DN1]] {batch = 1 : i64}

// Without R the outputs of the first linear are saved, run by run.
// CHECK: func.func private @s1.F({{.*}}act x 1, stash x 3>
// CHECK-DAG: %[[A0:.*]] = nn.rows %{{.*}} {count = 8 : i64, start = 0 : i64}
// CHECK-DAG: %[[A1:.*]] = nn.rows %{{.*}} {count = 8 : i64, start = 8 : i64}
// CHECK: %[[V0:.*]] = nn.linear %[[A0]], %{{.*}} -> tensor<1x8x32xf32>
// CHECK: %[[Z0:.*]] = nn.linear
// CHECK: %[[V1:.*]] = nn.linear %[[A1]], %{{.*}} -> tensor<1x8x32xf32>
// CHECK: %[[Z1:.*]] = nn.linear
// CHECK: nn.join_rows %[[Z0]], %[[Z1]]
// CHECK: return %{{.*}}, %{{.*}}, %[[V0]], %[[V1]]

// W takes its rows itself: what waits for it is the norm's output, du of both runs, and gelu of both.
// CHECK: func.func private @s1.I({{.*}}pending x 6>
// CHECK: func.func private @s1.W(
// CHECK: nn.rows

// -----

// A gated unit of any activation is cut as well, and keeps its numbers in every run and gradient.
!x = tensor<1x16x16xf32>
!u = tensor<1x16x32xf32>

func.func private @post(%x: !x, %w1: tensor<16x32xf32> {nn.weight = #nn.weight<"w1">},
    %w2: tensor<16x32xf32> {nn.weight = #nn.weight<"w2">}, %w3: tensor<32x16xf32> {nn.weight = #nn.weight<"w3">}) -> !x {
  %p = nn.linear %x, %w1 : (!x, tensor<16x32xf32>) -> !u
  %q = nn.linear %x, %w2 : (!x, tensor<16x32xf32>) -> !u
  %h = nn.glu %p, %q {activation = "gelu_tanh", plus = 1.0} : (!u, !u) -> !u
  %z = nn.linear %h, %w3 : (!u, tensor<32x16xf32>) -> !x
  return %z : !x
}

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {mlp = {chunks = 2 : i64}}} {
  pipeline.piece @s0 <stage 0> parts [["post", 0]]
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <B stage 0 mb 0> on [0]
}
// CHECK: func.func private @s0.F(
// CHECK-COUNT-2: nn.glu {{.*}} {activation = "gelu_tanh", plus = 1.000000e+00 : f64} : (tensor<1x8x32xf32>, tensor<1x8x32xf32>)
// CHECK: nn.join_rows
// B makes what the last linear read again, from p and q.
// CHECK: func.func private @s0.B(
// CHECK: nn.glu {{.*}} {activation = "gelu_tanh", plus = 1.000000e+00 : f64} : (tensor<1x8x32xf32>, tensor<1x8x32xf32>)
// CHECK: nn.linear_dw
// CHECK: nn.glu_bwd {{.*}} {activation = "gelu_tanh", plus = 1.000000e+00 : f64} : (tensor<1x8x32xf32>,
