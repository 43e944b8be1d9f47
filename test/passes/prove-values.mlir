// A whole step whose values are all where they should be: shares of gradients, tied weights, a norm, two homes.
// RUN: pp-opt %s --pp-prove-units --pp-prove-values | FileCheck %s

!t = tensor<4xf32>
!s = !pipeline.slot<tuple<!t>>
#w = #pipeline.weight<"w" : !t declared <"w" zero>>
#w1 = #pipeline.weight<"w1" : !t declared <"w1" zero>>
#tied = #pipeline.weight<"w" : !t tied declared <"w" zero>>

func.func private @s0.F(!t, !t) -> (!t, !t) attributes {
  pipeline.body = #pipeline.body<"s0" F>,
  pipeline.inputs = #pipeline.groups<tokens x 1, weight x 1>, pipeline.results = #pipeline.groups<act x 1, stash x 1>,
  pipeline.ties = array<i64: -1, -1>}
func.func private @s0.F.light(!t, !t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" F light>,
  pipeline.inputs = #pipeline.groups<tokens x 1, weight x 1>, pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>}
func.func private @s0.R(!t, !t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" R>,
  pipeline.inputs = #pipeline.groups<tokens x 1, weight x 1>, pipeline.results = #pipeline.groups<stash x 1>, pipeline.ties = array<i64: -1>}
func.func private @s0.B.first(!t, !t, !t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" B first>,
  pipeline.inputs = #pipeline.groups<stash x 1, weight x 1, dact x 1>, pipeline.results = #pipeline.groups<grad x 1>,
  pipeline.ties = array<i64: -1>}
func.func private @s0.B(!t, !t, !t, !t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" B>,
  pipeline.inputs = #pipeline.groups<stash x 1, weight x 1, dact x 1, grad x 1>, pipeline.results = #pipeline.groups<grad x 1>,
  pipeline.ties = array<i64: 3>}
func.func private @s0.zero() -> !t attributes {
  pipeline.body = #pipeline.body<"s0" U zero>,
  pipeline.inputs = #pipeline.groups<>, pipeline.results = #pipeline.groups<grad x 1>, pipeline.ties = array<i64: -1>}
func.func private @s0.sum(!t, !t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" U sum>,
  pipeline.inputs = #pipeline.groups<grad x 1, share x 1>, pipeline.results = #pipeline.groups<grad x 1>, pipeline.ties = array<i64: 0>}
func.func private @s0.tie.in.0(!t, !t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" U tie_in sharer 0>,
  pipeline.inputs = #pipeline.groups<grad x 1, share x 1>, pipeline.results = #pipeline.groups<grad x 1>, pipeline.ties = array<i64: 0>}
func.func private @s0.tie.fresh.0(!t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" U tie_fresh sharer 0>,
  pipeline.inputs = #pipeline.groups<weight x 1>, pipeline.results = #pipeline.groups<fresh x 1>, pipeline.ties = array<i64: -1>}
func.func private @s0.norm(!t, !t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" U norm>,
  pipeline.inputs = #pipeline.groups<grad x 1, norm x 1>, pipeline.results = #pipeline.groups<norm x 1>, pipeline.ties = array<i64: 1>}
func.func private @s0.U(!t, !t, !t, !t) -> (!t, !t) attributes {
  pipeline.body = #pipeline.body<"s0" U>,
  pipeline.inputs = #pipeline.groups<weight x 1, grad x 1, opt x 1, norm x 1>,
  pipeline.results = #pipeline.groups<weight x 1, opt x 1>, pipeline.ties = array<i64: 0, 2>}
func.func private @s1.F(!t, !t) -> !t attributes {
  pipeline.body = #pipeline.body<"s1" F>,
  pipeline.inputs = #pipeline.groups<act x 1, weight x 1>, pipeline.results = #pipeline.groups<stash x 1>, pipeline.ties = array<i64: -1>}
func.func private @s1.I(!t, !t, !t, !t) -> (!t, !t, !t) attributes {
  pipeline.body = #pipeline.body<"s1" I>,
  pipeline.inputs = #pipeline.groups<act x 1, targets x 1, stash x 1, weight x 1>,
  pipeline.results = #pipeline.groups<dact x 1, pending x 1, loss x 1>, pipeline.ties = array<i64: -1, -1, -1>}
func.func private @s1.W.first(!t) -> !t attributes {
  pipeline.body = #pipeline.body<"s1" W first>,
  pipeline.inputs = #pipeline.groups<pending x 1>, pipeline.results = #pipeline.groups<grad x 1>, pipeline.ties = array<i64: -1>}
func.func private @s1.W(!t, !t) -> !t attributes {
  pipeline.body = #pipeline.body<"s1" W>,
  pipeline.inputs = #pipeline.groups<pending x 1, grad x 1>, pipeline.results = #pipeline.groups<grad x 1>, pipeline.ties = array<i64: 1>}
func.func private @s1.tie.out(!t) -> !t attributes {
  pipeline.body = #pipeline.body<"s1" U tie_out>,
  pipeline.inputs = #pipeline.groups<grad x 1>, pipeline.results = #pipeline.groups<share x 1>, pipeline.ties = array<i64: -1>}
func.func private @s1.norm.first(!t) -> !t attributes {
  pipeline.body = #pipeline.body<"s1" U norm_first>,
  pipeline.inputs = #pipeline.groups<grad x 1>, pipeline.results = #pipeline.groups<norm x 1>, pipeline.ties = array<i64: -1>}
func.func private @s1.U(!t, !t, !t, !t, !t) -> (!t, !t) attributes {
  pipeline.body = #pipeline.body<"s1" U>,
  pipeline.inputs = #pipeline.groups<weight x 1, grad x 1, opt x 1, norm x 1, fresh x 1>,
  pipeline.results = #pipeline.groups<weight x 1, opt x 1>, pipeline.ties = array<i64: 0, 2>}
func.func private @r0.I(!t) -> !t attributes {
  pipeline.body = #pipeline.body<"r0" I>,
  pipeline.inputs = #pipeline.groups<stash x 1>, pipeline.results = #pipeline.groups<pending x 1>, pipeline.ties = array<i64: -1>}
func.func private @r0.W.first(!t) -> !t attributes {
  pipeline.body = #pipeline.body<"r0" W first>,
  pipeline.inputs = #pipeline.groups<pending x 1>, pipeline.results = #pipeline.groups<grad x 1>, pipeline.ties = array<i64: -1>}
func.func private @r0.U(!t, !t) -> !t attributes {
  pipeline.body = #pipeline.body<"r0" U>,
  pipeline.inputs = #pipeline.groups<weight x 1, grad x 1>, pipeline.results = #pipeline.groups<weight x 1>, pipeline.ties = array<i64: 0>}
func.func private @r0.copy(!t) -> !t attributes {
  pipeline.body = #pipeline.body<"r0" U copy>,
  pipeline.inputs = #pipeline.groups<weight x 1>, pipeline.results = #pipeline.groups<weight x 1>, pipeline.ties = array<i64: -1>}
func.func private @r0.F(!t) -> !t attributes {
  pipeline.body = #pipeline.body<"r0" F>,
  pipeline.inputs = #pipeline.groups<weight x 1>, pipeline.results = #pipeline.groups<stash x 1>, pipeline.ties = array<i64: -1>}

// CHECK: pipeline.program @step
pipeline.program @step ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> homes <[1, 0]> owner <[1]> bodies "s0" {weights = [#w]}
  pipeline.piece @s1 <stage 1> parts [["b", 0]] at <[1]> bodies "s1" {weights = [#w1, #tied]}
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %t0 = pipeline.slot data "t0" binding <tokens mb 0> : !s
    %t1 = pipeline.slot data "t1" binding <tokens mb 1> : !s
    %a = pipeline.slot act "a" : !s
    %b = pipeline.slot act "b" : !s
    %k = pipeline.slot stash "k" : !s
    %d = pipeline.slot dact "d" : !s
    %g = pipeline.slot grad "g" : !s
    pipeline.launch @s0.F <F stage 0 mb 0>(%t0, %w) -> (%a, %k) : (!s, !s) -> (!s, !s)
    %0 = pipeline.post send <act stage 0 mb 0> %a with [1] : !s
    // The second microbatch keeps no stash; R makes it again in the slot of the first.
    pipeline.launch @s0.F.light <F stage 0 mb 1>(%t1, %w) -> (%b) : (!s, !s) -> !s
    %1 = pipeline.post send <act stage 0 mb 1> %b with [1] : !s
    %2 = pipeline.post receive <dact stage 1 mb 0> %d with [1] : !s
    pipeline.complete %2
    pipeline.launch @s0.B.first <B stage 0 mb 0>(%k, %w, %d) -> (%g) : (!s, !s, !s) -> !s
    %3 = pipeline.post send <grad stage 0> %g with [1] : !s
    pipeline.complete %3
    %4 = pipeline.post receive <dact stage 1 mb 1> %d with [1] : !s
    pipeline.launch @s0.R <R stage 0 mb 1>(%t1, %w) -> (%k) : (!s, !s) -> !s
    pipeline.complete %4
    // What was sent has left: its slot begins anew.
    pipeline.launch @s0.B.first <B stage 0 mb 1>(%k, %w, %d) -> (%g) : (!s, !s, !s) -> !s
    %5 = pipeline.post send <grad stage 0> %g with [1] : !s
    pipeline.complete %5
    pipeline.complete %0
    pipeline.complete %1
    // The new weights come to the slot of the old ones, whose next step begins with them.
    %6 = pipeline.post receive <weight stage 0> %w with [1] : !s
    pipeline.complete %6
  }
  pipeline.rank 1 {
    %v = pipeline.slot weight "v" binding <weight @s0> : !s
    %p = pipeline.slot opt "p" binding <opt @s0> : !s
    %w = pipeline.slot weight "w" binding <weight @s1> : !s
    %o = pipeline.slot opt "o" binding <opt @s1> : !s
    %t0 = pipeline.slot data "t0" binding <targets mb 0> : !s
    %t1 = pipeline.slot data "t1" binding <targets mb 1> : !s
    %a = pipeline.slot act "a" : !s
    %b = pipeline.slot act "b" : !s
    %k = pipeline.slot stash "k" : !s
    %m = pipeline.slot stash "m" : !s
    %d = pipeline.slot dact "d" : !s
    %e = pipeline.slot dact "e" : !s
    %q = pipeline.slot stash "q" : !s
    %g = pipeline.slot grad "g" binding <grad @s1> : !s
    %h = pipeline.slot grad "h" binding <grad @s0> : !s
    %i = pipeline.slot grad "i" : !s
    %j = pipeline.slot grad "j" : !s
    %x = pipeline.slot grad "x" : !s
    %n = pipeline.slot stat "n" binding <norm> : !s
    %f = pipeline.slot weight "f" : !s
    %l0 = pipeline.slot stat "l0" binding <loss mb 0> : !s
    %l1 = pipeline.slot stat "l1" binding <loss mb 1> : !s
    %0 = pipeline.post receive <act stage 0 mb 0> %a with [0] : !s
    pipeline.complete %0
    pipeline.launch @s1.F <F stage 1 mb 0>(%a, %w) -> (%k) : (!s, !s) -> !s
    %1 = pipeline.post receive <act stage 0 mb 1> %b with [0] : !s
    pipeline.complete %1
    pipeline.launch @s1.F <F stage 1 mb 1>(%b, %w) -> (%m) : (!s, !s) -> !s
    pipeline.launch @s1.I <I stage 1 mb 0>(%a, %t0, %k, %w) -> (%d, %q, %l0) : (!s, !s, !s, !s) -> (!s, !s, !s)
    %2 = pipeline.post send <dact stage 1 mb 0> %d with [0] : !s
    pipeline.launch @s1.W.first <W stage 1 mb 0>(%q) -> (%g) : (!s) -> !s
    pipeline.launch @s1.I <I stage 1 mb 1>(%b, %t1, %m, %w) -> (%e, %q, %l1) : (!s, !s, !s, !s) -> (!s, !s, !s)
    %3 = pipeline.post send <dact stage 1 mb 1> %e with [0] : !s
    pipeline.launch @s1.W <W stage 1 mb 1>(%q, %g) -> () : (!s, !s) -> ()
    // The shares of rank 0, added to an empty sum; then that of the tied weights.
    pipeline.launch @s0.zero <U stage 0>() -> (%h) : () -> !s
    %4 = pipeline.post receive <grad stage 0> %i with [0] : !s
    %5 = pipeline.post receive <grad stage 0> %j with [0] : !s
    pipeline.complete %2
    pipeline.complete %3
    pipeline.complete %4
    pipeline.complete %5
    pipeline.launch @s0.sum <U stage 0>(%h, %j) -> () : (!s, !s) -> ()
    pipeline.launch @s0.sum <U stage 0>(%h, %i) -> () : (!s, !s) -> ()
    pipeline.launch @s1.tie.out <U stage 1>(%g) -> (%x) : (!s) -> !s
    pipeline.launch @s0.tie.in.0 <U stage 0>(%h, %x) -> () : (!s, !s) -> ()
    pipeline.launch @s1.norm.first <U stage 1>(%g) -> (%n) : (!s) -> !s
    pipeline.launch @s0.norm <U stage 0>(%h, %n) -> () : (!s, !s) -> ()
    // Updated where it is at home on this rank; the home on the other gets a message.
    pipeline.launch @s0.U <U stage 0>(%v, %h, %p, %n) -> () : (!s, !s, !s, !s) -> ()
    pipeline.launch @s0.tie.fresh.0 <U stage 0>(%v) -> (%f) : (!s) -> !s
    pipeline.launch @s1.U <U stage 1>(%w, %g, %o, %n, %f) -> () : (!s, !s, !s, !s, !s) -> ()
    %6 = pipeline.post send <weight stage 0> %v with [0] : !s
    pipeline.complete %6
  }
}

// Updated on a copy that travelled, and copied to its home on the same rank; a rank that only passes the weights on.
// CHECK: pipeline.program @travelling
pipeline.program @travelling ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] homes <[0]> owner <[0]> bodies "r0" {weights = [#w]}
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %p = pipeline.slot stash "p" : !s
    %v = pipeline.slot weight "v" : !s
    %k = pipeline.slot stash "k" : !s
    %g = pipeline.slot grad "g" : !s
    %0 = pipeline.post send <weight stage 0> %w with [1] : !s
    %1 = pipeline.post receive <weight stage 0> %v with [1] : !s
    pipeline.launch @r0.F <F stage 0 mb 0>(%w) -> (%k) : (!s) -> !s
    pipeline.complete %0
    pipeline.complete %1
    pipeline.launch @r0.I <I stage 0 mb 0>(%k) -> (%p) : (!s) -> !s
    pipeline.launch @r0.W.first <W stage 0 mb 0>(%p) -> (%g) : (!s) -> !s
    pipeline.launch @r0.U <U stage 0>(%v, %g) -> () : (!s, !s) -> ()
    pipeline.launch @r0.copy <U stage 0>(%v) -> (%w) : (!s) -> !s
  }
  pipeline.rank 1 {
    %v = pipeline.slot weight "v" : !s
    %0 = pipeline.post receive <weight stage 0> %v with [0] : !s
    pipeline.complete %0
    %1 = pipeline.post send <weight stage 0> %v with [0] : !s
    pipeline.complete %1
  }
}
