// The ops of mixtures of experts read back what they print; what an option does not say is not printed.
// RUN: pp-opt %s | pp-opt | FileCheck %s

!x = tensor<2x4x8xbf16>
!r = tensor<2x4x6xf32>
!k = tensor<2x4x3xf32>
!i = tensor<2x4x3xi32>
!rows = tensor<2x12x8xbf16>

// CHECK-LABEL: func.func private @part
// CHECK-SAME: #nn.weight<"bias" as "b.{l}" zero steer 1.000000e-03>
// CHECK-SAME: #nn.weight<"row" as "r" zero row>
// CHECK-SAME: #nn.weight<"turns" as "t" zero alternate shared>
// CHECK-SAME: #nn.weight<"heads" as "h" one column>
func.func private @part(%bias: tensor<6xf32> {nn.weight = #nn.weight<"bias" as "b.{l}" zero steer 0.001>},
    %row: tensor<6xf32> {nn.weight = #nn.weight<"row" as "r" zero row>},
    %turns: tensor<6xf32> {nn.weight = #nn.weight<"turns" as "t" zero alternate shared>},
    %heads: tensor<6xf32> {nn.weight = #nn.weight<"heads" as "h" one column>})
    attributes {nn.per_layer, nn.part = "part"} {
  return
}

// CHECK-LABEL: func.func @experts
func.func @experts(%x: !x, %wr: tensor<8x6xbf16>, %bias: tensor<6xbf16>, %w: tensor<6x8x8xbf16>, %wb: tensor<6x8xbf16>, %there: tensor<2x4xi32>) {
  // CHECK: %[[R:.*]] = nn.router %{{.*}}, %{{.*}} : (tensor<2x4x8xbf16>, tensor<8x6xbf16>) -> tensor<2x4x6xf32>
  %r = nn.router %x, %wr : (!x, tensor<8x6xbf16>) -> !r
  // CHECK: nn.route %[[R]] {top = 3 : i64} : (tensor<2x4x6xf32>)
  // CHECK-SAME: -> (tensor<2x4x3xf32>, tensor<2x4x3xi32>, tensor<2x4x6xf32>, tensor<2x4xf32>, tensor<2x4x3xi32>, tensor<6xi32>)
  %s:6 = nn.route %r {top = 3} : (!r) -> (!k, !i, !r, tensor<2x4xf32>, !i, tensor<6xi32>)
  // CHECK: nn.route %[[R]] rows %{{.*}} {top = 3 : i64} : (tensor<2x4x6xf32>, tensor<2x4xi32>)
  %t:6 = nn.route %r rows %there {top = 3} : (!r, tensor<2x4xi32>) -> (!k, !i, !r, tensor<2x4xf32>, !i, tensor<6xi32>)
  // CHECK: %[[W:.*]], %[[SEL:.*]], %[[P:.*]], %[[LSE:.*]], %[[PLACES:.*]], %[[COUNTS:.*]] = nn.route %[[R]] bias %{{.*}} {
  // CHECK-SAME: groups = 3 : i64, renormalise = true, scale = 2.500000e+00 : f64, score = "sigmoid", top = 3 : i64, top_groups = 2 : i64}
  %w1, %sel, %p, %lse, %places, %counts = nn.route %r bias %bias {top = 3, renormalise = true, scale = 2.5,
      score = "sigmoid", groups = 3, top_groups = 2} : (!r, tensor<6xbf16>) -> (!k, !i, !r, tensor<2x4xf32>, !i, tensor<6xi32>)
  // CHECK: nn.route %[[R]] {group_by = "largest", groups = 3 : i64, least = 1.250000e-01 : f64, renormalise = true, top = 3 : i64, top_groups = 2 : i64}
  %l:6 = nn.route %r {top = 3, groups = 3, top_groups = 2, group_by = "largest", renormalise = true, least = 0.125}
      : (!r) -> (!k, !i, !r, tensor<2x4xf32>, !i, tensor<6xi32>)
  // CHECK: %[[ROWS:.*]] = nn.dispatch %{{.*}}, %[[PLACES]]
  %rows = nn.dispatch %x, %places : (!x, !i) -> !rows
  // CHECK: %[[A:.*]] = nn.expert_linear %[[ROWS]], %{{.*}}, %[[COUNTS]]
  %a = nn.expert_linear %rows, %w, %counts : (!rows, tensor<6x8x8xbf16>, tensor<6xi32>) -> !rows
  // CHECK: %[[AB:.*]] = nn.expert_bias %[[A]], %{{.*}}, %[[COUNTS]] : ({{.*}}, tensor<6x8xbf16>, tensor<6xi32>)
  %ab = nn.expert_bias %a, %wb, %counts : (!rows, tensor<6x8xbf16>, tensor<6xi32>) -> !rows
  // CHECK: nn.expert_bias_dw %[[AB]], %[[COUNTS]] : {{.*}} -> tensor<6x8xf32>
  %db = nn.expert_bias_dw %ab, %counts : (!rows, tensor<6xi32>) -> tensor<6x8xf32>
  // CHECK: nn.add_bias %[[R]], %{{.*}} : (tensor<2x4x6xf32>, tensor<6xbf16>) -> tensor<2x4x6xf32>
  %rb = nn.add_bias %r, %bias : (!r, tensor<6xbf16>) -> !r
  // CHECK: %[[B:.*]] = nn.scale_rows %[[A]], %[[W]], %[[PLACES]]
  %b = nn.scale_rows %a, %w1, %places : (!rows, !k, !i) -> !rows
  // CHECK: %[[Y:.*]] = nn.combine %[[B]], %[[PLACES]] :
  %y = nn.combine %b, %places : (!rows, !i) -> !x
  // CHECK: nn.combine %[[B]], %[[PLACES]] into %[[Y]]
  %y2 = nn.combine %b, %places into %y : (!rows, !i, !x) -> !x
  // CHECK: nn.scale_rows_bwd %[[B]], %[[A]], %[[W]], %[[PLACES]]
  %da, %dw = nn.scale_rows_bwd %b, %a, %w1, %places : (!rows, !rows, !k, !i) -> (!rows, !k)
  // CHECK: nn.expert_linear_dx %[[B]], %{{.*}}, %[[COUNTS]] into %[[A]]
  %dx = nn.expert_linear_dx %b, %w, %counts into %a : (!rows, tensor<6x8x8xbf16>, tensor<6xi32>, !rows) -> !rows
  // CHECK: nn.expert_linear_dw %[[ROWS]], %[[B]], %[[COUNTS]] : {{.*}} -> tensor<6x8x8xf32>
  %dwe = nn.expert_linear_dw %rows, %b, %counts : (!rows, !rows, tensor<6xi32>) -> tensor<6x8x8xf32>
  // CHECK: %[[DR:.*]] = nn.route_bwd %{{.*}}, %[[W]], %[[SEL]], %[[P]] lse %[[LSE]] {balance = 1.000000e-02 : f64, group = 4 : i64, z = 1.000000e-01 : f64}
  %dr = nn.route_bwd %dw, %w1, %sel, %p lse %lse {balance = 0.01, group = 4, z = 0.1} : (!k, !k, !i, !r, tensor<2x4xf32>) -> !r
  // CHECK: nn.route_bwd %{{.*}}, %[[W]], %[[SEL]], %[[P]] {group = 4 : i64, sigmoid = true}
  %dr2 = nn.route_bwd %dw, %w1, %sel, %p {group = 4, sigmoid = true} : (!k, !k, !i, !r) -> !r
  // CHECK: %[[OFTEN:.*]] = nn.choice_counts %[[SEL]] {experts = 6 : i64, group = 4 : i64, sum = f32} : {{.*}} -> tensor<2x6xf32>
  %often = nn.choice_counts %sel {experts = 6, group = 4, sum = f32} : (!i) -> tensor<2x6xf32>
  // CHECK: nn.route_bwd %{{.*}}, %[[W]], %[[SEL]], %[[P]] often %[[OFTEN]] {balance = 5.000000e-01 : f64, group = 4 : i64}
  %dr3 = nn.route_bwd %dw, %w1, %sel, %p often %often {group = 4, balance = 0.5} : (!k, !k, !i, !r, tensor<2x6xf32>) -> !r
  // CHECK: nn.router_dx %[[DR]], %{{.*}} into %[[Y]]
  %dxr = nn.router_dx %dr, %wr into %y : (!r, tensor<8x6xbf16>, !x) -> !x
  // CHECK: nn.router_dw %{{.*}}, %[[DR]] : {{.*}} -> tensor<8x6xf32>
  %dwr = nn.router_dw %x, %dr : (!x, !r) -> tensor<8x6xf32>
  // CHECK: %[[LOAD:.*]] = nn.expert_load %[[COUNTS]] {sum = f32, top = 3 : i64}
  %load = nn.expert_load %counts {top = 3, sum = f32} : (tensor<6xi32>) -> tensor<6xf32>
  // CHECK: nn.expert_load %[[COUNTS]] into %[[LOAD]]
  %more = nn.expert_load %counts into %load {top = 3, sum = f32} : (tensor<6xi32>, tensor<6xf32>) -> tensor<6xf32>
  // Two of six experts give a token itself.
  // CHECK: %{{.*}}, %[[SEL2:.*]], %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}} = nn.route %[[R]] {identity = 2 : i64, top = 3 : i64}
  // CHECK-SAME: tensor<4xi32>)
  %i:6 = nn.route %r {top = 3, identity = 2} : (!r) -> (!k, !i, !r, tensor<2x4xf32>, !i, tensor<4xi32>)
  // CHECK: %[[U:.*]] = nn.identity_weights %[[W]], %[[SEL2]] {experts = 4 : i64} : {{.*}} -> tensor<2x4xf32>
  %u = nn.identity_weights %w1, %i#1 {experts = 4} : (!k, !i) -> tensor<2x4xf32>
  // CHECK: nn.identity_weights_bwd %[[U]], %[[SEL2]] {experts = 4 : i64} : {{.*}} -> tensor<2x4x3xf32>
  %du = nn.identity_weights_bwd %u, %i#1 {experts = 4} : (tensor<2x4xf32>, !i) -> !k
  // CHECK: nn.choice_load %[[SEL2]] into %{{.*}} {experts = 6 : i64, sum = f32}
  %cl = nn.choice_load %i#1 into %load {experts = 6, sum = f32} : (!i, tensor<6xf32>) -> tensor<6xf32>
  // CHECK: nn.route %[[R]] {jitter = 2.000000e-02 : f64, score = "sparsemixer", top = 2 : i64}
  %m:6 = nn.route %r {top = 2, score = "sparsemixer", jitter = 0.02} : (!r)
      -> (tensor<2x4x2xf32>, tensor<2x4x2xi32>, !r, tensor<2x4xf32>, tensor<2x4x2xi32>, tensor<6xi32>)
  // CHECK: nn.route_bwd {{.*}} {group = 8 : i64, jitter = 2.000000e-02 : f64, sparsemixer = true}
  %dm = nn.route_bwd %m#0, %m#0, %m#1, %m#2 {group = 8, sparsemixer = true, jitter = 0.02}
      : (tensor<2x4x2xf32>, tensor<2x4x2xf32>, tensor<2x4x2xi32>, !r) -> !r
  // CHECK: nn.steer %{{.*}} into %{{.*}}, %{{.*}} {rate = 1.000000e-03 : f64}
  %nb, %nm = nn.steer %more into %bias, %load {rate = 0.001} : (tensor<6xf32>, tensor<6xbf16>, tensor<6xf32>) -> (tensor<6xbf16>, tensor<6xf32>)
  return
}
