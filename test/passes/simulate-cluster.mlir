// The simulator by a cluster's figures: tasks by flops or bytes, links of a rank or of its node, waits by cause.
// RUN: pp-unproved %s --emit=stats | FileCheck %s
// RUN: pp-unproved %s --emit=stats --costs=units | FileCheck %s --check-prefix=UNITS
// RUN: sed 's/between = {/between = {nics = 2.0 : f64, /' %s > %t.mlir && pp-unproved %t.mlir --emit=stats | FileCheck %s --check-prefix=NICS

!x = tensor<8x8xf32>
!sx = !pipeline.slot<tuple<!x>>

// 2 * 8 * 8 * 8 = 1024 flops at half of 1024 a second: 2 s, for 3 * 256 bytes at half of 1536 a second take 1 s; with the
// launch 2.5 s.
func.func private @product(%x: !x, %w: !x) -> !x attributes {
    pipeline.inputs = #pipeline.groups<act x 1, weight x 1>, pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %y = nn.linear %x, %w : (!x, !x) -> !x
  return %y : !x
}
// 64 flops, and the same bytes: 1 s, with the launch 1.5 s.
func.func private @sum(%x: !x, %w: !x) -> !x attributes {
    pipeline.inputs = #pipeline.groups<act x 1, weight x 1>, pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %y = nn.add %x, %w : (!x, !x) -> !x
  return %y : !x
}

// Ranks 0 and 1 send 256 bytes each to the other node at 2.5. Both need the one NIC of each node, which takes 4 s, and
// arrive 0.25 s later: at 6.75 and, after the other one, at 10.75. Rank 2 computes until 8.25, rank 3 until 12.25, and
// only then posts the receive of what rank 2 sends inside the node: 1 s and 0.125 s. Its last task ends at 14.875.
// CHECK:      "makespan": 14.875,
// CHECK:      "time": "seconds",
// All ranks then add up their 256 bytes in a ring: 1.5 times as many pass every link, the slowest takes 6 s, and six
// messages follow each other, 0.25 s each.
// CHECK:      "step": 22.375,
// CHECK:      "rank": 2,
// CHECK-NEXT: "busy": 1.5,
// CHECK-NEXT: "idle": 13.375,
// CHECK-NEXT: "span": 1.5,
// Nothing is there before 2.5, then it is on its way; and when its work has ended at 8.25 rank 2 waits for its send, which
// starts at 12.25.
// CHECK-NEXT: "idle_by_cause": {
// CHECK-NEXT:   "dependency": 0,
// CHECK-NEXT:   "head of line": 0,
// CHECK-NEXT:   "communication": 5.375,
// CHECK-NEXT:   "imbalance": 8
// CHECK-NEXT: },
// CHECK:      "exposed_communication": 5.375,
// CHECK:      "rank": 3,
// CHECK-NEXT: "busy": 3,
// Behind rank 0's message from 2.5 to 6.5, on the wire to 10.75, and again from 12.25 to 13.375.
// CHECK:      "idle_by_cause": {
// CHECK-NEXT:   "dependency": 0,
// CHECK-NEXT:   "head of line": 4,
// CHECK-NEXT:   "communication": 5.375,
// CHECK-NEXT:   "imbalance": 2.5
// CHECK-NEXT: },
// CHECK:      "exposed_communication": 9.375,
// CHECK:      "links": [
// CHECK:        "name": "node 0 out",
// CHECK-NEXT:   "messages": 3,
// Two messages, and of the sum twice 3/4 of its bytes: 512 + 384, at 64 a second.
// CHECK-NEXT:   "bytes": 896,
// CHECK-NEXT:   "busy": 14
// CHECK:        "name": "node 1 in",
// CHECK-NEXT:   "messages": 3,
// CHECK:        "name": "rank 0 out",
// CHECK-NEXT:   "messages": 1,
// CHECK:        "name": "rank 2 out",
// CHECK-NEXT:   "messages": 2,
// CHECK-NEXT:   "bytes": 640,

// With a NIC for each rank both messages arrive at 6.75, ranks 2 and 3 compute until 8.25, what rank 2 then sends is
// there at 9.375, and the last task ends at 10.875. The sum leaves a node on both NICs, 3 s for 192 bytes on each, and
// six messages still follow each other.
// NICS: "makespan": 10.875,
// NICS: "step": 15.375,
// NICS:   "name": "node 0 nic 0 out",
// NICS-NEXT: "messages": 2,
// NICS-NEXT: "bytes": 448,
// NICS-NEXT: "busy": 7

// In units there is no cluster: a forward is 1, messages are free.
// UNITS: "makespan": 3,
// UNITS: "time": "units",
pipeline.program @four ranks 4 microbatches 2 slices 0 attributes {train = {}, cluster = {
    name = "c", ranks_per_node = 2 : i64, memory = 1000000 : i64,
    device = {f32 = 1024.0 : f64, bandwidth = 1536.0 : f64, launch = 0.5 : f64},
    efficiency = {gemm = 0.5 : f64, bandwidth = 0.5 : f64}, inside = {bandwidth = 256.0 : f64, latency = 0.125 : f64},
    between = {bandwidth = 64.0 : f64, latency = 0.25 : f64}}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.piece @s1 <stage 1> parts [["s1", 0]]
  pipeline.piece @s2 <stage 2> parts [["s2", 0]]
  pipeline.rank 0 arena 1024 attributes {peak = {}} {
    %x = pipeline.slot act "x" offset 0 : !sx
    %w = pipeline.slot weight "w" offset 256 : !sx
    %y = pipeline.slot act "y" offset 512 : !sx
    pipeline.launch @product <F stage 0 mb 0>(%x, %w) -> (%y) : (!sx, !sx) -> (!sx)
    %0 = pipeline.post send <act stage 0 mb 0> %y with [2] channel 2 : !sx
    pipeline.complete %0
    %n = pipeline.post all_reduce <stat part "norm"> %w with [0, 1, 2, 3] channel 16 : !sx
    pipeline.complete %n
  }
  pipeline.rank 1 arena 1024 attributes {peak = {}} {
    %x = pipeline.slot act "x" offset 0 : !sx
    %w = pipeline.slot weight "w" offset 256 : !sx
    %y = pipeline.slot act "y" offset 512 : !sx
    pipeline.launch @product <F stage 0 mb 1>(%x, %w) -> (%y) : (!sx, !sx) -> (!sx)
    %0 = pipeline.post send <act stage 0 mb 1> %y with [3] channel 7 : !sx
    pipeline.complete %0
    %n = pipeline.post all_reduce <stat part "norm"> %w with [0, 1, 2, 3] channel 16 : !sx
    pipeline.complete %n
  }
  pipeline.rank 2 arena 1024 attributes {peak = {}} {
    %x = pipeline.slot act "x" offset 0 : !sx
    %w = pipeline.slot weight "w" offset 256 : !sx
    %y = pipeline.slot act "y" offset 512 : !sx
    %0 = pipeline.post receive <act stage 0 mb 0> %x with [0] channel 2 : !sx
    pipeline.complete %0
    pipeline.launch @sum <F stage 1 mb 0>(%x, %w) -> (%y) : (!sx, !sx) -> (!sx)
    %1 = pipeline.post send <act stage 1 mb 0> %y with [3] channel 11 : !sx
    pipeline.complete %1
    %n = pipeline.post all_reduce <stat part "norm"> %w with [0, 1, 2, 3] channel 16 : !sx
    pipeline.complete %n
  }
  pipeline.rank 3 arena 1024 attributes {peak = {}} {
    %x = pipeline.slot act "x" offset 0 : !sx
    %w = pipeline.slot weight "w" offset 256 : !sx
    %y = pipeline.slot act "y" offset 512 : !sx
    %0 = pipeline.post receive <act stage 0 mb 1> %x with [1] channel 7 : !sx
    pipeline.complete %0
    pipeline.launch @sum <F stage 1 mb 1>(%x, %w) -> (%y) : (!sx, !sx) -> (!sx)
    %1 = pipeline.post receive <act stage 1 mb 0> %x with [2] channel 11 : !sx
    pipeline.complete %1
    pipeline.launch @sum <F stage 2 mb 0>(%x, %w) -> (%y) : (!sx, !sx) -> (!sx)
    %n = pipeline.post all_reduce <stat part "norm"> %w with [0, 1, 2, 3] channel 16 : !sx
    pipeline.complete %n
  }
}
