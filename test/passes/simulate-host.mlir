// Host memory in the simulator: every rank has a way there and a way back, as fast as the cluster's `host` says.
// RUN: pp-unproved %s --emit=stats | FileCheck %s
// RUN: pp-unproved %s --emit=stats --costs=units | FileCheck %s --check-prefix=UNITS

!x = tensor<8x8xf32>
!sx = !pipeline.slot<tuple<!x>>

// 768 bytes at 1536 a second and the launch: 1 s.
func.func private @sum(%x: !x, %w: !x) -> !x attributes {
    pipeline.inputs = #pipeline.groups<act x 1, weight x 1>, pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %y = nn.add %x, %w : (!x, !x) -> !x
  return %y : !x
}

// `a` leaves at 1, 256 bytes at 64 a second and 0.5 s of latency: there at 5.5, while the second task runs to 2. Then `b`
// leaves and `a` comes back at the same time, both by 10, under the third task. The last one reads `a` and ends at 11.
// CHECK: "makespan": 11,
// The rank waits from 2 to 5.5 and from 6.5 to 10.
// CHECK: "exposed_communication": 7,
// CHECK: "bytes_to_and_from_host": 768,
// CHECK:      "name": "rank 0 to host",
// CHECK-NEXT: "messages": 2,
// CHECK-NEXT: "bytes": 512,
// CHECK-NEXT: "busy": 8
// CHECK:      "name": "rank 0 from host",
// CHECK-NEXT: "messages": 1,
// CHECK-NEXT: "bytes": 256,
// CHECK-NEXT: "busy": 4

// UNITS: "makespan": 4,
// UNITS: "name": "0>host",
// UNITS: "name": "host>0",
pipeline.program @one ranks 1 microbatches 4 slices 0 attributes {train = {}, cluster = {
    name = "c", ranks_per_node = 1 : i64, memory = 1000000 : i64,
    device = {f32 = 1024.0 : f64, bandwidth = 1536.0 : f64, launch = 0.5 : f64},
    host = {bandwidth = 64.0 : f64, latency = 0.5 : f64}}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 1024 host 512 attributes {peak = {}} {
    %w = pipeline.slot weight "w" offset 0 : !sx
    %a = pipeline.slot stash "a" offset 256 : !sx
    %b = pipeline.slot stash "b" offset 512 : !sx
    %y = pipeline.slot act "y" offset 768 : !sx
    %ha = pipeline.slot stash "a" host offset 0 : !sx
    %hb = pipeline.slot stash "b" host offset 256 : !sx
    pipeline.launch @sum <F stage 0 mb 0>(%w, %w) -> (%a) : (!sx, !sx) -> (!sx)
    %0 = pipeline.post send <stash stage 0 mb 0> %a with [0] channel 0 : !sx
    %1 = pipeline.post receive <stash stage 0 mb 0> %ha with [0] channel 0 : !sx
    pipeline.launch @sum <F stage 0 mb 1>(%w, %w) -> (%b) : (!sx, !sx) -> (!sx)
    pipeline.complete %0
    pipeline.complete %1
    %2 = pipeline.post send <stash stage 0 mb 1> %b with [0] channel 0 : !sx
    %3 = pipeline.post receive <stash stage 0 mb 1> %hb with [0] channel 0 : !sx
    %4 = pipeline.post send <stash stage 0 mb 0> %ha with [0] channel 0 : !sx
    %5 = pipeline.post receive <stash stage 0 mb 0> %a with [0] channel 0 : !sx
    pipeline.launch @sum <F stage 0 mb 2>(%w, %w) -> (%y) : (!sx, !sx) -> (!sx)
    pipeline.complete %2
    pipeline.complete %3
    pipeline.complete %4
    pipeline.complete %5
    pipeline.launch @sum <F stage 0 mb 3>(%a, %w) -> (%y) : (!sx, !sx) -> (!sx)
  }
}
