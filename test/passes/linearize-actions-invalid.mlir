// Lists that no order serves: the first action that cannot go, what it lacks, and where others wait.
// RUN: pp-opt %s --split-input-file --pp-linearize-actions --verify-diagnostics

// A backward before its forward on one rank.
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] at <[0]>
  // expected-error@+1 {{`B(0, 0)` on rank 0 needs `stash(0, 0)`, and its `F` has not run}}
  pipeline.unit <B stage 0 mb 0> on [0]
  // expected-note@+1 {{`F(0, 0)` comes later, on rank 0}}
  pipeline.unit <F stage 0 mb 0> on [0]
}

// -----

// The weight pass before the one that makes its inputs.
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] at <[0]>
  pipeline.unit <F stage 0 mb 0> on [0]
  // expected-error@+1 {{`W(0, 0)` on rank 0 needs `dact(0, 0)`, and its backward has not run}}
  pipeline.unit <W stage 0 mb 0> on [0]
  // expected-note@+1 {{`I(0, 0)` comes later, on rank 0}}
  pipeline.unit <I stage 0 mb 0> on [0]
}

// -----

// A recomputation that comes too late to be of use.
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] at <[0]>
  pipeline.unit <F stage 0 mb 0> on [0]
  // expected-error@+1 {{`B(0, 0)` on rank 0 needs `stash(0, 0)`, and its `R` has not run}}
  pipeline.unit <B stage 0 mb 0> on [0]
  // expected-note@+1 {{`R(0, 0)` comes later, on rank 0}}
  pipeline.unit <R stage 0 mb 0> on [0]
}

// -----

// Two ranks that wait for each other: rank 0 wants the gradient of microbatch 0 before it sends microbatch 1, rank 1
// wants microbatch 1 before it goes back.
pipeline.program @p ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] at <[0]>
  pipeline.piece @s1 <stage 1> parts [["head", -1]] at <[1]>
  pipeline.unit <F stage 0 mb 0> on [0]
  // expected-error@+1 {{`B(0, 0)` on rank 0 needs `dact(1, 0)`, and its backward has not run}}
  pipeline.unit <B stage 0 mb 0> on [0]
  pipeline.unit <F stage 0 mb 1> on [0]
  pipeline.unit <B stage 0 mb 1> on [0]
  pipeline.unit <F stage 1 mb 0> on [1]
  // expected-note@+1 {{rank 1 waits at `F(1, 1)` for `F(0, 1)`, which comes after `B(0, 0)` on rank 0}}
  pipeline.unit <F stage 1 mb 1> on [1]
  // expected-note@+1 {{`B(1, 0)` comes later, on rank 1}}
  pipeline.unit <B stage 1 mb 0> on [1]
  pipeline.unit <B stage 1 mb 1> on [1]
}

// -----

// A cycle of three; each rank wants first what comes second on another.
pipeline.program @p ranks 3 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] at <[0]>
  pipeline.piece @s1 <stage 1> parts [["pre", 0]] at <[1]>
  pipeline.piece @s2 <stage 2> parts [["head", -1]] at <[2]>
  pipeline.unit <F stage 0 mb 1> on [0]
  // expected-error@+1 {{`B(0, 1)` on rank 0 needs `dact(1, 1)`, and its backward has not run}}
  pipeline.unit <B stage 0 mb 1> on [0]
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <F stage 1 mb 1> on [1]
  // expected-note@+2 {{`B(1, 1)` comes later, on rank 1}}
  // expected-note@+1 {{rank 1 waits at `B(1, 1)` for `B(2, 1)`, which comes after `F(2, 0)` on rank 2}}
  pipeline.unit <B stage 1 mb 1> on [1]
  pipeline.unit <F stage 1 mb 0> on [1]
  // expected-note@+1 {{rank 2 waits at `F(2, 0)` for `F(1, 0)`, which comes after `B(1, 1)` on rank 1}}
  pipeline.unit <F stage 2 mb 0> on [2]
  pipeline.unit <F stage 2 mb 1> on [2]
  pipeline.unit <B stage 2 mb 1> on [2]
}

// -----

// Weights are never sent without being asked to.
pipeline.program @p ranks 4 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] at <[0]>
  // expected-note@+1 {{placed here; run it there, or `move weight(1)` to rank 0 first}}
  pipeline.piece @s1 <stage 1> parts [["head", -1]] homes <[2, 3]>
  pipeline.unit <F stage 0 mb 0> on [0]
  // expected-error@+1 {{`F(1, 0)` on rank 0 needs `weight(1)`, which is not on rank 0; it is on ranks 2, 3}}
  pipeline.unit <F stage 1 mb 0> on [0]
}

// -----

// A piece that has no place at all.
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  // expected-note@+1 {{declared without a place here}}
  pipeline.piece @s0 <stage 0> parts [["embed", -1]]
  // expected-error@+1 {{`F(0, 0)` on rank 0 needs `weight(0)`, which is not on rank 0; no rank holds it}}
  pipeline.unit <F stage 0 mb 0> on [0]
}

// -----

// A weight that its sender does not have.
pipeline.program @p ranks 3 microbatches 1 slices 0 attributes {train = {}} {
  // expected-note@+1 {{placed here; run it there, or `move weight(0)` to rank 1 first}}
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] at <[0]>
  // expected-error@+1 {{`move weight(0)` on rank 1 needs `weight(0)`, which is not on rank 1; it is on rank 0}}
  pipeline.transfer <weight stage 0> from <[1]> to <[2]> anchors [1]
}

// -----

// An activation moved by hand before it is made.
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] at <[0]>
  pipeline.piece @s1 <stage 1> parts [["head", -1]] at <[1]>
  // expected-error@+1 {{`move act(0, 0)` on rank 0 needs `act(0, 0)`, and its `F` has not run}}
  pipeline.transfer <act stage 0 mb 0> from <[0]> to <[1]> anchors [0]
  // expected-note@+1 {{`F(0, 0)` comes later, on rank 0}}
  pipeline.unit <F stage 0 mb 0> on [0]
}

// -----

// Rank 0 waits for rank 1, which waits for itself: rank 1 is to blame, and nobody else is told of.
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] at <[0]>
  pipeline.piece @s1 <stage 1> parts [["head", -1]] at <[1]>
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <B stage 0 mb 0> on [0]
  // expected-error@+1 {{`B(1, 0)` on rank 1 needs `stash(1, 0)`, and its `F` has not run}}
  pipeline.unit <B stage 1 mb 0> on [1]
  // expected-note@+1 {{`F(1, 0)` comes later, on rank 1}}
  pipeline.unit <F stage 1 mb 0> on [1]
}

// -----

// Slices go forward in order: a slice reads the keys of those before it.
pipeline.program @p ranks 1 microbatches 1 slices 2 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] at <[0]>
  // expected-error@+1 {{`F(0, 0, 1)` on rank 0 needs `kv(0, 0, 0)`, and its `F` has not run}}
  pipeline.unit <F stage 0 mb 0 slice 1> on [0]
  // expected-note@+1 {{`F(0, 0, 0)` comes later, on rank 0}}
  pipeline.unit <F stage 0 mb 0 slice 0> on [0]
}

// -----

// And backward in reverse: the gradient of its own keys is whole only then.
pipeline.program @p ranks 1 microbatches 1 slices 3 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] at <[0]>
  pipeline.unit <F stage 0 mb 0 slice 0> on [0]
  pipeline.unit <F stage 0 mb 0 slice 1> on [0]
  pipeline.unit <F stage 0 mb 0 slice 2> on [0]
  // expected-error@+1 {{`B(0, 0, 0)` on rank 0 needs dkv from slice 1, whose backward has not run}}
  pipeline.unit <B stage 0 mb 0 slice 0> on [0]
  // expected-note@+1 {{`B(0, 0, 1)` comes later, on rank 0}}
  pipeline.unit <B stage 0 mb 0 slice 1> on [0]
  pipeline.unit <B stage 0 mb 0 slice 2> on [0]
}

// -----

// Keys moved by hand before they are made.
pipeline.program @p ranks 2 microbatches 1 slices 2 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] at <[0]>
  // expected-error@+1 {{`move kv(0, 0, 0)` on rank 0 needs `kv(0, 0, 0)`, and its `F` has not run}}
  pipeline.transfer <kv stage 0 mb 0 slice 0> from <[0]> to <[1]> anchors [0]
  // expected-note@+1 {{`F(0, 0, 0)` comes later, on rank 0}}
  pipeline.unit <F stage 0 mb 0 slice 0> on [0]
}
