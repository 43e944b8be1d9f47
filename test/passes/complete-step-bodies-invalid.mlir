// Actions whose pieces have no task bodies yet, for derive-tasks comes before complete-step, and no pieces at all.
// RUN: pp-opt %s --split-input-file --pp-complete-step --verify-diagnostics
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  // expected-error@+1 {{has no task bodies; expected a program behind derive-tasks}}
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]>
  pipeline.unit <F stage 0 mb 0> on [0]
}

// -----

// expected-error@+1 {{has no pieces; expected at least one}}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
}
