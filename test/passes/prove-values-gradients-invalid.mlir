// Gradients that lack a microbatch, hold one twice, or are lost: one defect each.
// RUN: pp-opt %s --pp-prove-values --verify-diagnostics

!t = tensor<4xf32>
!s = !pipeline.slot<tuple<!t>>
#w = #pipeline.weight<"w" : !t declared <"w" zero>>

func.func private @s0.W.first(!t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" W first>,
  pipeline.inputs = #pipeline.groups<tokens x 1>, pipeline.results = #pipeline.groups<grad x 1>, pipeline.ties = array<i64: -1>}
func.func private @s0.W(!t, !t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" W>,
  pipeline.inputs = #pipeline.groups<tokens x 1, grad x 1>, pipeline.results = #pipeline.groups<grad x 1>, pipeline.ties = array<i64: 1>}
func.func private @s0.sum(!t, !t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" U sum>,
  pipeline.inputs = #pipeline.groups<grad x 1, share x 1>, pipeline.results = #pipeline.groups<grad x 1>, pipeline.ties = array<i64: 0>}
func.func private @s0.zero() -> !t attributes {
  pipeline.body = #pipeline.body<"s0" U zero>,
  pipeline.inputs = #pipeline.groups<>, pipeline.results = #pipeline.groups<grad x 1>, pipeline.ties = array<i64: -1>}
func.func private @s0.U(!t, !t, !t) -> (!t, !t) attributes {
  pipeline.body = #pipeline.body<"s0" U>,
  pipeline.inputs = #pipeline.groups<weight x 1, grad x 1, opt x 1>, pipeline.results = #pipeline.groups<weight x 1, opt x 1>,
  pipeline.ties = array<i64: 0, 2>}

// The update stands before the last backward.
pipeline.program @update_before_backward ranks 1 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %o = pipeline.slot opt "o" binding <opt @s0> : !s
    %t = pipeline.slot data "t" binding <tokens mb 0> : !s
    %u = pipeline.slot data "u" binding <tokens mb 1> : !s
    %g = pipeline.slot grad "g" : !s
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t) -> (%g) : (!s) -> !s
    // expected-error@+1 {{`U(0)` on rank 0 lacks the gradient of microbatch 1}}
    pipeline.launch @s0.U <U stage 0>(%w, %g, %o) -> () : (!s, !s, !s) -> ()
    // expected-note@+1 {{it is made here, by `W(0, 1)` on rank 0}}
    pipeline.launch @s0.W <W stage 0 mb 1>(%u, %g) -> () : (!s, !s) -> ()
  }
}

// Two ranks have a share each, and one of them is never sent.
pipeline.program @share_left ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %o = pipeline.slot opt "o" binding <opt @s0> : !s
    %t = pipeline.slot data "t" binding <tokens mb 0> : !s
    %g = pipeline.slot grad "g" : !s
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t) -> (%g) : (!s) -> !s
    // expected-note@+2 {{`move grad(0) from 1 to 0` before would bring it}}
    // expected-error@+1 {{`U(0)` on rank 0 lacks the gradient of microbatch 1}}
    pipeline.launch @s0.U <U stage 0>(%w, %g, %o) -> () : (!s, !s, !s) -> ()
  }
  pipeline.rank 1 {
    %t = pipeline.slot data "t" binding <tokens mb 1> : !s
    %g = pipeline.slot grad "g" : !s
    // expected-note@+1 {{a share with it is left on rank 1, which was last added to here, by `W(0, 1)` on rank 1}}
    pipeline.launch @s0.W.first <W stage 0 mb 1>(%t) -> (%g) : (!s) -> !s
  }
}

// The share of rank 1 comes, and nothing adds it.
pipeline.program @share_not_added ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %o = pipeline.slot opt "o" binding <opt @s0> : !s
    %t = pipeline.slot data "t" binding <tokens mb 0> : !s
    %g = pipeline.slot grad "g" : !s
    %h = pipeline.slot grad "h" : !s
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t) -> (%g) : (!s) -> !s
    // expected-note@+1 {{a share with it is left on rank 0, which came to rank 0 here, from rank 1}}
    %0 = pipeline.post receive <grad stage 0> %h with [1] : !s
    pipeline.complete %0
    // expected-error@+1 {{`U(0)` on rank 0 lacks the gradient of microbatch 1}}
    pipeline.launch @s0.U <U stage 0>(%w, %g, %o) -> () : (!s, !s, !s) -> ()
  }
  pipeline.rank 1 {
    %t = pipeline.slot data "t" binding <tokens mb 1> : !s
    %g = pipeline.slot grad "g" : !s
    pipeline.launch @s0.W.first <W stage 0 mb 1>(%t) -> (%g) : (!s) -> !s
    %0 = pipeline.post send <grad stage 0> %g with [0] : !s
    pipeline.complete %0
  }
}

// The same share sent twice and added twice.
pipeline.program @added_twice ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %t = pipeline.slot data "t" binding <tokens mb 0> : !s
    %g = pipeline.slot grad "g" : !s
    %h = pipeline.slot grad "h" : !s
    %i = pipeline.slot grad "i" : !s
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t) -> (%g) : (!s) -> !s
    %0 = pipeline.post receive <grad stage 0> %h with [1] : !s
    pipeline.complete %0
    // expected-note@+1 {{the other came to rank 0 here, from rank 1}}
    %1 = pipeline.post receive <grad stage 0> %i with [1] : !s
    pipeline.complete %1
    // expected-note@+1 {{one term was last added to here, by `sum` of `U(0)` on rank 0}}
    pipeline.launch @s0.sum <U stage 0>(%g, %h) -> () : (!s, !s) -> ()
    // expected-error@+1 {{`sum` of `U(0)` on rank 0 adds the gradient of microbatch 1 twice}}
    pipeline.launch @s0.sum <U stage 0>(%g, %i) -> () : (!s, !s) -> ()
  }
  pipeline.rank 1 {
    %t = pipeline.slot data "t" binding <tokens mb 1> : !s
    %g = pipeline.slot grad "g" : !s
    pipeline.launch @s0.W.first <W stage 0 mb 1>(%t) -> (%g) : (!s) -> !s
    %0 = pipeline.post send <grad stage 0> %g with [0] : !s
    %1 = pipeline.post send <grad stage 0> %g with [0] : !s
    pipeline.complete %0
    pipeline.complete %1
  }
}

// A share that was sent away is added to, as if it were still here, and sent again.
pipeline.program @kept_after_sending ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %h = pipeline.slot grad "h" : !s
    %i = pipeline.slot grad "i" : !s
    // expected-note@+1 {{one term came to rank 0 here, from rank 1}}
    %0 = pipeline.post receive <grad stage 0> %h with [1] : !s
    pipeline.complete %0
    // expected-note@+1 {{the other came to rank 0 here, from rank 1}}
    %1 = pipeline.post receive <grad stage 0> %i with [1] : !s
    pipeline.complete %1
    // expected-error@+1 {{`sum` of `U(0)` on rank 0 adds the gradient of microbatch 0 twice}}
    pipeline.launch @s0.sum <U stage 0>(%h, %i) -> () : (!s, !s) -> ()
  }
  pipeline.rank 1 {
    %t = pipeline.slot data "t" binding <tokens mb 0> : !s
    %u = pipeline.slot data "u" binding <tokens mb 1> : !s
    %g = pipeline.slot grad "g" : !s
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t) -> (%g) : (!s) -> !s
    %0 = pipeline.post send <grad stage 0> %g with [0] : !s
    pipeline.complete %0
    pipeline.launch @s0.W <W stage 0 mb 1>(%u, %g) -> () : (!s, !s) -> ()
    %1 = pipeline.post send <grad stage 0> %g with [0] : !s
    pipeline.complete %1
  }
}

// A body that begins a new sum where the old one has not been used.
pipeline.program @begun_anew ranks 1 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %t = pipeline.slot data "t" binding <tokens mb 0> : !s
    %u = pipeline.slot data "u" binding <tokens mb 1> : !s
    %g = pipeline.slot grad "g" : !s
    // expected-note@+1 {{`grad(0)` was last added to here, by `W(0, 0)` on rank 0}}
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t) -> (%g) : (!s) -> !s
    // expected-error@+1 {{`W(0, 1)` on rank 0 writes over the gradient of microbatch 0, which nothing has taken}}
    pipeline.launch @s0.W.first <W stage 0 mb 1>(%u) -> (%g) : (!s) -> !s
  }
}

// And a message that arrives on it.
pipeline.program @received_over ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %t = pipeline.slot data "t" binding <tokens mb 0> : !s
    %g = pipeline.slot grad "g" : !s
    // expected-note@+1 {{`grad(0)` was last added to here, by `W(0, 0)` on rank 0}}
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t) -> (%g) : (!s) -> !s
    // expected-error@+1 {{rank 0 writes over the gradient of microbatch 0, which nothing has taken}}
    %0 = pipeline.post receive <grad stage 0> %g with [1] : !s
    pipeline.complete %0
  }
  pipeline.rank 1 {
    %g = pipeline.slot grad "g" : !s
    pipeline.launch @s0.zero <U stage 0>() -> (%g) : () -> !s
    %0 = pipeline.post send <grad stage 0> %g with [0] : !s
    pipeline.complete %0
  }
}

// What the trainer writes out as the gradient is half of it.
pipeline.program @half_for_the_trainer ranks 1 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %t = pipeline.slot data "t" binding <tokens mb 0> : !s
    // expected-error@+1 {{when the step ends, `grad(0)` on rank 0 lacks microbatch 1}}
    %g = pipeline.slot grad "g" binding <grad @s0> : !s
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t) -> (%g) : (!s) -> !s
  }
}
