// I and the W of the same unit right after it become B, where no message stands between them on the rank.
// RUN: pp-opt %s --pp-fuse-units | FileCheck %s

// Stage 0 has nobody to send to: what other ranks do in between does not matter. Stage 1 sends its gradient first.
// CHECK-LABEL: pipeline.program @pipe
// CHECK:      unit <I stage 1 mb 0> on [1]
// CHECK-NEXT: unit <B stage 0 mb 0> on [0]
// CHECK-NEXT: unit <W stage 1 mb 0> on [1]
// CHECK-NOT:  unit
pipeline.program @pipe ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["pre", 0]] at <[0]>
  pipeline.piece @s1 <stage 1> parts [["pre", 1]] at <[1]>
  pipeline.unit <I stage 1 mb 0> on [1]
  pipeline.unit <I stage 0 mb 0> on [0]
  pipeline.unit <W stage 1 mb 0> on [1]
  pipeline.unit <W stage 0 mb 0> on [0]
}

// Both stages on one rank: the gradient stays there. Only halves of one microbatch, and only right behind each other.
// CHECK-LABEL: pipeline.program @there
// CHECK:      unit <B stage 1 mb 0> on [0]
// CHECK-NEXT: unit <I stage 1 mb 1> on [0]
// CHECK-NEXT: unit <B stage 0 mb 0> on [0]
// CHECK-NEXT: unit <W stage 1 mb 1> on [0]
// CHECK-NEXT: unit <I stage 0 mb 1> on [0]
// CHECK-NEXT: pipeline.together
// CHECK-NEXT:   unit <W stage 0 mb 1> on [0]
// CHECK-NOT:  unit
pipeline.program @there ranks 1 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["pre", 0]] at <[0]>
  pipeline.piece @s1 <stage 1> parts [["pre", 1]] at <[0]>
  pipeline.unit <I stage 1 mb 0> on [0]
  pipeline.unit <W stage 1 mb 0> on [0]
  pipeline.unit <I stage 1 mb 1> on [0]
  pipeline.unit <I stage 0 mb 0> on [0]
  pipeline.unit <W stage 0 mb 0> on [0]
  pipeline.unit <W stage 1 mb 1> on [0]
  pipeline.unit <I stage 0 mb 1> on [0]
  pipeline.together {
    pipeline.unit <W stage 0 mb 1> on [0]
  }
}

// A transfer in between; and the sum that W adds to may be on its way where the schedule moves it.
// CHECK-LABEL: pipeline.program @moves
// CHECK:      unit <I stage 0 mb 0> on [0]
// CHECK-NEXT: transfer
// CHECK-NEXT: unit <W stage 0 mb 0> on [0]
// CHECK-NEXT: unit <I stage 1 mb 0> on [0]
// CHECK-NEXT: unit <W stage 1 mb 0> on [0]
pipeline.program @moves ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["pre", 0]] at <[0]>
  pipeline.piece @s1 <stage 1> parts [["pre", 1]] at <[0]>
  pipeline.unit <I stage 0 mb 0> on [0]
  pipeline.transfer <weight stage 0> from <[0]> to <[1]> anchors [0, 1]
  pipeline.unit <W stage 0 mb 0> on [0]
  pipeline.unit <I stage 1 mb 0> on [0]
  pipeline.unit <W stage 1 mb 0> on [0]
  pipeline.transfer <grad stage 1> from <[0]> to <[1]> anchors [0, 1]
}
