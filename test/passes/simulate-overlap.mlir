// The simulator where ranks do one thing at a time: a task, or one message.
// RUN: pp-unproved %s --emit=stats | FileCheck %s --check-prefix=BEHIND
// RUN: pp-unproved %s --emit=stats --overlap=false | FileCheck %s --check-prefix=APART

!x = tensor<8x8xf32>
!sx = !pipeline.slot<tuple<!x>>

func.func private @product(%x: !x, %w: !x) -> !x attributes {
    pipeline.inputs = #pipeline.groups<act x 1, weight x 1>, pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %y = nn.linear %x, %w : (!x, !x) -> !x
  return %y : !x
}
func.func private @sum(%x: !x, %w: !x) -> !x attributes {
    pipeline.inputs = #pipeline.groups<act x 1, weight x 1>, pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %y = nn.add %x, %w : (!x, !x) -> !x
  return %y : !x
}

// A product takes 2.5, a sum 1.5, a message of 256 bytes 4 and 0.25 until it is there (simulate-cluster.mlir).
// Both exchange what they have made at 2.5: each way has links of its own, and both have it at 6.75. Else the second message
// starts when the first has left the wire at 6.5, and nobody goes on before both are there.
// BEHIND: "program": "exchange",
// BEHIND: "makespan": 8.25,
// APART:  "program": "exchange",
// APART:  "makespan": 12.25,
pipeline.program @exchange ranks 2 microbatches 2 slices 0 attributes {train = {}, cluster = {
    name = "c", ranks_per_node = 1 : i64, memory = 1000000 : i64,
    device = {f32 = 1024.0 : f64, bandwidth = 1536.0 : f64, launch = 0.5 : f64},
    efficiency = {gemm = 0.5 : f64, bandwidth = 0.5 : f64}, between = {bandwidth = 64.0 : f64, latency = 0.25 : f64}}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.piece @s1 <stage 1> parts [["s1", 0]]
  pipeline.rank 0 arena 1024 attributes {peak = {}} {
    %x = pipeline.slot act "x" offset 0 : !sx
    %w = pipeline.slot weight "w" offset 256 : !sx
    %y = pipeline.slot act "y" offset 512 : !sx
    %z = pipeline.slot act "z" offset 768 : !sx
    pipeline.launch @product <F stage 0 mb 0>(%x, %w) -> (%y) : (!sx, !sx) -> (!sx)
    %0 = pipeline.post send <act stage 0 mb 0> %y with [1] channel 1 : !sx
    %1 = pipeline.post receive <act stage 0 mb 1> %z with [1] channel 2 : !sx
    pipeline.complete %1
    pipeline.launch @sum <F stage 1 mb 1>(%z, %w) -> (%x) : (!sx, !sx) -> (!sx)
    pipeline.complete %0
  }
  pipeline.rank 1 arena 1024 attributes {peak = {}} {
    %x = pipeline.slot act "x" offset 0 : !sx
    %w = pipeline.slot weight "w" offset 256 : !sx
    %y = pipeline.slot act "y" offset 512 : !sx
    %z = pipeline.slot act "z" offset 768 : !sx
    pipeline.launch @product <F stage 0 mb 1>(%x, %w) -> (%y) : (!sx, !sx) -> (!sx)
    %0 = pipeline.post send <act stage 0 mb 1> %y with [0] channel 2 : !sx
    %1 = pipeline.post receive <act stage 0 mb 0> %z with [0] channel 1 : !sx
    pipeline.complete %1
    pipeline.launch @sum <F stage 1 mb 0>(%z, %w) -> (%x) : (!sx, !sx) -> (!sx)
    pipeline.complete %0
  }
}

// Rank 0 sends at 2.5 and computes to 5; rank 1 has it at 6.75, computes to 8.25, and only then posts the receive of the
// second one: there at 12.5. Else rank 0 computes from 6.75 to 9.25 and sends then: there at 13.5.
// BEHIND: "program": "chain",
// BEHIND: "makespan": 14,
// APART:  "program": "chain",
// APART:  "makespan": 15,
pipeline.program @chain ranks 2 microbatches 2 slices 0 attributes {train = {}, cluster = {
    name = "c", ranks_per_node = 1 : i64, memory = 1000000 : i64,
    device = {f32 = 1024.0 : f64, bandwidth = 1536.0 : f64, launch = 0.5 : f64},
    efficiency = {gemm = 0.5 : f64, bandwidth = 0.5 : f64}, between = {bandwidth = 64.0 : f64, latency = 0.25 : f64}}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.piece @s1 <stage 1> parts [["s1", 0]]
  pipeline.rank 0 arena 1024 attributes {peak = {}} {
    %x = pipeline.slot act "x" offset 0 : !sx
    %w = pipeline.slot weight "w" offset 256 : !sx
    %y = pipeline.slot act "y" offset 512 : !sx
    %z = pipeline.slot act "z" offset 768 : !sx
    pipeline.launch @product <F stage 0 mb 0>(%x, %w) -> (%y) : (!sx, !sx) -> (!sx)
    %0 = pipeline.post send <act stage 0 mb 0> %y with [1] channel 1 : !sx
    pipeline.launch @product <F stage 0 mb 1>(%x, %w) -> (%z) : (!sx, !sx) -> (!sx)
    %1 = pipeline.post send <act stage 0 mb 1> %z with [1] channel 1 : !sx
    pipeline.complete %0
    pipeline.complete %1
  }
  pipeline.rank 1 arena 1024 attributes {peak = {}} {
    %x = pipeline.slot act "x" offset 0 : !sx
    %w = pipeline.slot weight "w" offset 256 : !sx
    %y = pipeline.slot act "y" offset 512 : !sx
    %z = pipeline.slot act "z" offset 768 : !sx
    %0 = pipeline.post receive <act stage 0 mb 0> %y with [0] channel 1 : !sx
    pipeline.complete %0
    pipeline.launch @sum <F stage 1 mb 0>(%y, %w) -> (%x) : (!sx, !sx) -> (!sx)
    %1 = pipeline.post receive <act stage 0 mb 1> %z with [0] channel 1 : !sx
    pipeline.complete %1
    pipeline.launch @sum <F stage 1 mb 1>(%z, %w) -> (%x) : (!sx, !sx) -> (!sx)
  }
}
