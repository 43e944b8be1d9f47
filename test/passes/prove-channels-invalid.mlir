// Rank programs whose ends of a channel disagree: one defect each.
// RUN: pp-opt %s --split-input-file --pp-prove-channels --verify-diagnostics

!s = !pipeline.slot<tuple<tensor<16xf32>>>

// Two receives in the wrong order: a lane carries no names, so microbatch 1 would take what belongs to 0.
pipeline.program @p ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    %a = pipeline.slot act "a" : !s
    // expected-error@+1 {{message 0 from rank 0 to rank 1 is `act(0, 0)`, and the receiver expects `act(0, 1)`}}
    %0 = pipeline.post send <act stage 0 mb 0> %a with [1] channel 1 : !s
    %1 = pipeline.post send <act stage 0 mb 1> %a with [1] channel 1 : !s
  }
  pipeline.rank 1 {
    %a = pipeline.slot act "a" : !s
    %b = pipeline.slot act "b" : !s
    // expected-note@+1 {{received here}}
    %0 = pipeline.post receive <act stage 0 mb 1> %a with [0] channel 1 : !s
    %1 = pipeline.post receive <act stage 0 mb 0> %b with [0] channel 1 : !s
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>

// The second message is dropped by its receiver.
pipeline.program @p ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    %a = pipeline.slot act "a" : !s
    %0 = pipeline.post send <act stage 0 mb 0> %a with [1] channel 1 : !s
    // expected-error@+1 {{rank 0 sends `act(0, 1)`, and rank 1 never posts a receive for it}}
    %1 = pipeline.post send <act stage 0 mb 1> %a with [1] channel 1 : !s
  }
  pipeline.rank 1 {
    %a = pipeline.slot act "a" : !s
    %0 = pipeline.post receive <act stage 0 mb 0> %a with [0] channel 1 : !s
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>

// And by its sender.
pipeline.program @p ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    %a = pipeline.slot act "a" : !s
    %0 = pipeline.post send <act stage 0 mb 0> %a with [1] channel 1 : !s
  }
  pipeline.rank 1 {
    %a = pipeline.slot act "a" : !s
    %0 = pipeline.post receive <act stage 0 mb 0> %a with [0] channel 1 : !s
    // expected-error@+1 {{rank 1 waits for `act(0, 1)`, which rank 0 never sends}}
    %1 = pipeline.post receive <act stage 0 mb 1> %a with [0] channel 1 : !s
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>

// Sent and received on different channels.
pipeline.program @p ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    %a = pipeline.slot act "a" : !s
    // expected-error@+1 {{rank 0 sends `act(0, 0)`, and rank 1 never posts a receive for it}}
    %0 = pipeline.post send <act stage 0 mb 0> %a with [1] channel 1 : !s
  }
  pipeline.rank 1 {
    %a = pipeline.slot act "a" : !s
    %0 = pipeline.post receive <act stage 0 mb 0> %a with [0] channel 3 : !s
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>
!half = !pipeline.slot<tuple<tensor<8xf32>>>

// The same thing in two sizes.
pipeline.program @p ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    %a = pipeline.slot act "a" : !s
    // expected-error@+1 {{message 0 from rank 0 to rank 1 is `act(0, 0)` as `tuple<tensor<16xf32>>`, and the receiver expects `act(0, 0)` as `tuple<tensor<8xf32>>`}}
    %0 = pipeline.post send <act stage 0 mb 0> %a with [1] channel 1 : !s
  }
  pipeline.rank 1 {
    %a = pipeline.slot act "a" : !half
    // expected-note@+1 {{received here}}
    %0 = pipeline.post receive <act stage 0 mb 0> %a with [0] channel 1 : !half
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>

// A member that does not join a sum.
pipeline.program @p ranks 3 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    %n = pipeline.slot act "n" : !s
    // expected-error@+1 {{rank 0 joins the sum of `stat(norm)`, and rank 2 never does}}
    %0 = pipeline.post all_reduce <stat part "norm"> %n with [0, 1, 2] channel 9 : !s
  }
  pipeline.rank 1 {
    %n = pipeline.slot act "n" : !s
    %0 = pipeline.post all_reduce <stat part "norm"> %n with [0, 1, 2] channel 9 : !s
  }
  pipeline.rank 2 {
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>

// A member that joins more often than the others.
pipeline.program @p ranks 3 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    %n = pipeline.slot act "n" : !s
    %0 = pipeline.post all_reduce <stat part "norm"> %n with [0, 1, 2] channel 9 : !s
  }
  pipeline.rank 1 {
    %n = pipeline.slot act "n" : !s
    %0 = pipeline.post all_reduce <stat part "norm"> %n with [0, 1, 2] channel 9 : !s
    // expected-error@+1 {{rank 1 joins the sum of `stat(norm)`, and rank 0 never does}}
    %1 = pipeline.post all_reduce <stat part "norm"> %n with [0, 1, 2] channel 9 : !s
  }
  pipeline.rank 2 {
    %n = pipeline.slot act "n" : !s
    %0 = pipeline.post all_reduce <stat part "norm"> %n with [0, 1, 2] channel 9 : !s
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>

// Members that sum different things.
pipeline.program @p ranks 3 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    %n = pipeline.slot act "n" : !s
    // expected-error@+1 {{rank 0 joins the sum of `stat(norm)`, where rank 1 joins the sum of `stat(loss)`}}
    %0 = pipeline.post all_reduce <stat part "norm"> %n with [0, 1, 2] channel 9 : !s
  }
  pipeline.rank 1 {
    %n = pipeline.slot act "n" : !s
    // expected-note@+1 {{joined here}}
    %0 = pipeline.post all_reduce <stat part "loss"> %n with [0, 1, 2] channel 9 : !s
  }
  pipeline.rank 2 {
    %n = pipeline.slot act "n" : !s
    %0 = pipeline.post all_reduce <stat part "norm"> %n with [0, 1, 2] channel 9 : !s
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>

// Members that expect the sum on different ranks.
pipeline.program @p ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    %g = pipeline.slot grad "g" : !s
    // expected-error@+1 {{rank 0 joins the sum of `grad(0)` on rank 0, where rank 1 joins the sum of `grad(0)` on rank 1}}
    %0 = pipeline.post reduce <grad stage 0> %g with [0, 1] root 0 channel 4 : !s
  }
  pipeline.rank 1 {
    %g = pipeline.slot grad "g" : !s
    // expected-note@+1 {{joined here}}
    %0 = pipeline.post reduce <grad stage 0> %g with [0, 1] root 1 channel 4 : !s
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>

// One sums where the other hands out; both are on the lane of the group, whatever they do there.
pipeline.program @p ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    %g = pipeline.slot weight "w" : !s
    // expected-error@+1 {{rank 0 joins the broadcast of `weight(0)` from rank 0, where rank 1 joins the sum of `weight(0)` on every rank}}
    %0 = pipeline.post broadcast <weight stage 0> %g with [0, 1] root 0 channel 4 : !s
  }
  pipeline.rank 1 {
    %g = pipeline.slot weight "w" : !s
    // expected-note@+1 {{joined here}}
    %0 = pipeline.post all_reduce <weight stage 0> %g with [0, 1] channel 4 : !s
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>

// Two broadcasts in different orders.
pipeline.program @p ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    %v = pipeline.slot weight "v" : !s
    %w = pipeline.slot weight "w" : !s
    // expected-error@+1 {{rank 0 joins the broadcast of `weight(0)`, where rank 1 joins the broadcast of `weight(1)`}}
    %0 = pipeline.post broadcast <weight stage 0> %v with [0, 1] root 0 channel 4 : !s
    %1 = pipeline.post broadcast <weight stage 1> %w with [0, 1] root 0 channel 4 : !s
  }
  pipeline.rank 1 {
    %v = pipeline.slot weight "v" : !s
    %w = pipeline.slot weight "w" : !s
    // expected-note@+1 {{joined here}}
    %0 = pipeline.post broadcast <weight stage 1> %v with [0, 1] root 0 channel 4 : !s
    %1 = pipeline.post broadcast <weight stage 0> %w with [0, 1] root 0 channel 4 : !s
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>

// A device would be in two groups of one channel: with the other rank, and with its replicas.
pipeline.program @p ranks 2 microbatches 2 slices 0 attributes {train = {}, mesh = #pipeline.mesh<tensor 1, context 1, data 2, pipeline 2>} {
  pipeline.rank 0 {
    %a = pipeline.slot grad "a" : !s
    // expected-note@+1 {{first here}}
    %0 = pipeline.post all_reduce <grad stage 0> %a with [0, 1] channel 4 : !s
    // expected-error@+1 {{`grad(0)` goes over data on channel 4, where `grad(0)` goes among ranks}}
    %1 = pipeline.post all_reduce <grad stage 0> %a with [0] over <data> tensors 1 channel 4 : !s
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>

// On this channel the devices of the rank meet inside units.
pipeline.program @p ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    %a = pipeline.slot grad "a" : !s
    // expected-error@+1 {{`grad(0)` goes on channel 1073741825; those from 1073741824 on are for what devices of a rank exchange inside units}}
    %0 = pipeline.post all_reduce <grad stage 0> %a with [0, 1] channel 1073741825 : !s
  }
}

// -----

!x = tensor<16xf32>
!s = !pipeline.slot<tuple<!x>>

func.func private @f(%x: !x) -> !x attributes {
    pipeline.inputs = #pipeline.groups<act x 1>, pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  // expected-error@+1 {{has 4 members over tensor, which has 2 devices}}
  %y = nn.all_gather %x over <tensor> {dim = 0 : i64, members = 4 : i64} : (!x) -> tensor<64xf32>
  %z = nn.piece %y {index = 0 : i64, of = 4 : i64} : (tensor<64xf32>) -> !x
  return %z : !x
}

// As many come together as the mesh has.
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 {
    %a = pipeline.slot act "a" : !s
    %b = pipeline.slot act "b" : !s
    pipeline.launch @f <F stage 0 mb 0>(%a) -> (%b) : (!s) -> (!s)
  }
}

// -----

!x = tensor<16xf32>
!s = !pipeline.slot<tuple<!x>>

func.func private @f(%x: !x) -> !x attributes {
    pipeline.inputs = #pipeline.groups<act x 1>, pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  // expected-error@+1 {{goes over tensor, and this program has no mesh}}
  %y = nn.all_reduce %x over <tensor> : (!x) -> !x
  return %y : !x
}

// There is nobody to meet.
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 {
    %a = pipeline.slot act "a" : !s
    %b = pipeline.slot act "b" : !s
    pipeline.launch @f <F stage 0 mb 0>(%a) -> (%b) : (!s) -> (!s)
  }
}
