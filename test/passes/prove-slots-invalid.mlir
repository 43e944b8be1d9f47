// Memory plans with one defect each.
// RUN: pp-opt %s --split-input-file --pp-prove-slots --verify-diagnostics

!s = !pipeline.slot<tuple<tensor<16xf32>>>
!big = !pipeline.slot<tuple<tensor<32xf32>>>

// Two live slots at one place.
pipeline.program @p ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 128 {
    // expected-note@+1 {{`a` is here}}
    %a = pipeline.slot act "a" offset 0 : !s
    // expected-error@+1 {{`b` overlaps `a` on rank 0 at position 3}}
    %b = pipeline.slot act "b" offset 0 : !s
    pipeline.launch @f <F stage 0 mb 0>() -> (%a) : () -> !s
    pipeline.launch @f <F stage 0 mb 1>(%a) -> (%b) : (!s) -> !s
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>
!big = !pipeline.slot<tuple<tensor<32xf32>>>

// The last bytes of the lower one are the first of the upper.
pipeline.program @p ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 256 {
    // expected-note@+1 {{`a` is here}}
    %a = pipeline.slot act "a" offset 0 : !big
    // expected-error@+1 {{`b` overlaps `a` on rank 0 at position 3}}
    %b = pipeline.slot act "b" offset 64 : !s
    pipeline.launch @f <F stage 0 mb 0>() -> (%a) : () -> !big
    pipeline.launch @f <F stage 0 mb 1>(%a) -> (%b) : (!big) -> !s
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>
!big = !pipeline.slot<tuple<tensor<32xf32>>>

// And the other way round.
pipeline.program @p ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 256 {
    // expected-note@+1 {{`a` is here}}
    %a = pipeline.slot act "a" offset 64 : !s
    // expected-error@+1 {{`b` overlaps `a` on rank 0 at position 3}}
    %b = pipeline.slot act "b" offset 0 : !big
    pipeline.launch @f <F stage 0 mb 0>() -> (%a) : () -> !s
    pipeline.launch @f <F stage 0 mb 1>(%a) -> (%b) : (!s) -> !big
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>
!big = !pipeline.slot<tuple<tensor<32xf32>>>

// A slot that sticks out of the arena.
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 64 {
    // expected-error@+1 {{`a` ends at byte 128 of an arena of 64}}
    %a = pipeline.slot act "a" offset 0 : !big
    pipeline.launch @f <F stage 0 mb 0>() -> (%a) : () -> !big
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>
!big = !pipeline.slot<tuple<tensor<32xf32>>>

// The optimizer state is there although nothing has touched it yet.
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 64 {
    // expected-note@+1 {{`opt` is here}}
    %o = pipeline.slot opt "opt" offset 0 binding <opt @s0> : !s
    // expected-error@+1 {{`a` overlaps `opt` on rank 0 at position 2}}
    %a = pipeline.slot act "a" offset 0 : !s
    pipeline.launch @f <F stage 0 mb 0>() -> (%a) : () -> !s
    pipeline.launch @u <U stage 0>(%o) -> () : (!s) -> ()
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>
!big = !pipeline.slot<tuple<tensor<32xf32>>>

// Written while it is being sent.
pipeline.program @p ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 64 {
    %a = pipeline.slot act "a" offset 0 : !s
    pipeline.launch @f <F stage 0 mb 0>() -> (%a) : () -> !s
    // expected-note@+1 {{posted here}}
    %0 = pipeline.post send <act stage 0 mb 0> %a with [1] channel 1 : !s
    // expected-error@+1 {{`F(0, 1)` writes `act(0, 0)` while it is in flight on rank 0}}
    pipeline.launch @f <F stage 0 mb 1>() -> (%a) : () -> !s
    pipeline.complete %0
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>
!big = !pipeline.slot<tuple<tensor<32xf32>>>

// Read before it has arrived.
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s1 <stage 1> parts [["s1", 0]]
  pipeline.rank 0 arena 64 {
    %a = pipeline.slot act "a" offset 0 : !s
    // expected-note@+1 {{posted here}}
    %0 = pipeline.post receive <act stage 0 mb 0> %a with [1] channel 1 : !s
    // expected-error@+1 {{`F(1, 0)` reads `act(0, 0)` while it is in flight on rank 0}}
    pipeline.launch @f <F stage 1 mb 0>(%a) -> () : (!s) -> ()
    pipeline.complete %0
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>
!big = !pipeline.slot<tuple<tensor<32xf32>>>

// Received over what is still being sent.
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 64 {
    %a = pipeline.slot act "a" offset 0 : !s
    pipeline.launch @f <F stage 0 mb 0>() -> (%a) : () -> !s
    // expected-note@+1 {{posted here}}
    %0 = pipeline.post send <act stage 0 mb 0> %a with [1] channel 1 : !s
    // expected-error@+1 {{receives over `act(0, 0)` while it is in flight on rank 0}}
    %1 = pipeline.post receive <dact stage 1 mb 0> %a with [1] channel 2 : !s
    pipeline.complete %0
    pipeline.complete %1
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>
!big = !pipeline.slot<tuple<tensor<32xf32>>>

// Sent on before it has arrived.
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.rank 0 arena 64 {
    %a = pipeline.slot act "a" offset 0 : !s
    // expected-note@+1 {{posted here}}
    %0 = pipeline.post receive <act stage 0 mb 0> %a with [1] channel 1 : !s
    // expected-error@+1 {{posts `act(0, 0)` while it is in flight on rank 0}}
    %1 = pipeline.post send <act stage 0 mb 0> %a with [1] channel 2 : !s
    pipeline.complete %0
    pipeline.complete %1
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>
!big = !pipeline.slot<tuple<tensor<32xf32>>>

// Sent to two ranks, one of which has got it: it may still not be written.
pipeline.program @p ranks 3 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 64 {
    %a = pipeline.slot act "a" offset 0 : !s
    pipeline.launch @f <F stage 0 mb 0>() -> (%a) : () -> !s
    // expected-note@+1 {{posted here}}
    %0 = pipeline.post send <act stage 0 mb 0> %a with [1] channel 1 : !s
    %1 = pipeline.post send <act stage 0 mb 0> %a with [2] channel 2 : !s
    pipeline.complete %1
    // expected-error@+1 {{`F(0, 1)` writes `act(0, 0)` while it is in flight on rank 0}}
    pipeline.launch @f <F stage 0 mb 1>() -> (%a) : () -> !s
    pipeline.complete %0
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>
!big = !pipeline.slot<tuple<tensor<32xf32>>>

// Added to in place while it is being sent: the body writes the slot of its tied input.
pipeline.program @p ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 64 {
    %g = pipeline.slot grad "g" offset 0 : !s
    pipeline.launch @first <B stage 0 mb 0>() -> (%g) : () -> !s
    // expected-note@+1 {{posted here}}
    %0 = pipeline.post send <grad stage 0> %g with [1] channel 1 : !s
    // expected-error@+1 {{`B(0, 1)` writes `grad(0)` while it is in flight on rank 0}}
    pipeline.launch @add <B stage 0 mb 1>(%g) -> () : (!s) -> ()
    pipeline.complete %0
  }
}
func.func private @add(tensor<16xf32>) -> tensor<16xf32> attributes {
  pipeline.inputs = #pipeline.groups<grad x 1>, pipeline.results = #pipeline.groups<grad x 1>, pipeline.ties = array<i64: 0>}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>
!big = !pipeline.slot<tuple<tensor<32xf32>>>

// Scratch memory over a slot that is being received.
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s1 <stage 1> parts [["s1", 0]]
  pipeline.rank 0 arena 64 {
    %a = pipeline.slot act "a" offset 0 : !s
    // expected-note@+1 {{posted here}}
    %0 = pipeline.post receive <act stage 0 mb 0> %a with [1] channel 1 : !s
    // expected-error@+1 {{`F(1, 0)` writes `act(0, 0)` while it is in flight on rank 0}}
    pipeline.launch @f <F stage 1 mb 0>() -> () scratch %a : () -> () scratch !s
    pipeline.complete %0
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>
!big = !pipeline.slot<tuple<tensor<32xf32>>>

// A slot of no bytes at the same place hides nothing.
pipeline.program @p ranks 2 microbatches 3 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 64 {
    // expected-note@+1 {{`a` is here}}
    %a = pipeline.slot act "a" offset 0 : !s
    %e = pipeline.slot act "empty" offset 0 : !pipeline.slot<tuple<>>
    // expected-error@+1 {{`b` overlaps `a` on rank 0 at position 5}}
    %b = pipeline.slot act "b" offset 0 : !s
    pipeline.launch @f <F stage 0 mb 0>() -> (%a) : () -> !s
    pipeline.launch @f <F stage 0 mb 1>() -> (%e) : () -> !pipeline.slot<tuple<>>
    pipeline.launch @f <F stage 0 mb 2>(%a) -> (%b) : (!s) -> !s
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>

// A message that is still under way when the step ends.
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 64 {
    %a = pipeline.slot act "a" offset 0 : !s
    pipeline.launch @f <F stage 0 mb 0>() -> (%a) : () -> !s
    // expected-error@+1 {{`act(0, 0)` is posted on rank 0 and never completed}}
    %0 = pipeline.post send <act stage 0 mb 0> %a with [1] channel 1 : !s
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>

// A request that is gone when it is waited for a second time.
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 64 {
    %a = pipeline.slot act "a" offset 0 : !s
    pipeline.launch @f <F stage 0 mb 0>() -> (%a) : () -> !s
    // expected-error@+1 {{`act(0, 0)` is posted on rank 0 once and completed twice}}
    %0 = pipeline.post send <act stage 0 mb 0> %a with [1] channel 1 : !s
    pipeline.complete %0
    // expected-note@+1 {{completed again here}}
    pipeline.complete %0
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>

// Host memory is an arena of its own: two slots there may not meet either; those of the device do not count.
pipeline.program @p ranks 1 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 64 host 64 {
    %a = pipeline.slot stash "a" offset 0 : !s
    // expected-note@+1 {{`b` is here}}
    %b = pipeline.slot stash "b" host offset 0 : !s
    // expected-error@+1 {{`c` overlaps `b` on rank 0 at position 7}}
    %c = pipeline.slot stash "c" host offset 0 : !s
    pipeline.launch @f <F stage 0 mb 0>() -> (%a) : () -> !s
    %0 = pipeline.post send <stash stage 0 mb 0> %a with [0] channel 0 : !s
    %1 = pipeline.post receive <stash stage 0 mb 0> %b with [0] channel 0 : !s
    %2 = pipeline.post send <stash stage 0 mb 1> %a with [0] channel 0 : !s
    %3 = pipeline.post receive <stash stage 0 mb 1> %c with [0] channel 0 : !s
    pipeline.complete %0
    pipeline.complete %1
    pipeline.complete %2
    pipeline.complete %3
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>

// And it has an end of its own.
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 256 host 64 {
    %a = pipeline.slot stash "a" offset 0 : !s
    // expected-error@+1 {{`b` ends at byte 128 of an arena of 64}}
    %b = pipeline.slot stash "b" host offset 64 : !s
    pipeline.launch @f <F stage 0 mb 0>() -> (%a) : () -> !s
    %0 = pipeline.post send <stash stage 0 mb 0> %a with [0] channel 0 : !s
    %1 = pipeline.post receive <stash stage 0 mb 0> %b with [0] channel 0 : !s
    pipeline.complete %0
    pipeline.complete %1
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>

// Two launches side by side: what either makes lives during both.
pipeline.program @p ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 128 {
    // expected-error@+1 {{`a` overlaps `b` on rank 0 at position 3}}
    %a = pipeline.slot act "a" offset 0 : !s
    // expected-note@+1 {{`b` is here}}
    %b = pipeline.slot act "b" offset 0 : !s
    pipeline.launch @f <F stage 0 mb 0>(%a) -> () beside [1, 1] : (!s) -> ()
    pipeline.launch @f <F stage 0 mb 1>() -> (%b) : () -> !s
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>

// One reads what the other makes.
pipeline.program @p ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 128 {
    %a = pipeline.slot act "a" offset 0 : !s
    %b = pipeline.slot act "b" offset 64 : !s
    // expected-error@+1 {{`F(0, 0)` writes `a` on rank 0 beside `F(0, 1)`, which uses it}}
    pipeline.launch @f <F stage 0 mb 0>() -> (%a) beside [1, 1] : () -> !s
    // expected-note@+1 {{it runs in turn with this}}
    pipeline.launch @f <F stage 0 mb 1>(%a) -> (%b) : (!s) -> !s
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>

// Both have one scratch.
pipeline.program @p ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 128 {
    // expected-error@+2 {{`scratch` overlaps `scratch` on rank 0 at position 1}}
    // expected-note@+1 {{`scratch` is here}}
    %a = pipeline.slot temporary "scratch" offset 0 : !s
    pipeline.launch @f <F stage 0 mb 0>() -> () scratch %a beside [1, 1] : () -> () scratch !s
    pipeline.launch @f <F stage 0 mb 1>() -> () scratch %a : () -> () scratch !s
  }
}
