// The lists of the ranks merged by when a unit can start: F takes 1, B 2, I, W and R 1; at one time, the lowest rank first.
// RUN: pp-opt %s --pp-linearize-actions | FileCheck %s

//   rank 0 | F0 F1 .. .. B0 B0 .. B1 B1     times 0 1 4 7
//   rank 1 | .. F0 B0 B0 F1 B1 B1           times   1 2 4 5
// CHECK-LABEL: pipeline.program @merge
pipeline.program @merge ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] at <[0]>
  pipeline.piece @s1 <stage 1> parts [["head", -1]] at <[1]>
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <F stage 0 mb 1> on [0]
  pipeline.unit <B stage 0 mb 0> on [0]
  pipeline.unit <B stage 0 mb 1> on [0]
  pipeline.unit <F stage 1 mb 0> on [1]
  pipeline.unit <B stage 1 mb 0> on [1]
  pipeline.unit <F stage 1 mb 1> on [1]
  pipeline.unit <B stage 1 mb 1> on [1]
}
// CHECK:      unit <F stage 0 mb 0> on [0]
// CHECK-NEXT: unit <F stage 0 mb 1> on [0]
// CHECK-NEXT: unit <F stage 1 mb 0> on [1]
// CHECK-NEXT: unit <B stage 1 mb 0> on [1]
// CHECK-NEXT: unit <B stage 0 mb 0> on [0]
// CHECK-NEXT: unit <F stage 1 mb 1> on [1]
// CHECK-NEXT: unit <B stage 1 mb 1> on [1]
// CHECK-NEXT: unit <B stage 0 mb 1> on [0]
// CHECK-NEXT: }

// Halves take 1 each: B(1) of rank 1 is there at 2, B(0) of rank 0 at 3; W waits in its list only.
// CHECK-LABEL: pipeline.program @halves
pipeline.program @halves ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] at <[0]>
  pipeline.piece @s1 <stage 1> parts [["head", -1]] at <[1]>
  pipeline.unit <F stage 1 mb 0> on [1]
  pipeline.unit <R stage 1 mb 0> on [1]
  pipeline.unit <I stage 1 mb 0> on [1]
  pipeline.unit <W stage 1 mb 0> on [1]
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <I stage 0 mb 0> on [0]
  pipeline.unit <W stage 0 mb 0> on [0]
}
// CHECK:      unit <F stage 0 mb 0> on [0]
// CHECK-NEXT: unit <F stage 1 mb 0> on [1]
// CHECK-NEXT: unit <R stage 1 mb 0> on [1]
// CHECK-NEXT: unit <I stage 1 mb 0> on [1]
// CHECK-NEXT: unit <I stage 0 mb 0> on [0]
// CHECK-NEXT: unit <W stage 1 mb 0> on [1]
// CHECK-NEXT: unit <W stage 0 mb 0> on [0]
// CHECK-NEXT: }

// A unit of rank 1 waits for the weight that rank 0 sends in its own list.
// CHECK-LABEL: pipeline.program @weight
pipeline.program @weight ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] at <[0]>
  pipeline.unit <F stage 0 mb 1> on [1]
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.transfer <weight stage 0> from <[0]> to <[1]> anchors [0]
}
// CHECK:      unit <F stage 0 mb 0> on [0]
// CHECK-NEXT: transfer <weight stage 0> from <[0]> to <[1]> anchors [0]
// CHECK-NEXT: unit <F stage 0 mb 1> on [1]

// Two ranks send to a third at one time: the list of rank 2 stands first in the text, rank 1's share goes first.
// CHECK-LABEL: pipeline.program @text
pipeline.program @text ranks 3 microbatches 3 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] homes <[0, 1, 2]>
  pipeline.unit <F stage 0 mb 2> on [2]
  pipeline.transfer <grad stage 0> from <[2]> to <[0]> anchors [2]
  pipeline.unit <F stage 0 mb 1> on [1]
  pipeline.transfer <grad stage 0> from <[1]> to <[0]> anchors [1]
  pipeline.unit <F stage 0 mb 0> on [0]
}
// CHECK:      unit <F stage 0 mb 0> on [0]
// CHECK-NEXT: unit <F stage 0 mb 1> on [1]
// CHECK-NEXT: unit <F stage 0 mb 2> on [2]
// CHECK-NEXT: transfer <grad stage 0> from <[1]> to <[0]> anchors [1]
// CHECK-NEXT: transfer <grad stage 0> from <[2]> to <[0]> anchors [2]

// A `together` stands in the lists of all its ranks: rank 1 gets there at 1, so what follows on rank 0 starts at 1 too,
// with F(0, 1) of rank 1, which is emitted before it and comes after it.
// CHECK-LABEL: pipeline.program @together
pipeline.program @together ranks 2 microbatches 3 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] homes <[0, 1]>
  pipeline.unit <F stage 0 mb 0> on [1]
  pipeline.together {
    pipeline.transfer <weight stage 0> from <[0]> to <[1]> anchors [0, 1]
    pipeline.transfer <grad stage 0> from <[1]> to <[0]> anchors [0, 1]
  }
  pipeline.unit <F stage 0 mb 1> on [1]
  pipeline.unit <F stage 0 mb 2> on [0]
}
// CHECK:      unit <F stage 0 mb 0> on [1]
// CHECK-NEXT: together {
// CHECK-NEXT:   transfer <weight stage 0>
// CHECK-NEXT:   transfer <grad stage 0>
// CHECK-NEXT: }
// CHECK-NEXT: unit <F stage 0 mb 2> on [0]
// CHECK-NEXT: unit <F stage 0 mb 1> on [1]

// Slices: a forward reads the keys of the slices before it, a backward adds to those of the slices after it.
// CHECK-LABEL: pipeline.program @slices
pipeline.program @slices ranks 2 microbatches 1 slices 2 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1]] homes <[0, 1]>
  pipeline.unit <F stage 0 mb 0 slice 1> on [1]
  pipeline.unit <F stage 0 mb 0 slice 0> on [0]
  pipeline.unit <B stage 0 mb 0 slice 0> on [0]
  pipeline.unit <B stage 0 mb 0 slice 1> on [1]
}
// CHECK:      unit <F stage 0 mb 0 slice 0>
// CHECK-NEXT: unit <F stage 0 mb 0 slice 1>
// CHECK-NEXT: unit <B stage 0 mb 0 slice 1>
// CHECK-NEXT: unit <B stage 0 mb 0 slice 0>

// A piece of which derive-tasks knows that it has no weights runs on any rank.
// CHECK-LABEL: pipeline.program @free
pipeline.program @free ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @attn0 <part "attn" 0> parts [["attn", 0]] {weights = []}
  pipeline.unit <F part "attn" 0 mb 0> on [0]
  pipeline.unit <F part "attn" 0 mb 1> on [1]
}
// CHECK:      unit <F part "attn" 0 mb 0> on [0]
// CHECK-NEXT: unit <F part "attn" 0 mb 1> on [1]
