// What devices exchange inside a unit adds to its time: the formula of a reduce-scatter and of an all-gather by hand.
// RUN: pp-unproved %s --emit=stats | FileCheck %s
// RUN: pp-unproved %s --emit=stats --costs=units | FileCheck %s --check-prefix=UNITS
// RUN: pp-unproved %s --emit=comms | FileCheck %s --check-prefix=COMMS

!x = tensor<8x8xf32>
!sx = !pipeline.slot<tuple<!x>>
!sy = !pipeline.slot<tuple<tensor<32x8xf32>>>

// 768 bytes at 1536 a second and the launch: 1 s. Then the sum of 256 bytes over 4 devices, 2 on a node: each half of it
// takes 3 steps of 0.5 s, and 256 * 3/4 bytes at 48 a second, for the nodes' way is the slower one: 1.5 + 4, twice.
func.func private @sum(%x: !x, %w: !x) -> !x attributes {
    pipeline.inputs = #pipeline.groups<act x 1, weight x 1>, pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %y = nn.add %x, %w : (!x, !x) -> !x
  %z = nn.all_reduce %y over <tensor> : (!x) -> !x
  return %z : !x
}

// 1024 bytes come together: 1.5 + 1024 * 3/4 / 48 = 17.5 s. Among 2 neighbours, of one node, 256 bytes are summed in
// 2 * (0.25 + 256 / 2 / 64) = 4.5 s.
func.func private @gather(%x: !x) -> (tensor<32x8xf32>, !x) attributes {
    pipeline.inputs = #pipeline.groups<act x 1>, pipeline.results = #pipeline.groups<act x 1, dact x 1>, pipeline.ties = array<i64: -1, -1>} {
  %y = nn.all_gather %x over <tensor> {dim = 0 : i64, members = 4 : i64} : (!x) -> tensor<32x8xf32>
  %z = nn.all_reduce %x over <tensor> {neighbours = 2 : i64} : (!x) -> !x
  return %y, %z : tensor<32x8xf32>, !x
}

// The copy that is summed in place is no kernel of the cost model.
// CHECK: "makespan": 34,
// CHECK:      "exchanges": {
// CHECK-NEXT:   "F": {
// CHECK-NEXT:     "tensor.all_gather": [
// CHECK-NEXT:       1,
// CHECK-NEXT:       768
// CHECK-NEXT:     ],
// CHECK-NEXT:     "tensor.all_reduce": [
// CHECK-NEXT:       2,
// CHECK-NEXT:       640
// UNITS: "makespan": 2,
// COMMS: 0F0{ar.tensor},0F1{ag.tensor ar.tensor}
pipeline.program @one ranks 1 microbatches 2 slices 0 attributes {train = {}, cluster = {
    name = "c", ranks_per_node = 2 : i64, memory = 1000000 : i64,
    device = {f32 = 1024.0 : f64, bandwidth = 1536.0 : f64, launch = 0.5 : f64},
    inside = {bandwidth = 64.0 : f64, latency = 0.25 : f64}, between = {bandwidth = 48.0 : f64, latency = 0.5 : f64}},
    mesh = #pipeline.mesh<tensor 4, context 1, data 1, pipeline 1>} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 4096 attributes {peak = {}} {
    %w = pipeline.slot weight "w" offset 0 : !sx
    %a = pipeline.slot act "a" offset 256 : !sx
    %y = pipeline.slot act "y" offset 512 : !sy
    %z = pipeline.slot dact "z" offset 1536 : !sx
    pipeline.launch @sum <F stage 0 mb 0>(%w, %w) -> (%a) : (!sx, !sx) -> (!sx)
    pipeline.launch @gather <F stage 0 mb 1>(%a) -> (%y, %z) : (!sx) -> (!sy, !sx)
  }
}
