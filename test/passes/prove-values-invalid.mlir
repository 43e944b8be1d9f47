// Launches that read what is not there, or not what they need: one defect each.
// RUN: pp-opt %s --pp-prove-values --verify-diagnostics

!t = tensor<4xf32>
!s = !pipeline.slot<tuple<!t>>
#w = #pipeline.weight<"w" : !t declared <"w" zero>>
#w1 = #pipeline.weight<"w1" : !t declared <"w1" zero>>

func.func private @s0.F(!t) -> (!t, !t) attributes {
  pipeline.body = #pipeline.body<"s0" F>,
  pipeline.inputs = #pipeline.groups<weight x 1>, pipeline.results = #pipeline.groups<act x 1, stash x 1>, pipeline.ties = array<i64: -1, -1>}
func.func private @s0.R(!t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" R>,
  pipeline.inputs = #pipeline.groups<weight x 1>, pipeline.results = #pipeline.groups<stash x 1>, pipeline.ties = array<i64: -1>}
func.func private @s0.B.first(!t, !t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" B first>,
  pipeline.inputs = #pipeline.groups<stash x 1, dact x 1>, pipeline.results = #pipeline.groups<grad x 1>, pipeline.ties = array<i64: -1>}
func.func private @s0.B(!t, !t, !t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" B>,
  pipeline.inputs = #pipeline.groups<stash x 1, dact x 1, grad x 1>, pipeline.results = #pipeline.groups<grad x 1>,
  pipeline.ties = array<i64: 2>}
func.func private @s0.W.first(!t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" W first>,
  pipeline.inputs = #pipeline.groups<tokens x 1>, pipeline.results = #pipeline.groups<grad x 1>, pipeline.ties = array<i64: -1>}
func.func private @s0.W(!t, !t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" W>,
  pipeline.inputs = #pipeline.groups<tokens x 1, grad x 1>, pipeline.results = #pipeline.groups<grad x 1>, pipeline.ties = array<i64: 1>}
func.func private @s0.U(!t, !t, !t) -> (!t, !t) attributes {
  pipeline.body = #pipeline.body<"s0" U>,
  pipeline.inputs = #pipeline.groups<weight x 1, grad x 1, opt x 1>, pipeline.results = #pipeline.groups<weight x 1, opt x 1>,
  pipeline.ties = array<i64: 0, 2>}
func.func private @s0.copy(!t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" U copy>,
  pipeline.inputs = #pipeline.groups<weight x 1>, pipeline.results = #pipeline.groups<weight x 1>, pipeline.ties = array<i64: -1>}
func.func private @s1.F(!t, !t) -> !t attributes {
  pipeline.body = #pipeline.body<"s1" F>,
  pipeline.inputs = #pipeline.groups<act x 1, weight x 1>, pipeline.results = #pipeline.groups<stash x 1>, pipeline.ties = array<i64: -1>}
func.func private @s1.B(!t, !t) -> (!t, !t) attributes {
  pipeline.body = #pipeline.body<"s1" B>,
  pipeline.inputs = #pipeline.groups<act x 1, targets x 1>, pipeline.results = #pipeline.groups<dact x 1, loss x 1>,
  pipeline.ties = array<i64: -1, -1>}

// Stage 1 starts before its activation was sent.
pipeline.program @unwritten ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.piece @s1 <stage 1> parts [["b", 0]] at <[1]> bodies "s1" {weights = [#w1]}
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %a = pipeline.slot act "a" : !s
    %k = pipeline.slot stash "k" : !s
    // expected-note@+1 {{`act(0, 0)` is made here, by `F(0, 0)` on rank 0, and has not come to rank 1}}
    pipeline.launch @s0.F <F stage 0 mb 0>(%w) -> (%a, %k) : (!s) -> (!s, !s)
  }
  pipeline.rank 1 {
    %w = pipeline.slot weight "w" binding <weight @s1> : !s
    %a = pipeline.slot act "a" : !s
    %k = pipeline.slot stash "k" : !s
    // expected-error@+1 {{`F(1, 0)` on rank 1 reads `act(0, 0)` from a slot that nothing has written}}
    pipeline.launch @s1.F <F stage 1 mb 0>(%a, %w) -> (%k) : (!s, !s) -> !s
  }
}

// A message of microbatch 0 read as microbatch 1, whose own message lies in another slot.
pipeline.program @wrong_microbatch ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.piece @s1 <stage 1> parts [["b", 0]] at <[1]> bodies "s1" {weights = [#w1]}
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %a = pipeline.slot act "a" : !s
    %b = pipeline.slot act "b" : !s
    %k = pipeline.slot stash "k" : !s
    pipeline.launch @s0.F <F stage 0 mb 0>(%w) -> (%a, %k) : (!s) -> (!s, !s)
    %0 = pipeline.post send <act stage 0 mb 0> %a with [1] : !s
    pipeline.launch @s0.F <F stage 0 mb 1>(%w) -> (%b, %k) : (!s) -> (!s, !s)
    %1 = pipeline.post send <act stage 0 mb 1> %b with [1] : !s
    pipeline.complete %0
    pipeline.complete %1
  }
  pipeline.rank 1 {
    %w = pipeline.slot weight "w" binding <weight @s1> : !s
    %a = pipeline.slot act "a" : !s
    %b = pipeline.slot act "b" : !s
    %k = pipeline.slot stash "k" : !s
    // expected-note@+1 {{`act(0, 0)` came to rank 1 here, from rank 0}}
    %0 = pipeline.post receive <act stage 0 mb 0> %a with [0] : !s
    pipeline.complete %0
    // expected-note@+1 {{`act(0, 1)` is in another slot of rank 1: it came to rank 1 here, from rank 0}}
    %1 = pipeline.post receive <act stage 0 mb 1> %b with [0] : !s
    pipeline.complete %1
    // expected-error@+1 {{`F(1, 1)` on rank 1 reads `act(0, 0)` where it needs `act(0, 1)`}}
    pipeline.launch @s1.F <F stage 1 mb 1>(%a, %w) -> (%k) : (!s, !s) -> !s
  }
}

// A stash overwritten by the next microbatch's before the backward has used it.
pipeline.program @overwritten ranks 1 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.piece @s1 <stage 1> parts [["b", 0]] at <[0]> bodies "s1" {weights = [#w1]}
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %t = pipeline.slot data "t" binding <targets mb 0> : !s
    %a = pipeline.slot act "a" : !s
    %b = pipeline.slot act "b" : !s
    %k = pipeline.slot stash "k" : !s
    %d = pipeline.slot dact "d" : !s
    %g = pipeline.slot grad "g" : !s
    %l = pipeline.slot stat "l" : !s
    // expected-note@+1 {{`stash(0, 0)` was made here, by `F(0, 0)`, and is overwritten by now}}
    pipeline.launch @s0.F <F stage 0 mb 0>(%w) -> (%a, %k) : (!s) -> (!s, !s)
    // expected-note@+1 {{`stash(0, 1)` was made here, by `F(0, 1)` on rank 0}}
    pipeline.launch @s0.F <F stage 0 mb 1>(%w) -> (%b, %k) : (!s) -> (!s, !s)
    pipeline.launch @s1.B <B stage 1 mb 0>(%a, %t) -> (%d, %l) : (!s, !s) -> (!s, !s)
    // expected-error@+1 {{`B(0, 0)` on rank 0 reads `stash(0, 1)` where it needs `stash(0, 0)`}}
    pipeline.launch @s0.B.first <B stage 0 mb 0>(%k, %d) -> (%g) : (!s, !s) -> !s
  }
}

// Read between post and complete: the message may still be on its way.
pipeline.program @on_its_way ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.piece @s1 <stage 1> parts [["b", 0]] at <[1]> bodies "s1" {weights = [#w1]}
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %a = pipeline.slot act "a" : !s
    %k = pipeline.slot stash "k" : !s
    pipeline.launch @s0.F <F stage 0 mb 0>(%w) -> (%a, %k) : (!s) -> (!s, !s)
    %0 = pipeline.post send <act stage 0 mb 0> %a with [1] : !s
    pipeline.complete %0
  }
  pipeline.rank 1 {
    %w = pipeline.slot weight "w" binding <weight @s1> : !s
    %a = pipeline.slot act "a" : !s
    %k = pipeline.slot stash "k" : !s
    // expected-note@+1 {{its receive is posted here, and is complete only after the read}}
    %0 = pipeline.post receive <act stage 0 mb 0> %a with [0] : !s
    // expected-error@+1 {{`F(1, 0)` on rank 1 reads `act(0, 0)` before it has arrived}}
    pipeline.launch @s1.F <F stage 1 mb 0>(%a, %w) -> (%k) : (!s, !s) -> !s
    pipeline.complete %0
  }
}

// Another stage's weights: both lie on the rank.
pipeline.program @wrong_weight ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.piece @s1 <stage 1> parts [["b", 0]] at <[1]> bodies "s1" {weights = [#w1]}
  pipeline.rank 0 {
    // expected-note@+1 {{`weight(1)` is there when the step begins}}
    %v = pipeline.slot weight "v" binding <weight @s1> : !s
    // expected-note@+1 {{`weight(0)` is in another slot of rank 0: it is there when the step begins}}
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %a = pipeline.slot act "a" : !s
    %k = pipeline.slot stash "k" : !s
    // expected-error@+1 {{`F(0, 0)` on rank 0 reads `weight(1)` where it needs `weight(0)`}}
    pipeline.launch @s0.F <F stage 0 mb 0>(%v) -> (%a, %k) : (!s) -> (!s, !s)
  }
}

// The tokens of another microbatch.
pipeline.program @wrong_tokens ranks 1 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    // expected-note@+1 {{`data(tokens, 1)` is there when the step begins}}
    %t = pipeline.slot data "t" binding <tokens mb 1> : !s
    %g = pipeline.slot grad "g" : !s
    // expected-error@+1 {{`W(0, 0)` on rank 0 reads `data(tokens, 1)` where it needs `data(tokens, 0)`}}
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t) -> (%g) : (!s) -> !s
  }
}

// Recomputed after the update: with weights that the forward never saw.
pipeline.program @early_update ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %o = pipeline.slot opt "o" binding <opt @s0> : !s
    %t = pipeline.slot data "t" binding <tokens mb 0> : !s
    %g = pipeline.slot grad "g" : !s
    %k = pipeline.slot stash "k" : !s
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t) -> (%g) : (!s) -> !s
    // expected-note@+1 {{the new one was made here, by `U(0)` on rank 0}}
    pipeline.launch @s0.U <U stage 0>(%w, %g, %o) -> () : (!s, !s, !s) -> ()
    // expected-error@+1 {{`R(0, 0)` on rank 0 reads `weight(0)` after its update; a step works with the weights that it began with}}
    pipeline.launch @s0.R <R stage 0 mb 0>(%w) -> (%k) : (!s) -> !s
  }
}

// Sent home before the update: the copy is the old one.
pipeline.program @early_copy ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    // expected-note@+1 {{the old one is there when the step begins}}
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %v = pipeline.slot weight "v" : !s
    // expected-error@+1 {{`copy` of `U(0)` on rank 0 reads `weight(0)`, which should be updated by now}}
    pipeline.launch @s0.copy <U stage 0>(%w) -> (%v) : (!s) -> !s
  }
}

// The new weights come home to rank 0 and not to rank 1, whose next step would use the old ones.
pipeline.program @stale_home ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %o = pipeline.slot opt "o" binding <opt @s0> : !s
    %t = pipeline.slot data "t" binding <tokens mb 0> : !s
    %g = pipeline.slot grad "g" : !s
    pipeline.launch @s0.W.first <W stage 0 mb 0>(%t) -> (%g) : (!s) -> !s
    // expected-note@+1 {{the new one on rank 0 was made here, by `U(0)` on rank 0}}
    pipeline.launch @s0.U <U stage 0>(%w, %g, %o) -> () : (!s, !s, !s) -> ()
  }
  pipeline.rank 1 {
    // expected-error@+1 {{when the step ends, rank 1 still holds `weight(0)` as the step found it, and the next step reads it}}
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
  }
}

// A step that ends with another weight where its own should be.
pipeline.program @exchanged ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.piece @s1 <stage 1> parts [["b", 0]] at <[1]> bodies "s1" {weights = [#w1]}
  pipeline.rank 0 {
    // expected-error@+1 {{when the step ends, rank 0 holds `weight(1)` where `weight(0)` after its update belongs}}
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    // expected-note@+1 {{`weight(1)` came to rank 0 here, from rank 1}}
    %0 = pipeline.post receive <weight stage 1> %w with [1] : !s
    pipeline.complete %0
  }
  pipeline.rank 1 {
    %w = pipeline.slot weight "w" binding <weight @s1> : !s
    %0 = pipeline.post send <weight stage 1> %w with [0] : !s
    pipeline.complete %0
  }
}

// The optimizer state never reached: no update has run.
pipeline.program @no_update ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    // expected-error@+1 {{when the step ends, rank 0 still holds `opt(0)` as the step found it, and the next step reads it}}
    %o = pipeline.slot opt "o" binding <opt @s0> : !s
  }
}

func.func private @s0.X(!t) attributes {pipeline.inputs = #pipeline.groups<weight x 1>, pipeline.results = #pipeline.groups<>, pipeline.ties = array<i64>}

// A body of no kind that is known.
pipeline.program @no_body_rule ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    // expected-error@+1 {{no rule says what `@s0.X` reads and makes}}
    pipeline.launch @s0.X <F stage 0 mb 0>(%w) -> () : (!s) -> ()
  }
}

// Another stage's body, and the body of another phase.
pipeline.program @wrong_body ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.piece @s1 <stage 1> parts [["b", 0]] at <[1]> bodies "s1" {weights = [#w1]}
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %k = pipeline.slot stash "k" : !s
    // expected-error@+1 {{`F(1, 0)` on rank 0 runs `@s0.R`, which is not its body}}
    pipeline.launch @s0.R <F stage 1 mb 0>(%w) -> (%k) : (!s) -> !s
  }
}
pipeline.program @wrong_phase ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %k = pipeline.slot stash "k" : !s
    // expected-error@+1 {{`F(0, 0)` on rank 0 runs `@s0.R`, which is not its body}}
    pipeline.launch @s0.R <F stage 0 mb 0>(%w) -> (%k) : (!s) -> !s
  }
}

// A launch with fewer slots than its body has groups.
pipeline.program @too_few ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %k = pipeline.slot stash "k" : !s
    // expected-error@+1 {{`@s0.R` reads 1 slots and writes 1; this launch gives 0 and 1}}
    pipeline.launch @s0.R <R stage 0 mb 0>() -> (%k) : () -> !s
  }
}
