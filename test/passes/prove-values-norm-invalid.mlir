// Norms and losses that are not those of the whole step: one defect each.
// RUN: pp-opt %s --pp-prove-values --verify-diagnostics

!t = tensor<4xf32>
!s = !pipeline.slot<tuple<!t>>
#w = #pipeline.weight<"w" : !t declared <"w" zero>>
#w1 = #pipeline.weight<"w1" : !t declared <"w1" zero>>

func.func private @s0.F(!t) -> (!t, !t) attributes {
  pipeline.body = #pipeline.body<"s0" F>,
  pipeline.inputs = #pipeline.groups<weight x 1>, pipeline.results = #pipeline.groups<act x 1, stash x 1>, pipeline.ties = array<i64: -1, -1>}
func.func private @s0.W.first(!t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" W first>,
  pipeline.inputs = #pipeline.groups<tokens x 1>, pipeline.results = #pipeline.groups<grad x 1>, pipeline.ties = array<i64: -1>}
func.func private @s0.W(!t, !t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" W>,
  pipeline.inputs = #pipeline.groups<tokens x 1, grad x 1>, pipeline.results = #pipeline.groups<grad x 1>, pipeline.ties = array<i64: 1>}
func.func private @s0.norm.first(!t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" U norm_first>,
  pipeline.inputs = #pipeline.groups<grad x 1>, pipeline.results = #pipeline.groups<norm x 1>, pipeline.ties = array<i64: -1>}
func.func private @s0.norm(!t, !t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" U norm>,
  pipeline.inputs = #pipeline.groups<grad x 1, norm x 1>, pipeline.results = #pipeline.groups<norm x 1>, pipeline.ties = array<i64: 1>}
func.func private @s0.U(!t, !t, !t) -> (!t, !t) attributes {
  pipeline.body = #pipeline.body<"s0" U>,
  pipeline.inputs = #pipeline.groups<weight x 1, grad x 1, opt x 1>, pipeline.results = #pipeline.groups<weight x 1, opt x 1>,
  pipeline.ties = array<i64: 0, 2>}
func.func private @s1.B(!t, !t) -> (!t, !t) attributes {
  pipeline.body = #pipeline.body<"s1" B>,
  pipeline.inputs = #pipeline.groups<act x 1, targets x 1>, pipeline.results = #pipeline.groups<dact x 1, loss x 1>,
  pipeline.ties = array<i64: -1, -1>}
func.func private @s1.W.first(!t) -> !t attributes {
  pipeline.body = #pipeline.body<"s1" W first>,
  pipeline.inputs = #pipeline.groups<targets x 1>, pipeline.results = #pipeline.groups<grad x 1>, pipeline.ties = array<i64: -1>}
func.func private @s1.norm.first(!t) -> !t attributes {
  pipeline.body = #pipeline.body<"s1" U norm_first>,
  pipeline.inputs = #pipeline.groups<grad x 1>, pipeline.results = #pipeline.groups<norm x 1>, pipeline.ties = array<i64: -1>}
func.func private @clip.U(!t, !t, !t) -> !t attributes {
  pipeline.body = #pipeline.body<"clip" U>,
  pipeline.inputs = #pipeline.groups<weight x 1, grad x 1, norm x 1>, pipeline.results = #pipeline.groups<weight x 1>,
  pipeline.ties = array<i64: 0>}
func.func private @clip.W.first(!t) -> !t attributes {
  pipeline.body = #pipeline.body<"clip" W first>,
  pipeline.inputs = #pipeline.groups<tokens x 1>, pipeline.results = #pipeline.groups<grad x 1>, pipeline.ties = array<i64: -1>}
func.func private @clip.norm.first(!t) -> !t attributes {
  pipeline.body = #pipeline.body<"clip" U norm_first>,
  pipeline.inputs = #pipeline.groups<grad x 1>, pipeline.results = #pipeline.groups<norm x 1>, pipeline.ties = array<i64: -1>}

// Clipped by the norm of half the gradients: the sum over the ranks is missing.
pipeline.program @own_norm ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "clip" {weights = [#w]}
  pipeline.piece @s1 <stage 1> parts [["b", 0]] at <[1]> bodies "s1" {weights = [#w1]}
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %t = pipeline.slot data "t" binding <tokens mb 0> : !s
    %g = pipeline.slot grad "g" : !s
    %n = pipeline.slot stat "n" : !s
    pipeline.launch @clip.W.first <W stage 0 mb 0>(%t) -> (%g) : (!s) -> !s
    pipeline.launch @clip.norm.first <U stage 0>(%g) -> (%n) : (!s) -> !s
    // expected-error@+1 {{`U(0)` on rank 0 clips by a norm without the gradient of stage 1}}
    pipeline.launch @clip.U <U stage 0>(%w, %g, %n) -> () : (!s, !s, !s) -> ()
  }
  pipeline.rank 1 {
    %t = pipeline.slot data "t" binding <targets mb 0> : !s
    %g = pipeline.slot grad "g" : !s
    %n = pipeline.slot stat "n" : !s
    pipeline.launch @s1.W.first <W stage 1 mb 0>(%t) -> (%g) : (!s) -> !s
    // expected-note@+1 {{a sum with it is on rank 1, which was last added to here, by `norm.first` of `U(1)` on rank 1}}
    pipeline.launch @s1.norm.first <U stage 1>(%g) -> (%n) : (!s) -> !s
  }
}

// The norm of a gradient that is not complete.
pipeline.program @early_norm ranks 1 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %t = pipeline.slot data "t" binding <tokens mb 0> : !s
    %u = pipeline.slot data "u" binding <tokens mb 1> : !s
    %g = pipeline.slot grad "g" : !s
    %n = pipeline.slot stat "n" : !s
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t) -> (%g) : (!s) -> !s
    // expected-error@+1 {{`norm.first` of `U(0)` on rank 0 lacks the gradient of microbatch 1}}
    pipeline.launch @s0.norm.first <U stage 0>(%g) -> (%n) : (!s) -> !s
    // expected-note@+1 {{it is made here, by `W(0, 1)` on rank 0}}
    pipeline.launch @s0.W <W stage 0 mb 1>(%u, %g) -> () : (!s, !s) -> ()
  }
}

// One gradient counted twice in the norm.
pipeline.program @norm_twice ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %t = pipeline.slot data "t" binding <tokens mb 0> : !s
    %g = pipeline.slot grad "g" : !s
    %n = pipeline.slot stat "n" : !s
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t) -> (%g) : (!s) -> !s
    // expected-note@+1 {{one term was last added to here, by `norm.first` of `U(0)` on rank 0}}
    pipeline.launch @s0.norm.first <U stage 0>(%g) -> (%n) : (!s) -> !s
    // expected-error@+1 {{`norm` of `U(0)` on rank 0 adds the gradient of stage 0 twice}}
    pipeline.launch @s0.norm <U stage 0>(%g, %n) -> () : (!s, !s) -> ()
  }
}

// And over the ranks: they join the sum once more.
pipeline.program @summed_twice ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.piece @s1 <stage 1> parts [["b", 0]] at <[1]> bodies "s1" {weights = [#w1]}
  pipeline.rank 0 {
    %t = pipeline.slot data "t" binding <tokens mb 0> : !s
    %g = pipeline.slot grad "g" : !s
    %n = pipeline.slot stat "n" : !s
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t) -> (%g) : (!s) -> !s
    pipeline.launch @s0.norm.first <U stage 0>(%g) -> (%n) : (!s) -> !s
    // expected-note@+1 {{one term comes from the sum that rank 0 joined here}}
    %0 = pipeline.post all_reduce <stat part "norm"> %n with [0, 1] : !s
    pipeline.complete %0
    %1 = pipeline.post all_reduce <stat part "norm"> %n with [0, 1] : !s
    pipeline.complete %1
  }
  pipeline.rank 1 {
    %t = pipeline.slot data "t" binding <targets mb 0> : !s
    %g = pipeline.slot grad "g" : !s
    %n = pipeline.slot stat "n" : !s
    pipeline.launch @s1.W.first <W stage 1 mb 0>(%t) -> (%g) : (!s) -> !s
    pipeline.launch @s1.norm.first <U stage 1>(%g) -> (%n) : (!s) -> !s
    // expected-note@+1 {{the other comes from the sum that rank 1 joined here}}
    %0 = pipeline.post all_reduce <stat part "norm"> %n with [0, 1] : !s
    pipeline.complete %0
    // expected-error@+1 {{the sum over ranks 0, 1 adds the gradient of stage 0 twice}}
    %1 = pipeline.post all_reduce <stat part "norm"> %n with [0, 1] : !s
    pipeline.complete %1
  }
}

// A gradient where the others give the norm.
pipeline.program @mixed_sum ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.piece @s1 <stage 1> parts [["b", 0]] at <[1]> bodies "s1" {weights = [#w1]}
  pipeline.rank 0 {
    %t = pipeline.slot data "t" binding <tokens mb 0> : !s
    %n = pipeline.slot grad "n" : !s
    // expected-note@+1 {{`grad(0)` was last added to here, by `W(0, 0)` on rank 0}}
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t) -> (%n) : (!s) -> !s
    // expected-error@+1 {{rank 0 gives `grad(0)` to the sum of `stat(norm)`}}
    %0 = pipeline.post all_reduce <stat part "norm"> %n with [0, 1] : !s
    pipeline.complete %0
  }
  pipeline.rank 1 {
    %t = pipeline.slot data "t" binding <targets mb 0> : !s
    %g = pipeline.slot grad "g" : !s
    %n = pipeline.slot stat "n" : !s
    pipeline.launch @s1.W.first <W stage 1 mb 0>(%t) -> (%g) : (!s) -> !s
    pipeline.launch @s1.norm.first <U stage 1>(%g) -> (%n) : (!s) -> !s
    %0 = pipeline.post all_reduce <stat part "norm"> %n with [0, 1] : !s
    pipeline.complete %0
  }
}

// A sum of what nothing has written.
pipeline.program @empty_sum ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %n = pipeline.slot stat "n" : !s
    // expected-error@+1 {{rank 0 joins the sum of `stat(norm)` before anything has written it}}
    %0 = pipeline.post all_reduce <stat part "norm"> %n with [0, 1] : !s
    pipeline.complete %0
  }
  pipeline.rank 1 {
    %n = pipeline.slot stat "n" : !s
    %0 = pipeline.post all_reduce <stat part "norm"> %n with [0, 1] : !s
    pipeline.complete %0
  }
}

// The trainer looks for the loss of microbatch 1 where that of 0 is.
pipeline.program @wrong_loss ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.piece @s1 <stage 1> parts [["b", 0]] at <[1]> bodies "s1" {weights = [#w1]}
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %o = pipeline.slot opt "o" binding <opt @s0> : !s
    %t = pipeline.slot data "t" binding <tokens mb 0> : !s
    %a = pipeline.slot act "a" : !s
    %k = pipeline.slot stash "k" : !s
    %g = pipeline.slot grad "g" : !s
    pipeline.launch @s0.F <F stage 0 mb 0>(%w) -> (%a, %k) : (!s) -> (!s, !s)
    %0 = pipeline.post send <act stage 0 mb 0> %a with [1] : !s
    pipeline.complete %0
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t) -> (%g) : (!s) -> !s
    pipeline.launch @s0.U <U stage 0>(%w, %g, %o) -> () : (!s, !s, !s) -> ()
  }
  pipeline.rank 1 {
    %t = pipeline.slot data "t" binding <targets mb 0> : !s
    %a = pipeline.slot act "a" : !s
    %d = pipeline.slot dact "d" : !s
    // expected-error@+1 {{when the step ends, rank 1 holds the loss of microbatch 0 where the loss of microbatch 1 belongs}}
    %l = pipeline.slot stat "l" binding <loss mb 1> : !s
    %0 = pipeline.post receive <act stage 0 mb 0> %a with [0] : !s
    pipeline.complete %0
    // expected-note@+1 {{the loss of microbatch 0 was made here, by `B(1, 0)` on rank 1}}
    pipeline.launch @s1.B <B stage 1 mb 0>(%a, %t) -> (%d, %l) : (!s, !s) -> (!s, !s)
  }
}

// And does not find it at all.
// expected-error@+1 {{no slot gives the trainer the loss of microbatch 0}}
pipeline.program @no_loss ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.piece @s1 <stage 1> parts [["b", 0]] at <[1]> bodies "s1" {weights = [#w1]}
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %o = pipeline.slot opt "o" binding <opt @s0> : !s
    %t = pipeline.slot data "t" binding <tokens mb 0> : !s
    %a = pipeline.slot act "a" : !s
    %k = pipeline.slot stash "k" : !s
    %g = pipeline.slot grad "g" : !s
    pipeline.launch @s0.F <F stage 0 mb 0>(%w) -> (%a, %k) : (!s) -> (!s, !s)
    %0 = pipeline.post send <act stage 0 mb 0> %a with [1] : !s
    pipeline.complete %0
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t) -> (%g) : (!s) -> !s
    pipeline.launch @s0.U <U stage 0>(%w, %g, %o) -> () : (!s, !s, !s) -> ()
  }
  pipeline.rank 1 {
    %t = pipeline.slot data "t" binding <targets mb 0> : !s
    %a = pipeline.slot act "a" : !s
    %d = pipeline.slot dact "d" : !s
    %l = pipeline.slot stat "l" : !s
    %0 = pipeline.post receive <act stage 0 mb 0> %a with [0] : !s
    pipeline.complete %0
    pipeline.launch @s1.B <B stage 1 mb 0>(%a, %t) -> (%d, %l) : (!s, !s) -> (!s, !s)
  }
}

// A slot for the loss that no backward writes.
pipeline.program @unwritten_loss ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    // expected-error@+1 {{when the step ends, nothing has written the loss of microbatch 0 on rank 0 for the trainer}}
    %l = pipeline.slot stat "l" binding <loss mb 0> : !s
  }
}

// The slot of a sum in place is read before the sum, though nothing has written it: there is no writer to name.
pipeline.program @read_within_sum ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s1 <stage 1> parts [["b", 0]] at <[0]> bodies "s1" {weights = [#w1]}
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[1]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %t = pipeline.slot data "t" binding <targets mb 0> : !s
    %g = pipeline.slot grad "g" : !s
    %n = pipeline.slot stat "n" : !s
    pipeline.launch @s1.W.first <W stage 1 mb 0>(%t) -> (%g) : (!s) -> !s
    pipeline.launch @s1.norm.first <U stage 1>(%g) -> (%n) : (!s) -> !s
    %0 = pipeline.post all_reduce <stat part "norm"> %n with [0, 1] : !s
    pipeline.complete %0
  }
  pipeline.rank 1 {
    %t = pipeline.slot data "t" binding <tokens mb 0> : !s
    %g = pipeline.slot grad "g" : !s
    %n = pipeline.slot stat "n" : !s
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t) -> (%g) : (!s) -> !s
    // expected-note@+1 {{its sum is posted here, and is complete only after the read}}
    %0 = pipeline.post all_reduce <stat part "norm"> %n with [0, 1] : !s
    // expected-error@+1 {{`norm` of `U(0)` on rank 1 reads the norm of the gradients before it has arrived}}
    pipeline.launch @s0.norm <U stage 0>(%g, %n) -> () : (!s, !s) -> ()
    pipeline.complete %0
  }
}
