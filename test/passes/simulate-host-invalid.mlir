// A cluster that does not say how fast host memory is cannot price a move there.
// RUN: pp-unproved %s --emit=stats --verify-diagnostics

!sx = !pipeline.slot<tuple<tensor<8x8xf32>>>
pipeline.program @one ranks 1 microbatches 4 slices 0 attributes {train = {}, cluster = {
    name = "c", ranks_per_node = 1 : i64, memory = 1000000 : i64, device = {f32 = 1024.0 : f64, bandwidth = 1536.0 : f64}}} {
  pipeline.rank 0 arena 256 host 256 attributes {peak = {}} {
    %a = pipeline.slot stash "a" offset 0 : !sx
    %h = pipeline.slot stash "a" host offset 0 : !sx
    // expected-error@below {{`stash(0, 0)` goes to host memory, and cluster `c` has no `host` that says how fast}}
    %0 = pipeline.post send <stash stage 0 mb 0> %a with [0] channel 0 : !sx
    %1 = pipeline.post receive <stash stage 0 mb 0> %h with [0] channel 0 : !sx
    pipeline.complete %0
    pipeline.complete %1
  }
}
