// Rank programs that run a unit twice, not at all, or beside what it replaces: one defect each.
// RUN: pp-opt %s --pp-prove-units --verify-diagnostics

#w = #pipeline.weight<"w" : tensor<4xf32> declared <"w" zero>>

// The same forward on two ranks.
pipeline.program @twice ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]>
  pipeline.rank 0 {
    // expected-note@+1 {{first here}}
    pipeline.launch @s0.F <F stage 0 mb 0>() -> () : () -> ()
    pipeline.launch @s0.B <B stage 0 mb 0>() -> () : () -> ()
  }
  pipeline.rank 1 {
    // expected-error@+1 {{`F(0, 0)` runs twice, on rank 1 and before that on rank 0}}
    pipeline.launch @s0.F <F stage 0 mb 0>() -> () : () -> ()
  }
}

// The same backward again on the same rank.
pipeline.program @again ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]>
  pipeline.rank 0 {
    pipeline.launch @s0.F <F stage 0 mb 0>() -> () : () -> ()
    // expected-note@+1 {{first here}}
    pipeline.launch @s0.B <B stage 0 mb 0>() -> () : () -> ()
    // expected-error-re@+1 {{{{^}}`B(0, 0)` runs twice, on rank 0{{$}}}}
    pipeline.launch @s0.B <B stage 0 mb 0>() -> () : () -> ()
  }
}

// A forward without its backward, for the second microbatch only.
pipeline.program @never ranks 1 microbatches 2 slices 0 attributes {train = {}} {
  // expected-error@+1 {{no rank runs `B(0, 1)`}}
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]>
  pipeline.rank 0 {
    pipeline.launch @s0.F <F stage 0 mb 0>() -> () : () -> ()
    pipeline.launch @s0.B <B stage 0 mb 0>() -> () : () -> ()
    // expected-note@+1 {{`F(0, 1)` runs here, on rank 0}}
    pipeline.launch @s0.F <F stage 0 mb 1>() -> () : () -> ()
  }
}

// A backward without its forward.
pipeline.program @nothing_before ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  // expected-error@+1 {{no rank runs `F(0, 0)`}}
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]>
  pipeline.rank 0 {
    // expected-note@+1 {{`I(0, 0)` runs here, on rank 0}}
    pipeline.launch @s0.I <I stage 0 mb 0>() -> () : () -> ()
  }
}

// Half a backward: the piece has weights, so I wants its W.
pipeline.program @half ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  // expected-error@+1 {{no rank runs `W(0, 0)`}}
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> {weights = [#w]}
  pipeline.rank 0 {
    pipeline.launch @s0.F <F stage 0 mb 0>() -> () : () -> ()
    // expected-note@+1 {{`I(0, 0)` runs here, on rank 0}}
    pipeline.launch @s0.I <I stage 0 mb 0>() -> () : () -> ()
    pipeline.launch @s0.U <U stage 0>() -> () : () -> ()
  }
}

// The other half alone.
pipeline.program @other_half ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  // expected-error@+1 {{no rank runs `I(0, 0)`}}
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> {weights = [#w]}
  pipeline.rank 0 {
    pipeline.launch @s0.F <F stage 0 mb 0>() -> () : () -> ()
    // expected-note@+1 {{`W(0, 0)` runs here, on rank 0}}
    pipeline.launch @s0.W <W stage 0 mb 0>() -> () : () -> ()
    pipeline.launch @s0.U <U stage 0>() -> () : () -> ()
  }
}

// A backward and a half.
pipeline.program @one_and_a_half ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> {weights = [#w]}
  pipeline.rank 0 {
    pipeline.launch @s0.F <F stage 0 mb 0>() -> () : () -> ()
    // expected-note@+1 {{`B` runs here, on rank 0}}
    pipeline.launch @s0.B <B stage 0 mb 0>() -> () : () -> ()
    // expected-error@+1 {{`W(0, 0)` runs beside `B(0, 0)`, which is both `I` and `W`}}
    pipeline.launch @s0.W <W stage 0 mb 0>() -> () : () -> ()
    pipeline.launch @s0.U <U stage 0>() -> () : () -> ()
  }
}

// Weights that nobody updates.
func.func private @s0.norm() attributes {pipeline.body = #pipeline.body<"s0" U norm>}
pipeline.program @frozen ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  // expected-error@+1 {{no rank updates the weights of stage 0}}
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> {weights = [#w]}
  pipeline.rank 0 {
    pipeline.launch @s0.F <F stage 0 mb 0>() -> () : () -> ()
    pipeline.launch @s0.B <B stage 0 mb 0>() -> () : () -> ()
    pipeline.launch @s0.norm <U stage 0>() -> () : () -> ()
  }
}

// And weights that two ranks update.
pipeline.program @two_updates ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> {weights = [#w]}
  pipeline.rank 0 {
    pipeline.launch @s0.F <F stage 0 mb 0>() -> () : () -> ()
    pipeline.launch @s0.B <B stage 0 mb 0>() -> () : () -> ()
    // expected-note@+1 {{first here}}
    pipeline.launch @s0.U <U stage 0>() -> () : () -> ()
  }
  pipeline.rank 1 {
    // expected-error@+1 {{`U(0)` runs twice, on rank 1 and before that on rank 0}}
    pipeline.launch @s0.U <U stage 0>() -> () : () -> ()
  }
}

pipeline.program @never_slice ranks 1 microbatches 1 slices 2 attributes {train = {}} {
  // expected-error@+1 {{no rank runs `F(0, 0, 1)`}}
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]>
  pipeline.rank 0 {
    pipeline.launch @s0.F <F stage 0 mb 0 slice 0>() -> () : () -> ()
    pipeline.launch @s0.B <B stage 0 mb 0 slice 0>() -> () : () -> ()
    // expected-note@+1 {{`B(0, 0, 1)` runs here, on rank 0}}
    pipeline.launch @s0.B <B stage 0 mb 0 slice 1>() -> () : () -> ()
  }
}

// A forward that is cut at its attention ends before it.
func.func private @s0.F.step.0of2.all.0() attributes {pipeline.body = #pipeline.body<"s0" F slice 0 step 0 of 2>}
func.func private @s0.F.step.1of2.0to1.0() attributes {pipeline.body = #pipeline.body<"s0" F slice 0 step 1 of 2 keys [0]>}
pipeline.program @half_a_unit ranks 1 microbatches 1 slices 1 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]>
  pipeline.rank 0 {
    // expected-error@+1 {{`F(0, 0, 0)` on rank 0 runs in 2 steps, but step 1 does not run there}}
    pipeline.launch @s0.F.step.0of2.all.0 <F stage 0 mb 0 slice 0>() -> () : () -> ()
    pipeline.launch @s0.B.0 <B stage 0 mb 0 slice 0>() -> () : () -> ()
  }
}

// Its second step belongs to another way to cut it.
pipeline.program @other_cut ranks 1 microbatches 1 slices 1 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]>
  pipeline.rank 0 {
    // expected-error@+1 {{`F(0, 0, 0)` on rank 0 runs in 2 steps, but step 1 does not run there}}
    pipeline.launch @s0.F.step.0of2.all.0 <F stage 0 mb 0 slice 0>() -> () : () -> ()
    // expected-note@+1 {{`@s0.F.step.1of2.0to1.0` runs here, on rank 0}}
    pipeline.launch @s0.F.step.1of2.0to1.0 <F stage 0 mb 0 slice 0>() -> () : () -> ()
    pipeline.launch @s0.B.0 <B stage 0 mb 0 slice 0>() -> () : () -> ()
  }
}
