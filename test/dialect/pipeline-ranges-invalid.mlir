// What the verifiers of programs, pieces, actions and ranks refuse: numbers that do not exist, and ops of another level.
// RUN: pp-opt %s --split-input-file --verify-diagnostics

// A program has ranks and microbatches ..
// expected-error@+1 {{has 0 ranks; expected at least 1}}
pipeline.program @p ranks 0 microbatches 1 slices 0 attributes {train = {}} {
}

// -----

// expected-error@+1 {{has 0 microbatches; expected at least 1}}
pipeline.program @p ranks 1 microbatches 0 slices 0 attributes {train = {}} {
}

// -----

// expected-error@+1 {{has -1 slices; expected at least 0}}
pipeline.program @p ranks 1 microbatches 1 slices -1 attributes {train = {}} {
}

// -----

// .. its updates have equally many of them ..
// expected-error@+1 {{has 2 updates; expected a divisor of its 3 microbatches}}
pipeline.program @p ranks 1 microbatches 3 slices 0 attributes {train = {}, updates = 2 : i64} {
}

// -----

// .. and every slice has a length.
// expected-error@+1 {{has 2 slice lengths for its 3 slices}}
pipeline.program @p ranks 1 microbatches 1 slices 3 attributes {train = {}, slice_lengths = array<i64: 4, 4>} {
}

// -----

// expected-error@+1 {{has the target `tpu`; expected `cpu` or `cuda`}}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, target = "tpu"} {
}

// -----

// expected-error@+1 {{has the cost "long" of `pre`; expected a floating-point number of at least 0}}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, costs = {pre = "long"}} {
}

// -----

// expected-error@+1 {{has the cost -1.000000e+00 : f64 of `pre`; expected a floating-point number of at least 0}}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, costs = {pre = -1.0 : f64}} {
}

// -----

// Not a number: a cost of it would make every comparison of times false.
// expected-error@+1 {{has the cost 0x7FF8000000000000 : f64 of `pre`; expected a floating-point number of at least 0}}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, costs = {pre = 0x7FF8000000000000 : f64}} {
}

// -----

// expected-error@+1 {{has the cost 0x7FF0000000000000 : f64 of `pre`; expected a floating-point number of at least 0}}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, costs = {pre = 0x7FF0000000000000 : f64}} {
}

// -----

// The figures of a cluster are those that the language allows.
// expected-error@+1 {{has the cluster's `device.f32` "fast"; expected a finite number above 0}}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, cluster = {device = {f32 = "fast"}}} {
}

// -----

// expected-error@+1 {{has the cluster's `inside.bandwidth` 0.000000e+00 : f64; expected a finite number above 0}}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, cluster = {inside = {bandwidth = 0.0 : f64}}} {
}

// -----

// expected-error@+1 {{has the cluster's `between.latency` -1.000000e+00 : f64; expected a finite number of seconds of at least 0}}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, cluster = {between = {latency = -1.0 : f64}}} {
}

// -----

// expected-error@+1 {{has the cluster's `between.nics` 1.500000e+00 : f64; expected an int from 1 to 2147483647}}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, cluster = {between = {nics = 1.5 : f64}}} {
}

// -----

// expected-error@+1 {{has the cluster's `efficiency.gemm` 2.000000e+00 : f64; expected a share above 0, up to 1}}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, cluster = {efficiency = {gemm = 2.0 : f64}}} {
}

// -----

// expected-error@+1 {{has the cluster's `ranks_per_node` 0 : i64; expected an int from 1 to 2147483647}}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, cluster = {ranks_per_node = 0 : i64}} {
}

// -----

// expected-error@+1 {{has the cluster's `memory` -5 : i64; expected a number of bytes from 1 to 9e18}}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, cluster = {memory = -5 : i64}} {
}

// -----

// expected-error@+1 {{has the cluster's `memory` array<i64: 8, 0>; expected a number of bytes from 1 to 9e18, or a list of such}}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, cluster = {memory = array<i64: 8, 0>}} {
}

// -----

// expected-error@+1 {{has the cluster's `device.f32` array<f64>; expected a finite number above 0, or a list of such}}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, cluster = {device = {f32 = array<f64>}}} {
}

// -----

// expected-error@+1 {{has 3 numbers in the cluster's `device.f32`; expected 2, one for each device of a node, or a multiple of that}}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, cluster = {device = {f32 = array<f64: 1.0, 2.0, 3.0>}, ranks_per_node = 2 : i64}} {
}

// -----

// expected-error@+1 {{has the cluster's `inside.bandwidth` array<f64: 1.000000e+00, 2.000000e+00>; expected a finite number above 0}}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, cluster = {inside = {bandwidth = array<f64: 1.0, 2.0>}}} {
}

// -----

// expected-error@+1 {{has the cluster's `disk` 5 : i64; expected a `name`, `ranks_per_node`, `memory`, and numbers in `device`, `efficiency`, `inside`, `between` and `host`}}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, cluster = {disk = 5 : i64}} {
}

// -----

// expected-error@+1 {{expected a dictionary of numbers and words for each entry of `proof`}}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, proof = {slots = true}} {
}

// -----

// A program is at one level.
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]>
  // expected-note@+1 {{`pipeline.unit` belongs to actions}}
  pipeline.unit <F stage 0 mb 0> on [0]
  // expected-error@+1 {{`pipeline.rank` belongs to programs of ranks; expected ops of one level in `@p`}}
  pipeline.rank 0 {
  }
}

// -----

// Ops of a rank stand in its program, actions do not.
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  // expected-error@+1 {{expects parent op 'pipeline.rank'}}
  %s = pipeline.slot act "a" : !pipeline.slot<tuple<tensor<2xf32>>>
}

// -----

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    // expected-error@+1 {{expects parent op to be one of 'pipeline.program, pipeline.together'}}
    pipeline.unit <F stage 0 mb 0> on [0]
  }
}

// -----

// A piece has no microbatch, and is there once.
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  // expected-error@+1 {{has a microbatch or a slice; expected the coordinates of a piece alone}}
  pipeline.piece @s0 <stage 0 mb 0> parts [["a", 0]]
}

// -----

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  // expected-note@+1 {{first here}}
  pipeline.piece @s0 <stage 0> parts [["a", 0]]
  // expected-error@+1 {{is declared twice}}
  pipeline.piece @again <stage 0> parts [["a", 1]]
}

// -----

// Pieces stand before units, so that a pass finds them without a look at every unit.
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]]
  // expected-note@+1 {{`pipeline.unit` stands here}}
  pipeline.unit <F stage 0 mb 0> on [0]
  // expected-error@+1 {{stands behind what names pieces; expected all pieces before it}}
  pipeline.piece @s1 <stage 1> parts [["a", 1]]
}

// -----

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  // expected-error@+1 {{is stage -3; stages count from 0}}
  pipeline.piece @s <stage -3> parts [["a", 0]]
}

// -----

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  // expected-error@+1 {{expected [part, layer] in its parts, got ["a"]}}
  pipeline.piece @s0 <stage 0> parts [["a"]]
}

// -----

// Its places are ranks of the program.
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  // expected-error@+1 {{rank 2 does not exist; this schedule has 2 ranks, 0 to 1}}
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> homes <[0, 2]>
}

// -----

pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  // expected-error@+1 {{expected ranks in `owner`, got none}}
  pipeline.piece @s0 <stage 0> parts [["a", 0]] owner <[]>
}

// -----

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  // expected-error@+1 {{'weights' failed to satisfy constraint: weights of a piece}}
  pipeline.piece @s0 <stage 0> parts [["a", 0]] {weights = ["w"]}
}

// -----

// The shards of a part stand next to each other.
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @head0 <part "head" 0> parts [["head.0", -1]] at <[0]> vocabulary <first 0 of tensor<8x4xf32> in 2 shards>
  // expected-error@-1 {{is shard 0 of 2 of its part; expected all of them next to each other, from 0 on}}
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]>
}

// -----

pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  // expected-error@+1 {{a shard that begins with number 9 of 'tensor<8x4xf32>'; expected a row or a column of it}}
  pipeline.piece @head0 <part "head" 0> parts [["head.0", -1]] at <[0]> vocabulary <first 9 of tensor<8x4xf32> in 1 shards>
}

// -----

// A unit runs somewhere, on ranks, microbatches, slices and pieces of its schedule.
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]>
  // expected-error@+1 {{`F(0, 0)` runs on no rank}}
  pipeline.unit <F stage 0 mb 0> on []
}

// -----

pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]>
  // expected-error@+1 {{rank -1 does not exist; this schedule has 2 ranks, 0 to 1}}
  pipeline.unit <F stage 0 mb 0> on [-1]
}

// -----

pipeline.program @p ranks 1 microbatches 4 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]>
  pipeline.together {
    // expected-error@+1 {{microbatch -1 does not exist; this schedule has 4 microbatches, 0 to 3}}
    pipeline.unit <F stage 0> on [0]
  }
}

// -----

pipeline.program @p ranks 1 microbatches 1 slices 2 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]>
  // expected-error@+1 {{slice 2 does not exist; this schedule has 2 slices, 0 to 1}}
  pipeline.unit <F stage 0 mb 0 slice 2> on [0]
}

// -----

pipeline.program @p ranks 1 microbatches 1 slices 2 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]>
  // expected-error@+1 {{`B(0, 0)` names no slice; this schedule has 2 slices, 0 to 1}}
  pipeline.unit <B stage 0 mb 0> on [0]
}

// -----

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]>
  pipeline.together {
    // expected-error@+1 {{`F(attn(2), 0)` names a piece that this schedule does not have}}
    pipeline.unit <F part "attn" 2 mb 0> on [0]
  }
}

// -----

pipeline.program @p ranks 1 microbatches 4 slices 0 attributes {train = {}, updates = 2 : i64} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]>
  // expected-error@+1 {{version 2 does not exist; the last one that a unit may read is 1}}
  pipeline.unit <F stage 0 mb 0> on [0] version 2
}

// -----

// So does a transfer.
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]>
  // expected-error@+1 {{`act(1, 0)` names a piece that this schedule does not have}}
  pipeline.transfer <act stage 1 mb 0> from <[0]> to <[1]> anchors [0]
}

// -----

pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]>
  // expected-error@+1 {{microbatch 1 does not exist; this schedule has 1 microbatch, number 0}}
  pipeline.transfer <act stage 0 mb 1> from <[0]> to <[1]> anchors [0]
}

// -----

pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]>
  // expected-error@+1 {{slice 0 does not exist; this schedule has no slices}}
  pipeline.transfer <kv stage 0 mb 0 slice 0> from <[0]> to <[1]> anchors [0]
}

// -----

pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]>
  // expected-error@+1 {{expected ranks in `to`, got none}}
  pipeline.transfer <act stage 0 mb 0> from <[0]> to <[]> anchors [0]
}

// -----

pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]>
  // expected-error@+1 {{rank 5 does not exist}}
  pipeline.transfer <act stage 0 mb 0> from <[0]> to <[1]> anchors [5]
}

// -----

pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]>
  // expected-error@+1 {{`stash(0, 0)` moves from nowhere; a stash moves from one place to another}}
  pipeline.transfer <stash stage 0 mb 0> to <[0] host> anchors [0]
}

// -----

// Keys are attended in slices that exist.
pipeline.program @p ranks 2 microbatches 1 slices 2 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]>
  // expected-error@+1 {{slice 2 does not exist; this schedule has 2 slices, 0 to 1}}
  pipeline.attend <F stage 0 mb 0 slice 1> over [0, 2] on 1
}

// -----

pipeline.program @p ranks 2 microbatches 1 slices 2 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]>
  // expected-error@+1 {{`F(0, 0, 1)` gets no slices attended here}}
  pipeline.attend <F stage 0 mb 0 slice 1> over [] on 1
}

// -----

pipeline.program @p ranks 2 microbatches 1 slices 2 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]>
  // expected-error@+1 {{rank 2 does not exist}}
  pipeline.attend <F stage 0 mb 0 slice 1> over [0] on 2
}

// -----

pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  // expected-error@+1 {{rank 2 does not exist}}
  pipeline.limit stash 4 on [0, 2]
}

// -----

pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  // expected-error@+1 {{a limit of -1 values; expected 0 or more}}
  pipeline.limit stash -1 on [0]
}

// -----

// The step: inputs of pieces that are there, on ranks that exist.
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  // expected-error@+1 {{`weight(3)` names a piece that this schedule does not have}}
  %w = pipeline.input <weight stage 3> : !pipeline.val<weight, tuple<tensor<2xf32>>, [0]>
}

// -----

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]>
  // expected-error@+1 {{rank 1 does not exist}}
  %w = pipeline.input <weight stage 0> : !pipeline.val<weight, tuple<tensor<2xf32>>, [1]>
}

// -----

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  // expected-error@+1 {{is `data(tokens, 0)`; expected the name of the data for `data`, and for no other}}
  %t = pipeline.input <data part "tokens" mb 0> : !pipeline.val<data, tuple<tensor<2xi32>>, [0]>
}

// -----

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]>
  // expected-error@+1 {{runs on no rank}}
  pipeline.task @f <F stage 0 mb 0> on [] () ties [] : () -> ()
}

// -----

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]>
  // expected-error@+1 {{microbatch 7 does not exist}}
  pipeline.task @f <F stage 0 mb 7> on [0] () ties [] : () -> ()
}

// -----

// Programs of ranks that exist, one for each.
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  // expected-error@+1 {{rank 1 does not exist; this schedule has 1 rank, number 0}}
  pipeline.rank 1 {
  }
}

// -----

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  // expected-note@+1 {{the first is here}}
  pipeline.rank 0 {
  }
  // expected-error@+1 {{is a second program of rank 0}}
  pipeline.rank 0 {
  }
}

// -----

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  // expected-error@+1 {{has arena of -64 bytes; expected 0 to 2305843009213693952}}
  pipeline.rank 0 arena -64 {
  }
}

// -----

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  // expected-error@+1 {{expected bytes for `act` of `peak`, got "many"}}
  pipeline.rank 0 attributes {peak = {act = "many"}} {
  }
}

// -----

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    // expected-error@+1 {{`F(0, 0)` names a piece that this schedule does not have}}
    pipeline.launch @f <F stage 0 mb 0>() -> () : () -> ()
  }
}

// -----

pipeline.program @p ranks 1 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]>
  pipeline.rank 0 {
    // expected-error@+1 {{microbatch 2 does not exist; this schedule has 2 microbatches, 0 to 1}}
    pipeline.launch @f <F stage 0 mb 2>() -> () : () -> ()
  }
}

// -----

pipeline.program @p ranks 1 microbatches 1 slices 2 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]>
  pipeline.rank 0 {
    // expected-error@+1 {{slice 2 does not exist; this schedule has 2 slices, 0 to 1}}
    pipeline.launch @f <F stage 0 mb 0 slice 2>() -> () : () -> ()
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<2xf32>>>

// A message goes to one rank that exists.
pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    %a = pipeline.slot act "a" : !s
    // expected-error@+1 {{rank 2 does not exist}}
    %0 = pipeline.post send <act stage 0 mb 0> %a with [2] : !s
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<2xf32>>>

pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    %a = pipeline.slot act "a" : !s
    // expected-error@+1 {{has 0 peers; expected one}}
    %0 = pipeline.post send <act stage 0 mb 0> %a with [] : !s
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<2xf32>>>

// What a slot is bound to.
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    // expected-error@+1 {{expected what a slot is bound to, got `wieght`}}
    %w = pipeline.slot weight "w" binding <wieght @s0> : !s
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<2xf32>>>

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    // expected-error@+1 {{is bound to @s7, which is no piece of its program}}
    %w = pipeline.slot weight "w" binding <weight @s7> : !s
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<2xf32>>>

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    // expected-error@+1 {{`weight` is bound to no piece}}
    %w = pipeline.slot weight "w" binding <weight> : !s
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<2xf32>>>

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    // expected-error@+1 {{`loss` is bound to no microbatch}}
    %w = pipeline.slot stat "l" binding <loss> : !s
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<2xf32>>>

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    // expected-error@+1 {{`grad` is not saved; weights are}}
    %g = pipeline.slot grad "g" binding <grad @s0 save> : !s
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<2xf32>>>

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    // expected-error@+1 {{`previous` goes back 0 versions; expected 1 or more for `previous`, and 0 for others}}
    %w = pipeline.slot weight "w" binding <previous @s0> : !s
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<2xi32>>>

pipeline.program @p ranks 1 microbatches 1 slices 2 attributes {train = {}} {
  pipeline.rank 0 {
    // expected-error@+1 {{`tokens` is bound to slice 1 from token -1; expected both or none, and both for data only}}
    %t = pipeline.slot data "t" binding <tokens mb 0 slice 1> : !s
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<2xi32>>>

pipeline.program @p ranks 1 microbatches 1 slices 2 attributes {train = {}} {
  pipeline.rank 0 {
    // expected-error@+1 {{`starts` is bound to places 1 ahead; expected 0, or more for tokens and targets}}
    %t = pipeline.slot data "t" binding <starts mb 0 ahead 1> : !s
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<2xi32>>>

pipeline.program @p ranks 1 microbatches 1 slices 2 attributes {train = {}} {
  pipeline.rank 0 {
    // expected-error@+1 {{`column` has number -1; expected 0 or more}}
    %t = pipeline.slot data "t" binding <column mb 0 number -1> : !s
  }
}

// -----

// Attributes of task functions.
// expected-error@+1 {{expected `#pipeline.groups<..>` in `pipeline.inputs`, got ["act"]}}
func.func private @f(tensor<2xf32>) attributes {pipeline.inputs = ["act"]}

// -----

// expected-error@+1 {{expected what a group holds, as `act`, `weight` or `kv`, got `mood`}}
func.func private @f(tensor<2xf32>) attributes {pipeline.inputs = #pipeline.groups<weight x 1, mood x 1>}

// -----

// expected-error@+1 {{expected numbers of 0 or more in a group, got -2, -1}}
func.func private @f(tensor<2xf32>) attributes {pipeline.inputs = #pipeline.groups<kv[-2] x 1>}

// -----

// expected-error@+1 {{expected a number of tensors in a group, got -1}}
func.func private @f(tensor<2xf32>) attributes {pipeline.inputs = #pipeline.groups<act x -1>}

// -----

// expected-error@+1 {{expected numbers in `pipeline.ties`, got [-1]}}
func.func private @f(tensor<2xf32>) attributes {pipeline.ties = [-1]}

// -----

// expected-error@+1 {{expected a floating-point number in `pipeline.flops`, got "many"}}
func.func private @f(tensor<2xf32>) attributes {pipeline.flops = "many"}

// -----

// expected-error@+1 {{expected bytes, 0 or more, in `pipeline.scratch_bytes`, got -1}}
func.func private @f(tensor<2xf32>) attributes {pipeline.scratch_bytes = -1 : i64}

// -----

// expected-error@+1 {{expected `#pipeline.body<..>` in `pipeline.body`, got "s0.F"}}
func.func private @f(tensor<2xf32>) attributes {pipeline.body = "s0.F"}

// -----

// expected-error@+1 {{has `pipeline.mood`, which is no attribute of this dialect}}
func.func private @f(tensor<2xf32>) attributes {pipeline.mood = 1 : i64}

// -----

func.func private @f(%x: tensor<2xf32>) -> tensor<2xf32> {
  // expected-error@+1 {{expected a pointer and an offset for each result in `pipeline.buffers`, got array<i64: 1>}}
  %y = nn.copy %x {pipeline.buffers = array<i64: 1>} : (tensor<2xf32>) -> tensor<2xf32>
  return %y : tensor<2xf32>
}

// -----

func.func private @f(%x: tensor<2xf32>) -> tensor<2xf32> {
  // expected-error@+1 {{expected nothing in `pipeline.overlaps`, got 1 : i64}}
  %y = nn.copy %x {pipeline.overlaps = 1 : i64} : (tensor<2xf32>) -> tensor<2xf32>
  return %y : tensor<2xf32>
}

// -----

func.func private @f(%x: tensor<2xf32>) -> tensor<2xf32> {
  // expected-error@+1 {{has `pipeline.overlaps`, which is of an op that computes}}
  %y = nn.all_reduce %x over <tensor> {pipeline.overlaps} : (tensor<2xf32>) -> tensor<2xf32>
  return %y : tensor<2xf32>
}

// -----

// Passes have tables of ranks, microbatches, slices, and of all slices of microbatches of pieces: a text may not ask for
// more than any program has units.
// expected-error@+1 {{has 2147483648 microbatches; expected at most 20000000}}
pipeline.program @p ranks 1 microbatches 2147483648 slices 0 attributes {train = {}} {
}

// -----

// expected-error@+1 {{has 9223372036854775807 slices; expected at most 20000000}}
pipeline.program @p ranks 1 microbatches 1 slices 9223372036854775807 attributes {train = {}} {
}

// -----

// expected-error@+1 {{has 20000001 ranks; expected at most 20000000}}
pipeline.program @p ranks 20000001 microbatches 1 slices 0 attributes {train = {}} {
}

// -----

// expected-error@+1 {{has 2 pieces, 20000 microbatches and 1000 slices; expected at most 20000000 slices of microbatches of pieces}}
pipeline.program @p ranks 1 microbatches 20000 slices 1000 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]>
  pipeline.piece @s1 <stage 1> parts [["a", 1]] at <[0]>
}

// -----

// The end of a slot or of a tensor in it must be a number, whatever the arena has.
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    // expected-error@+1 {{stands at byte 9223372036854775807; expected 0 to 2305843009213693952}}
    %s = pipeline.slot act "a" offset 9223372036854775807 : !pipeline.slot<tuple<tensor<16xf32>>>
  }
}

// -----

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    // expected-error@+1 {{stands at byte -64; expected 0 to 2305843009213693952}}
    %s = pipeline.slot act "a" places [-64] : !pipeline.slot<tuple<tensor<16xf32>>>
  }
}

// -----

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  // expected-error@+1 {{has host memory of 9223372036854775807 bytes; expected 0 to 2305843009213693952}}
  pipeline.rank 0 arena 64 host 9223372036854775807 {
  }
}

// -----

// What a cut unit's parts take must add up to the unit.
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]>
  pipeline.rank 0 {
    // expected-error@+1 {{does the share -1.000000e+00 : f64 of its unit; expected 0 to 1}}
    pipeline.launch @s0.F <F stage 0 mb 0>() -> () share -1.0 : () -> ()
  }
}

// -----

// The number of a device is a product of sizes.
// expected-error@+1 {{the mesh has more than 20000000 devices, the most that one may have}}
#mesh = #pipeline.mesh<tensor 1, context 9223372036854775807, data 2, pipeline 1>
