// Bodies with all exchanges that they need: columns forward, and the sum of dx; a head of keys that two devices have.
// RUN: pp-opt %s --pp-verify-layouts | FileCheck %s

!x = tensor<1x4x8xf32>
!h = tensor<1x4x4xf32>
!w = tensor<8x4xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>
#a = #pipeline.weight<"a" : !w declared <"a" zero cut <[8, 8] dim 1>>>
#k = #pipeline.weight<"k" : !w declared <"k" zero cut <[8, 4] dim 1 copies 2>>>

// CHECK-LABEL: func.func private @s0.F
func.func private @s0.F(%x: !x, %a: !w, %k: !w) -> (!h, !h) attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 1, weight x 2>,
  pipeline.results = #pipeline.groups<act x 2>, pipeline.ties = array<i64: -1>} {
  %c = nn.spread %x over <tensor> : (!x) -> !x
  %y = nn.linear %c, %a : (!x, !w) -> !h
  // CHECK: nn.spread %{{.*}} over <tensor> {neighbours = 2 : i64}
  %s = nn.spread %k over <tensor> {neighbours = 2} : (!w) -> !w
  %z = nn.linear %c, %s : (!x, !w) -> !h
  return %y, %z : !h, !h
}

// CHECK-LABEL: func.func private @s0.B.first
func.func private @s0.B.first(%x: !x, %a: !w, %k: !w, %dy: !h, %dz: !h) -> (!x, !w, !w) attributes {
  pipeline.body = #pipeline.body<"s0" B first>, pipeline.inputs = #pipeline.groups<act x 1, weight x 2, dact x 2>,
  pipeline.results = #pipeline.groups<dact x 1, grad x 2>, pipeline.ties = array<i64: -1, -1>} {
  %c = nn.spread %x over <tensor> : (!x) -> !x
  %da = nn.linear_dw %c, %dy : (!x, !h) -> !w
  %dk = nn.linear_dw %c, %dz : (!x, !h) -> !w
  // CHECK: nn.all_reduce %{{.*}} over <tensor> {neighbours = 2 : i64}
  %sk = nn.all_reduce %dk over <tensor> {neighbours = 2} : (!w) -> !w
  %s = nn.spread %k over <tensor> {neighbours = 2} : (!w) -> !w
  %d0 = nn.linear_dx %dy, %a : (!h, !w) -> !x
  %d1 = nn.linear_dx %dz, %s into %d0 : (!h, !w, !x) -> !x
  // CHECK: nn.all_reduce %{{.*}} over <tensor> : (tensor<1x4x8xf32>)
  %dx = nn.all_reduce %d1 over <tensor> : (!x) -> !x
  return %dx, %da, %sk : !x, !w, !w
}

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#a, #k]}
}
