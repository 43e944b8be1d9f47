// The simulator by a cluster's figures: a residual in its product costs its sums and its bytes, but no launch of its own.
// RUN: pp-unproved %s --emit=stats | FileCheck %s

!x = tensor<8x8xf32>
!sx = !pipeline.slot<tuple<!x>>

// 2 * 8 * 8 * 8 = 1024 flops at half of 1024 a second: 2 s, with the launch 2.5. The add moves 3 * 256 bytes at half of
// 1536 a second: 1 s, with the launch 1.5.
func.func private @apart(%x: !x, %w: !x) -> !x attributes {
    pipeline.inputs = #pipeline.groups<act x 1, weight x 1>, pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %p = nn.linear %x, %w : (!x, !x) -> !x
  %y = nn.add %x, %p : (!x, !x) -> !x
  return %y : !x
}
// 1024 and 64 flops as a product's, 2.125 s, for its 4 * 256 bytes take 1.33 s; with the launch 2.625.
func.func private @together(%x: !x, %w: !x) -> !x attributes {
    pipeline.inputs = #pipeline.groups<act x 1, weight x 1>, pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %y = nn.linear_add %x, %w to %x : (!x, !x, !x) -> !x
  return %y : !x
}

// CHECK:      "rank": 0,
// CHECK-NEXT: "busy": 4,
// CHECK:      "rank": 1,
// CHECK-NEXT: "busy": 2.625,
pipeline.program @two ranks 2 microbatches 2 slices 0 attributes {train = {}, cluster = {
    name = "c", ranks_per_node = 2 : i64, memory = 1000000 : i64,
    device = {f32 = 1024.0 : f64, bandwidth = 1536.0 : f64, launch = 0.5 : f64},
    efficiency = {gemm = 0.5 : f64, bandwidth = 0.5 : f64}, inside = {bandwidth = 256.0 : f64, latency = 0.125 : f64}}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 1024 attributes {peak = {}} {
    %x = pipeline.slot act "x" offset 0 : !sx
    %w = pipeline.slot weight "w" offset 256 : !sx
    %y = pipeline.slot act "y" offset 512 : !sx
    pipeline.launch @apart <F stage 0 mb 0>(%x, %w) -> (%y) : (!sx, !sx) -> (!sx)
  }
  pipeline.rank 1 arena 1024 attributes {peak = {}} {
    %x = pipeline.slot act "x" offset 0 : !sx
    %w = pipeline.slot weight "w" offset 256 : !sx
    %y = pipeline.slot act "y" offset 512 : !sx
    pipeline.launch @together <F stage 0 mb 1>(%x, %w) -> (%y) : (!sx, !sx) -> (!sx)
  }
}
