// What a gradient holds when it leaves a rank, where neither the lists nor data say it.
// RUN: pp-opt %s --split-input-file --pp-linearize-actions --pp-verify-arrivals --verify-diagnostics

// Rank 0's share goes on to rank 2, or stays on rank 1.
pipeline.program @p ranks 3 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] homes <[0, 1, 2]>
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <B stage 0 mb 0> on [0]
  // expected-note@+1 {{it arrives from rank 0 here, in the order of rank 0 alone; outside `on` the move is in that of rank 1, too}}
  pipeline.transfer <grad stage 0> from <[0]> to <[1]> anchors [0]
  // expected-error@+1 {{order of arrival of `grad(0)` on rank 1 is not determined: it leaves here}}
  pipeline.transfer <grad stage 0> from <[1]> to <[2]> anchors [1]
}

// -----

// The receiver says when, and rank 0 runs on meanwhile.
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] homes <[0, 1]>
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <I stage 0 mb 0> on [0]
  // expected-note@+1 {{`W(0, 0)` adds to it here}}
  pipeline.unit <W stage 0 mb 0> on [0]
  // expected-error@+1 {{order of arrival of `grad(0)` on rank 0 is not determined: it leaves here, in the order of rank 1 alone; outside `on` the move is in that of rank 0, too}}
  pipeline.transfer <grad stage 0> from <[0]> to <[1]> anchors [1]
}

// -----

// An update written by hand, before or after what it should contain.
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] homes <[0, 1]>
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <B stage 0 mb 0> on [0]
  // expected-note@+1 {{it arrives from rank 0 here, in the order of rank 0 alone; outside `on` the move is in that of rank 1, too}}
  pipeline.transfer <grad stage 0> from <[0]> to <[1]> anchors [0]
  // expected-error@+1 {{order of arrival of `grad(0)` on rank 1 is not determined: `U(0)` uses it here}}
  pipeline.unit <U stage 0> on [1]
}

// -----

// Two that take the share of rank 1, at the wish of different ranks: one of them gets nothing.
pipeline.program @p ranks 3 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] homes <[0, 1, 2]>
  // expected-note@+1 {{it leaves here, in the order of rank 0 alone; outside `on` the move is in that of rank 1, too}}
  pipeline.transfer <grad stage 0> from <[1]> to <[0]> anchors [0]
  // expected-error@+1 {{order of arrival of `grad(0)` on rank 1 is not determined: it leaves here}}
  pipeline.transfer <grad stage 0> from <[1]> to <[2]> anchors [1]
}
