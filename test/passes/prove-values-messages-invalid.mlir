// Messages that carry what they do not say: one defect each.
// RUN: pp-opt %s --pp-prove-values --verify-diagnostics

!t = tensor<4xf32>
!s = !pipeline.slot<tuple<!t>>
#w = #pipeline.weight<"w" : !t declared <"w" zero>>

func.func private @s0.F(!t) -> (!t, !t) attributes {
  pipeline.body = #pipeline.body<"s0" F>,
  pipeline.inputs = #pipeline.groups<weight x 1>, pipeline.results = #pipeline.groups<act x 1, stash x 1>, pipeline.ties = array<i64: -1, -1>}

// The slot of one message posted as another.
pipeline.program @wrong_send ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %a = pipeline.slot act "a" : !s
    %k = pipeline.slot stash "k" : !s
    // expected-note@+1 {{`act(0, 0)` was made here, by `F(0, 0)` on rank 0}}
    pipeline.launch @s0.F <F stage 0 mb 0>(%w) -> (%a, %k) : (!s) -> (!s, !s)
    // expected-error@+1 {{rank 0 sends `act(0, 0)` as `act(0, 1)`}}
    %0 = pipeline.post send <act stage 0 mb 1> %a with [1] : !s
  }
  pipeline.rank 1 {
    %a = pipeline.slot act "a" : !s
    %0 = pipeline.post receive <act stage 0 mb 1> %a with [0] : !s
  }
}

// Sent before it is made.
pipeline.program @early_send ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %a = pipeline.slot act "a" : !s
    %k = pipeline.slot stash "k" : !s
    // expected-error@+1 {{rank 0 sends `act(0, 0)` before anything has written it}}
    %0 = pipeline.post send <act stage 0 mb 0> %a with [1] : !s
    pipeline.launch @s0.F <F stage 0 mb 0>(%w) -> (%a, %k) : (!s) -> (!s, !s)
  }
  pipeline.rank 1 {
    %a = pipeline.slot act "a" : !s
    %0 = pipeline.post receive <act stage 0 mb 0> %a with [0] : !s
  }
}

// Passed on before it has arrived.
pipeline.program @early_relay ranks 3 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" binding <weight @s0> : !s
    %0 = pipeline.post send <weight stage 0> %w with [1] : !s
  }
  pipeline.rank 1 {
    %v = pipeline.slot weight "v" : !s
    %0 = pipeline.post receive <weight stage 0> %v with [0] : !s
    // expected-error@+1 {{rank 1 sends `weight(0)` before it has arrived}}
    %1 = pipeline.post send <weight stage 0> %v with [2] : !s
    pipeline.complete %0
  }
  pipeline.rank 2 {
    %v = pipeline.slot weight "v" : !s
    %0 = pipeline.post receive <weight stage 0> %v with [1] : !s
  }
}

// Ranks that wait for each other: what they hold is decided by nobody.
pipeline.program @stuck ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    %a = pipeline.slot act "a" : !s
    // expected-error@+1 {{rank 0 waits for `act(0, 0)` for ever; prove-progress tells why}}
    %0 = pipeline.post receive <act stage 0 mb 0> %a with [1] : !s
    pipeline.complete %0
  }
  pipeline.rank 1 {
  }
}

// A gather of two shards where one rank gives the other's.
!half = !pipeline.slot<tuple<tensor<32xf32>>>
!whole = !pipeline.slot<tuple<tensor<64xf32>>>
#v = #pipeline.weight<"v" : tensor<64xf32> declared <"v" zero>>
pipeline.program @wrong_shard ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] homes <[0, 1] shard> owner <[0, 1] shard> bodies "s0" {weights = [#v]}
  pipeline.rank 0 {
    %v = pipeline.slot weight "v" binding <weight @s0 shard 0> : !half
    %w = pipeline.slot weight "w" : !whole
    %0 = pipeline.post all_gather <weight stage 0> %w shard %v with [0, 1] cuts [0, 128, 256] : !whole shard !half
    pipeline.complete %0
  }
  pipeline.rank 1 {
    // expected-note@+1 {{shard 0 of `weight(0)` is there when the step begins}}
    %v = pipeline.slot weight "v" binding <weight @s0 shard 0> : !half
    %w = pipeline.slot weight "w" : !whole
    // expected-error@+1 {{rank 1 gives shard 0 of `weight(0)` to the gather of `weight(0)`}}
    %0 = pipeline.post all_gather <weight stage 0> %w shard %v with [0, 1] cuts [0, 128, 256] : !whole shard !half
    pipeline.complete %0
  }
}
