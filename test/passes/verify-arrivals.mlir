// Gradients whose order of arrival follows from the lists or from data, or does not matter.
// RUN: pp-opt %s --pp-linearize-actions --pp-verify-arrivals | FileCheck %s

// Rank 0's share comes while rank 1 adds to its own: a sum, in the order of the merge, and nothing leaves rank 1.
// CHECK-LABEL: @sums
// CHECK-COUNT-2: transfer <grad
pipeline.program @sums ranks 3 microbatches 3 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] homes <[0, 1, 2]>
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <B stage 0 mb 0> on [0]
  pipeline.transfer <grad stage 0> from <[0]> to <[1]> anchors [0]
  pipeline.unit <F stage 0 mb 1> on [1]
  pipeline.unit <B stage 0 mb 1> on [1]
  pipeline.unit <F stage 0 mb 2> on [2]
  pipeline.unit <B stage 0 mb 2> on [2]
  pipeline.transfer <grad stage 0> from <[2]> to <[1]> anchors [2]
}

// Both moves stand in the list of rank 1.
// CHECK-LABEL: @listed
// CHECK: transfer <grad stage 0> from <[0]> to <[1]>
// CHECK: transfer <grad stage 0> from <[1]> to <[2]>
pipeline.program @listed ranks 3 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] homes <[0, 1, 2]>
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <B stage 0 mb 0> on [0]
  pipeline.transfer <grad stage 0> from <[0]> to <[1]> anchors [0, 1]
  pipeline.transfer <grad stage 0> from <[1]> to <[2]> anchors [1]
}

// Rank 1 sends on only after F(1, 1), which needs what rank 0 makes after its move.
// CHECK-LABEL: @data
// CHECK: transfer <grad stage 0> from <[0]> to <[1]>
// CHECK: unit <F stage 1 mb 1> on [1]
// CHECK: transfer <grad stage 0> from <[1]> to <[2]>
pipeline.program @data ranks 3 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] homes <[0, 1, 2]>
  pipeline.piece @s1 <stage 1> parts [["head", -1]] homes <[0, 1, 2]>
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <F stage 1 mb 0> on [0]
  pipeline.unit <B stage 1 mb 0> on [0]
  pipeline.unit <B stage 0 mb 0> on [0]
  pipeline.transfer <grad stage 0> from <[0]> to <[1]> anchors [0]
  pipeline.unit <F stage 0 mb 1> on [0]
  pipeline.unit <F stage 1 mb 1> on [1]
  pipeline.transfer <grad stage 0> from <[1]> to <[2]> anchors [1]
  pipeline.unit <B stage 1 mb 1> on [1]
  pipeline.unit <B stage 0 mb 1> on [1]
}
