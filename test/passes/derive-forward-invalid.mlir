// Forward programs that would not leave what the training program keeps as it is.
// RUN: pp-opt %s --split-input-file --pp-prove-slots --verify-diagnostics

// The optimizer state lies elsewhere: a step that trains would read something else than it left.
!s = !pipeline.slot<tuple<tensor<16xf32>>>
pipeline.program @t ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 256 {
    %w = pipeline.slot weight "weight(0)" offset 0 binding <weight @s0 save> : !s
    // expected-error@+1 {{`opt(0)` of rank 0 lies at byte 64, and in the forward program at byte 128}}
    %o = pipeline.slot opt "opt(0)" offset 64 binding <opt @s0> : !s
  }
}
pipeline.program @t_forward ranks 1 microbatches 1 slices 0 attributes {train = {}, forward} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 256 {
    %w = pipeline.slot weight "weight(0)" offset 0 binding <weight @s0 save> : !s
    // expected-note@+1 {{`opt(0)` is here}}
    %o = pipeline.slot opt "opt(0)" offset 128 binding <opt @s0> : !s
  }
}

// -----

// It has no slot at all, so nothing keeps others from its bytes.
!s = !pipeline.slot<tuple<tensor<16xf32>>>
pipeline.program @t ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 256 {
    // expected-error@+1 {{`weight(0)` of rank 0 lies at byte 64, and the forward program has no slot for it}}
    %w = pipeline.slot weight "weight(0)" offset 64 binding <previous @s0 back 1> : !s
  }
}
pipeline.program @t_forward ranks 1 microbatches 1 slices 0 attributes {train = {}, forward} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 256 {
    %a = pipeline.slot act "a" offset 64 : !s
    pipeline.launch @f <F stage 0 mb 0>() -> (%a) : () -> !s
  }
}

// -----

// The slot is there, and something is written over it.
!s = !pipeline.slot<tuple<tensor<16xf32>>>
pipeline.program @t ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 256 {
    %o = pipeline.slot opt "opt(0)" offset 64 binding <opt @s0> : !s
  }
}
pipeline.program @t_forward ranks 1 microbatches 1 slices 0 attributes {train = {}, forward} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 256 {
    // expected-note@+1 {{`opt(0)` is here}}
    %o = pipeline.slot opt "opt(0)" offset 64 binding <opt @s0> : !s
    // expected-error@+1 {{`a` overlaps `opt(0)` on rank 0 at position 2}}
    %a = pipeline.slot act "a" offset 64 : !s
    pipeline.launch @f <F stage 0 mb 0>() -> (%a) : () -> !s
  }
}
