// Ranks that do one thing at a time and both send before they receive: each waits for the other.
// RUN: pp-unproved %s --emit=stats --overlap=false --verify-diagnostics

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

pipeline.program @stuck ranks 2 microbatches 2 slices 0 attributes {train = {}, cluster = {
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
    // expected-error @below {{rank 0 waits for ever before `F(1, 0)`: without overlap no task begins before what was sent has arrived}}
    pipeline.launch @sum <F stage 1 mb 0>(%y, %w) -> (%x) : (!sx, !sx) -> (!sx)
    %1 = pipeline.post receive <act stage 0 mb 1> %z with [1] channel 2 : !sx
    pipeline.complete %1
    pipeline.complete %0
  }
  pipeline.rank 1 arena 1024 attributes {peak = {}} {
    %x = pipeline.slot act "x" offset 0 : !sx
    %w = pipeline.slot weight "w" offset 256 : !sx
    %y = pipeline.slot act "y" offset 512 : !sx
    %z = pipeline.slot act "z" offset 768 : !sx
    pipeline.launch @product <F stage 0 mb 1>(%x, %w) -> (%y) : (!sx, !sx) -> (!sx)
    %0 = pipeline.post send <act stage 0 mb 1> %y with [0] channel 2 : !sx
    pipeline.launch @sum <F stage 1 mb 1>(%y, %w) -> (%x) : (!sx, !sx) -> (!sx)
    %1 = pipeline.post receive <act stage 0 mb 0> %z with [0] channel 1 : !sx
    pipeline.complete %1
    pipeline.complete %0
  }
}
