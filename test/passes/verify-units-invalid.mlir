// Units that run twice, never, beside each other, or on the wrong rank.
// RUN: pp-opt %s --split-input-file --pp-verify-units --verify-diagnostics

// A forward twice, even on different ranks.
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] at <[0]>
  // expected-note@+1 {{first here}}
  pipeline.unit <F stage 0 mb 0> on [0]
  // expected-error@+1 {{`F(0, 0)` runs twice}}
  pipeline.unit <F stage 0 mb 0> on [1]
  pipeline.unit <B stage 0 mb 0> on [0]
}

// -----

pipeline.program @p ranks 1 microbatches 2 slices 0 attributes {train = {}} {
  // A forward that nobody asked for; its backward was.
  // expected-error@+1 {{`F(0, 1)` never runs}}
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] at <[0]>
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <B stage 0 mb 0> on [0]
  // expected-note@+1 {{its backward runs here}}
  pipeline.unit <B stage 0 mb 1> on [0]
}

// -----

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  // A whole stage that was forgotten: no other place to show.
  // expected-error@+1 {{`F(0, 0)` never runs}}
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] at <[0]>
}

// -----

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  // expected-error@+1 {{`B(attn(3), 0)` never runs}}
  pipeline.piece @attn3 <part "attn" 3> parts [["attn", 3]] at <[0]>
  // expected-note@+1 {{its `F` runs here}}
  pipeline.unit <F part "attn" 3 mb 0> on [0]
}

// -----

pipeline.program @p ranks 1 microbatches 1 slices 2 attributes {train = {}} {
  // One slice of it.
  // expected-error@+1 {{`B(0, 0, 1)` never runs}}
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] at <[0]>
  pipeline.unit <F stage 0 mb 0 slice 0> on [0]
  // expected-note@+1 {{its `F` runs here}}
  pipeline.unit <F stage 0 mb 0 slice 1> on [0]
  pipeline.unit <B stage 0 mb 0 slice 0> on [0]
}

// -----

// `B` is both halves.
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] at <[0]>
  pipeline.unit <F stage 0 mb 0> on [0]
  // expected-note@+1 {{`B` runs here}}
  pipeline.unit <B stage 0 mb 0> on [0]
  // expected-error@+1 {{`W(0, 0)` runs beside `B(0, 0)`, which is both `I` and `W`}}
  pipeline.unit <W stage 0 mb 0> on [0]
}

// -----

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  // expected-error@+1 {{`W(0, 0)` never runs}}
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] at <[0]>
  pipeline.unit <F stage 0 mb 0> on [0]
  // expected-note@+1 {{its `I` runs here}}
  pipeline.unit <I stage 0 mb 0> on [0]
}

// -----

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  // expected-error@+1 {{`I(0, 0)` never runs}}
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] at <[0]>
  pipeline.unit <F stage 0 mb 0> on [0]
  // expected-note@+1 {{its `W` runs here}}
  pipeline.unit <W stage 0 mb 0> on [0]
}

// -----

// The stash is where the forward ran, so the backward runs there.
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] at <[0]>
  // expected-note@+1 {{its `F` runs here}}
  pipeline.unit <F stage 0 mb 0> on [1]
  // expected-error@+1 {{`B(0, 0)` runs on rank 0, but its `F` ran on rank 1}}
  pipeline.unit <B stage 0 mb 0> on [0]
}

// -----

// So does the weight pass alone.
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] at <[0]>
  // expected-note@+1 {{its `F` runs here}}
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <I stage 0 mb 0> on [0]
  // expected-error@+1 {{`W(0, 0)` runs on rank 1, but its `F` ran on rank 0}}
  pipeline.unit <W stage 0 mb 0> on [1]
}

// -----

pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] at <[0]>
  // expected-error@+1 {{rank 2 does not exist; this schedule has 2 ranks, 0 to 1}}
  pipeline.unit <F stage 0 mb 0> on [2]
}

// -----

pipeline.program @p ranks 2 microbatches 3 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] at <[0]>
  // expected-error@+1 {{microbatch 3 does not exist; this schedule has 3 microbatches, 0 to 2}}
  pipeline.unit <F stage 0 mb 3> on [0]
}

// -----

pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] at <[0]>
  // expected-error@+1 {{`F(1, 0)` names a piece that this schedule does not have}}
  pipeline.unit <F stage 1 mb 0> on [0]
}

// -----

// A slice too many must not be taken for another microbatch.
pipeline.program @p ranks 1 microbatches 2 slices 2 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] at <[0]>
  // expected-error@+1 {{slice 2 does not exist; this schedule has 2 slices, 0 to 1}}
  pipeline.unit <F stage 0 mb 0 slice 2> on [0]
}

// -----

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] at <[0]>
  // expected-error@+1 {{slice 0 does not exist; this schedule has no slices}}
  pipeline.unit <F stage 0 mb 0 slice 0> on [0]
}

// -----

pipeline.program @p ranks 1 microbatches 1 slices 2 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] at <[0]>
  // expected-error@+1 {{`F(0, 0)` names no slice; this schedule has 2 slices, 0 to 1}}
  pipeline.unit <F stage 0 mb 0> on [0]
}

// -----

// Updates written by hand: twice, ..
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] at <[0]>
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <B stage 0 mb 0> on [0]
  // expected-note@+1 {{first here}}
  pipeline.unit <U stage 0> on [0]
  // expected-error@+1 {{stage 0 is updated twice}}
  pipeline.unit <U stage 0> on [0]
}

// -----

// .. on a rank that has no optimizer state, ..
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  // expected-note@+1 {{placed here}}
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] homes <[0, 1]> owner <[1]>
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <B stage 0 mb 0> on [0]
  // expected-error@+1 {{`U(0)` runs on rank 0, but its optimizer state is on rank 1}}
  pipeline.unit <U stage 0> on [0]
}

// -----

// .. and before the last that its own rank adds; what another rank adds has no order with it.
pipeline.program @p ranks 2 microbatches 3 slices 2 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] homes <[0, 1]> owner <[0]>
  pipeline.unit <F stage 0 mb 0 slice 0> on [0]
  pipeline.unit <B stage 0 mb 0 slice 0> on [0]
  // expected-error@+1 {{`U(0)` on rank 0 lacks the gradient of microbatch 0, microbatch 2}}
  pipeline.unit <U stage 0> on [0]
  pipeline.unit <B stage 0 mb 1 slice 0> on [1]
  // expected-note@+1 {{`B(0, 0, 1)` adds it later, here}}
  pipeline.unit <B stage 0 mb 0 slice 1> on [0]
  pipeline.unit <W stage 0 mb 2 slice 0> on [0]
  pipeline.unit <W stage 0 mb 2 slice 1> on [0]
}
