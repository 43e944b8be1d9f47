// prove-bodies: what a part derives, written down in another order, with a copy, and an op that nothing reads.
// RUN: pp-opt %s --pp-prove-bodies | FileCheck %s

// z = 0.5 x w + x, so dw = (0.5 x)^T dz and dx = 0.5 dz w^T + dz; F leaves 0.5 x. A sum has no order.
// CHECK: proof = {bodies = {functions = 1 : i64, ops = 7 : i64}}
!x = tensor<1x4x8xf32>
!w = tensor<8x8xf32>
#w = #pipeline.weight<"post.0.w" : tensor<8x8xf32> declared <"w" normal 0.0>>
func.func private @post(%x: !x, %w: !w {nn.weight = #nn.weight<"w" normal 0.0>}) -> !x {
  %u = nn.scale %x {factor = 0.5} : (!x) -> !x
  %y = nn.linear %u, %w : (!x, !w) -> !x
  %z = nn.add %y, %x : (!x, !x) -> !x
  return %z : !x
}
pipeline.program @p ranks 1 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["post", 0]] bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    pipeline.launch @b <B stage 0 mb 0>() -> () : () -> ()
  }
}
func.func private @b(%u: !x, %w: !w, %dz: !x) -> (!x, !w) attributes {pipeline.body = #pipeline.body<"s0" B first>,
    pipeline.flops = 1088.0 : f64, pipeline.inputs = #pipeline.groups<stash x 1, weight x 1, dact x 1>,
    pipeline.results = #pipeline.groups<dact x 1, grad x 1>, pipeline.ties = array<i64: -1, -1>} {
  %copy = nn.copy %dz : (!x) -> !x
  %du = nn.linear_dx %copy, %w : (!x, !w) -> !x
  %dx = nn.scale %du {factor = 0.5} : (!x) -> !x
  %dead = nn.linear_dx %dz, %w : (!x, !w) -> !x
  %sum = nn.add %dx, %dz : (!x, !x) -> !x
  %dw = nn.linear_dw %u, %dz : (!x, !x) -> !w
  return %sum, %dw : !x, !w
}

// All schedules of the library, products with epilogues, slices, experts and meshes are in test/run/mutants.py.
