// Attentions whose parts have the keys of a slice twice, not at all, or come from another unit: one defect each.
// RUN: pp-opt %s --pp-prove-values --verify-diagnostics

!t = tensor<4xf32>
!s = !pipeline.slot<tuple<!t>>

func.func private @s0.F.0() -> !t attributes {
  pipeline.body = #pipeline.body<"s0" F slice 0>,
  pipeline.inputs = #pipeline.groups<>, pipeline.results = #pipeline.groups<kv[0, 0] x 1>, pipeline.ties = array<i64: -1>}
func.func private @s0.F.1() -> !t attributes {
  pipeline.body = #pipeline.body<"s0" F slice 1>,
  pipeline.inputs = #pipeline.groups<>, pipeline.results = #pipeline.groups<kv[1, 0] x 1>, pipeline.ties = array<i64: -1>}
func.func private @s0.F.step.0of2.0to1.2() -> (!t, !t) attributes {
  pipeline.body = #pipeline.body<"s0" F slice 2 step 0 of 2 keys [0]>,
  pipeline.inputs = #pipeline.groups<>, pipeline.results = #pipeline.groups<kv[2, 0] x 1, query[0] x 1>, pipeline.ties = array<i64: -1, -1>}
func.func private @s0.F.part.0.rest.0to1.2(!t, !t, !t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" F slice 2 rest 0 keys [0]>,
  pipeline.inputs = #pipeline.groups<query[0] x 1, kv[1, 0] x 1, kv[2, 0] x 1>, pipeline.results = #pipeline.groups<part[0] x 1>,
  pipeline.ties = array<i64: -1>}
func.func private @s0.F.part.0.0to1.2(!t, !t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" F slice 2 part 0 keys [0]>,
  pipeline.inputs = #pipeline.groups<query[0] x 1, kv[0, 0] x 1>, pipeline.results = #pipeline.groups<part[0] x 1>, pipeline.ties = array<i64: -1>}
func.func private @s0.F.part.0.0to2.2(!t, !t, !t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" F slice 2 part 0 keys [0, 1]>,
  pipeline.inputs = #pipeline.groups<query[0] x 1, kv[0, 0] x 1, kv[1, 0] x 1>, pipeline.results = #pipeline.groups<part[0] x 1>,
  pipeline.ties = array<i64: -1>}
func.func private @s0.F.step.1of2.0to1.2(!t, !t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" F slice 2 step 1 of 2 keys [0]>,
  pipeline.inputs = #pipeline.groups<part[0, 0] x 1, part[0, 1] x 1>, pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>}
func.func private @s0.F.light.step.1of2.0to1.2(!t) -> !t attributes {
  pipeline.body = #pipeline.body<"s0" F light slice 2 step 1 of 2 keys [0]>,
  pipeline.inputs = #pipeline.groups<part[0, 0] x 1>, pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>}

// As it should be.
pipeline.program @right ranks 1 microbatches 1 slices 3 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0"
  pipeline.rank 0 {
    %k0 = pipeline.slot kv "k0" : !s
    %k1 = pipeline.slot kv "k1" : !s
    %k2 = pipeline.slot kv "k2" : !s
    %q = pipeline.slot query "q" : !s
    %a = pipeline.slot part "a" : !s
    %b = pipeline.slot part "b" : !s
    %y = pipeline.slot act "y" : !s
    pipeline.launch @s0.F.0 <F stage 0 mb 0 slice 0>() -> (%k0) : () -> !s
    pipeline.launch @s0.F.1 <F stage 0 mb 0 slice 1>() -> (%k1) : () -> !s
    pipeline.launch @s0.F.step.0of2.0to1.2 <F stage 0 mb 0 slice 2>() -> (%k2, %q) : () -> (!s, !s)
    pipeline.launch @s0.F.part.0.rest.0to1.2 <F stage 0 mb 0 slice 2>(%q, %k1, %k2) -> (%a) : (!s, !s, !s) -> !s
    pipeline.launch @s0.F.part.0.0to1.2 <F stage 0 mb 0 slice 2>(%q, %k0) -> (%b) : (!s, !s) -> !s
    pipeline.launch @s0.F.step.1of2.0to1.2 <F stage 0 mb 0 slice 2>(%a, %b) -> (%y) : (!s, !s) -> !s
  }
}

// The helper attends a slice too many, which stays as well.
pipeline.program @too_many ranks 1 microbatches 1 slices 3 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0"
  pipeline.rank 0 {
    %k0 = pipeline.slot kv "k0" : !s
    %k1 = pipeline.slot kv "k1" : !s
    %k2 = pipeline.slot kv "k2" : !s
    %q = pipeline.slot query "q" : !s
    %a = pipeline.slot part "a" : !s
    %b = pipeline.slot part "b" : !s
    %y = pipeline.slot act "y" : !s
    pipeline.launch @s0.F.0 <F stage 0 mb 0 slice 0>() -> (%k0) : () -> !s
    pipeline.launch @s0.F.1 <F stage 0 mb 0 slice 1>() -> (%k1) : () -> !s
    pipeline.launch @s0.F.step.0of2.0to1.2 <F stage 0 mb 0 slice 2>() -> (%k2, %q) : () -> (!s, !s)
    pipeline.launch @s0.F.part.0.rest.0to1.2 <F stage 0 mb 0 slice 2>(%q, %k1, %k2) -> (%a) : (!s, !s, !s) -> !s
    pipeline.launch @s0.F.part.0.0to2.2 <F stage 0 mb 0 slice 2>(%q, %k0, %k1) -> (%b) : (!s, !s, !s) -> !s
    // expected-error@+1 {{`F(0, 0, 2)` on rank 0 merges parts of its attention that have the keys of slice 1 twice}}
    pipeline.launch @s0.F.step.1of2.0to1.2 <F stage 0 mb 0 slice 2>(%a, %b) -> (%y) : (!s, !s) -> !s
  }
}

// The helper's part stands where that of the keys that stay belongs.
pipeline.program @exchanged ranks 1 microbatches 1 slices 3 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0"
  pipeline.rank 0 {
    %k0 = pipeline.slot kv "k0" : !s
    %k1 = pipeline.slot kv "k1" : !s
    %k2 = pipeline.slot kv "k2" : !s
    %q = pipeline.slot query "q" : !s
    %a = pipeline.slot part "a" : !s
    %b = pipeline.slot part "b" : !s
    %y = pipeline.slot act "y" : !s
    pipeline.launch @s0.F.0 <F stage 0 mb 0 slice 0>() -> (%k0) : () -> !s
    pipeline.launch @s0.F.1 <F stage 0 mb 0 slice 1>() -> (%k1) : () -> !s
    pipeline.launch @s0.F.step.0of2.0to1.2 <F stage 0 mb 0 slice 2>() -> (%k2, %q) : () -> (!s, !s)
    pipeline.launch @s0.F.part.0.rest.0to1.2 <F stage 0 mb 0 slice 2>(%q, %k1, %k2) -> (%a) : (!s, !s, !s) -> !s
    pipeline.launch @s0.F.part.0.0to1.2 <F stage 0 mb 0 slice 2>(%q, %k0) -> (%b) : (!s, !s) -> !s
    // expected-error@+1 {{`F(0, 0, 2)` on rank 0 merges parts of its attention that have the keys of slice 0 where others belong}}
    pipeline.launch @s0.F.step.1of2.0to1.2 <F stage 0 mb 0 slice 2>(%b, %a) -> (%y) : (!s, !s) -> !s
  }
}

// The step reads the part of the keys that stay alone.
pipeline.program @lost ranks 1 microbatches 1 slices 3 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0"
  pipeline.rank 0 {
    %k1 = pipeline.slot kv "k1" : !s
    %k2 = pipeline.slot kv "k2" : !s
    %q = pipeline.slot query "q" : !s
    %a = pipeline.slot part "a" : !s
    %y = pipeline.slot act "y" : !s
    pipeline.launch @s0.F.1 <F stage 0 mb 0 slice 1>() -> (%k1) : () -> !s
    pipeline.launch @s0.F.step.0of2.0to1.2 <F stage 0 mb 0 slice 2>() -> (%k2, %q) : () -> (!s, !s)
    pipeline.launch @s0.F.part.0.rest.0to1.2 <F stage 0 mb 0 slice 2>(%q, %k1, %k2) -> (%a) : (!s, !s, !s) -> !s
    // expected-error@+1 {{`F(0, 0, 2)` on rank 0 merges parts of its attention that have the keys of slice 0 in none of them}}
    pipeline.launch @s0.F.light.step.1of2.0to1.2 <F stage 0 mb 0 slice 2>(%a) -> (%y) : (!s) -> !s
  }
}
