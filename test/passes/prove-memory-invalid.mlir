// Ranks that need more than they have: which, when, what fills it, and what would do.
// RUN: pp-opt %s --split-input-file --pp-prove-memory --verify-diagnostics

!one = !pipeline.slot<tuple<tensor<16xf32>>>
!two = !pipeline.slot<tuple<tensor<32xf32>>>

// Weights of 128 bytes and stashes of 64 live through B(0, 0), which makes a gradient of 128 and needs scratch: 448. Of
// the four roles the smallest is not told.
pipeline.program @p ranks 1 microbatches 2 slices 0 attributes {cluster = {memory = 400 : i64}, train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  // expected-note@+2 {{most of it is weight 128 B, stash 128 B, grad 128 B}}
  // expected-note@+1 {{the smallest limit that passes is 448 (`--memory-limit=448`)}}
  pipeline.rank 0 arena 448 {
    %w = pipeline.slot weight "weight(0)" offset 0 binding <weight @s0 save> : !two
    %s0 = pipeline.slot stash "stash(0, 0)" offset 128 : !one
    %s1 = pipeline.slot stash "stash(0, 1)" offset 192 : !one
    %g = pipeline.slot grad "grad(0)" offset 256 : !two
    %t = pipeline.slot temporary "scratch" offset 384 : !one
    pipeline.launch @s0.F <F stage 0 mb 0>(%w) -> (%s0) : (!two) -> (!one)
    pipeline.launch @s0.F <F stage 0 mb 1>(%w) -> (%s1) : (!two) -> (!one)
    // expected-error@+1 {{rank 0 needs 448 bytes (448 B), more than its limit of 400 bytes (400 B); it is fullest at `B(0, 0)`}}
    pipeline.launch @s0.B <B stage 0 mb 0>(%w, %s0) -> (%g) scratch %t : (!two, !one) -> (!two) scratch !one
    pipeline.launch @s0.B <B stage 0 mb 1>(%w, %s1, %g) -> () : (!two, !one, !two) -> ()
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>

// The plan left a gap; what is alive at once would fit.
pipeline.program @gap ranks 1 microbatches 1 slices 0 attributes {cluster = {memory = 200 : i64}, train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  // expected-note@+2 {{most of it is act 64 B}}
  // expected-note@+1 {{the smallest limit that passes is 256 (`--memory-limit=256`); the values that are alive at once would fit, with 64 bytes (64 B); the gaps of the plan do not}}
  pipeline.rank 0 arena 256 {
    %a = pipeline.slot act "act(0, 0)" offset 192 : !s
    // expected-error@+1 {{rank 0 needs 256 bytes (256 B), more than its limit of 200 bytes (200 B); it is fullest at `F(0, 0)`}}
    pipeline.launch @s0.F <F stage 0 mb 0>() -> (%a) : () -> (!s)
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>

// Devices of two kinds: rank 0 needs most and has it, rank 1 has less than it needs. One limit for all is not what helps.
pipeline.program @kinds ranks 2 microbatches 1 slices 0 attributes {cluster = {memory = array<i64: 400, 200>, ranks_per_node = 2 : i64}, train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 320 {
    %a = pipeline.slot act "act(0, 0)" offset 256 : !s
    pipeline.launch @s0.F <F stage 0 mb 0>() -> (%a) : () -> (!s)
  }
  // expected-note@+2 {{most of it is act 64 B}}
  // expected-note@+1 {{it passes if each device of this rank has a `memory` of 256; the values that are alive at once would fit, with 64 bytes (64 B)}}
  pipeline.rank 1 arena 256 {
    %a = pipeline.slot act "act(0, 0)" offset 192 : !s
    // expected-error@+1 {{rank 1 needs 256 bytes (256 B), more than its limit of 200 bytes (200 B); it is fullest at `F(0, 0)`}}
    pipeline.launch @s0.F <F stage 0 mb 0>() -> (%a) : () -> (!s)
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>

// A rank has what its smallest device has: device 1 is of rank 0.
pipeline.program @mesh ranks 2 microbatches 1 slices 0 attributes {cluster = {memory = array<i64: 400, 200, 400, 400>, ranks_per_node = 4 : i64}, train = {},
    mesh = #pipeline.mesh<tensor 1, context 1, data 2, pipeline 2>} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  // expected-note@+2 {{most of it is act 64 B}}
  // expected-note@+1 {{it passes if each device of this rank has a `memory` of 256}}
  pipeline.rank 0 arena 256 {
    %a = pipeline.slot act "act(0, 0)" offset 192 : !s
    // expected-error@+1 {{rank 0 needs 256 bytes (256 B), more than its limit of 200 bytes (200 B)}}
    pipeline.launch @s0.F <F stage 0 mb 0>() -> (%a) : () -> (!s)
  }
  pipeline.rank 1 arena 320 {
    %a = pipeline.slot act "act(0, 0)" offset 256 : !s
    pipeline.launch @s0.F <F stage 0 mb 0>() -> (%a) : () -> (!s)
  }
}
