// A sum over the devices of a rank gives way to other messages on its links, and waits for those that are under way.
// RUN: pp-unproved %s --emit=stats | FileCheck %s
// RUN: sed '/%late/d' %s > %t.mlir && pp-unproved %t.mlir --emit=stats | FileCheck %s --check-prefix=FIRST

!x = tensor<8x8xf32>
!sx = !pipeline.slot<tuple<!x>>
!sy = !pipeline.slot<tuple<tensor<32x8xf32>>>

// 768 bytes at 768 a second, and the launch: 1.5 s.
func.func private @sum(%x: !x, %w: !x) -> !x attributes {
    pipeline.inputs = #pipeline.groups<act x 1, weight x 1>, pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %y = nn.add %x, %w : (!x, !x) -> !x
  return %y : !x
}

// Each device has a node and a NIC. Rank 0 works until 1.5. Then the sum of its 256 bytes over two devices begins, twice
// 128 bytes at 64 a second and twice 0.25 s, and the message to rank 1 passes it: 256 bytes, from 1.5 to 5.5, there at
// 5.75. Rank 1 works from then to 7.25, and rank 0 has its sum at 6 + 4. Rank 1 has worked until 3 when it posts a sum
// of 1024 bytes, which goes on where the message ends: 16 s and 0.5 s from 5.5.
// CHECK: "makespan": 7.25,
// CHECK: "step": 22,
// CHECK: "name": "node 2 in",
// CHECK-NEXT: "messages": 2,
// CHECK-NEXT: "bytes": 1280,
// CHECK-NEXT: "busy": 20,

// Without rank 1's sum.
// FIRST: "makespan": 7.25,
// FIRST: "step": 10,
pipeline.program @two ranks 2 microbatches 2 slices 0 attributes {train = {}, cluster = {
    name = "c", ranks_per_node = 1 : i64, memory = 1000000 : i64,
    device = {f32 = 1024.0 : f64, bandwidth = 1536.0 : f64, launch = 0.5 : f64},
    efficiency = {bandwidth = 0.5 : f64}, between = {bandwidth = 64.0 : f64, latency = 0.25 : f64}},
    mesh = #pipeline.mesh<tensor 1, context 1, data 2, pipeline 2>} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.piece @s1 <stage 1> parts [["s1", 0]]
  pipeline.rank 0 arena 4096 attributes {peak = {}} {
    %x = pipeline.slot act "x" offset 0 : !sx
    %w = pipeline.slot weight "w" offset 256 : !sx
    %y = pipeline.slot act "y" offset 512 : !sx
    pipeline.launch @sum <F stage 0 mb 0>(%x, %w) -> (%y) : (!sx, !sx) -> (!sx)
    %g = pipeline.post all_reduce <grad stage 0> %w with [0] channel 16 : !sx
    %0 = pipeline.post send <act stage 0 mb 0> %y with [1] channel 2 : !sx
    pipeline.complete %0
    pipeline.complete %g
  }
  pipeline.rank 1 arena 4096 attributes {peak = {}} {
    %x = pipeline.slot act "x" offset 0 : !sx
    %w = pipeline.slot weight "w" offset 256 : !sx
    %y = pipeline.slot act "y" offset 512 : !sx
    %z = pipeline.slot grad "z" offset 1024 : !sy
    %0 = pipeline.post receive <act stage 0 mb 0> %x with [0] channel 2 : !sx
    pipeline.launch @sum <F stage 1 mb 1>(%w, %w) -> (%y) : (!sx, !sx) -> (!sx)
    pipeline.launch @sum <F stage 1 mb 1>(%w, %w) -> (%y) : (!sx, !sx) -> (!sx)
    %late = pipeline.post all_reduce <grad stage 1> %z with [1] channel 16 : !sy
    pipeline.complete %0
    pipeline.launch @sum <F stage 1 mb 0>(%x, %w) -> (%y) : (!sx, !sx) -> (!sx)
    pipeline.complete %late
  }
}
