// Rows, their weights and how many there are of each expert all go to the experts' devices, and rows come back.
// RUN: pp-opt %s --pp-verify-layouts -o /dev/null
// RUN: sed 's/linear %here/linear %rows/' %s | not pp-opt --pp-verify-layouts 2>&1 | FileCheck %s --check-prefix=ROWS
// RUN: sed 's/%up, %n/%up, %c/' %s | not pp-opt --pp-verify-layouts 2>&1 | FileCheck %s --check-prefix=COUNTS
// RUN: sed 's/rows %g, %m/rows %g, %l/' %s | not pp-opt --pp-verify-layouts 2>&1 | FileCheck %s --check-prefix=WEIGHTS
// RUN: sed 's/combine %back/combine %d/' %s | not pp-opt --pp-verify-layouts 2>&1 | FileCheck %s --check-prefix=BACK
// RUN: sed 's/%rows over <expert>/%rows over <data>/' %s | not pp-opt --pp-verify-layouts 2>&1 | FileCheck %s --check-prefix=AXIS
// RUN: sed 's/"up" zero experts 2/"up" zero/' %s | not pp-opt --pp-verify-layouts 2>&1 | FileCheck %s --check-prefix=ALL
// RUN: sed 's/linear_dw %here, %dg, %n/linear_dw %rows, %dg, %n/' %s | not pp-opt --pp-verify-layouts 2>&1 \
// RUN:   | FileCheck %s --check-prefix=GRADIENT
// RUN: sed '/^  %own/a %y = nn.expert_linear %rows, %own, %c : (!r, tensor<3x8x8xf32>, tensor<2x3xi32>) -> !r' %s \
// RUN:   | not pp-opt --pp-verify-layouts 2>&1 | FileCheck %s --check-prefix=TERM
// RUN: sed 's/return %du/return %own/' %s | not pp-opt --pp-verify-layouts 2>&1 | FileCheck %s --check-prefix=OTHER

// ROWS: error: 'nn.expert_linear' op in `s0.F` has no rule for `expert = 2`: operand 0 is rows, operand 1 is shard 0, then shard 1
// COUNTS: error: 'nn.expert_linear' op in `s0.F` has no rule for `expert = 2`: operand 0 is shard 1, operand 1 is shard 0, then rows
// WEIGHTS: error: 'nn.scale_rows' op in `s0.F` has no rule for `expert = 2`: operand 0 is shard 1, operand 1 is rows
// BACK: error: 'nn.combine' op in `s0.F` has no rule for `expert = 2`: operand 0 is shard 1, operand 1 is rows
// AXIS: error: 'nn.exchange_sections' op in `s0.F` has no rule for `expert = 2`: operand 0 is rows
// ALL: error: 'nn.expert_linear' op in `s0.F` has no rule for `expert = 2`: operand 0 is shard 1, operand 1 is none, then shard 1
// GRADIENT: error: 'nn.expert_linear_dw' op in `s0.B` has no rule for `expert = 2`: operand 0 is rows, operand 1 is shard 1, then shard 1
// TERM: error: 'nn.expert_linear' op in `s0.B` has no rule for `expert = 2`: operand 0 is rows, operand 1 is partial, then rows
// OTHER: error: 'func.func' op returns tensor 0 of `grad` as partial over `expert = 2`; expected shard 0

!x = tensor<1x4x8xf32>
!i = tensor<1x4x2xi32>
!k = tensor<1x4x2xf32>
!r = tensor<1x16x8xf32>
#up = #pipeline.weight<"up" : tensor<3x8x8xf32> declared <"up" zero experts 2>>
func.func private @s0.F(%x: !x, %logits: tensor<1x4x6xf32>, %up: tensor<3x8x8xf32>) -> !x attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 2, weight x 1>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %w, %sel, %p, %lse, %places, %c = nn.route %logits {top = 2, sections = #nn.sections<2 most 2>} : (tensor<1x4x6xf32>) -> (!k, !i, tensor<1x4x6xf32>, tensor<1x4xf32>, !i, tensor<2x3xi32>)
  %rows = nn.dispatch %x, %places {sections = #nn.sections<2 most 2>} : (!x, !i) -> !r
  %here = nn.exchange_sections %rows over <expert> {members = 2} : (!r) -> !r
  %n = nn.exchange_sections %c over <expert> {members = 2, kept} : (tensor<2x3xi32>) -> tensor<2x3xi32>
  %g = nn.expert_linear %here, %up, %n {filled = 0.5} : (!r, tensor<3x8x8xf32>, tensor<2x3xi32>) -> !r
  %l = nn.place_weights %w, %places {sections = #nn.sections<2 most 2>} : (!k, !i) -> tensor<1x16xf32>
  %m = nn.exchange_sections %l over <expert> {members = 2, kept} : (tensor<1x16xf32>) -> tensor<1x16xf32>
  %d = nn.scale_rows %g, %m : (!r, tensor<1x16xf32>) -> !r
  %back = nn.exchange_sections %d over <expert> {members = 2, kept} : (!r) -> !r
  %y = nn.combine %back, %places {sections = #nn.sections<2 most 2>} : (!r, !i) -> !x
  return %y : !x
}
func.func private @s0.B(%x: !x, %logits: tensor<1x4x6xf32>, %dy: !x, %up: tensor<3x8x8xf32>) -> tensor<3x8x8xf32> attributes {
  pipeline.body = #pipeline.body<"s0" B first>, pipeline.inputs = #pipeline.groups<act x 2, dact x 1, weight x 1>,
  pipeline.results = #pipeline.groups<grad x 1>, pipeline.ties = array<i64: -1>} {
  %w, %sel, %p, %lse, %places, %c = nn.route %logits {top = 2, sections = #nn.sections<2 most 2>} : (tensor<1x4x6xf32>) -> (!k, !i, tensor<1x4x6xf32>, tensor<1x4xf32>, !i, tensor<2x3xi32>)
  %rows = nn.dispatch %x, %places {sections = #nn.sections<2 most 2>} : (!x, !i) -> !r
  %here = nn.exchange_sections %rows over <expert> {members = 2} : (!r) -> !r
  %n = nn.exchange_sections %c over <expert> {members = 2, kept} : (tensor<2x3xi32>) -> tensor<2x3xi32>
  %drows = nn.dispatch %dy, %places {sections = #nn.sections<2 most 2>} : (!x, !i) -> !r
  %dg = nn.exchange_sections %drows over <expert> {members = 2, kept} : (!r) -> !r
  %du = nn.expert_linear_dw %here, %dg, %n {filled = 0.5} : (!r, !r, tensor<2x3xi32>) -> tensor<3x8x8xf32>
  %own = nn.expert_linear_dw %rows, %drows, %c {filled = 0.5} : (!r, !r, tensor<2x3xi32>) -> tensor<3x8x8xf32>
  return %du : tensor<3x8x8xf32>
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {},
    mesh = #pipeline.mesh<tensor 1, context 1, data 2, pipeline 1, expert 2>} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#up]}
}
