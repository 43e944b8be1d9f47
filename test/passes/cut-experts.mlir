// Rows go to the devices that have their experts, with their weights and counts, and come back; a device has its own.
// RUN: pp-opt %s --pp-cut-experts | FileCheck %s
// RUN: pp-opt %s --pp-cut-experts | pp-opt | FileCheck %s
// RUN: sed 's/, again inputs//' %s | pp-opt --pp-cut-experts | FileCheck %s --check-prefix=KEPT
// RUN: sed 's/) -> !x {$/) -> !x attributes {nn.again = "nothing"} {/' %s | pp-opt --pp-cut-experts | FileCheck %s --check-prefix=KEPT
// RUN: sed 's/expert 2/expert 4/' %s | not pp-opt --pp-cut-experts 2>&1 | FileCheck %s --check-prefix=ODD
// RUN: sed 's/{top = 4}/{top = 4, capacity = 1.125}/' %s | pp-opt --pp-cut-experts | FileCheck %s --check-prefix=LIMITED
// RUN: sed 's/, expert 2//' %s | pp-opt --pp-cut-experts | FileCheck %s --check-prefix=ALL --implicit-check-not=exchange
// RUN: sed 's/) -> !x {$/) -> !x attributes {nn.all_experts} {/' %s | pp-opt --pp-cut-experts \
// RUN:   | FileCheck %s --check-prefix=ALL --implicit-check-not=exchange

!x = tensor<2x4x16xf32>
!c = tensor<2x4x4xi32>
!r = tensor<2x16x16xf32>
!f = tensor<2x16x24xf32>

// Each of 8 tokens may have min(4, 3) rows on each of the two devices: 24 in a section.
// CHECK-LABEL: func.func private @moe(
// CHECK-SAME: %[[X:[^:]*]]: tensor<2x4x16xf32>, %{{[^:]*}}: tensor<16x6xf32> {nn.weight = #nn.weight<"wr" {{[^>]*}}>},
// CHECK-SAME: %[[U:[^:]*]]: tensor<3x16x24xf32> {nn.weight = #nn.weight<"up" {{[^>]*}} experts 2>}
// CHECK-SAME: %[[D:[^:]*]]: tensor<3x24x16xf32> {nn.weight = #nn.weight<"down" {{[^>]*}} experts 2>},
// CHECK-SAME: %[[UB:[^:]*]]: tensor<3x24xf32> {nn.weight = #nn.weight<"up_bias" {{[^>]*}} experts 2>})
// CHECK: %[[W:[^,]*]], %{{.*}}, %{{.*}}, %{{.*}}, %[[P:[^,]*]], %[[C:.*]] = nn.route %{{.*}} {sections = #nn.sections<2 most 3>, top = 4 : i64}
// CHECK-SAME: tensor<2x3xi32>)
// CHECK-NEXT: %[[R:.*]] = nn.dispatch %[[X]], %[[P]] {sections = #nn.sections<2 most 3>} : (tensor<2x4x16xf32>, tensor<2x4x4xi32>) -> tensor<1x48x16xf32>
// CHECK-NEXT: %[[H:.*]] = nn.exchange_sections %[[R]] over <expert> {members = 2 : i64}
// KEPT: nn.dispatch
// KEPT-NEXT: nn.exchange_sections %{{.*}} over <expert> {kept, members = 2 : i64}
// CHECK-NEXT: %[[N:.*]] = nn.exchange_sections %[[C]] over <expert> {kept, members = 2 : i64} : (tensor<2x3xi32>) -> tensor<2x3xi32>
// CHECK-NEXT: %[[A:.*]] = nn.expert_linear %[[H]], %[[U]], %[[N]] {filled = {{0.666666666666666[0-9]*}} : f64}
// CHECK-NEXT: %[[AB:.*]] = nn.expert_bias %[[A]], %[[UB]], %[[N]] : (tensor<1x48x24xf32>, tensor<3x24xf32>, tensor<2x3xi32>)
// CHECK-NEXT: %[[L:.*]] = nn.place_weights %[[W]], %[[P]] {sections = #nn.sections<2 most 3>} : (tensor<2x4x4xf32>, tensor<2x4x4xi32>) -> tensor<1x48xf32>
// CHECK-NEXT: %[[M:.*]] = nn.exchange_sections %[[L]] over <expert> {kept, members = 2 : i64}
// CHECK-NEXT: %[[S:.*]] = nn.scale_rows %[[AB]], %[[M]] : (tensor<1x48x24xf32>, tensor<1x48xf32>) -> tensor<1x48x24xf32>
// CHECK-NEXT: %[[O:.*]] = nn.expert_linear %[[S]], %[[D]], %[[N]] {filled = {{0.666666666666666[0-9]*}} : f64}
// CHECK-NEXT: %[[B:.*]] = nn.exchange_sections %[[O]] over <expert> {kept, members = 2 : i64}
// CHECK-NEXT: %[[Y:.*]] = nn.combine %[[B]], %[[P]] {sections = #nn.sections<2 most 3>} : (tensor<1x48x16xf32>, tensor<2x4x4xi32>) -> tensor<2x4x16xf32>
// CHECK-NEXT: return %[[Y]]
// With capacity 1.125 it has room for 18: 1.125 of the 16 choices of 8 tokens that a device gets on average.
// LIMITED: nn.dispatch %{{.*}} {sections = #nn.sections<2 most 3 capacity 1.125000e+00>} {{.*}} -> tensor<1x36x16xf32>
// LIMITED: nn.expert_linear %{{.*}} {filled = {{0.888888888888888[0-9]*}} : f64}
// LIMITED: nn.place_weights %{{.*}} -> tensor<1x36xf32>
// ODD: error: `experts` in part `moe` has 6 experts; `expert = 4` does not divide them
// ALL: nn.expert_linear %{{.*}}, %{{.*}}, %{{.*}} : (tensor<2x16x16xf32>, tensor<6x16x24xf32>, tensor<6xi32>)
func.func private @moe(%x: !x, %wr: tensor<16x6xf32> {nn.weight = #nn.weight<"wr">},
    %up: tensor<6x16x24xf32> {nn.weight = #nn.weight<"up">},
    %down: tensor<6x24x16xf32> {nn.weight = #nn.weight<"down">},
    %upb: tensor<6x24xf32> {nn.weight = #nn.weight<"up_bias">}) -> !x {
  %l = nn.router %x, %wr : (!x, tensor<16x6xf32>) -> tensor<2x4x6xf32>
  %w, %s, %p, %e, %q, %c = nn.route %l {top = 4} : (tensor<2x4x6xf32>) -> (tensor<2x4x4xf32>, !c, tensor<2x4x6xf32>, tensor<2x4xf32>, !c, tensor<6xi32>)
  %r = nn.dispatch %x, %q : (!x, !c) -> !r
  %a = nn.expert_linear %r, %up, %c : (!r, tensor<6x16x24xf32>, tensor<6xi32>) -> !f
  %ab = nn.expert_bias %a, %upb, %c : (!f, tensor<6x24xf32>, tensor<6xi32>) -> !f
  %b = nn.scale_rows %ab, %w, %q : (!f, tensor<2x4x4xf32>, !c) -> !f
  %d = nn.expert_linear %b, %down, %c : (!f, tensor<6x24x16xf32>, tensor<6xi32>) -> !r
  %y = nn.combine %d, %q : (!r, !c) -> !x
  return %y : !x
}

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {},
    mesh = #pipeline.mesh<tensor 1, context 2, data 2, pipeline 1, again inputs, expert 2>} {
  pipeline.piece @s0 <stage 0> parts [["moe", 0]] at <[0]>
}
