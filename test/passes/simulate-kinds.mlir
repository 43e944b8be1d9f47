// Devices of two kinds: a forward on the slow one takes longer, and the makespan is what the slow rank's forwards take.
// RUN: pp-unproved %s --emit=stats | FileCheck %s --check-prefix=BOTH
// DEFINE: %{with} = sed -e
// RUN: %{with} 's/f32 = 1024.0 : f64/f32 = array<f64: 1024.0, 512.0, 1024.0, 1024.0>/' %s > %t.last.mlir
// RUN: pp-unproved %t.last.mlir --emit=stats | FileCheck %s --check-prefix=LAST
// RUN: %{with} 's/f32 = 1024.0 : f64/f32 = array<f64: 512.0, 1024.0, 1024.0, 1024.0>/' %s > %t.first.mlir
// RUN: pp-unproved %t.first.mlir --emit=stats | FileCheck %s --check-prefix=FIRST
// RUN: %{with} 's/bandwidth = 1536.0 : f64/bandwidth = array<f64: 1536.0, 96.0, 1536.0, 1536.0>/' %s > %t.bytes.mlir
// RUN: pp-unproved %t.bytes.mlir --emit=stats | FileCheck %s --check-prefix=BYTES
// RUN: %{with} 's/gemm = 0.5 : f64/gemm = array<f64: 0.5, 0.25, 0.5, 0.5>/' %s > %t.share.mlir
// RUN: pp-unproved %t.share.mlir --emit=stats | FileCheck %s --check-prefix=LAST
// RUN: %{with} 's/f32 = 1024.0 : f64/f32 = array<f64: 1024.0, 1024.0, 1024.0, 1024.0>/' %s > %t.equal.mlir
// RUN: pp-unproved %t.equal.mlir --emit=stats | FileCheck %s --check-prefix=BOTH

// A rank of two devices waits for the slower one. On this mesh rank 0 has devices 0 and 1, rank 1 devices 2 and 3.
// RUN: %{with} 's/train = {},/train = {}, mesh = #pipeline.mesh<tensor 1, context 1, data 2, pipeline 2>,/' %t.last.mlir > %t.mesh.mlir
// RUN: pp-unproved %t.mesh.mlir --emit=stats | FileCheck %s --check-prefix=FIRST

!x = tensor<8x8xf32>
!sx = !pipeline.slot<tuple<!x>>

// 2 * 8 * 8 * 8 = 1024 flops at half of 1024 a second take 2 s, and the launch 0.5 s: T = 2.5 s. With half of 512 a second it
// is T = 4.5 s. 3 * 256 bytes at half of 1536 a second take 1 s, but at half of 96 a second 16 s: T = 16.5 s.
func.func private @product(%x: !x, %w: !x) -> !x attributes {
    pipeline.inputs = #pipeline.groups<act x 1, weight x 1>, pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %y = nn.linear %x, %w : (!x, !x) -> !x
  return %y : !x
}

// GPipe's forwards of 3 microbatches on 2 ranks. 256 bytes take 1 s and 0.125 s. With T0 and T1 of the two ranks, a message
// being faster than a forward: T0 + 1.125 + 3 T1 where rank 1 is the slower one, 3 T0 + 1.125 + T1 where rank 0 is.
// BOTH:  "makespan": 11.125,
// LAST:  "makespan": 17.125,
// LAST:  "rank": 0,
// LAST-NEXT: "busy": 7.5,
// LAST:  "rank": 1,
// LAST-NEXT: "busy": 13.5,
// FIRST: "makespan": 17.125,
// FIRST: "rank": 0,
// FIRST-NEXT: "busy": 13.5,
// FIRST: "rank": 1,
// FIRST-NEXT: "busy": 7.5,
// BYTES: "makespan": 53.125,
pipeline.program @two ranks 2 microbatches 3 slices 0 attributes {train = {}, cluster = {
    name = "c", ranks_per_node = 4 : i64, memory = 1000000 : i64,
    device = {f32 = 1024.0 : f64, bandwidth = 1536.0 : f64, launch = 0.5 : f64},
    efficiency = {gemm = 0.5 : f64, bandwidth = 0.5 : f64}, inside = {bandwidth = 256.0 : f64, latency = 0.125 : f64}}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.piece @s1 <stage 1> parts [["s1", 0]]
  pipeline.rank 0 arena 1280 attributes {peak = {}} {
    %x = pipeline.slot act "x" offset 0 : !sx
    %w = pipeline.slot weight "w" offset 256 : !sx
    %y0 = pipeline.slot act "y0" offset 512 : !sx
    %y1 = pipeline.slot act "y1" offset 768 : !sx
    %y2 = pipeline.slot act "y2" offset 1024 : !sx
    pipeline.launch @product <F stage 0 mb 0>(%x, %w) -> (%y0) : (!sx, !sx) -> (!sx)
    %0 = pipeline.post send <act stage 0 mb 0> %y0 with [1] channel 1 : !sx
    pipeline.launch @product <F stage 0 mb 1>(%x, %w) -> (%y1) : (!sx, !sx) -> (!sx)
    %1 = pipeline.post send <act stage 0 mb 1> %y1 with [1] channel 1 : !sx
    pipeline.launch @product <F stage 0 mb 2>(%x, %w) -> (%y2) : (!sx, !sx) -> (!sx)
    %2 = pipeline.post send <act stage 0 mb 2> %y2 with [1] channel 1 : !sx
    pipeline.complete %0
    pipeline.complete %1
    pipeline.complete %2
  }
  pipeline.rank 1 arena 1280 attributes {peak = {}} {
    %w = pipeline.slot weight "w" offset 0 : !sx
    %x0 = pipeline.slot act "x0" offset 256 : !sx
    %x1 = pipeline.slot act "x1" offset 512 : !sx
    %x2 = pipeline.slot act "x2" offset 768 : !sx
    %y = pipeline.slot act "y" offset 1024 : !sx
    %0 = pipeline.post receive <act stage 0 mb 0> %x0 with [0] channel 1 : !sx
    %1 = pipeline.post receive <act stage 0 mb 1> %x1 with [0] channel 1 : !sx
    %2 = pipeline.post receive <act stage 0 mb 2> %x2 with [0] channel 1 : !sx
    pipeline.complete %0
    pipeline.launch @product <F stage 1 mb 0>(%x0, %w) -> (%y) : (!sx, !sx) -> (!sx)
    pipeline.complete %1
    pipeline.launch @product <F stage 1 mb 1>(%x1, %w) -> (%y) : (!sx, !sx) -> (!sx)
    pipeline.complete %2
    pipeline.launch @product <F stage 1 mb 2>(%x2, %w) -> (%y) : (!sx, !sx) -> (!sx)
  }
}
