// What cannot be given away of an attention, and where `attend` cannot stand.
// RUN: pp-opt %s --split-input-file --pp-verify-units --verify-diagnostics

// The unit is in no joint with it.
pipeline.program @elsewhere ranks 2 microbatches 1 slices 2 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["layer", 0]] at <[0]>
  pipeline.unit <F stage 0 mb 0 slice 0> on [0]
  pipeline.together {
    pipeline.unit <F stage 0 mb 0 slice 1> on [0]
    // expected-error@below {{`attend` belongs in the `together` block of the unit it helps, and `B(0, 0, 1)` is not in this one}}
    pipeline.attend <B stage 0 mb 0 slice 1> over [0] on 1
  }
  pipeline.unit <B stage 0 mb 0 slice 1> on [0]
  pipeline.unit <B stage 0 mb 0 slice 0> on [0]
}

// -----

// Halves of a backward are not helped.
pipeline.program @half ranks 2 microbatches 1 slices 2 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["layer", 0]] at <[0]>
  pipeline.unit <F stage 0 mb 0 slice 0> on [0]
  pipeline.unit <F stage 0 mb 0 slice 1> on [0]
  pipeline.together {
    pipeline.unit <W stage 0 mb 0 slice 1> on [0]
    // expected-error@below {{`attend` helps an `F`, a `B` or an `I`, got `W(0, 0, 1)`}}
    pipeline.attend <W stage 0 mb 0 slice 1> over [0] on 1
  }
}

// -----

// A rank does not help itself.
pipeline.program @itself ranks 2 microbatches 1 slices 2 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["layer", 0]] at <[0]>
  pipeline.together {
    // expected-note@below {{`F(0, 0, 1)` runs here}}
    pipeline.unit <F stage 0 mb 0 slice 1> on [0]
    // expected-error@below {{rank 0 cannot help `F(0, 0, 1)`, which runs there itself}}
    pipeline.attend <F stage 0 mb 0 slice 1> over [0] on 0
  }
}

// -----

// A slice's own keys, and later ones, stay.
pipeline.program @own ranks 2 microbatches 1 slices 3 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["layer", 0]] at <[0]>
  pipeline.together {
    pipeline.unit <F stage 0 mb 0 slice 2> on [0]
    // expected-error@below {{slice 2 cannot be given away; `F(0, 0, 2)` can give 0 to 1, its own slice stays}}
    pipeline.attend <F stage 0 mb 0 slice 2> over [1, 2] on 1
  }
}

// -----

// The first slice has nothing to give.
pipeline.program @first ranks 2 microbatches 1 slices 3 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["layer", 0]] at <[0]>
  pipeline.together {
    pipeline.unit <F stage 0 mb 0 slice 0> on [0]
    // expected-error@below {{slice 0 cannot be given away; `F(0, 0, 0)` can give none, its own slice stays}}
    pipeline.attend <F stage 0 mb 0 slice 0> over [0] on 1
  }
}

// -----

// Two helpers with one slice.
pipeline.program @twice ranks 3 microbatches 1 slices 3 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["layer", 0]] at <[0]>
  pipeline.together {
    pipeline.unit <F stage 0 mb 0 slice 2> on [0]
    // expected-note@below {{first here}}
    pipeline.attend <F stage 0 mb 0 slice 2> over [0, 1] on 1
    // expected-error@below {{slice 1 of `F(0, 0, 2)` is attended twice}}
    pipeline.attend <F stage 0 mb 0 slice 2> over [1] on 2
  }
}
